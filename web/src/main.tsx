// The page: the head with the connection's state, and one of the views.

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { logIn, Refused } from "./api";
import { EventsView } from "./events";
import { count, span } from "./format";
import { JobView } from "./job";
import { follow } from "./live";
import { NodeView } from "./node";
import { Panel } from "./panel";
import { report } from "./report";
import { store, useStore } from "./store";
import "./style.css";
import { chosen, choose, show, THEMES } from "./theme";

const TITLES: Record<string, string> = {
  loading: "connecting",
  live: "live",
  away: "no daemon",
  lost: "no connection",
  locked: "locked",
};

function usePlace(): string {
  const [place, setPlace] = useState(location.hash);
  useEffect(() => {
    const moved = () => {
      setPlace(location.hash);
      scrollTo(0, 0);
    };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return place;
}

function Head({ place }: { place: string }) {
  const { phase, about, daemon } = useStore();
  const [theme, setTheme] = useState(chosen());
  return (
    <header class="head">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")!.focus())}>
        to the content
      </a>
      <strong class="brand">gpushare</strong>
      <span class={report ? "report" : "host"}>
        {report ? `report of ${report.about.host}, ${span(report.since, report.until)}` : about?.host}
      </span>
      <nav aria-label="views">
        <a href="#/" aria-current={!place.startsWith("#/events") && !place.startsWith("#/job/") ? "page" : undefined}>
          {report?.job ? "Job" : "Node"}
        </a>
        <a href="#/events" aria-current={place.startsWith("#/events") ? "page" : undefined}>
          Events
        </a>
      </nav>
      <span class="space" />
      {!report && about?.read_only && <span class="badge quiet">read-only</span>}
      {!report && (
        <span class={`phase ${phase}`} role="status">
          {TITLES[phase]}
          {phase === "live" && daemon && <span class="wide">, gpushared {daemon.version}</span>}
        </span>
      )}
      <label class="field">
        <span class="hidden">colours</span>
        <select
          value={theme}
          onChange={(event) => {
            const found = THEMES.find((one) => one === event.currentTarget.value) ?? "auto";
            choose(found);
            setTheme(found);
          }}
        >
          {THEMES.map((one) => (
            <option key={one} value={one}>
              {one === "auto" ? "system" : one}
            </option>
          ))}
        </select>
      </label>
    </header>
  );
}

function Page() {
  const place = usePlace();
  const { phase, message, hint } = useStore();
  const known = store.gpus.size > 0;
  const events = place.startsWith("#/events");
  const job = /^#\/job\/([0-9a-f]{16})$/.exec(place)?.[1] ?? (events ? null : report?.job);
  useEffect(() => {
    document.title = title(place);
  });
  return (
    <>
      <Panel name="head">
        <Head place={place} />
      </Panel>
      <main id="main" tabIndex={-1} class={phase === "live" ? undefined : "stale"}>
        {phase === "loading" && <p class="empty large">Connecting…</p>}
        {phase === "locked" && <Locked message={message} />}
        {phase === "away" && (
          <div class="banner" role="alert">
            <strong>No daemon answers.</strong> {message}. {hint && `${hint}. `}{known && "Below is what was last known. "}This page goes
            on by itself when one answers.
          </div>
        )}
        {phase === "lost" && (
          <div class="banner" role="alert">
            <strong>No connection to the dashboard.</strong> Does `gpushare dashboard` still run, and the `ssh -L` if there
            is one? This page goes on by itself when it answers.
          </div>
        )}
        {(phase === "live" || (known && phase !== "locked")) && (
          <Panel key={place} name="view">
            {job ? <JobView key={job} id={job} /> : events ? <EventsView /> : <NodeView />}
          </Panel>
        )}
      </main>
    </>
  );
}

function title(place: string): string {
  if (report) return `${report.about.host}: report`;
  const where = place.startsWith("#/events") ? "events" : count(store.jobs.size, "job");
  const state = store.phase === "live" ? where : TITLES[store.phase];
  return `${store.about?.host ?? "gpushare"}: ${state}`;
}

function Locked({ message }: { message: string }) {
  return (
    <div class="empty large">
      <h1>This page is locked</h1>
      <p>
        Open it with the whole address that <code>gpushare dashboard</code> printed: it ends in <code>#token=…</code>. Each
        start of the command makes a new one.
      </p>
      {message && <p class="muted">{message}</p>}
    </div>
  );
}

async function start(): Promise<void> {
  try {
    store.about = await logIn();
  } catch (error) {
    const refused = error instanceof Refused ? error : new Refused(0, "failed", String(error));
    store.enter(refused.status === 0 ? "lost" : "locked", refused.message);
    return;
  }
  if (report) store.open(report);
  else follow();
}

show();
render(<Page />, document.getElementById("app")!);
void start();
