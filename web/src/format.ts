// Amounts and times as text, the way the commands of gpushare write them.

/** Millionths of a GPU, with as few digits as say it; at most two after the point. */
export function gpus(micro: number): string {
  return String(Math.round(micro / 10_000) / 100);
}

const UNITS: [string, number][] = [
  ["GiB", 2 ** 30],
  ["MiB", 2 ** 20],
  ["KiB", 2 ** 10],
];

export function bytes(amount: number): string {
  for (const [unit, size] of UNITS)
    if (amount >= size - size / 20480) return `${(amount / size).toFixed(1)} ${unit}`;
  return `${amount} B`;
}

export function duration(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [size, unit, smaller, name] of [
    [86400, "d", 3600, "h"],
    [3600, "h", 60, "m"],
    [60, "m", 1, "s"],
  ] as const)
    if (whole >= size) {
      const rest = Math.floor((whole % size) / smaller);
      return `${Math.floor(whole / size)}${unit}${rest ? ` ${rest}${name}` : ""}`;
    }
  return `${whole} s`;
}

export function clock(time: number): string {
  return new Date(time * 1000).toLocaleTimeString([], { hour12: false });
}

export function moment(time: number): string {
  const date = new Date(time * 1000);
  const today = date.toDateString() === new Date().toDateString();
  return today ? clock(time) : `${date.toLocaleDateString()} ${clock(time)}`;
}

/** From one time to another, with their dates. */
export function span(from: number, until: number): string {
  const [first, last] = [from, until].map((time) => new Date(time * 1000).toLocaleDateString());
  return `${first} ${clock(from)} to ${last === first ? "" : `${last} `}${clock(until)}`;
}

export function count(number: number, one: string, many = `${one}s`): string {
  return `${number} ${number === 1 ? one : many}`;
}

export function share(part: number): string {
  return `${(100 * part).toFixed(part > 0 && part < 0.1 ? 1 : 0)} %`;
}

const STATES: Record<string, string> = {
  asked_back: "giving back",
  hook: "its hook runs",
  stopped: "paused",
};

export function state(name: string): string {
  return STATES[name] ?? name.replaceAll("_", " ");
}
