"""How much of the time jobs have GPUs compute, for the history. No I/O.

It is a mean over EVERY seconds: the driver's samples differ from second to second, and each difference would be a point
of its own in the file.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpushared.history.levels import WHOLE, SeriesKey

__all__ = ["EVERY", "GpuTime"]

EVERY = 10.0
"""Seconds."""


class GpuTime:
    """From totals that only grow."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._totals: Mapping[SeriesKey, float] = {}
        self._means: dict[SeriesKey, int] = {}

    def means(self, totals: Mapping[SeriesKey, float], now: float) -> Mapping[SeriesKey, int]:
        """In parts of WHOLE, over the last EVERY seconds that are over. `totals`: seconds in which each job has had a
        GPU compute so far; `now`: by a clock that does not go back."""
        lasted = 0.0 if self._at is None else now - self._at
        if self._at is None or lasted >= EVERY:
            self._means = {
                key: min(WHOLE, round(WHOLE * max(0.0, total - self._totals.get(key, 0.0)) / lasted))
                for key, total in totals.items()
                if lasted
            }
            self._at, self._totals = now, dict(totals)
        return self._means
