// Which part of the past is drawn, and the times at which values are taken for it.

import { useEffect, useState } from "preact/hooks";
import { report } from "./report";
import { source } from "./source";
import { store } from "./store";

export const RANGES = [
  { seconds: 600, name: "10 min" },
  { seconds: 3600, name: "1 hour" },
  { seconds: 24 * 3600, name: "1 day" },
  { seconds: 30 * 24 * 3600, name: "30 days" },
] as const;

const COLUMNS = 600;

export interface Window {
  from: number;
  until: number;
  times: number[];
}

export function windowOf(seconds: number, now: number): Window {
  const step = Math.max(1, Math.round(seconds / COLUMNS));
  const until = Math.ceil(now / step) * step;
  const columns = Math.ceil(seconds / step);
  return {
    from: until - columns * step,
    until,
    times: Array.from({ length: columns + 1 }, (_, i) => until - (columns - i) * step).map((time) => Math.min(time, now)),
  };
}

/** The time of day, as often as the drawing moves by a column; not while the page is in the background. */
export function useNow(seconds: number): number {
  const [now, setNow] = useState(store.now());
  useEffect(() => {
    let timer: ReturnType<typeof setInterval> | undefined;
    const tick = () => setNow(store.now());
    const run = () => {
      clearInterval(timer);
      if (document.hidden) return;
      tick();
      timer = setInterval(tick, Math.max(1, Math.round(seconds / COLUMNS)) * 1000);
    };
    run();
    document.addEventListener("visibilitychange", run);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", run);
    };
  }, [seconds]);
  return now;
}

let range: number = report ? report.until - report.since : RANGES[0].seconds;

/** Which range is drawn, for all views, and how to draw another. */
export function useRange(): [number, (seconds: number) => void] {
  const [, again] = useState(0);
  return [
    range,
    (seconds) => {
      range = seconds;
      again((n) => n + 1);
      void remember();
    },
  ];
}

/** Have the range that is drawn filled from the daemon's history. */
export async function remember(): Promise<void> {
  const wanted = range;
  const until = store.now();
  try {
    const past = await source.history(until - wanted, until, Math.max(1, Math.round(wanted / COLUMNS)));
    if (range === wanted) store.remember(past);
  } catch {
    // what the page has seen itself stays; the stream says if the daemon is away
  }
}
