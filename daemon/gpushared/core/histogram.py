"""How long something took, counted in classes: what Prometheus calls a histogram."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds. From an answer without a wait to the usual grace and the usual claim_timeout."""


@dataclass(slots=True)
class Histogram:
    seconds: float = 0.0
    """The sum of all durations."""
    classes: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    """How many durations are at most each bound and above the one before. The last class has no bound."""

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self.classes[bisect_left(BOUNDS, seconds)] += 1

    @property
    def count(self) -> int:
        return sum(self.classes)

    def cumulative(self) -> list[tuple[float, int]]:
        """For each bound how many durations are at most as long. The last bound is infinite."""
        return list(zip((*BOUNDS, float("inf")), accumulate(self.classes), strict=True))
