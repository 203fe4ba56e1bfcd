// What the page knows of one side, the node or the cluster: whether that is so now, and who wants to hear of changes.

import { useEffect, useState } from "preact/hooks";

export type Phase = "loading" | "live" | "away" | "lost" | "locked";
// live: what is shown is so: the side is followed, or a report is read · away: no daemon (no service) answers
// lost: the dashboard's server does not answer · locked: this tab has no session

export class Known {
  phase: Phase = "loading";
  message = "";
  hint: string | null = null;
  version = 0;
  /** The end of a report, where the time stands still. */
  protected end: number | null = null;
  /** How far the other's clock is ahead of this one's, in seconds. */
  private skew = 0;
  private readonly listeners = new Set<() => void>();
  private told = false;

  /** The time there. */
  now(): number {
    return this.end ?? Date.now() / 1000 + this.skew;
  }

  /** The time there, as it has just been said. */
  protected heard(time: number): void {
    this.skew = time - Date.now() / 1000;
  }

  /** Listeners hear of many changes at once, before the next frame. */
  changed(): void {
    this.version++;
    if (this.told) return;
    this.told = true;
    const tell = () => {
      this.told = false;
      for (const listener of this.listeners) listener();
    };
    if (document.hidden) setTimeout(tell);
    else requestAnimationFrame(tell);
  }

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  enter(phase: Phase, message = "", hint: string | null = null): void {
    if (this.phase === phase && this.message === message && phase !== "live") return;
    this.phase = phase;
    this.message = message;
    this.hint = hint;
    this.changed();
  }
}

/** Renders again when something has changed there. */
export function useKnown<Side extends Known>(side: Side): Side {
  const [, again] = useState(0);
  const seen = side.version;
  useEffect(() => {
    // What has changed between the first rendering and this is not told again.
    if (side.version !== seen) again((n) => n + 1);
    return side.listen(() => again((n) => n + 1));
  }, [side]);
  return side;
}
