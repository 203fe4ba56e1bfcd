"""Pressure: how long claims have waited, in the form of Linux' pressure stall information.

Each GPU has two clocks. `some` runs while at least one claim waits for memory that others hold; `full` while every job
with a context on the GPU has one waiting, so that no job there can allocate. Each keeps the total in
seconds and averages over 10, 60 and 300 seconds, as shares of the time: 0.25 is a quarter of it. The averages decay
exponentially and are exact, since they are brought up to date whenever the clock starts or stops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

WINDOWS = (10.0, 60.0, 300.0)


@dataclass(slots=True)
class PressureClock:
    """One clock."""

    running: bool = False
    total: float = 0.0
    averages: list[float] = field(default_factory=lambda: [0.0] * len(WINDOWS))
    at: float | None = None
    """When it was last brought up to date."""

    def note(self, now: float, running: bool) -> None:
        """From now on it runs, or not."""
        if running != self.running:
            self._advance(now)
        self.running = running

    def read(self, now: float) -> dict[str, float]:
        self._advance(now)
        averages = {f"avg{window:.0f}": share for window, share in zip(WINDOWS, self.averages, strict=True)}
        return {**averages, "total": self.total}

    def _advance(self, now: float) -> None:
        elapsed = now - self.at if self.at is not None else 0.0
        self.at = now
        if elapsed <= 0:
            return
        now_running = 1.0 if self.running else 0.0
        self.total += elapsed * now_running
        for index, window in enumerate(WINDOWS):
            kept = math.exp(-elapsed / window)
            self.averages[index] = self.averages[index] * kept + now_running * (1 - kept)
