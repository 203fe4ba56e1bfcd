// The cluster: GPUs of each queue over time, where shares come from, who borrows, what waits and why, and where it runs.

import { useState } from "preact/hooks";
import { CancelButton, HoldButton, QueueForm } from "./cluster-actions";
import { type ClusterJob, type ClusterNode, type Explained, type Queue, service } from "./cluster-api";
import { cluster } from "./cluster-store";
import { Events } from "./events";
import { bytes, count, duration, gpus, share } from "./format";
import { useKnown } from "./known";
import { Ranges } from "./node";
import { Empty, Panel } from "./panel";
import { colourOf, QueueChart, QueueStack } from "./queues";
import { queueReport } from "./report";
import { mayWrite, Refused } from "./api";
import { useNow, useRange, windowOf } from "./window";

const CHARTS = 8;
const ROWS = 100;

export function ClusterView() {
  useKnown(cluster);
  const [range, setRange] = useRange();
  if (cluster.queues.size === 0)
    return (
      <Empty>
        The service runs, and has no queue yet. <code>gpushare submit -- python train.py</code> makes one of your name.
      </Empty>
    );
  return (
    <>
      <div class="row">
        <h1>Queues</h1>
        <span class="muted">
          {gpus(cluster.capacity.last ?? 0)} {cluster.capacity.last === 1_000_000 ? "GPU" : "GPUs"} on {count(cluster.nodes.size, "node")}, engine {cluster.engine}
        </span>
        <Ranges range={range} onChange={setRange} />
      </div>
      <Panel name="queues over time">
        <OverTime range={range} />
      </Panel>
      <Panel name="shares">
        <Shares />
      </Panel>
      {cluster.nodes.size > 0 && (
        <>
          <Panel name="waiting jobs">
            <Waiting />
          </Panel>
          <Panel name="nodes">
            <NodeMap />
          </Panel>
          <Panel name="running jobs">
            <Running />
          </Panel>
        </>
      )}
      <Panel name="decisions">
        <Events found={cluster.happenings} title="Decisions" />
      </Panel>
    </>
  );
}

/** Of a report about one queue only that one. */
function shownQueues(): Queue[] {
  const only = queueReport?.queue;
  return only == null ? cluster.leaves : cluster.leaves.filter((one) => one.name === only);
}

function OverTime({ range }: { range: number }) {
  const now = useNow(range, cluster);
  const { from, until, times } = windowOf(range, now);
  const all = cluster.leaves;
  const bands = all.map(({ name }) => ({ name, track: cluster.track(name) }));
  const charts = shownQueues().slice(0, CHARTS);
  const axes = { times, from, until };
  return (
    <section class="panel" aria-labelledby="over-time">
      <h2 id="over-time">GPUs over time</h2>
      <QueueStack bands={bands} capacity={cluster.capacity} {...axes} />
      <div class="queues">
        {charts.map(({ name }) => (
          <QueueChart key={name} name={name} track={cluster.track(name)} colour={colourOf(name, all)} {...axes} />
        ))}
      </div>
    </section>
  );
}

function Shares() {
  const [opened, setOpened] = useState<string | null>(null);
  const [most, setMost] = useState(ROWS);
  const queues = [...cluster.queues.values()];
  const admin = mayWrite() && cluster.you?.admin;
  return (
    <section class="panel" aria-labelledby="shares">
      <h2 id="shares">Shares</h2>
      <div class="scroll" role="region" aria-label="shares" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">queue</th>
              <th scope="col" class="number">holds</th>
              <th scope="col" class="number">quota</th>
              <th scope="col">fair share, and the sum it comes from</th>
              <th scope="col" class="number">asks for</th>
              <th scope="col" class="number spare">runs</th>
              <th scope="col" class="number">waits</th>
              {admin && <th scope="col">change</th>}
            </tr>
          </thead>
          <tbody>
            {queues.slice(0, most).map((queue) => (
              <tr key={queue.name} data-queue={queue.name}>
                <th scope="row">{queue.parent === null ? queue.name : `${queue.parent} / ${queue.name}`}</th>
                <td class="number">{gpus(queue.held)}</td>
                <td class="number">{queue.quota === null ? "all" : gpus(queue.quota)}</td>
                <td>{queue.sum}</td>
                <td class="number">{gpus(queue.demand)}</td>
                <td class="number spare">{queue.running}</td>
                <td class="number">{queue.waiting}</td>
                {admin && (
                  <td>
                    <button type="button" aria-expanded={opened === queue.name} onClick={() => setOpened(opened === queue.name ? null : queue.name)}>
                      Change {queue.name}…
                    </button>
                  </td>
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {queues.length > most && (
        <button type="button" onClick={() => setMost(most + ROWS)}>
          show more of {queues.length}
        </button>
      )}
      {opened !== null && cluster.queues.has(opened) && <QueueForm key={opened} queue={cluster.queues.get(opened)!} />}
      <Loans />
    </section>
  );
}

function Loans() {
  if (cluster.loans.length === 0) return <p class="muted">Nobody holds more than its quota.</p>;
  return (
    <ul class="plain loans" aria-label="who borrows from whom">
      {cluster.loans.map((loan) => (
        <li key={`${loan.borrower} ${loan.lender}`}>
          <strong>{loan.borrower}</strong> borrows {gpus(loan.amount)} {loan.amount === 1_000_000 ? "GPU" : "GPUs"}{" "}
          {loan.lender === null ? "that are promised to nobody" : <>from <strong>{loan.lender}</strong></>}
        </li>
      ))}
    </ul>
  );
}

function jobsThat(hold: boolean): ClusterJob[] {
  return [...cluster.jobs.values()].filter((job) => job.places.length > 0 === hold && (queueReport?.queue ?? job.queue) === job.queue);
}

function title(job: ClusterJob): string {
  return job.name ? `${job.id} ${job.name}` : job.id;
}

function isOurs(job: ClusterJob): boolean {
  return mayWrite() && cluster.you !== null && (cluster.you.admin || job.uid === cluster.you.uid);
}

function Waiting() {
  const [most, setMost] = useState(ROWS);
  const jobs = jobsThat(false);
  const all = shownQueues().reduce((sum, queue) => sum + queue.waiting, 0);
  return (
    <section class="panel" aria-labelledby="waiting">
      <h2 id="waiting">{count(Math.max(all, jobs.length), "job waits", "jobs wait")}</h2>
      {jobs.length === 0 && <Empty>No job waits for GPUs.</Empty>}
      <ul class="plain waiting">
        {jobs.slice(0, most).map((job) => (
          <WaitingJob key={job.id} job={job} />
        ))}
      </ul>
      {jobs.length > most && (
        <button type="button" onClick={() => setMost(most + ROWS)}>
          show more
        </button>
      )}
      {all > jobs.length && (
        <p class="muted">
          These have come first. <code>gpushare queue</code> lists all.
        </p>
      )}
    </section>
  );
}

function WaitingJob({ job }: { job: ClusterJob }) {
  const [told, setTold] = useState<Explained | Refused | null>(null);
  return (
    <li data-job={job.id}>
      <div class="row">
        <strong>{title(job)}</strong>
        <span class="muted">
          {job.user ? `of ${job.user}, ` : ""}queue {job.queue}
          {job.gpus > 0 && `, ${gpus(job.gpus)} ${job.gpus === 1_000_000 ? "GPU" : "GPUs"}`}, for {duration(cluster.now() - job.since)}
        </span>
        {job.state === "held" && <span class="badge quiet">held</span>}
        {job.evictions > 0 && <span class="badge warn">stopped {count(job.evictions, "time")}</span>}
        {!queueReport && job.state !== "held" && (
          <button type="button" onClick={() => void service.explain(job.id).then(setTold, (error: Refused) => setTold(error))}>
            What would start it?
          </button>
        )}
        {isOurs(job) && <HoldButton job={job} />}
        {isOurs(job) && <CancelButton job={job} />}
      </div>
      <p class="reason">{job.reason}</p>
      {told instanceof Refused && <p class="note bad">{told.message}</p>}
      {told && !(told instanceof Refused) && (
        <div class="note" role="status">
          {told.who.map((line) => (
            <p key={line}>{line}</p>
          ))}
          <p>
            <strong>{told.change ? `It would start: ${told.change}.` : "No single change is known that would start it."}</strong>
          </p>
        </div>
      )}
    </li>
  );
}

function Running() {
  const [most, setMost] = useState(ROWS);
  const jobs = jobsThat(true);
  return (
    <section class="panel" aria-labelledby="running">
      <h2 id="running">{count(jobs.length, "job runs", "jobs run")}</h2>
      {jobs.length === 0 && <Empty>No job holds a GPU.</Empty>}
      {jobs.length > 0 && (
        <div class="scroll" role="region" aria-label="running jobs" tabIndex={0}>
          <table>
            <thead>
              <tr>
                <th scope="col">job</th>
                <th scope="col">user</th>
                <th scope="col">queue</th>
                <th scope="col" class="number">GPUs</th>
                <th scope="col">where</th>
                <th scope="col" class="number">for</th>
                {mayWrite() && <th scope="col">change</th>}
              </tr>
            </thead>
            <tbody>
              {jobs.slice(0, most).map((job) => (
                <tr key={job.id} data-job={job.id}>
                  <th scope="row">{title(job)}</th>
                  <td>{job.user || "–"}</td>
                  <td>{job.queue}</td>
                  <td class="number">{gpus(job.gpus)}</td>
                  <td>{[...new Set(job.places.map(([node, which]) => `${node} GPU ${which.join(", ")}`))].join("; ")}</td>
                  <td class="number">{duration(cluster.now() - job.since)}</td>
                  {mayWrite() && <td>{isOurs(job) && <CancelButton job={job} />}</td>}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {jobs.length > most && (
        <button type="button" onClick={() => setMost(most + ROWS)}>
          show more
        </button>
      )}
    </section>
  );
}

function NodeMap() {
  const on = new Map<string, ClusterJob[]>();
  for (const job of cluster.jobs.values())
    for (const [node, which] of job.places)
      for (const index of which) {
        const key = `${node} ${index}`;
        on.set(key, [...(on.get(key) ?? []), job]);
      }
  return (
    <section class="panel" aria-labelledby="nodes">
      <h2 id="nodes">Nodes and their GPUs</h2>
      <div class="nodes">
        {[...cluster.nodes.values()].map((node) => (
          <NodeRow key={node.name} node={node} on={on} />
        ))}
      </div>
    </section>
  );
}

function NodeRow({ node, on }: { node: ClusterNode; on: Map<string, ClusterJob[]> }) {
  const leaves = cluster.leaves;
  const cells = node.gpus.map((gpu, index) => {
    const jobs = on.get(`${node.name} ${index}`) ?? [];
    const names = jobs.map((job) => `${title(job)} (${job.queue})`).join(", ");
    const used = gpu.held / node.memory;
    const text = gpu.broken ? "broken" : names || (used > 0 ? "in use" : "") || (gpu.foreign > 0 ? `${bytes(gpu.foreign)} in use by others` : "free");
    return { colour: jobs[0] ? colourOf(jobs[0].queue, leaves) : used > 0 ? "rest" : null, text: `GPU ${index}: ${text}`, used, broken: gpu.broken };
  });
  return (
    <div class="node-row">
      <span class="node-name">
        {node.name} {node.state !== "ready" && <span class="badge warn">{node.state}</span>}
      </span>
      <span class="cells" role="img" aria-label={`${node.name}, ${node.state}: ${cells.map((cell) => cell.text).join("; ")}`}>
        {cells.map((cell) => (
          <span
            key={cell.text}
            class={cell.broken ? "cell broken" : "cell"}
            title={cell.used > 0 && cell.used < 1 ? `${cell.text}, ${share(cell.used)} of it` : cell.text}
          >
            {cell.colour && <span style={{ background: `var(--${cell.colour})`, height: `${100 * Math.min(1, cell.used || 1)}%` }} />}
          </span>
        ))}
      </span>
    </div>
  );
}
