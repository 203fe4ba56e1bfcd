// GPUs of queues over time: all upon each other, and each against its quota and its fair share.

import { useState } from "preact/hooks";
import { type Along, Chart, hoverTime, type Line, PRESENT } from "./chart";
import type { QueueTrack } from "./cluster-store";
import { gpus } from "./format";
import type { Series } from "./series";

const STACKED = 8; // colours that can be told apart; smaller queues are drawn as one

export interface Band {
  name: string;
  track: QueueTrack;
}

interface Props {
  bands: Band[];
  capacity: Series;
  times: number[];
  from: number;
  until: number;
  along?: Along;
  /** The moment that is looked at; null: the last. */
  at?: number | null;
}

/** The colour of each queue: the same in all drawings, by the order of the queues. */
export function colourOf(name: string, all: readonly { name: string }[]): string {
  const index = all.findIndex((one) => one.name === name);
  return index < 0 || index >= STACKED ? "rest" : `job${index}`;
}

/** GPUs by queue, one upon the other; all GPUs are the line above them. */
export function QueueStack({ bands, capacity, times, from, until, along, at = null }: Props) {
  const [hovered, setHovered] = useState<number | null>(null);
  const shown = bands.slice(0, STACKED);
  const rest = bands.slice(STACKED);
  const layers = shown.map(({ name, track }) => ({ name, colour: colourOf(name, bands), values: track.held.at(times) }));
  if (rest.length > 0) {
    const values = times.map(() => 0);
    for (const { track } of rest) track.held.at(times).forEach((value, i) => (values[i]! += value ?? 0));
    layers.push({ name: `${rest.length} others`, colour: "rest", values });
  }
  const all = capacity.at(times);
  const sum = times.map(() => 0);
  const sums = layers.map((layer) => layer.values.map((value, i) => (all[i] === null ? null : (sum[i]! += value ?? 0))));
  const lines: Line[] = layers.map((layer) => ({ key: layer.name, stroke: layer.colour, fill: layer.colour, width: 0 }));
  const last = at === null ? times.length - 1 : indexOf(times, at);
  const index = hovered ?? last;
  const label =
    `GPUs by queue. ${along ? `At ${at ?? times.at(-1)}` : PRESENT}: ` +
    layers.map((one) => `${one.name} ${gpus(one.values[last] ?? 0)}`).join(", ") +
    `; ${gpus(all[last] ?? 0)} in all`;
  return (
    <>
      <Chart
        label={label}
        lines={[...lines.toReversed(), { key: "all", stroke: "text", width: 1.5 }]}
        data={[times, ...sums.toReversed(), all]}
        from={from}
        until={until}
        top={Math.max(1, capacity.most(from, until)) * 1.06}
        height={220}
        unit="GPUs"
        {...(along ? { along } : {})}
        {...(at !== null ? { marks: [{ time: at, label: "the moment below", colour: "accent", open: () => {} }] } : {})}
        onHover={setHovered}
      />
      <div class="keys">
        <span class="muted">{along ? "" : hoverTime([times], hovered)}</span>
        {layers.map((layer) => (
          <span key={layer.name}>
            <i class="swatch" style={{ background: `var(--${layer.colour})` }} /> {layer.name}{" "}
            <span class="number">{value(layer.values[index])}</span>
          </span>
        ))}
        <span>
          <i class="swatch highest all" /> all GPUs <span class="number">{value(all[index])}</span>
        </span>
      </div>
    </>
  );
}

/** What one queue holds, against its quota and its fair share. */
export function QueueChart({ name, track, colour, times, from, until, along, at = null }: Omit<Props, "bands" | "capacity"> & Band & { colour: string }) {
  const [hovered, setHovered] = useState<number | null>(null);
  const { held, share, quota, demand } = track;
  const data = [held, demand, share, quota].map((series) => series.at(times));
  const last = at === null ? times.length - 1 : indexOf(times, at);
  const index = hovered ?? last;
  const top = Math.max(...[held, share, quota].map((series) => series.most(from, until)), 1);
  const [now, wants, fair, own] = data.map((values) => value(values[index]));
  const label = `GPUs of ${name}: ${value(data[0]![last])} held, quota ${value(data[3]![last])}, fair share ${value(data[2]![last])}`;
  return (
    <section class="queue" aria-label={`queue ${name}`}>
      <h3>
        <i class="swatch" style={{ background: `var(--${colour})` }} /> {name}
      </h3>
      <Chart
        label={label}
        lines={[
          { key: "held", stroke: colour, fill: colour, width: 0 },
          { key: "demand", stroke: "muted", width: 1 },
          { key: "share", stroke: "good", width: 2 },
          { key: "quota", stroke: "text", width: 1.5, dash: [6, 4] },
        ]}
        data={[times, ...data]}
        from={from}
        until={until}
        top={top * 1.15}
        height={130}
        unit="GPUs"
        {...(along ? { along } : {})}
        onHover={setHovered}
      />
      <div class="keys">
        <span>
          holds <span class="number">{now}</span>
        </span>
        <span>
          <i class="swatch dashed" /> quota <span class="number">{own}</span>
        </span>
        <span>
          <i class="swatch share" /> fair share <span class="number">{fair}</span>
        </span>
        <span>
          <i class="swatch highest" /> asks for <span class="number">{wants}</span>
        </span>
      </div>
    </section>
  );
}

function value(micro: number | null | undefined): string {
  return micro == null ? "–" : gpus(micro);
}

/** The last of the times that is not after the moment. */
function indexOf(times: number[], at: number): number {
  return Math.max(0, times.findLastIndex((time) => time <= at));
}
