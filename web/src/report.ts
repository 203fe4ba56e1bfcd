// A report: a file with the page and, as JSON, all that it shows. Nobody is asked, and the time stands still at its end.

import type { About, Happening, History, State, Waiting } from "./api";

/** As gpushare/report/contents.py writes it. */
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

/** null: the page is the dashboard's. */
export const report: Report | null = JSON.parse(document.getElementById("report")?.textContent ?? "null");
