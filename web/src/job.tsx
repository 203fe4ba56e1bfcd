// One job: its memory against request and limit, when it was asked to give back, and why.

import { useEffect, useState } from "preact/hooks";
import { JobActions } from "./actions";
import { type Happening, isOurs, type Job, type JobGpu, mayWrite, Refused, type Story } from "./api";
import { UsageBar } from "./bar";
import { Chart, type Mark, PRESENT } from "./chart";
import { TONES } from "./events";
import { bytes, clock, count, duration, moment, share } from "./format";
import { Ranges, State } from "./node";
import { Empty, Panel } from "./panel";
import { report } from "./report";
import { source } from "./source";
import { store, useStore } from "./store";
import { useNow, useRange, windowOf } from "./window";

const MARKED = ["trim", "term", "kill", "relieved", "claim_waits", "claim_met", "breach", "suspend", "suspended", "not_suspended", "resumed", "hook_gave", "hook_failed", "awake", "idle_gave"];

const ID = /^[0-9a-f]{16}$/;

type Told = { job: Job; story: Happening[]; waiting: Story["waiting"] } | Refused | null;

/** Its story while it may be read, else what the node's list says of it; asked again when something happens to it. */
function useTold(id: string): Told {
  useStore();
  const [told, setTold] = useState<Told>(null);
  const last = store.happenings.findLast((one) => one.job === id)?.time ?? 0;
  const living = store.jobs.get(id);
  const alive = living !== undefined;
  const ours = living === undefined || isOurs(living);
  const live = store.phase === "live";
  useEffect(() => {
    let wanted = true;
    const keep = (found: Told) => wanted && setTold(found);
    if (!ID.test(id)) keep(new Refused(404, "no_such_job", "no id"));
    else if (live)
      (ours ? source.story(id) : source.job(id).then((job) => ({ job, story: [], waiting: [] }))).then(keep, (error: Refused) =>
        error.status === 403 ? source.job(id).then((job) => keep({ job, story: [], waiting: [] }), keep) : keep(error),
      );
    return () => {
      wanted = false;
    };
  }, [id, last, alive, ours, live]);
  return told;
}

export function JobView({ id }: { id: string }) {
  const told = useTold(id);
  const [range, setRange] = useRange();
  const [opened, setOpened] = useState<number | null>(null);
  if (told === null) return <Empty>Reading the job…</Empty>;
  if (told instanceof Refused && told.status === 404)
    return (
      <Empty>
        {report ? `This report does not have job ${id}.` : `This node knows no job ${id}.`}{" "}
        <a href="#/">Back to the node</a>
      </Empty>
    );
  if (told instanceof Refused && !store.jobs.has(id)) return <Empty>{told.message}</Empty>;
  const job = store.jobs.get(id) ?? (told as Story).job;
  const { story, waiting } = told instanceof Refused ? { story: [], waiting: [] } : told;
  const marks = story
    .filter((one) => MARKED.includes(one.event))
    .map((one): Mark & { gpu: string | null } => ({
      time: one.time,
      label: one.event.replaceAll("_", " "),
      colour: TONES[one.event] ?? "muted",
      gpu: one.gpu,
      open: () => setOpened(one.time),
    }));
  return (
    <>
      {!report?.job && (
        <nav class="crumbs" aria-label="where this is">
          <a href="#/">node</a> / <span>{job.name}</span>
        </nav>
      )}
      <div class="row">
        <h1>{job.name}</h1>
        <State name={job.state} />
        <span class="muted">
          of {job.user}, {job.id}, since {moment(job.since)}
        </span>
        <Ranges range={range} onChange={setRange} />
      </div>
      {!isOurs(job) && (
        <p class="note">This is another user's job: you see how much memory it takes, and not what it does.</p>
      )}
      {waiting.map((one) => (
        <p key={one.message} class="note warn">
          waits for {duration(store.now() - one.since)}: {one.message}. {one.hint}
        </p>
      ))}
      {job.outcome && <Ended job={job} />}
      {job.gpus.length === 0 && <Empty>It has no place on a GPU yet.</Empty>}
      {job.gpus.map((gpu) => (
        <Panel key={gpu.uuid} name={`chart of GPU ${gpu.index}`}>
          <JobChart job={job} gpu={gpu} range={range} marks={marks.filter((one) => one.gpu === null || one.gpu === gpu.uuid)} />
        </Panel>
      ))}
      <div class="columns">
        <Panel name="story">
          <StoryPanel story={story} ours={isOurs(job)} opened={opened} />
        </Panel>
        <div>
          <Panel name="about">
            <About job={job} />
          </Panel>
          <Panel name="actions">
            {isOurs(job) && mayWrite() && job.state !== "ended" && <JobActions job={job} />}
          </Panel>
        </div>
      </div>
    </>
  );
}

function Ended({ job }: { job: Job }) {
  const outcome = job.outcome!;
  const how = outcome.killed
    ? outcome.killed.reason
    : outcome.signal !== null
      ? `ended by signal ${outcome.signal}`
      : outcome.exit_code !== null
        ? `ended with exit code ${outcome.exit_code}`
        : "has ended";
  return (
    <p class="note">
      {how}, after {duration(outcome.duration)}
      {outcome.refusals > 0 && `; ${count(outcome.refusals, "allocation was", "allocations were")} refused`}
    </p>
  );
}

function JobChart({ job, gpu, range, marks }: { job: Job; gpu: JobGpu; range: number; marks: Mark[] }) {
  const now = useNow(range);
  const { from, until, times } = windowOf(range, now);
  const track = store.track(gpu.uuid, job.id);
  const usage = track.usage.at(times);
  const request = track.request.at(times);
  const limit = track.limit.at(times);
  const highest = track.most.at(times);
  const computing = track.computing.at(times);
  const within = usage.map((value, i) => (value === null ? null : Math.min(value, request[i] ?? value)));
  const most = Math.max(gpu.limit, track.limit.most(from, until), track.most.most(from, until));
  const label =
    `Memory of ${job.name} on GPU ${gpu.index}. ${PRESENT} ${bytes(gpu.usage)} in use, ${bytes(gpu.request)} guaranteed,` +
    ` limit ${bytes(gpu.limit)}; at most ${bytes(gpu.peak)} so far.`;
  return (
    <section class="panel" aria-label={`GPU ${gpu.index}`}>
      <header class="row">
        <h2>GPU {gpu.index}</h2>
        <span class="muted">{gpu.name}</span>
        <UsageBar of={gpu} />
        {gpu.gpu_time !== undefined && (
          <span class="muted" title="memory is guaranteed, GPU time is not: it is shared by all who compute">
            computed for {duration(gpu.gpu_time)}
            {gpu.computing != null && `, ${share(gpu.computing)} of the time now`}
          </span>
        )}
      </header>
      <Chart
        label={label}
        lines={[
          { key: "borrowed", stroke: "borrowed", fill: "borrowed-area", width: 2 },
          { key: "guaranteed", stroke: "guaranteed", fill: "guaranteed-area", width: 1 },
          { key: "most", stroke: "muted", width: 1 },
          { key: "request", stroke: "text", width: 1.5, dash: [6, 4] },
          { key: "limit", stroke: "limit", width: 2 },
        ]}
        data={[times, usage, within, highest, request, limit]}
        from={from}
        until={until}
        top={most * 1.08}
        height={240}
        marks={marks}
      />
      {computing.some((value) => value !== null) && (
        <Chart
          label={`GPU time of ${job.name} on GPU ${gpu.index}: ${share(mean(computing))} of the time on average.`}
          lines={[{ key: "computing", stroke: "good", fill: "good-soft", width: 1.5 }]}
          data={[times, computing]}
          from={from}
          until={until}
          top={1}
          unit="share"
          height={90}
        />
      )}
      <div class="keys">
        <span>
          <i class="swatch guaranteed" /> in use <span class="number">{bytes(gpu.usage)}</span>
        </span>
        <span>
          <i class="swatch borrowed" /> borrowed <span class="number">{bytes(gpu.loan)}</span>
        </span>
        {(gpu.suspended ?? 0) > 0 && (
          <span>
            <i class="swatch suspended" /> in host memory <span class="number">{bytes(gpu.suspended!)}</span>
          </span>
        )}
        <span>
          <i class="swatch dashed" /> request <span class="number">{bytes(gpu.request)}</span>
        </span>
        <span>
          <i class="swatch limit" /> limit <span class="number">{bytes(gpu.limit)}</span>
        </span>
        <span>
          <i class="swatch highest" /> highest <span class="number">{bytes(gpu.peak)}</span>
        </span>
        {computing.some((value) => value !== null) && (
          <span title="how much of the time the job has the GPU compute, in the charts' time">
            <i class="swatch computing" /> computes <span class="number">{share(mean(computing))}</span>
          </span>
        )}
      </div>
    </section>
  );
}

function mean(values: (number | null)[]): number {
  const known = values.filter((value) => value !== null);
  return known.reduce((sum, value) => sum + value, 0) / Math.max(1, known.length);
}

function StoryPanel({ story, ours, opened }: { story: Happening[]; ours: boolean; opened: number | null }) {
  useEffect(() => {
    if (opened !== null) document.getElementById(`at-${opened}`)?.focus();
  }, [opened, story]);
  return (
    <section class="panel" aria-labelledby="story">
      <h2 id="story">Story</h2>
      {story.length === 0 && (
        <Empty>{ours ? "Nothing has happened to it yet." : "Only its user and administrators read its story."}</Empty>
      )}
      <ol class="story">
        {story.toReversed().map((one) => (
          <li key={one.time} id={`at-${one.time}`} tabIndex={-1} class={opened === one.time ? "opened" : undefined}>
            <time dateTime={new Date(one.time * 1000).toISOString()}>{clock(one.time)}</time>{" "}
            <span class={`kind ${TONES[one.event] ?? ""}`}>{one.event.replaceAll("_", " ")}</span>{" "}
            <span class="text">{one.text}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}

function About({ job }: { job: Job }) {
  const processes = job.processes.map((one) => `${one.command} [${one.pid}]`).join(", ");
  const rows: [string, string][] = [
    ["command", job.command.join(" ") || "not shown"],
    ["processes", processes || "none has opened a GPU"],
    ["priority", String(job.priority)],
    ["lends its idle memory", job.lend ? "yes" : "no"],
    ["gives back by", job.on_reclaim.join(", ")],
    ["grace", job.grace === null ? "the node's" : duration(job.grace)],
    ["request from", job.request_source || "not said"],
    ["limit from", job.limit_source || "not said"],
  ];
  return (
    <section class="panel" aria-labelledby="about">
      <h2 id="about">About</h2>
      <dl class="about">
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
