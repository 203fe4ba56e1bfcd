// The shapes of the daemon's API that the page uses (gpushare/api.py has them all), and how to ask for them.

import { still } from "./report";

export interface JobGpu {
  uuid: string;
  index: number;
  name: string;
  total: number;
  request: number;
  limit: number;
  usage: number;
  overhead: number;
  loan: number;
  peak: number;
  /** Seconds in which the job had the GPU compute; an older daemon does not say. */
  gpu_time?: number;
  /** Bytes of host memory with what it had on the GPU, while the job is suspended; an older daemon does not say. */
  suspended?: number;
  /** The part of the time, up to 1, at the last sample. */
  computing?: number | null;
}

export interface Outcome {
  exit_code: number | null;
  signal: number | null;
  killed: { reason: string } | null;
  refusals: number;
  /** Seconds. */
  duration: number;
  /** Whether somebody saw its end; an older daemon does not say. */
  seen?: boolean;
}

export interface Job {
  id: string;
  name: string;
  user: string;
  uid: number;
  command: string[];
  state: string;
  since: number;
  priority: number;
  lend: boolean;
  grace: number | null;
  on_reclaim: string[];
  request_source: string | null;
  limit_source: string | null;
  gpus: JobGpu[];
  processes: { pid: number; command: string; gpus: Record<string, number> }[];
  outcome: Outcome | null;
}

export interface Gpu {
  uuid: string;
  index: number;
  name: string;
  total: number;
  reserve: number;
  capacity: number;
  requested: number;
  usage: number;
  lent: number;
  free: number;
  unmanaged: number;
  unmanaged_processes: { pid: number; bytes: number; command: string; user: string; reason: string }[];
  returning: number;
  health: { state: string; shortfall: number; ailments: { state: string; text: string; hint: string }[] };
}

/** Something that has happened. */
export interface Happening {
  time: number;
  event: string;
  gpu: string | null;
  job: string | null;
  name: string | null;
  text: string;
  facts: Record<string, unknown>;
}

interface Stall {
  avg10: number;
  avg60: number;
  avg300: number;
}

export interface Pressure {
  uuid: string;
  index: number;
  some: Stall;
  full: Stall;
}

export interface Reservation {
  id: string;
  name: string;
  user: string;
  uid: number;
  until: number | null;
  gpus: { uuid: string; index: number; amount: number; remainder: number }[];
  jobs: string[];
}

export interface Waiting {
  message: string;
  since: number;
  until: number;
  hint: string | null;
}

export interface Story {
  job: Job;
  story: Happening[];
  waiting: Waiting[];
}

export interface State {
  time: number;
  daemon: { version: string; uptime: number; jobs: number };
  gpus: Gpu[];
  jobs: Job[];
  pressure: Pressure[];
  reservations: Reservation[];
}

export interface Changed extends Partial<Omit<State, "time">> {
  time: number;
  gone?: string[];
}

export interface Change {
  before: Job;
  after: Job;
  note: string;
}

/** [time, mean usage, highest usage, request, limit, loan, the part of the time that it computes]; the time alone where
 * nothing is known. An older daemon leaves the last out. */
export type Point = [number, number, number, number, number, number, number?] | [number];

export interface History {
  kept: boolean;
  step: number;
  cut: boolean;
  series: { gpu: string; job: string; name: string; user: string; points: Point[] }[];
}

export interface About {
  key: string;
  uid: number;
  user: string;
  host: string;
  version: string;
  read_only: boolean;
}

/** The daemon or the dashboard said no, or nobody answered. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string | null = null,
    readonly facts: [string, string][] = [],
  ) {
    super(message);
  }
}

const STORED = "gpushare.session";
let about: About | null = null;

/** The session: with the token of the address, else the one that this tab had before it was loaded again. A report has
 * none, and says who has asked for it. */
export async function logIn(): Promise<About> {
  if (still) return (about = still.about);
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token === null) {
    const stored = sessionStorage.getItem(STORED);
    if (stored === null) throw new Refused(401, "no_session", "");
    about = JSON.parse(stored) as About;
    return about;
  }
  // The token leaves the address bar and the history before anything else happens.
  history.replaceState(null, "", location.pathname);
  about = (await ask("POST", "/session", { token })) as About;
  sessionStorage.setItem(STORED, JSON.stringify(about));
  return about;
}

export function logOut(): void {
  sessionStorage.removeItem(STORED);
  about = null;
}

function headers(): Record<string, string> {
  return about === null ? {} : { "X-Gpushare-Key": about.key };
}

export async function ask(method: string, path: string, body?: object): Promise<unknown> {
  let answer: Response;
  try {
    const sent = body === undefined ? {} : { body: JSON.stringify(body) };
    answer = await fetch(path, { method, headers: headers(), ...sent });
  } catch {
    throw new Refused(0, "no_server", "`gpushare dashboard` has ended, or the way to it is broken");
  }
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

async function refusal(answer: Response): Promise<Refused> {
  try {
    const { code, message, hint, facts } = (await answer.json()).error;
    return new Refused(answer.status, code, message, hint, facts ?? []);
  } catch {
    return new Refused(answer.status, "garbage", `the dashboard's server answers with status ${answer.status}`);
  }
}

/** Server-sent events, read with fetch: EventSource cannot send the key. Ends when the server ends it. */
export async function* events(path: string, signal: AbortSignal): AsyncGenerator<[string, unknown]> {
  const answer = await fetch(path, { headers: headers(), signal });
  if (!answer.ok) throw await refusal(answer);
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n\n");
    rest = whole.pop()!;
    for (const one of whole) {
      const found = /^event: (.*)\ndata: (.*)$/.exec(one);
      if (found) yield [found[1]!, JSON.parse(found[2]!)];
      else yield ["", null];
    }
  }
}

/** Only its user and administrators are told what a job runs, and they are the ones who may change it. */
export function isOurs(job: Job): boolean {
  return job.uid === about?.uid || job.command.length > 0;
}

export function mayWrite(): boolean {
  return about !== null && !about.read_only;
}
