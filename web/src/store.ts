// What the page knows: the node's present state, what has happened, and how amounts went over time.

import { useEffect, useState } from "preact/hooks";
import type { About, Changed, Gpu, Happening, History, Job, Pressure, Reservation, State } from "./api";
import type { Report } from "./report";
import { Series } from "./series";

export type Phase = "loading" | "live" | "away" | "lost" | "locked";
// live: what is shown is so: the daemon is followed, or a report is read · away: no daemon answers · lost: the dashboard's server does not answer
// locked: this tab has no session

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
}

export class Store {
  phase: Phase = "loading";
  about: About | null = null;
  message = "";
  hint: string | null = null;
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
  /** How far the node's clock is ahead of this one's, in seconds. */
  private skew = 0;
  /** The end of a report, where the time stands still. */
  private end: number | null = null;
  private readonly listeners = new Set<() => void>();
  private told = false;
  version = 0;

  /** The time on the node. */
  now(): number {
    return this.end ?? Date.now() / 1000 + this.skew;
  }

  /** Listeners hear of many changes at once, before the next frame. */
  changed(): void {
    this.version++;
    if (this.told) return;
    this.told = true;
    const tell = () => {
      this.told = false;
      for (const listener of this.listeners) listener();
    };
    if (document.hidden) setTimeout(tell);
    else requestAnimationFrame(tell);
  }

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  enter(phase: Phase, message = "", hint: string | null = null): void {
    if (phase !== "live" && this.phase === "live") this.interrupt(this.now());
    if (this.phase === phase && this.message === message && phase !== "live") return;
    this.phase = phase;
    this.message = message;
    this.hint = hint;
    this.changed();
  }

  /** Have all of a report. */
  open(report: Report): void {
    this.end = report.until;
    this.happenings = report.happenings;
    this.replace(report.state);
    this.remember(report.history);
  }

  replace(state: State): void {
    this.skew = state.time - Date.now() / 1000;
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
        const [time, usage, most, request, limit] = point;
        track.usage.push(time, usage);
        track.most.push(time, most);
        track.request.push(time, request);
        track.limit.push(time, limit);
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
          ...{ usage: new Series(), most: new Series(), request: new Series(), limit: new Series() },
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
  for (const series of [track.usage, track.most, track.request, track.limit]) series.push(time, null);
}

export const store = new Store();

/** Renders again when something has changed. */
export function useStore(): Store {
  const [, again] = useState(0);
  const seen = store.version;
  useEffect(() => {
    // What has changed between the first rendering and this is not told again.
    if (store.version !== seen) again((n) => n + 1);
    return store.listen(() => again((n) => n + 1));
  }, []);
  return store;
}
