"""A job whose hook gives memory back, as data: what it had, who runs its hook now, what it waits for. No decisions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SleepState(StrEnum):
    """Where a job is whose relief hook was called."""

    ASKED = "hook"
    """Its relief hook runs."""
    ASLEEP = "asleep"
    """It has given back what it could, and waits for room."""
    WAKING = "waking"
    """What it had is kept free for it, and its resume hook runs."""


@dataclass(slots=True)
class Sleep:
    """A job's, from the call of its relief hook until its resume hook has ended."""

    state: SleepState
    since: float
    """When its relief hook was called."""
    number: int
    """The number of the last call. Answers with another number are late."""
    had: dict[str, int]
    """By GPU: bytes that it used when its relief hook was called: so many are kept free for it when it wakes."""
    allocated: dict[str, int]
    """By GPU: the part of these bytes that were allocations. Only they can be given back; the cost of contexts may be a
    guess."""
    gave: dict[str, int] | None = None
    """By GPU: bytes that it had given back when its relief hook ended; None: that has not ended, or an earlier daemon
    knew."""
    deadline: float | None = None
    """The end of the call under way; None: no call is."""
    not_before: float = 0.0
    """After a resume hook that failed: the next call."""
    taken_over: bool = False
    """An earlier daemon has made the call under way."""
    failures: int = 0
    """Of its resume hook, since it was asked."""
