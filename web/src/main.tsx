// The page: the head with the connection's state, and one of the views.

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { logIn, Refused } from "./api";
import { ClusterView } from "./cluster";
import { cluster } from "./cluster-store";
import { EventsView } from "./events";
import { count, span } from "./format";
import { JobView } from "./job";
import { useKnown } from "./known";
import { follow, turn } from "./live";
import { NodeView } from "./node";
import { Panel } from "./panel";
import { PlayView } from "./play";
import { playReport, queueReport, report, still } from "./report";
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

function ofCluster(place: string): boolean {
  return queueReport !== null || (still === null && place.startsWith("#/cluster"));
}

/** What is behind the view: the node's daemon or the cluster's service. */
function useSide(place: string) {
  const node = useStore();
  const queues = useKnown(cluster);
  return ofCluster(place) ? queues : node;
}

function Views({ place }: { place: string }) {
  if (queueReport || playReport) return null;
  const here = (name: string) => (place.startsWith(name) ? "page" : undefined);
  const elsewhere = ["#/events", "#/job/", "#/cluster"].some((name) => place.startsWith(name));
  return (
    <nav aria-label="views">
      <a href="#/" aria-current={elsewhere ? undefined : "page"}>
        {report?.job ? "Job" : "Node"}
      </a>
      <a href="#/events" aria-current={here("#/events")}>
        Events
      </a>
      {!report && (
        <a href="#/cluster" aria-current={here("#/cluster")}>
          Cluster
        </a>
      )}
    </nav>
  );
}

function Head({ place }: { place: string }) {
  const { phase } = useSide(place);
  const { about, daemon } = store;
  const [theme, setTheme] = useState(chosen());
  return (
    <header class="head">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")!.focus())}>
        to the content
      </a>
      <strong class="brand">gpushare</strong>
      <span class={still ? "report" : "host"}>{still ? reportOf() : about?.host}</span>
      <Views place={place} />
      <span class="space" />
      {!still && about?.read_only && <span class="badge quiet">read-only</span>}
      {!still && (
        <span class={`phase ${phase}`} role="status">
          {TITLES[phase]}
          {phase === "live" && daemon && !ofCluster(place) && <span class="wide">, gpushared {daemon.version}</span>}
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
  const { phase, message, hint } = useSide(place);
  const queues = ofCluster(place);
  const known = queues ? cluster.queues.size > 0 : store.gpus.size > 0;
  const events = place.startsWith("#/events");
  const job = /^#\/job\/([^/]+)$/.exec(place)?.[1] ?? (events ? null : report?.job);
  useEffect(() => {
    document.title = title(place);
  });
  useEffect(() => turn(queues), [queues]);
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
            <strong>{queues ? "No service runs jobs here." : "No daemon answers."}</strong> {message}. {hint && `${hint}. `}{known && "Below is what was last known. "}This page goes
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
            {playReport ? (
              <PlayView plays={playReport.plays} />
            ) : queues ? (
              <ClusterView />
            ) : job ? (
              <JobView key={job} id={job} />
            ) : events ? (
              <EventsView />
            ) : (
              <NodeView />
            )}
          </Panel>
        )}
      </main>
    </>
  );
}

function reportOf(): string {
  if (playReport) return "report of a simulation";
  const one = (report ?? queueReport)!;
  return `report of ${one.about.host}, ${span(one.since, one.until)}`;
}

function title(place: string): string {
  if (still) return `${still.about.host}: report`;
  const where = place.startsWith("#/events") ? "events" : place.startsWith("#/cluster") ? "cluster" : count(store.jobs.size, "job");
  const state = (ofCluster(place) ? cluster : store).phase;
  return `${store.about?.host ?? "gpushare"}: ${state === "live" ? where : TITLES[state]}`;
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
    for (const side of [store, cluster]) side.enter(refused.status === 0 ? "lost" : "locked", refused.message);
    return;
  }
  if (report) store.open(report);
  else if (queueReport) cluster.open(queueReport.until, queueReport.cluster, queueReport.history, queueReport.notices);
  else if (playReport) store.enter("live");
  else {
    turn(ofCluster(location.hash));
    follow();
  }
}

show();
render(<Page />, document.getElementById("app")!);
void start();
