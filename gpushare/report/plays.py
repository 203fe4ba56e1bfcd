"""A report of a run on a simulated clock, or of two beside each other: GPUs of each queue over its time, and each
decision at its moment. The page draws it with a slider.

Moments are seconds, or the numbers of a scenario's steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, TypedDict

from gpushare.cluster.recording import Recording, Row
from gpushare.cluster.scenario import Failure
from gpushare.cluster.timeline import Timeline
from gpushare.dashboard.about import About, about

__all__ = ["PlayReport", "play", "report_of"]

MOST_DECISIONS = 5000

Play = dict[str, Any]


class PlayReport(TypedDict):
    about: About
    plays: list[Play]


def report_of(plays: Sequence[Play]) -> PlayReport:
    return {"about": about("", read_only=True), "plays": list(plays)}


def play(title: str, timeline: Timeline, recording: Recording, failures: Sequence[Failure], *, in_steps: bool) -> Play:
    """One run, as web/src/report.ts reads it. Amounts are micro-GPUs."""
    rows = recording.steps if in_steps else recording.rows
    moments: list[float] = list(range(1, len(rows) + 1)) if in_steps else [row.time for row in rows]
    return {
        "title": title,
        "along": "steps" if in_steps else "seconds",
        "moments": moments,
        "titles": recording.titles if in_steps else [],
        "times": [row.time for row in rows] if in_steps else [],
        "queues": [_queue(name, parent, rows, moments) for name, parent in recording.parents.items()],
        "capacity": _changes(moments, [row.capacity for row in rows]),
        "decisions": _decisions(timeline, rows, moments),
        "left_out": max(0, len(timeline.happenings) - MOST_DECISIONS),
        "failures": [f"{failure.where}: step {failure.step}, {failure.message}" for failure in failures],
    }


def _queue(name: str, parent: str | None, rows: Sequence[Row], moments: Sequence[float]) -> dict[str, Any]:
    found = [row.queues.get(name) for row in rows]
    shown: dict[str, Any] = {"name": name, "parent": parent}
    for column in ("held", "share", "quota", "demand"):
        shown[column] = _changes(moments, [0 if one is None else getattr(one, column) for one in found])
    return shown


def _changes(moments: Sequence[float], values: Sequence[int]) -> tuple[list[float], list[int]]:
    """Moments at which the value changes, and the new values."""
    kept = [at for at in range(len(values)) if at == 0 or values[at] != values[at - 1]]
    return [moments[at] for at in kept], [values[at] for at in kept]


def _decisions(timeline: Timeline, rows: Sequence[Row], moments: Sequence[float]) -> list[dict[str, Any]]:
    """Each at the first moment of the slider that has it."""
    counts = [row.happened for row in rows]
    return [
        {
            "at": moments[min(bisect_left(counts, number), len(moments) - 1)],
            "kind": one.kind,
            "job": one.job,
            "queue": one.queue,
            "text": one.text,
        }
        for number, one in enumerate(timeline.happenings[:MOST_DECISIONS], 1)
    ]
