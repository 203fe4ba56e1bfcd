// uPlot in a component: a window of time that moves, made again only when its lines or colours change.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { bytes, clock, duration, gpus, moment, share } from "./format";
import { still } from "./report";
import { colour, onTheme } from "./theme";

export interface Line {
  key: string;
  stroke: string; // the name of a colour
  fill?: string;
  width?: number;
  dash?: number[];
}

export type Along = "seconds" | "steps";

export interface Mark {
  time: number;
  label: string;
  colour: string;
  open: () => void;
}

interface Props {
  label: string;
  lines: Line[];
  /** Times, then the values of each line. */
  data: uPlot.AlignedData;
  from: number;
  until: number;
  top: number;
  height: number;
  /** Default: bytes, over time. */
  unit?: "GPUs" | "share";
  /** What the horizontal axis is, where it is not the time of day. */
  along?: Along;
  marks?: Mark[];
  onHover?: (index: number | null) => void;
}

const stepped = uPlot.paths.stepped!({ align: 1 });
const DAY = 24 * 3600;
/** What the last values of a chart are. */
export const PRESENT = still ? "At the end" : "Now";
const MARKS = 80; // at most so many fit beside each other
const INCREMENTS: Record<Along, number[]> = {
  steps: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000],
  seconds: [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 6 * 3600, 12 * 3600, DAY, 2 * DAY, 7 * DAY, 28 * DAY],
};
const SEVERITY = ["muted", "good", "warn", "bad"];

export function Chart(props: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [, placed] = useState(0);
  const [theme, again] = useState(0);
  useEffect(() => onTheme(() => again((n) => n + 1)), []);
  const lines = JSON.stringify(props.lines);

  useLayoutEffect(() => {
    const element = box.current!;
    const made = new uPlot(options(latest, element.clientWidth), latest.current.data, element);
    plot.current = made;
    const resized = new ResizeObserver(() => {
      if (element.clientWidth > 0) made.setSize({ width: element.clientWidth, height: latest.current.height });
      placed((n) => n + 1);
    });
    resized.observe(element);
    return () => {
      resized.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [lines, theme, props.height]);

  useLayoutEffect(() => {
    const made = plot.current;
    if (!made) return;
    made.batch(() => {
      made.setData(props.data, false);
      made.setScale("x", { min: props.from, max: props.until });
      made.setScale("y", { min: 0, max: props.top });
    });
  });

  const marks = together(props);
  return (
    <div class="chart">
      <div ref={box} role="img" aria-label={props.label} />
      {plot.current &&
        marks.map((one) => (
          <button
            key={`${one.time} ${one.label}`}
            type="button"
            class="mark"
            title={`${one.label}, ${clock(one.time)}`}
            aria-label={`${one.label} at ${clock(one.time)}: show it in the story`}
            style={{ left: `${position(plot.current!, one.time, props)}px`, "--mark": `var(--${one.colour})` }}
            onClick={one.open}
          />
        ))}
    </div>
  );
}

/** Marks that would lie upon each other are one. */
function together({ marks = [], from, until }: Props): Mark[] {
  const near = (until - from) / MARKS;
  const found: Mark[] = [];
  for (const one of marks.filter((one) => one.time >= from && one.time <= until)) {
    const last = found.at(-1);
    if (!last || one.time - last.time > near) found.push({ ...one });
    else {
      if (!last.label.includes(one.label)) last.label += `, ${one.label}`;
      if (SEVERITY.indexOf(one.colour) > SEVERITY.indexOf(last.colour)) last.colour = one.colour;
    }
  }
  return found;
}

function position(plot: uPlot, time: number, { from, until }: Props): number {
  const left = plot.bbox.left / devicePixelRatio;
  return left + ((time - from) / (until - from)) * (plot.bbox.width / devicePixelRatio);
}

function options(latest: { current: Props }, width: number): uPlot.Options {
  const axis = { stroke: colour("muted"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false } };
  const font = `12px ${getComputedStyle(document.body).fontFamily}`;
  return {
    width,
    height: latest.current.height,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
    scales: { x: { time: latest.current.along === undefined, range: (_u, min, max) => [min, max] }, y: { range: (_u, min, max) => [min, max] } },
    axes: [
      {
        ...axis,
        font,
        size: 30,
        space: 80,
        ...(latest.current.along ? { incrs: INCREMENTS[latest.current.along] } : {}),
        values: (_u, times) => times.map((time) => ticks(time, latest.current)),
      },
      {
        ...axis,
        font,
        size: latest.current.unit === "GPUs" ? 40 : 66,
        splits: (_u, _axis, _min, max) => SPLITS[latest.current.unit ?? "bytes"](max),
        values: (_u, values) => values.map((value) => amount(value, latest.current)),
      },
    ],
    series: [
      {},
      ...latest.current.lines.map((line) => ({
        stroke: colour(line.stroke),
        width: line.width ?? 1,
        paths: stepped,
        points: { show: false },
        ...(line.fill ? { fill: colour(line.fill) } : {}),
        ...(line.dash ? { dash: line.dash } : {}),
      })),
    ],
    hooks: {
      setCursor: [(u) => latest.current.onHover?.(u.cursor.left! >= 0 ? (u.cursor.idx ?? null) : null)],
    },
  };
}

function amount(value: number, { unit }: Props): string {
  if (unit === "share") return share(value);
  if (unit) return gpus(value);
  return value === 0 ? "0" : bytes(value).replace(".0 ", " ");
}

function ticks(time: number, { from, until, along }: Props): string {
  if (along === "steps") return time < until ? String(time) : "";
  if (along === "seconds") return time === 0 ? "0" : duration(time);
  if (until - from > 2 * DAY) return new Date(time * 1000).toLocaleDateString([], { day: "numeric", month: "short" });
  const text = clock(time);
  return until - from > 600 ? text.slice(0, 5) : text;
}

/** Round amounts: powers of two of a GiB, four or so of them. */
function splits(most: number): number[] {
  let step = 2 ** Math.max(20, Math.ceil(Math.log2(most / 5)));
  if (most / step < 2) step /= 2;
  const found = [];
  for (let at = 0; at <= most; at += step) found.push(at);
  return found;
}

/** Whole GPUs, or parts of one, four or so of them. */
function gpuSplits(most: number): number[] {
  const unit = 10 ** Math.floor(Math.log10(most / 4));
  const step = [1, 2, 5, 10].map((one) => one * unit).find((one) => most / one <= 5)!;
  const found = [];
  for (let at = 0; at <= most; at += step) found.push(at);
  return found;
}

const SPLITS = { bytes: splits, GPUs: gpuSplits, share: () => [0, 0.5, 1] };

export function hoverTime(data: uPlot.AlignedData, index: number | null): string {
  const time = index === null ? undefined : data[0][index];
  return time === undefined ? PRESENT.toLowerCase() : moment(time);
}
