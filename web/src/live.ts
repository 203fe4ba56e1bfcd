// Follows the side that is looked at, node or cluster, while the page is visible. A tab in the background holds no
// connection and runs no timer.

import { type Changed, events, type Happening, logOut, Refused, type State } from "./api";
import { type ClusterChanged, type Notice, type Overview, service } from "./cluster-api";
import { cluster } from "./cluster-store";
import type { Known } from "./known";
import { source } from "./source";
import { store } from "./store";
import { remember, rememberQueues } from "./window";

const AGAIN_AFTER = 1000;
const SILENT_FOR = 40_000; // the server says something every 15 s
const DAY = 24 * 3600;

interface Side {
  path: string;
  known: Known;
  replace(state: unknown): void;
  take(changed: unknown): void;
  happened(record: unknown): void;
}

const NODE: Side = {
  path: "/live",
  known: store,
  replace(state) {
    store.replace(state as State);
    void catchUp();
    void remember();
  },
  take: (changed) => store.take(changed as Changed),
  happened: (record) => store.happened(record as Happening),
};

const CLUSTER: Side = {
  path: "/cluster/live",
  known: cluster,
  replace(state) {
    cluster.replace(state as Overview);
    void catchUpNotices();
    void rememberQueues();
  },
  take: (changed) => cluster.take(changed as ClusterChanged),
  happened: (notice) => cluster.happened(notice as Notice),
};

let side = NODE;
let current: AbortController | null = null;

export function follow(): void {
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  if (!document.hidden) start();
}

/** Look at the one or the other from now on. */
export function turn(toCluster: boolean): void {
  const wanted = toCluster ? CLUSTER : NODE;
  if (wanted === side) return;
  side = wanted;
  if (!current) return;
  stop();
  start();
}

function stop(): void {
  current?.abort();
  current = null;
}

function start(): void {
  if (current) return;
  current = new AbortController();
  void keepFollowing(side, current.signal);
}

async function keepFollowing(one: Side, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    try {
      await followOnce(one, signal);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status === 401) {
        logOut();
        store.enter("locked", error.message);
        cluster.enter("locked", error.message);
        return;
      }
    }
    if (signal.aborted) return;
    one.known.enter("lost");
    await new Promise((done) => setTimeout(done, AGAIN_AFTER));
  }
}

async function followOnce(one: Side, signal: AbortSignal): Promise<void> {
  const silent = new AbortController();
  let timer = setTimeout(() => silent.abort(), SILENT_FOR);
  try {
    for await (const [kind, data] of events(one.path, AbortSignal.any([signal, silent.signal]))) {
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENT_FOR);
      if (kind === "state") one.replace(data);
      else if (kind === "change") one.take(data);
      else if (kind === "record") one.happened(data);
      else if (kind === "away") {
        const { message, hint } = data as { message: string; hint: string | null };
        one.known.enter("away", message, hint);
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

async function catchUpNotices(): Promise<void> {
  const since = cluster.happenings.at(-1)?.time ?? cluster.now() - DAY;
  try {
    cluster.happenedSince(since, await service.notices(since));
  } catch {
    // the same
  }
}
