// What has happened on the node, newest first.

import { useState } from "preact/hooks";
import type { Happening } from "./api";
import { moment } from "./format";
import { Empty, Panel } from "./panel";
import { still } from "./report";
import { store, useStore } from "./store";

/** The colour of what happens; what is not named is quiet. */
export const TONES: Record<string, string> = {
  admitted: "good",
  claim_met: "good",
  relieved: "good",
  claim_waits: "warn",
  trim: "warn",
  trimmed: "warn",
  suspend: "warn",
  suspended: "warn",
  not_suspended: "bad",
  not_resumed: "bad",
  resumed: "good",
  hook: "warn",
  hook_gave: "warn",
  hook_failed: "bad",
  not_awake: "bad",
  awake: "good",
  idle_gave: "warn",
  active: "good",
  term: "warn",
  queued: "warn",
  kill: "bad",
  denied: "bad",
  refused: "bad",
  breach: "bad",
  stray: "bad",
  unkillable: "bad",
  xid: "bad",
  start: "good",
  running: "good",
  grow: "good",
  evict: "warn",
  move: "warn",
  shrink: "warn",
  stop: "warn",
  refuse: "bad",
};

const SHOWN = 200;

export function EventsView() {
  useStore();
  return (
    <Panel name="events">
      <Events found={store.happenings} title="Events" linked />
    </Panel>
  );
}

/** `linked`: the jobs have views of their own. */
export function Events({ found: all, title, linked }: { found: Happening[]; title: string; linked?: boolean }) {
  const [kind, setKind] = useState("");
  const [word, setWord] = useState("");
  const [most, setMost] = useState(SHOWN);
  const kinds = [...new Set(all.map((one) => one.event))].sort();
  const sought = word.trim().toLowerCase();
  const found = all
    .filter((one) => kind === "" || one.event === kind)
    .filter((one) => [one.text, one.name ?? "", one.job ?? ""].some((text) => text.toLowerCase().includes(sought)))
    .toReversed();
  return (
    <section class="panel" aria-labelledby="events">
      <header class="row">
        {linked ? <h1 id="events">{title}</h1> : <h2 id="events">{title}</h2>}
        <label class="field">
          <span class="hidden">search the events</span>
          <input type="search" placeholder="job or text" value={word} onInput={(event) => setWord(event.currentTarget.value)} />
        </label>
        <label class="field">
          kind{" "}
          <select value={kind} onChange={(event) => setKind(event.currentTarget.value)}>
            <option value="">all</option>
            {kinds.map((one) => (
              <option key={one} value={one}>
                {one.replaceAll("_", " ")}
              </option>
            ))}
          </select>
        </label>
      </header>
      {found.length === 0 && (
        <Empty>{all.length === 0 ? `Nothing has happened in ${still ? "this time" : "the last day"}.` : "No event fits."}</Empty>
      )}
      <ol class="story">
        {found.slice(0, most).map((one, i) => (
          <li key={`${one.time} ${found.length - i}`}>
            <time dateTime={new Date(one.time * 1000).toISOString()}>{moment(one.time)}</time>{" "}
            <span class={`kind ${TONES[one.event] ?? ""}`}>{one.event.replaceAll("_", " ")}</span>{" "}
            <span class="text">
              {linked && one.job && one.name && <a href={`#/job/${one.job}`}>{one.name}</a>} {one.text}
            </span>
          </li>
        ))}
      </ol>
      {found.length > most && (
        <button type="button" onClick={() => setMost(most + SHOWN)}>
          show more
        </button>
      )}
    </section>
  );
}
