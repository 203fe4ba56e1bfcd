// The node: each GPU's memory now and over time, the jobs, what is reserved.

import { useState } from "preact/hooks";
import { type Gpu, isOurs, type Job, type JobGpu, mayWrite, type Reservation } from "./api";
import { ReleaseButton } from "./actions";
import { GpuBar, UsageBar } from "./bar";
import { Chart, hoverTime, type Line, PRESENT } from "./chart";
import { bytes, count, duration, moment, share, state } from "./format";
import { Empty, memo, Panel } from "./panel";
import { report, still } from "./report";
import { store, useStore, type Track } from "./store";
import { RANGES, useNow, useRange, windowOf } from "./window";

const STACKED = 8; // colours that can be told apart; smaller jobs are drawn as one
const ALL_CHARTS = 4; // GPUs with a chart each; on larger nodes one chart, of the GPU that is chosen
const ROWS = 50;

export function NodeView() {
  useStore();
  const gpus = store.sortedGpus;
  const [range, setRange] = useRange();
  const [chosen, setChosen] = useState<string | null>(null);
  const few = gpus.length <= ALL_CHARTS;
  const shown = gpus.find((gpu) => gpu.uuid === chosen) ?? gpus[0];
  const suspended = suspendedOn(store.jobs.values());
  if (!shown) return <Empty>This node has no GPU that gpushare could share. `gpushare doctor` says why.</Empty>;
  return (
    <>
      <div class="row">
        <h1>GPUs</h1>
        <Ranges range={range} onChange={setRange} />
      </div>
      <div class={few ? "gpus" : "gpus many"}>
        {gpus.map((gpu) => (
          <Panel key={gpu.uuid} name={`GPU ${gpu.index}`}>
            <GpuCard
              gpu={gpu}
              suspended={suspended.get(gpu.uuid) ?? 0}
              waited={store.pressure.get(gpu.uuid)?.some.avg60 ?? 0}
              range={few ? range : null}
              choose={few ? null : setChosen}
            />
          </Panel>
        ))}
      </div>
      {!few && (
        <Panel name="chart">
          <section class="panel">
            <h2>GPU {shown.index} over time</h2>
            <Stack gpu={shown} range={range} />
          </section>
        </Panel>
      )}
      <Panel name="jobs">
        <Jobs />
      </Panel>
      <Panel name="reservations">
        <Reservations found={store.reservations} />
      </Panel>
    </>
  );
}

/** By GPU: bytes in host memory of jobs that are suspended. */
function suspendedOn(jobs: Iterable<Job>): Map<string, number> {
  const found = new Map<string, number>();
  for (const job of jobs)
    for (const gpu of job.gpus) if (gpu.suspended) found.set(gpu.uuid, (found.get(gpu.uuid) ?? 0) + gpu.suspended);
  return found;
}

function rangeName(range: number): string {
  return RANGES.find((one) => one.seconds === range)?.name ?? duration(range);
}

export function Ranges({ range, onChange }: { range: number; onChange: (seconds: number) => void }) {
  if (still) return null;
  return (
    <div class="choice" role="group" aria-label="time that the charts show">
      {RANGES.map((one) => (
        <button key={one.seconds} type="button" aria-pressed={range === one.seconds} onClick={() => onChange(one.seconds)}>
          {one.name}
        </button>
      ))}
    </div>
  );
}

interface CardProps {
  gpu: Gpu;
  /** Bytes in host memory. */
  suspended: number;
  /** The share of the last minute in which owners waited. */
  waited: number;
  range: number | null;
  choose: ((gpu: string) => void) | null;
}

const GpuCard = memo(({ gpu, suspended, waited, range, choose }: CardProps) => {
  return (
    <section class="panel gpu" aria-label={`GPU ${gpu.index}`}>
      <header class="row">
        <h2>
          {choose ? (
            <button type="button" class="link" onClick={() => choose(gpu.uuid)}>
              GPU {gpu.index}
            </button>
          ) : (
            `GPU ${gpu.index}`
          )}
        </h2>
        <span class="muted">
          {gpu.name}, {bytes(gpu.total)}
        </span>
        {waited > 0.005 && (
          <span class="badge warn" title="share of the last minute in which an owner waited for its memory">
            owners waited {share(waited)}
          </span>
        )}
        {gpu.health.state !== "ok" && <span class="badge bad">{gpu.health.state}</span>}
      </header>
      <GpuBar gpu={gpu} suspended={suspended} />
      {gpu.health.ailments.map((one) => (
        <p class="note" key={one.text}>
          <strong>{one.state}:</strong> {one.text}. {one.hint}
        </p>
      ))}
      {range !== null && <Stack gpu={gpu} range={range} />}
      {gpu.unmanaged_processes.length > 0 && (
        <details>
          <summary>{count(gpu.unmanaged_processes.length, "process", "processes")} outside gpushare</summary>
          <ul>
            {gpu.unmanaged_processes.map((one) => (
              <li key={one.pid}>
                {one.command} [{one.pid}] of {one.user}: {bytes(one.bytes)}
              </li>
            ))}
          </ul>
        </details>
      )}
    </section>
  );
});

interface Layer {
  key: string;
  name: string;
  values: (number | null)[];
  colour: string;
  job: string | null;
}

const colours = new Map<string, number>();

/** A job keeps its colour while the page is open, and takes one that no job of the GPU has where there is one. */
function colourOf(job: string, taken: Set<number>): number {
  let found = colours.get(job);
  if (found === undefined || taken.has(found)) {
    found = 0;
    while (taken.has(found) && found < STACKED - 1) found++;
    colours.set(job, found);
  }
  taken.add(found);
  return found;
}

/** Colours are few: a job that has ended gets one only if all that run have theirs. */
function lives(track: Track): boolean {
  return (store.jobs.get(track.job)?.state ?? "ended") !== "ended";
}

function layersOf(gpu: string, times: number[]): Layer[] {
  const from = times[0]!;
  const until = times.at(-1)!;
  const tracks = [...(store.tracks.get(gpu)?.values() ?? [])]
    .map((track): [Track, number] => [track, track.usage.most(from, until)])
    .filter(([, most]) => most > 0)
    .sort((a, b) => Number(lives(b[0])) - Number(lives(a[0])) || b[1] - a[1]);
  const largest = tracks.slice(0, tracks.length > STACKED ? STACKED - 1 : STACKED).map(([track]) => track);
  const rest = tracks.slice(largest.length).map(([track]) => track);
  const taken = new Set<number>();
  const layers: Layer[] = [...largest]
    .sort((a, b) => Number(colours.has(b.job)) - Number(colours.has(a.job)))
    .map((track) => ({
      key: track.job,
      name: track.name,
      values: track.usage.at(times),
      colour: `job${colourOf(track.job, taken)}`,
      job: track.job,
    }));
  layers.sort((a, b) => (a.key < b.key ? -1 : 1));
  if (rest.length > 0) {
    const values = times.map(() => 0);
    for (const track of rest) track.usage.at(times).forEach((value, i) => (values[i]! += value ?? 0));
    layers.push({ key: "rest", name: count(rest.length, "other job"), values, colour: "rest", job: null });
  }
  const outside = store.seriesOf(gpu);
  if (outside.most(from, until) > 0)
    layers.push({ key: "outside", name: "outside gpushare", values: outside.at(times), colour: "unmanaged", job: null });
  return layers;
}

/** Memory by job, one upon the other; all of the GPU is the height. */
function Stack({ gpu, range }: { gpu: Gpu; range: number }) {
  useStore();
  const now = useNow(range);
  const [hovered, setHovered] = useState<number | null>(null);
  const { from, until, times } = windowOf(range, now);
  const layers = layersOf(gpu.uuid, times);
  const known = store.seriesOf(gpu.uuid).at(times);
  const sum = times.map(() => 0);
  const sums = layers.map((layer) =>
    layer.values.map((value, i) => (known[i] === null ? null : (sum[i]! += value ?? 0))),
  );
  // Drawn from the highest sum to the lowest: each covers the part of the one before that is not its own.
  const lines: Line[] = layers.map((layer) => ({ key: layer.key, stroke: layer.colour, fill: layer.colour, width: 0 }));
  const at = hovered ?? times.length - 1;
  const label =
    `Memory of GPU ${gpu.index} by job over ${rangeName(range)}. ${PRESENT}: ` +
    (layers.map((one) => `${one.name} ${bytes(one.values.at(-1) ?? 0)}`).join(", ") || "nothing in use");
  return (
    <>
      <Chart
        label={label}
        lines={lines.toReversed()}
        data={[times, ...sums.toReversed()]}
        from={from}
        until={until}
        top={gpu.total}
        height={180}
        onHover={setHovered}
      />
      <div class="keys">
        <span class="muted">{hoverTime([times], hovered)}</span>
        {layers.map((layer) => (
          <span key={layer.key}>
            <i class="swatch" style={{ background: `var(--${layer.colour})` }} />{" "}
            {layer.job && (!report || store.jobs.has(layer.job)) ? <a href={`#/job/${layer.job}`}>{layer.name}</a> : layer.name}{" "}
            <span class="number">{amount(layer.values[at])}</span>
          </span>
        ))}
        {layers.length === 0 && <span class="muted">no memory is in use</span>}
      </div>
    </>
  );
}

// ---- jobs ------------------------------------------------------------------------------------------

/** What the table shows of the usage: what it is now, or, in a report, the highest. */
const USAGE = report ? "highest" : "usage";
const used = (gpu: JobGpu) => (report ? gpu.peak : gpu.usage);

const SORTS: Record<string, (job: Job) => number | string> = {
  [USAGE]: (job) => -job.gpus.reduce((sum, gpu) => sum + used(gpu), 0),
  borrowed: (job) => -job.gpus.reduce((sum, gpu) => sum + gpu.loan, 0),
  age: (job) => -age(job),
  name: (job) => job.name,
};

function Jobs() {
  const [sort, setSort] = useState(USAGE);
  const [filter, setFilter] = useState("");
  const [rows, setRows] = useState(ROWS);
  const by = SORTS[sort]!;
  const word = filter.trim().toLowerCase();
  const jobs = [...store.jobs.values()]
    .filter((job) => [job.name, job.user, job.id, job.state].some((text) => text.toLowerCase().includes(word)))
    .map((job): [Job, number | string] => [job, by(job)])
    .sort((a, b) => (a[1] < b[1] ? -1 : a[1] > b[1] ? 1 : a[0].id < b[0].id ? -1 : 1))
    .map(([job]) => job);
  return (
    <section class="panel" aria-labelledby="jobs">
      <header class="row">
        <h2 id="jobs">{count(store.jobs.size, "job")}</h2>
        {store.jobs.size > 0 && (
          <>
            <label class="field">
              <span class="hidden">filter the jobs</span>
              <input
                type="search"
                placeholder="name, user, state"
                value={filter}
                onInput={(event) => setFilter(event.currentTarget.value)}
              />
            </label>
            <label class="field">
              by{" "}
              <select value={sort} onChange={(event) => setSort(event.currentTarget.value)}>
                {Object.keys(SORTS).map((name) => (
                  <option key={name}>{name}</option>
                ))}
              </select>
            </label>
          </>
        )}
      </header>
      {store.jobs.size === 0 && report && <Empty>No job ran here in this time.</Empty>}
      {store.jobs.size === 0 && !report && (
        <Empty>
          No job runs here. Start one with <code>gpushare run --request 4Gi --limit 14Gi python train.py</code>
        </Empty>
      )}
      {jobs.length > 0 && (
        <div class="scroll" role="region" aria-label="jobs" tabIndex={0}>
          <table class="jobs">
            <thead>
              <tr>
                <th scope="col">job</th>
                <th scope="col" class="spare">user</th>
                <th scope="col">state</th>
                <th scope="col" class="spare">GPU</th>
                <th scope="col">{USAGE} of its limit</th>
                <th scope="col" class="number">{USAGE}</th>
                <th scope="col" class="number spare">request</th>
                <th scope="col" class="number spare">limit</th>
                <th scope="col" class="number spare">computes</th>
                <th scope="col" class="number spare">age</th>
              </tr>
            </thead>
            <tbody>
              {jobs.slice(0, rows).map((job) => (
                <JobRow key={job.id} job={job} age={age(job) < 0 ? "–" : duration(age(job))} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {word !== "" && jobs.length === 0 && store.jobs.size > 0 && <Empty>No job fits “{filter}”.</Empty>}
      {jobs.length > rows && (
        <button type="button" onClick={() => setRows(rows + ROWS)}>
          show {Math.min(ROWS, jobs.length - rows)} more of {jobs.length}
        </button>
      )}
    </section>
  );
}

/** For how many seconds it has run, or did; -1 if nobody saw its end. */
function age(job: Job): number {
  if (job.outcome === null) return store.now() - job.since;
  return job.outcome.seen === false ? -1 : job.outcome.duration;
}

function amount(value: number | null | undefined): string {
  return value == null ? "–" : bytes(value);
}

const JobRow = memo(({ job, age }: { job: Job; age: string }) => {
  const first = job.gpus[0];
  const sum = (of: (gpu: JobGpu) => number) => job.gpus.reduce((total, gpu) => total + of(gpu), 0);
  const usage = sum(used);
  const request = sum((gpu) => gpu.request);
  const limit = sum((gpu) => gpu.limit);
  const suspended = sum((gpu) => (report ? 0 : (gpu.suspended ?? 0)));
  const loan = sum((gpu) => (report ? Math.max(0, gpu.peak - gpu.request) : gpu.loan));
  return (
    <tr class={isOurs(job) ? undefined : "others"}>
      <th scope="row">
        <a href={`#/job/${job.id}`}>{job.name}</a>
      </th>
      <td class="spare">{job.user}</td>
      <td>
        <State name={job.state} />
      </td>
      <td class="spare">{job.gpus.map((gpu) => gpu.index).join(", ") || "–"}</td>
      <td>{first ? <UsageBar of={{ usage, request, limit, loan, suspended }} /> : "–"}</td>
      <td class="number">{first ? bytes(usage) : "–"}</td>
      <td class="number spare">{first ? bytes(request) : "–"}</td>
      <td class="number spare">{first ? bytes(limit) : "–"}</td>
      <td class="number spare">{computing(job)}</td>
      <td class="number spare">{age}</td>
    </tr>
  );
});

/** For which part of the time it has its GPUs compute, on average; in a report, for how long it had them. */
function computing(job: Job): string {
  if (report) {
    const seconds = job.gpus.reduce((sum, gpu) => sum + (gpu.gpu_time ?? 0), 0);
    return job.gpus.some((gpu) => gpu.gpu_time !== undefined) ? duration(seconds) : "–";
  }
  const parts = job.gpus.flatMap((gpu) => (gpu.computing == null ? [] : [gpu.computing]));
  return parts.length > 0 ? share(parts.reduce((sum, part) => sum + part, 0) / parts.length) : "–";
}

const TONES: Record<string, string> = {
  borrowing: "borrow",
  trimming: "warn",
  asked_back: "warn",
  waiting: "warn",
  queued: "warn",
  suspending: "warn",
  suspended: "suspended",
  resuming: "warn",
  hook: "warn",
  asleep: "suspended",
  waking: "warn",
  idle: "quiet",
  stopped: "quiet",
  observed: "quiet",
  ended: "quiet",
};

export function State({ name }: { name: string }) {
  return <span class={`badge ${TONES[name] ?? "good"}`}>{state(name)}</span>;
}

function Reservations({ found }: { found: Reservation[] }) {
  if (found.length === 0) return null;
  return (
    <section class="panel" aria-labelledby="reserved">
      <h2 id="reserved">Reserved</h2>
      <ul class="plain">
        {found.map((one) => (
          <li key={one.id} class="row">
            <span>
              <strong>{one.name}</strong> of {one.user}:{" "}
              {one.gpus.map((gpu) => `${bytes(gpu.amount)} on GPU ${gpu.index}`).join(", ")},{" "}
              {one.until === null ? "until it is released" : `until ${moment(one.until)}`}
            </span>
            {mayWrite() && one.uid !== -1 && <ReleaseButton reservation={one} />}
          </li>
        ))}
      </ul>
    </section>
  );
}
