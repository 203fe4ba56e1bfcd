// What the page knows: the node's present state, what has happened, and how amounts went over time.

import type { About, Changed, Gpu, Happening, History, Job, Pressure, Reservation, State } from "./api";
import type { Report } from "./report";
import { Known, type Phase, useKnown } from "./known";
import { Series } from "./series";

const MOST_HAPPENINGS = 1000;
const OUTSIDE = "outside"; // the name of that series in the daemon's history

export interface Track {
  job: string;
  name: string;
  user: string;
  usage: Series;
  most: Series;
  request: Series;
  limit: Series;
  /** The part of the time, up to 1, in which it has the GPU compute. */
  computing: Series;
}

export class Store extends Known {
  about: About | null = null;
  daemon: State["daemon"] | null = null;
  readonly gpus = new Map<string, Gpu>();
  readonly jobs = new Map<string, Job>();
  readonly pressure = new Map<string, Pressure>();
  reservations: Reservation[] = [];
  happenings: Happening[] = [];
  /** By GPU and job. */
  readonly tracks = new Map<string, Map<string, Track>>();
  /** Memory of each GPU that is outside of gpushare. */
  readonly unmanaged = new Map<string, Series>();

  override enter(phase: Phase, message = "", hint: string | null = null): void {
    if (phase !== "live" && this.phase === "live") this.interrupt(this.now());
    super.enter(phase, message, hint);
  }

  /** Have all of a report. */
  open(report: Report): void {
    this.end = report.until;
    this.happenings = report.happenings;
    this.replace(report.state);
    this.remember(report.history);
  }

  replace(state: State): void {
    this.heard(state.time);
    this.gpus.clear();
    const living = new Set(state.jobs.map((job) => job.id));
    for (const id of [...this.jobs.keys()]) if (!living.has(id)) this.forget(id, state.time);
    this.take(state);
    this.enter("live");
  }

  take(found: Changed): void {
    if (found.daemon) this.daemon = found.daemon;
    for (const gpu of found.gpus ?? []) {
      this.gpus.set(gpu.uuid, gpu);
      this.seriesOf(gpu.uuid).push(found.time, gpu.unmanaged + gpu.returning);
    }
    for (const one of found.pressure ?? []) this.pressure.set(one.uuid, one);
    for (const job of found.jobs ?? []) {
      this.jobs.set(job.id, job);
      if (job.state === "ended") continue; // only a report has such; its history knows when they held how much
      for (const gpu of job.gpus) {
        const track = this.track(gpu.uuid, job.id);
        track.name = job.name;
        track.user = job.user;
        track.usage.push(found.time, gpu.usage);
        track.most.push(found.time, gpu.usage);
        track.request.push(found.time, gpu.request);
        track.limit.push(found.time, gpu.limit);
        track.computing.push(found.time, gpu.computing ?? null);
      }
    }
    for (const id of found.gone ?? []) this.forget(id, found.time);
    if (found.reservations) this.reservations = found.reservations;
    this.changed();
  }

  private forget(id: string, time: number): void {
    this.jobs.delete(id);
    for (const tracks of this.tracks.values()) {
      const track = tracks.get(id);
      if (track) end(track, time);
    }
  }

  /** Nothing is known of the time until there is a state again. */
  private interrupt(time: number): void {
    for (const series of this.unmanaged.values()) series.push(time, null);
    for (const tracks of this.tracks.values()) for (const track of tracks.values()) end(track, time);
  }

  /** What the daemon has kept takes the place of what the page has seen; what is so now stays at the end of it. */
  remember(past: History): void {
    if (!past.kept) return;
    this.tracks.clear();
    this.unmanaged.clear();
    for (const one of past.series) {
      if (one.job === OUTSIDE) for (const [time, usage] of one.points) this.seriesOf(one.gpu).push(time, usage ?? null);
      if (one.job === OUTSIDE || one.job === "") continue;
      const track = this.track(one.gpu, one.job);
      track.name = one.name;
      track.user = one.user;
      for (const point of one.points) {
        if (point.length === 1) {
          end(track, point[0]);
          continue;
        }
        const [time, usage, most, request, limit, , computing] = point;
        track.usage.push(time, usage);
        track.most.push(time, most);
        track.request.push(time, request);
        track.limit.push(time, limit);
        track.computing.push(time, computing ?? null);
      }
    }
    if (this.phase === "live") this.take({ time: this.now(), gpus: [...this.gpus.values()], jobs: [...this.jobs.values()] });
    else this.interrupt(this.now());
    this.changed();
  }

  seriesOf(gpu: string): Series {
    let found = this.unmanaged.get(gpu);
    if (!found) this.unmanaged.set(gpu, (found = new Series()));
    return found;
  }

  track(gpu: string, job: string): Track {
    let tracks = this.tracks.get(gpu);
    if (!tracks) this.tracks.set(gpu, (tracks = new Map()));
    let found = tracks.get(job);
    if (!found)
      tracks.set(
        job,
        (found = {
          ...{ job, name: job, user: "" },
          ...{ usage: new Series(), most: new Series(), request: new Series(), limit: new Series(), computing: new Series() },
        }),
      );
    return found;
  }

  happened(one: Happening): void {
    this.happenings = [...this.happenings.slice(1 - MOST_HAPPENINGS), one];
    this.changed();
  }

  /** All that is known to have happened from then on; what came while that was asked stays. */
  happenedSince(since: number, found: Happening[]): void {
    const until = found.at(-1)?.time ?? since;
    const others = this.happenings.filter((one) => one.time < since || one.time > until);
    this.happenings = [...found, ...others].sort((a, b) => a.time - b.time).slice(-MOST_HAPPENINGS);
    this.changed();
  }

  get sortedGpus(): Gpu[] {
    return [...this.gpus.values()].sort((a, b) => a.index - b.index);
  }
}

function end(track: Track, time: number): void {
  for (const series of [track.usage, track.most, track.request, track.limit, track.computing]) series.push(time, null);
}

export const store = new Store();

/** Renders again when something has changed. */
export function useStore(): Store {
  return useKnown(store);
}
