// The shapes of the cluster's service that the page uses (docs/service.md). Amounts are millionths of a GPU, and bytes.

import { ask, type Happening } from "./api";

export const MICRO = 1_000_000;

export interface Queue {
  name: string;
  parent: string | null;
  quota: number | null;
  limit: number | null;
  weight: number | null;
  priority: number;
  static: boolean;
  min_runtime: number | null;
  placement: string | null;
  default_limit: number | null;
  max_limit: number | null;
  held: number;
  share: number;
  /** The sum that the share comes from. */
  sum: string;
  demand: number;
  waiting: number;
  running: number;
}

/** What a change of a queue sends back. */
export const NUMBERS_OF_A_QUEUE = [
  ...(["name", "parent", "quota", "limit", "weight", "priority"] as const),
  ...(["static", "min_runtime", "placement", "default_limit", "max_limit"] as const),
];

export interface ClusterNode {
  name: string;
  type: string;
  memory: number;
  state: string;
  gpus: { broken: boolean; held: number; foreign: number }[];
}

export interface ClusterJob {
  id: string;
  name: string;
  queue: string;
  user: string;
  uid: number;
  state: string;
  priority: number;
  preemptible: boolean;
  gpus: number;
  since: number;
  evictions: number;
  reason: string;
  places: [string, number[]][];
}

export interface Loan {
  borrower: string;
  lender: string | null;
  amount: number;
}

export interface Overview {
  time: number;
  engine: string;
  capacity: number;
  you: { uid: number; user: string; admin: boolean };
  queues: Queue[];
  loans: Loan[];
  nodes: ClusterNode[];
  jobs: ClusterJob[];
}

export interface ClusterChanged extends Partial<Omit<Overview, "time">> {
  time: number;
  gone?: string[];
}

/** GPUs over time: [time, held, most held, share, quota, demand]; the time alone where nothing is known. */
export type QueuePoint = [number, number, number, number, number, number] | [number];

export interface QueueHistory {
  kept: boolean;
  step: number;
  cut: boolean;
  series: { queue: string; points: QueuePoint[] }[];
}

export interface Notice {
  time: number;
  event: string;
  job: string | null;
  text: string;
  facts: Record<string, unknown>;
}

export interface Explained {
  state: string;
  reason: { message: string };
  who: string[];
  change: string;
}

const BELOW = "/cluster/v1";

export const service = {
  history: (since: number, until: number, step: number) =>
    ask("GET", `${BELOW}/history?since=${since.toFixed(3)}&until=${until.toFixed(3)}&step=${step}`) as Promise<QueueHistory>,
  notices: async (from: number) => ((await ask("GET", `${BELOW}/events?from=${from.toFixed(3)}`)) as { events: Notice[] }).events,
  explain: (id: string) => ask("GET", `${BELOW}/jobs/${id}/explain`) as Promise<Explained>,
  wouldCancel: async (id: string) => ((await ask("DELETE", `${BELOW}/jobs/${id}?dry_run=1`)) as { would: string[] }).would,
  cancel: (id: string) => ask("DELETE", `${BELOW}/jobs/${id}`),
  hold: (id: string, wanted: boolean) => ask("POST", `${BELOW}/jobs/${id}/${wanted ? "hold" : "release"}`, {}),
  wouldChange: async (queue: object) =>
    ((await ask("POST", `${BELOW}/changes`, { events: [{ event: "QueueChanged", queue }], dry_run: true })) as { would: string[] })
      .would,
  change: (queue: object) => ask("POST", `${BELOW}/changes`, { events: [{ event: "QueueChanged", queue }] }),
};

/** A notice as the node's events are. */
export function happening(one: Notice): Happening {
  return { time: one.time, event: one.event, gpu: null, job: one.job, name: one.job, text: one.text, facts: one.facts };
}
