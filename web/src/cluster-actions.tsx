// What a user may do to jobs and queues of the cluster. Each says first what would follow, as the service has tried it.

import { useState } from "preact/hooks";
import { Answered, Confirmed, useCall } from "./actions";
import { type ClusterJob, MICRO, NUMBERS_OF_A_QUEUE, type Queue, service } from "./cluster-api";
import { gpus } from "./format";

const NOTHING = "nothing else follows at once";

export function CancelButton({ job }: { job: ClusterJob }) {
  const named = job.name ? `${job.id} (${job.name})` : job.id;
  return (
    <Confirmed
      name={`Cancel ${job.id}…`}
      title={`Cancel job ${named}?`}
      follows={async () => {
        const would = await service.wouldCancel(job.id);
        return would.length > 0 ? would : ["it leaves the queue", NOTHING];
      }}
      sure="Cancel it"
      act={async () => {
        await service.cancel(job.id);
        return "cancelled";
      }}
    />
  );
}

export function HoldButton({ job }: { job: ClusterJob }) {
  const [busy, answer, make] = useCall();
  const held = job.state === "held";
  return (
    <>
      <button
        type="button"
        disabled={busy}
        onClick={() => void make(async () => (await service.hold(job.id, !held), ""))}
      >
        {held ? "Release" : "Hold"} {job.id}
      </button>
      {answer && "refused" in answer && <Answered answer={answer} />}
    </>
  );
}

/** Quota and weight; with all other numbers as they are. */
export function QueueForm({ queue }: { queue: Queue }) {
  const [quota, setQuota] = useState("");
  const [weight, setWeight] = useState("");
  const [would, setWould] = useState<string[] | null>(null);
  const [busy, answer, make, clear] = useCall();
  const said = Object.fromEntries(NUMBERS_OF_A_QUEUE.map((name) => [name, queue[name]]));
  const wanted = { ...said, ...read("quota", quota), ...read("weight", weight) };
  const wrong = [quota, weight].some((text) => text.trim() !== "" && !isNumber(text));

  function edit(set: (text: string) => void, text: string): void {
    set(text);
    setWould(null);
    clear();
  }

  async function look(event: Event): Promise<void> {
    event.preventDefault();
    const done = await make(async () => {
      setWould(await service.wouldChange(wanted));
      return "";
    });
    if (done) clear();
  }

  async function apply(): Promise<void> {
    const done = await make(async () => (await service.change(wanted), `${queue.name} is changed`));
    setWould(null);
    if (done) {
      setQuota("");
      setWeight("");
    }
  }

  return (
    <form class="form" aria-label={`change ${queue.name}`} onSubmit={(event) => void look(event)}>
      <label>
        quota of {queue.name}, GPUs
        <input
          value={quota}
          placeholder={queue.quota === null ? "all" : gpus(queue.quota)}
          inputMode="decimal"
          autocomplete="off"
          onInput={(event) => edit(setQuota, event.currentTarget.value)}
        />
      </label>
      <label>
        weight of {queue.name}
        <input
          value={weight}
          placeholder={queue.weight === null ? "as its quota" : gpus(queue.weight)}
          inputMode="decimal"
          autocomplete="off"
          onInput={(event) => edit(setWeight, event.currentTarget.value)}
        />
      </label>
      <button type="submit" disabled={busy || wrong || (quota.trim() === "" && weight.trim() === "")}>
        What would follow?
      </button>
      {would && (
        <div class="preview" role="status">
          <ul>
            {(would.length > 0 ? would : [NOTHING]).map((line) => (
              <li key={line}>{line}</li>
            ))}
          </ul>
          <button type="button" class="primary" disabled={busy} onClick={() => void apply()}>
            Change it
          </button>
        </div>
      )}
      <Answered answer={answer} />
    </form>
  );
}

function isNumber(text: string): boolean {
  return /^\d{1,7}(\.\d{1,6})?$/.test(text.trim());
}

function read(name: string, text: string): Record<string, number> {
  return isNumber(text) ? { [name]: Math.round(Number(text.trim()) * MICRO) } : {};
}
