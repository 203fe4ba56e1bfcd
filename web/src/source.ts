// What the views ask for: from the daemon, or from the report that the page is a part of.

import { ask, type Happening, type History, type Job, Refused, type Story } from "./api";
import { type Report, report } from "./report";

interface Source {
  story(id: string): Promise<Story>;
  job(id: string): Promise<Job>;
  history(since: number, until: number, step: number): Promise<History>;
  happenings(since: number): Promise<Happening[]>;
}

const daemon: Source = {
  story: (id) => ask("GET", `/v1/jobs/${id}/story`) as Promise<Story>,
  job: (id) => ask("GET", `/v1/jobs/${id}`) as Promise<Job>,
  history: (since, until, step) =>
    ask("GET", `/v1/history?since=${since.toFixed(3)}&until=${until.toFixed(3)}&step=${step}`) as Promise<History>,
  happenings: async (since) =>
    ((await ask("GET", `/v1/events?since=${since.toFixed(3)}`)) as { records: Happening[] }).records,
};

function written({ job: only, state, history, happenings, waiting }: Report): Source {
  async function find(id: string): Promise<Job> {
    const found = state.jobs.find((one) => one.id === id);
    if (!found) throw new Refused(404, "no_such_job", `the report does not have job ${id}`);
    return found;
  }
  return {
    story: async (id) => ({
      job: await find(id),
      // A job's own report has what happened to others for its sake, too.
      story: happenings.filter((one) => only === id || one.job === id),
      waiting: waiting.filter((one) => one.job === id),
    }),
    job: find,
    history: async () => history,
    happenings: async () => happenings,
  };
}

export const source: Source = report ? written(report) : daemon;
