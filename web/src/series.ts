// Values over time, as steps: a value holds until the next one. null: nothing is known from then on.

const MOST = 20_000;

export class Series {
  readonly times: number[] = [];
  readonly values: (number | null)[] = [];

  push(time: number, value: number | null): void {
    const last = this.values.length - 1;
    if (last >= 0 && this.values[last] === value) return;
    if (last >= 0 && this.times[last]! >= time) {
      this.values[last] = value;
      return;
    }
    this.times.push(time);
    this.values.push(value);
    if (this.times.length > MOST) {
      this.times.splice(0, MOST / 2);
      this.values.splice(0, MOST / 2);
    }
  }

  clear(): void {
    this.times.length = this.values.length = 0;
  }

  get last(): number | null {
    return this.values.at(-1) ?? null;
  }

  /** The value at each of these times, which ascend. */
  at(grid: readonly number[]): (number | null)[] {
    let next = 0;
    let held: number | null = null;
    return grid.map((time) => {
      while (next < this.times.length && this.times[next]! <= time) held = this.values[next++]!;
      return held;
    });
  }

  /** The largest value that held in the window. */
  most(from: number, until: number): number {
    let most = 0;
    for (let i = this.times.length - 1; i >= 0; i--) {
      if (this.times[i]! > until) continue;
      most = Math.max(most, this.values[i] ?? 0);
      if (this.times[i]! <= from) break;
    }
    return most;
  }
}
