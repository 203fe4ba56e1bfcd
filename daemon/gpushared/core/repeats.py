"""Refusals that repeat. A program that asks again and again must not fill its story with one line."""

from __future__ import annotations

from dataclasses import dataclass, field

WITHIN = 10.0
"""Seconds in which refusals like one in the story are only counted."""
MOST = 16
"""Kinds of refusals that are remembered of a job."""

Kind = tuple[str, str, object]
"""The code, the GPU and the bytes."""


@dataclass(slots=True)
class Repeats:
    _told: dict[Kind, tuple[float, int]] = field(default_factory=dict)
    """When one of this kind was told, and how many were left out since; the latest last."""

    def left_out(self, kind: Kind, now: float) -> int | None:
        """How many of this kind were left out since the last that was told. None: this one is left out, too."""
        at, more = self._told.pop(kind, (float("-inf"), 0))
        if now - at < WITHIN:
            self._told[kind] = (at, more + 1)
            return None
        if len(self._told) == MOST:
            del self._told[next(iter(self._told))]
        self._told[kind] = (now, 0)
        return more
