// What the page knows of the cluster: who has which GPUs now, and GPUs of each queue over time.

import type { Happening } from "./api";
import {
  type ClusterChanged,
  type ClusterJob,
  type ClusterNode,
  happening,
  type Loan,
  type Notice,
  type Overview,
  type Queue,
  type QueueHistory,
} from "./cluster-api";
import { Known, type Phase } from "./known";
import { Series } from "./series";

const MOST_HAPPENINGS = 1000;

/** A queue over time. */
export interface QueueTrack {
  held: Series;
  share: Series;
  quota: Series;
  demand: Series;
}

export class ClusterStore extends Known {
  engine = "";
  you: Overview["you"] | null = null;
  readonly queues = new Map<string, Queue>();
  readonly nodes = new Map<string, ClusterNode>();
  readonly jobs = new Map<string, ClusterJob>();
  loans: Loan[] = [];
  happenings: Happening[] = [];
  readonly tracks = new Map<string, QueueTrack>();
  readonly capacity = new Series();

  /** Have all of a report. */
  open(until: number, state: Overview, history: QueueHistory, notices: Notice[]): void {
    this.end = until;
    this.happenings = notices.map(happening);
    this.replace(state);
    this.remember(history);
  }

  replace(state: Overview): void {
    this.heard(state.time);
    this.queues.clear();
    this.nodes.clear();
    this.jobs.clear();
    this.take(state);
    this.enter("live");
  }

  take(found: ClusterChanged): void {
    if (found.engine) this.engine = found.engine;
    if (found.you) this.you = found.you;
    if (found.loans) this.loans = found.loans;
    if (found.capacity !== undefined) this.capacity.push(found.time, found.capacity);
    for (const queue of found.queues ?? []) {
      this.queues.set(queue.name, queue);
      const track = this.track(queue.name);
      track.held.push(found.time, queue.held);
      track.share.push(found.time, queue.share);
      track.quota.push(found.time, queue.quota ?? this.capacity.last);
      track.demand.push(found.time, queue.demand);
    }
    for (const node of found.nodes ?? []) this.nodes.set(node.name, node);
    for (const job of found.jobs ?? []) this.jobs.set(job.id, job);
    for (const id of found.gone ?? []) this.jobs.delete(id);
    this.changed();
  }

  override enter(phase: Phase, message = "", hint: string | null = null): void {
    if (phase !== "live" && this.phase === "live") this.interrupt(this.now());
    super.enter(phase, message, hint);
  }

  private interrupt(time: number): void {
    this.capacity.push(time, null);
    for (const track of this.tracks.values()) end(track, time);
  }

  /** What the service has kept takes the place of what the page has seen; what is so now stays at the end of it. */
  remember(past: QueueHistory): void {
    if (!past.kept) return;
    this.tracks.clear();
    this.capacity.clear();
    for (const { queue, points } of past.series)
      for (const point of points) {
        if (queue === "") {
          this.capacity.push(point[0], point[4] ?? null);
          continue;
        }
        const track = this.track(queue);
        if (point.length === 1) {
          end(track, point[0]);
          continue;
        }
        const [time, held, , share, quota, demand] = point;
        track.held.push(time, held);
        track.share.push(time, share);
        track.quota.push(time, quota);
        track.demand.push(time, demand);
      }
    const now = { time: this.now(), queues: [...this.queues.values()] };
    if (this.phase === "live" && this.end === null) this.take(now);
    this.changed();
  }

  track(queue: string): QueueTrack {
    let found = this.tracks.get(queue);
    if (!found)
      this.tracks.set(
        queue,
        (found = { held: new Series(), share: new Series(), quota: new Series(), demand: new Series() }),
      );
    return found;
  }

  happened(one: Notice): void {
    this.happenings = [...this.happenings.slice(1 - MOST_HAPPENINGS), happening(one)];
    this.changed();
  }

  happenedSince(since: number, found: Notice[]): void {
    const until = found.at(-1)?.time ?? since;
    const others = this.happenings.filter((one) => one.time < since || one.time > until);
    this.happenings = [...found.map(happening), ...others].sort((a, b) => a.time - b.time).slice(-MOST_HAPPENINGS);
    this.changed();
  }

  /** Queues that have jobs: those with none below them. */
  get leaves(): Queue[] {
    const above = new Set([...this.queues.values()].map((queue) => queue.parent));
    return [...this.queues.values()].filter((queue) => !above.has(queue.name));
  }
}

function end(track: QueueTrack, time: number): void {
  for (const series of Object.values(track)) series.push(time, null);
}

export const cluster = new ClusterStore();
