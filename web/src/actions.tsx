// What a user may do to a job or a reservation of theirs. Each says first what would follow.

import { useRef, useState } from "preact/hooks";
import { ask, type Change, type Job, Refused, type Reservation } from "./api";
import { bytes, count, duration } from "./format";
import { store } from "./store";

type Answer = { told: string } | { refused: Refused } | null;

export function Answered({ answer }: { answer: Answer }) {
  return (
    <div class="answer" role="status">
      {answer && "told" in answer && <p class="note">{answer.told}</p>}
      {answer && "refused" in answer && (
        <p class="note bad">
          {answer.refused.message}
          {answer.refused.facts.map(([name, text]) => `; ${name}: ${text}`)}
          {answer.refused.hint && `. ${answer.refused.hint}`}
        </p>
      )}
    </div>
  );
}

/** One request at a time, and what became of it. */
export function useCall(): [boolean, Answer, (call: () => Promise<string>) => Promise<boolean>, () => void] {
  const [busy, setBusy] = useState(false);
  const [answer, setAnswer] = useState<Answer>(null);
  async function make(call: () => Promise<string>): Promise<boolean> {
    setBusy(true);
    try {
      setAnswer({ told: await call() });
      return true;
    } catch (error) {
      const refused = error instanceof Refused ? error : new Refused(0, "failed", String(error));
      setAnswer({ refused });
      return false;
    } finally {
      setBusy(false);
    }
  }
  return [busy, answer, make, () => setAnswer(null)];
}

export function JobActions({ job }: { job: Job }) {
  return (
    <section class="panel" aria-labelledby="change">
      <h2 id="change">Change</h2>
      {job.gpus.length > 0 && <BudgetForm job={job} />}
      <StopButton job={job} />
    </section>
  );
}

function BudgetForm({ job }: { job: Job }) {
  const [request, setRequest] = useState("");
  const [limit, setLimit] = useState("");
  const [preview, setPreview] = useState<Change | null>(null);
  const [busy, answer, make, clear] = useCall();
  const changes = { ...(request.trim() && { request: request.trim() }), ...(limit.trim() && { limit: limit.trim() }) };
  const gpu = job.gpus[0]!;

  function edit(set: (text: string) => void, text: string): void {
    set(text);
    setPreview(null);
    clear();
  }

  async function look(event: Event): Promise<void> {
    event.preventDefault();
    const done = await make(async () => {
      const found = (await ask("PATCH", `/v1/jobs/${job.id}`, { ...changes, dry_run: true })) as Change;
      setPreview(found);
      return "";
    });
    if (done) clear();
  }

  async function apply(): Promise<void> {
    const done = await make(async () => {
      const found = (await ask("PATCH", `/v1/jobs/${job.id}`, changes)) as Change;
      return `changed: ${found.note || "nothing is asked back"}`;
    });
    setPreview(null);
    if (done) {
      setRequest("");
      setLimit("");
    }
  }

  return (
    <form class="form" onSubmit={(event) => void look(event)}>
      <label>
        request
        <input
          value={request}
          placeholder={bytes(gpu.request).replace(/\.0 | /, "").replace("iB", "i")}
          autocomplete="off"
          spellcheck={false}
          onInput={(event) => edit(setRequest, event.currentTarget.value)}
        />
      </label>
      <label>
        limit
        <input
          value={limit}
          placeholder={bytes(gpu.limit).replace(/\.0 | /, "").replace("iB", "i")}
          autocomplete="off"
          spellcheck={false}
          onInput={(event) => edit(setLimit, event.currentTarget.value)}
        />
      </label>
      <button type="submit" disabled={busy || Object.keys(changes).length === 0}>
        What would follow?
      </button>
      {preview && (
        <div class="preview" role="status">
          <ul class="plain">
            {preview.after.gpus.map((after, i) => {
              const before = preview.before.gpus[i]!;
              return (
                <li key={after.uuid}>
                  GPU {after.index}: request {arrow(before.request, after.request)}, limit {arrow(before.limit, after.limit)}
                </li>
              );
            })}
          </ul>
          {preview.note && <p>{preview.note}</p>}
          <button type="button" class="primary" disabled={busy} onClick={() => void apply()}>
            Change it
          </button>
        </div>
      )}
      <Answered answer={answer} />
    </form>
  );
}

function arrow(before: number, after: number): string {
  return before === after ? bytes(after) : `${bytes(before)} → ${bytes(after)}`;
}

interface Question {
  name: string;
  title: string;
  /** What would follow; asked for when the dialog opens. */
  follows: string[] | (() => Promise<string[]>);
  sure: string;
  act: () => Promise<string>;
}

/** A button that opens a dialog: what would follow, and the question. */
export function Confirmed(props: Question) {
  const [found, setFound] = useState<string[]>([]);
  const dialog = useRef<HTMLDialogElement>(null);
  const [busy, answer, make, clear] = useCall();
  const done = answer !== null && "told" in answer;
  return (
    <>
      <button
        type="button"
        class="danger"
        onClick={() => {
          clear();
          dialog.current!.showModal();
          const { follows } = props;
          if (typeof follows === "function") {
            setFound(["asking what would follow…"]);
            follows().then(setFound, (error: Refused) => setFound([error.message]));
          }
        }}
      >
        {props.name}
      </button>
      <dialog ref={dialog} aria-label={props.title}>
        <h2>{props.title}</h2>
        <ul>
          {(typeof props.follows === "function" ? found : props.follows).map((one) => (
            <li key={one}>{one}</li>
          ))}
        </ul>
        <Answered answer={answer} />
        <div class="row end">
          <button type="button" onClick={() => dialog.current!.close()}>
            {done ? "Close" : "Cancel"}
          </button>
          {!done && (
            <button type="button" class="danger" disabled={busy} onClick={() => void make(props.act)}>
              {props.sure}
            </button>
          )}
        </div>
      </dialog>
    </>
  );
}

function StopButton({ job }: { job: Job }) {
  const queued = job.state === "queued";
  const held = job.gpus.map((gpu) => `${bytes(gpu.usage)} on GPU ${gpu.index}`).join(", ");
  const waiting = [...store.jobs.values()].filter((one) => one.state === "waiting" || one.state === "queued").length;
  const follows = queued
    ? ["it leaves the queue; its `gpushare run` ends and says so"]
    : [
        `SIGTERM to ${count(job.processes.length, "process that uses", "processes that use")} a GPU, and to its program`,
        "the program may save its work; nothing is killed by this",
        held ? `${held} comes back when it ends` : "it holds no memory of a GPU",
        ...(waiting > 0 ? [`${count(waiting, "job waits", "jobs wait")} for memory on this node`] : []),
      ];
  return (
    <Confirmed
      name={queued ? "Take it from the queue…" : "Stop…"}
      title={`${queued ? "Take" : "Stop"} ${job.name}${queued ? " from the queue" : ""}?`}
      follows={follows}
      sure={queued ? "Take it from the queue" : "Send SIGTERM"}
      act={async () => {
        const found = (await ask("POST", `/v1/jobs/${job.id}/stop`, {})) as { processes: number; spared: number };
        if (queued) return "it has left the queue";
        const spared = found.spared ? `; ${count(found.spared, "process", "processes")} left alone: another user's by now` : "";
        return `SIGTERM was sent to ${count(found.processes, "process", "processes")}${spared}`;
      }}
    />
  );
}

export function ReleaseButton({ reservation }: { reservation: Reservation }) {
  const remainder = reservation.gpus.map((gpu) => `${bytes(gpu.remainder)} on GPU ${gpu.index}`).join(", ");
  const until = reservation.until === null ? "" : `, ${duration(reservation.until - store.now())} before its end`;
  return (
    <Confirmed
      name="Release…"
      title={`Release ${reservation.name}?`}
      follows={[
        `${remainder} can be requested by other jobs at once${until}`,
        `${count(reservation.jobs.length, "job")} in it ${reservation.jobs.length === 1 ? "goes" : "go"} on with what was requested`,
      ]}
      sure="Release it"
      act={async () => {
        await ask("DELETE", `/v1/reservations/${reservation.id}`);
        return "released";
      }}
    />
  );
}
