// Follows the node while the page is visible. A tab in the background holds no connection and runs no timer.

import { type Changed, events, type Happening, logOut, Refused, type State } from "./api";
import { source } from "./source";
import { store } from "./store";
import { remember } from "./window";

const AGAIN_AFTER = 1000;
const SILENT_FOR = 40_000; // the server says something every 15 s
const DAY = 24 * 3600;

let current: AbortController | null = null;

export function follow(): void {
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  if (!document.hidden) start();
}

function stop(): void {
  current?.abort();
  current = null;
}

function start(): void {
  if (current) return;
  current = new AbortController();
  void keepFollowing(current.signal);
}

async function keepFollowing(signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    try {
      await followOnce(signal);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status === 401) {
        logOut();
        store.enter("locked", error.message);
        return;
      }
    }
    if (signal.aborted) return;
    store.enter("lost");
    await new Promise((done) => setTimeout(done, AGAIN_AFTER));
  }
}

async function followOnce(signal: AbortSignal): Promise<void> {
  const silent = new AbortController();
  let timer = setTimeout(() => silent.abort(), SILENT_FOR);
  try {
    for await (const [kind, data] of events("/live", AbortSignal.any([signal, silent.signal]))) {
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENT_FOR);
      if (kind === "state") {
        store.replace(data as State);
        void catchUp();
        void remember();
      } else if (kind === "change") store.take(data as Changed);
      else if (kind === "record") store.happened(data as Happening);
      else if (kind === "away") {
        const { message, hint } = data as { message: string; hint: string | null };
        store.enter("away", message, hint);
      }
    }
  } finally {
    clearTimeout(timer);
  }
}

async function catchUp(): Promise<void> {
  const since = store.happenings.at(-1)?.time ?? store.now() - DAY;
  try {
    store.happenedSince(since, await source.happenings(since));
  } catch {
    // the stream says if the daemon is away; what happens from now on is shown
  }
}
