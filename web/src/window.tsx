// Which part of the past is drawn, and the times at which values are taken for it.

import { useEffect, useState } from "preact/hooks";
import { queueReport, report } from "./report";
import { service } from "./cluster-api";
import { cluster } from "./cluster-store";
import type { Known } from "./known";
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
export function useNow(seconds: number, side: Known = store): number {
  const [now, setNow] = useState(side.now());
  useEffect(() => {
    let timer: ReturnType<typeof setInterval> | undefined;
    const tick = () => setNow(side.now());
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

const whole = report ?? queueReport;
let range: number = whole ? whole.until - whole.since : RANGES[0].seconds;

/** Which range is drawn, for all views, and how to draw another. */
export function useRange(): [number, (seconds: number) => void] {
  const [, again] = useState(0);
  return [
    range,
    (seconds) => {
      range = seconds;
      again((n) => n + 1);
      void remember();
      void rememberQueues();
    },
  ];
}

/** Have the range that is drawn filled from the daemon's history. */
export const remember = () => fill(store, source.history, (past) => store.remember(past));

/** The same from the cluster's. */
export const rememberQueues = () => fill(cluster, service.history, (past) => cluster.remember(past));

async function fill<Past>(
  side: Known,
  ask: (since: number, until: number, step: number) => Promise<Past>,
  take: (past: Past) => void,
): Promise<void> {
  if (side.phase !== "live") return;
  const wanted = range;
  const until = side.now();
  try {
    const past = await ask(until - wanted, until, Math.max(1, Math.round(wanted / COLUMNS)));
    if (range === wanted) take(past);
  } catch {
    // what the page has seen itself stays; the stream says if the daemon is away
  }
}
