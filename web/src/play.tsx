// A run on a simulated clock, or two beside each other: GPUs of each queue over its time, and each decision at its moment.

import { useMemo, useState } from "preact/hooks";
import type { QueueTrack } from "./cluster-store";
import { duration, gpus } from "./format";
import { Empty } from "./panel";
import { colourOf, QueueChart, QueueStack } from "./queues";
import type { Play } from "./report";
import { Series } from "./series";

const COLUMNS = 600;
const CHARTS = 8;
const DECISIONS = 60;

interface Read {
  play: Play;
  tracks: { name: string; track: QueueTrack }[];
  capacity: Series;
}

function series([moments, values]: [number[], number[]]): Series {
  const made = new Series();
  moments.forEach((moment, i) => made.push(moment, values[i]!));
  return made;
}

function read(play: Play): Read {
  const above = new Set(play.queues.map((queue) => queue.parent));
  const tracks = play.queues
    .filter((queue) => !above.has(queue.name))
    .map(({ name, held, share, quota, demand }) => ({
      name,
      track: { held: series(held), share: series(share), quota: series(quota), demand: series(demand) },
    }));
  return { play, tracks, capacity: series(play.capacity) };
}

export function PlayView({ plays }: { plays: Play[] }) {
  const found = useMemo(() => plays.map(read), [plays]);
  const moments = useMemo(() => [...new Set(plays.flatMap((play) => play.moments))].sort((a, b) => a - b), [plays]);
  const [step, setStep] = useState(moments.length - 1);
  const at = moments[step] ?? 0;
  const from = moments[0] ?? 0;
  const along = plays[0]?.along ?? "seconds";
  // A step is as wide as another, the last one, too.
  const until = along === "steps" ? (moments.at(-1) ?? 0) + 1 : Math.max(moments.at(-1) ?? 1, from + 1);
  const times = grid(from, until, along, moments);
  return (
    <>
      <div class="slider panel">
        <label>
          {along === "steps" ? "step" : "time"} <output>{along === "steps" ? at : at === 0 ? "0" : duration(at)}</output>
          <input
            type="range"
            min={0}
            max={moments.length - 1}
            value={step}
            aria-valuetext={along === "steps" ? `step ${at}` : duration(at)}
            onInput={(event) => setStep(Number(event.currentTarget.value))}
          />
        </label>
      </div>
      <div class={plays.length > 1 ? "plays two" : "plays"}>
        {found.map((one, i) => (
          <One key={i} one={one} at={at} axes={{ times, from, until, along: one.play.along }} />
        ))}
      </div>
    </>
  );
}

function grid(from: number, until: number, along: Play["along"], moments: number[]): number[] {
  if (along === "steps") return [...moments, until];
  const step = (until - from) / COLUMNS;
  const even = Array.from({ length: COLUMNS + 1 }, (_, i) => from + i * step);
  return [...new Set([...even, ...moments])].sort((a, b) => a - b);
}

function One({ one, at, axes }: { one: Read; at: number; axes: { times: number[]; from: number; until: number; along: Play["along"] } }) {
  const { play, tracks, capacity } = one;
  const value = (values: Series) => gpus(values.at([at])[0] ?? 0);
  const decisions = play.decisions.filter((decision) => decision.at === at);
  return (
    <section class="play" aria-label={play.title}>
      <h1>{play.title}</h1>
      {play.failures.map((failure) => (
        <p class="note bad" key={failure}>
          {failure}
        </p>
      ))}
      <section class="panel">
        <h2>GPUs over time</h2>
        <QueueStack bands={tracks} capacity={capacity} at={at} {...axes} />
      </section>
      <section class="panel">
        <h2>{play.along === "steps" ? `After step ${at}` : `At ${at === 0 ? "the beginning" : duration(at)}`}</h2>
        {play.titles[at - 1] && (
          <p class="reason">
            {play.titles[at - 1]}
            {play.times[at - 1]! > 0 && `, at ${duration(play.times[at - 1]!)}`}
          </p>
        )}
        <div class="scroll" role="region" aria-label={`queues of ${play.title}`} tabIndex={0}>
          <table>
            <thead>
              <tr>
                <th scope="col">queue</th>
                <th scope="col" class="number">holds</th>
                <th scope="col" class="number">quota</th>
                <th scope="col" class="number">fair share</th>
                <th scope="col" class="number">asks for</th>
              </tr>
            </thead>
            <tbody>
              {tracks.map(({ name, track }) => (
                <tr key={name} data-queue={name}>
                  <th scope="row">{name}</th>
                  <td class="number">{value(track.held)}</td>
                  <td class="number">{value(track.quota)}</td>
                  <td class="number">{value(track.share)}</td>
                  <td class="number">{value(track.demand)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        <h3>Decisions</h3>
        {decisions.length === 0 && <Empty>Nothing was decided at this moment.</Empty>}
        <ul class="plain decisions">
          {decisions.slice(0, DECISIONS).map((decision, i) => (
            <li key={i}>
              <span class="kind">{decision.kind}</span> <strong>{decision.job}</strong>{" "}
              <span class="muted">({decision.queue})</span> {decision.text}
            </li>
          ))}
        </ul>
        {decisions.length > DECISIONS && <p class="muted">and {decisions.length - DECISIONS} more</p>}
        {play.left_out > 0 && <p class="muted">The last {play.left_out} decisions of the run are not in this file.</p>}
      </section>
      <section class="panel">
        <h2>Each queue against its quota</h2>
        <div class="queues">
          {tracks.slice(0, CHARTS).map(({ name, track }) => (
            <QueueChart key={name} name={name} track={track} colour={colourOf(name, tracks)} at={at} {...axes} />
          ))}
        </div>
      </section>
    </section>
  );
}
