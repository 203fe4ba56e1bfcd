"""A suspended job as data: where its memory is, who holds it there, what it waits for. No decisions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpushare.reasons import Reason


class SuspendState(StrEnum):
    """Where a job with a suspension is."""

    SUSPENDING = "suspending"
    """Its suspender takes the memory from the GPU. All of it counts as used until that is done."""
    SUSPENDED = "suspended"
    """Its memory is in host memory."""
    RESUMING = "resuming"
    """Its memory is reserved again, and its suspender puts it back."""
    STUCK = "stuck"
    """Its suspender has not answered in time, or the driver has lost it: it is told to end."""


@dataclass(slots=True)
class Parked:
    """What a suspended process had, and will have again."""

    credit: int
    used: int
    overhead: int

    @property
    def committed(self) -> int:
        return self.credit + self.overhead


@dataclass(slots=True)
class Suspension:
    """A job's, from the first step until it runs again."""

    gpu: str
    """The GPU that has all its memory."""
    state: SuspendState
    since: float
    """When its suspender was asked."""
    number: int
    """The number of the last command to its suspender. Answers with another number are late."""
    host: int
    """Bytes of host memory that are kept for it."""
    deadline: float | None = None
    """The end of the step under way; None: no step is."""
    held: bool = False
    """Its user wants it suspended: it does not resume by itself."""
    not_before: float = 0.0
    """After a failure to resume: the next try."""
    failures: int = 0
    """How often it has failed to resume since it was suspended."""
    reason: Reason | None = None
    """Why it was suspended; None: an earlier daemon knew."""
