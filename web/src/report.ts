// A report: a file with the page and, as JSON, all that it shows. Nobody is asked, and the time stands still at its end.

import type { About, Happening, History, State, Waiting } from "./api";
import type { Notice, Overview, QueueHistory } from "./cluster-api";

/** Of a node or a job: as gpushare/report/contents.py writes it. */
export interface Report {
  about: About;
  since: number;
  until: number;
  /** The only job that it is about; null: it is about the node. */
  job: string | null;
  state: State;
  waiting: (Waiting & { job: string })[];
  history: History;
  happenings: Happening[];
}

/** Of a cluster's queues: as gpushare/report/queues.py writes it. */
export interface QueueReport {
  about: About;
  since: number;
  until: number;
  /** The only queue that it is about; null: it is about all. */
  queue: string | null;
  cluster: Overview;
  history: QueueHistory;
  notices: Notice[];
}

/** Values from a moment on: moments, then the values. */
type Steps = [number[], number[]];

/** A run on a simulated clock. */
export interface Play {
  title: string;
  /** What moments are: seconds, or, where no time passes, the number of the step. */
  along: "seconds" | "steps";
  /** Where the slider stops. */
  moments: number[];
  /** Of steps: what each is called, and its time in seconds. */
  titles: string[];
  times: number[];
  queues: { name: string; parent: string | null; held: Steps; share: Steps; quota: Steps; demand: Steps }[];
  capacity: Steps;
  decisions: { at: number; kind: string; job: string; queue: string; text: string }[];
  /** Decisions that are left out at the end. */
  left_out: number;
  failures: string[];
}

/** Of one run, or of two beside each other: as gpushare/report/plays.py writes it. */
export interface PlayReport {
  about: About;
  plays: Play[];
}

type Written = Report | QueueReport | PlayReport;
const written: Written | null = JSON.parse(document.getElementById("report")?.textContent ?? "null");

/** The page is a report, of whatever; null: it is the dashboard's. */
export const still = written;
export const report = written && "state" in written ? written : null;
export const queueReport = written && "cluster" in written ? written : null;
export const playReport = written && "plays" in written ? written : null;
