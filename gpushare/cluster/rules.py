"""What may be done to a running job so that others have its room, and what is lost: one table.

    how           what it means                             forbidden to
    SHRINK        it goes down its ladder where it is       jobs that moved or grew in this cycle
    MOVE          it goes on elsewhere, and loses nothing   jobs that are not movable
    STOP          it waits again
    GIVE_WAY      a backfilling job leaves reserved nodes

All of them are forbidden to jobs that have not started yet, and all but SHRINK to jobs that are not preemptible, are
within their minimum run time, or were given a place in this cycle. Searches, checks and explanations ask `barrier`. Of
jobs that may be stopped those with the least `loss` go first, and those that are `protected` only where nobody else
will do. How far a queue may be taken from is a question about several jobs at once, and so is whether all of them
together may go: see Bounds in candidates.py.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from gpushare.cluster.model import Policy

if TYPE_CHECKING:
    from gpushare.cluster.jobs import JobState

NO_CYCLE = -2

GROWTH = 3
"""Each further eviction protects so many times as long."""


class How(IntEnum):
    """In the order of harm."""

    SHRINK = 1
    MOVE = 2
    STOP = 3
    GIVE_WAY = 4


class Barrier(StrEnum):
    """Why something is forbidden."""

    NOT_PREEMPTIBLE = "not preemptible"
    NOT_MOVABLE = "not movable"
    STARTING = "has not started yet"
    GIVEN_NOW = "was given a place in this cycle"
    MIN_RUNTIME = "within its minimum run time"
    REFUSED = "its engine refuses to stop it"


def barrier(job: JobState, how: How, now: float, cycle: int = NO_CYCLE) -> Barrier | None:
    """Why this may not be done to a job that has places; None: it may.

    GIVEN_NOW comes last: where it is the answer, the next cycle may do it."""
    if job.unstarted:
        return Barrier.STARTING
    if how is How.SHRINK:
        return Barrier.GIVEN_NOW if job.resized_in == cycle else None
    if not job.cls.preemptible:
        return Barrier.NOT_PREEMPTIBLE
    if how is How.MOVE and not job.job.movable:
        return Barrier.NOT_MOVABLE
    if job.spared > now:
        return Barrier.REFUSED
    granted = job.queue.granted
    if job.since + (granted if granted > job.job.min_runtime else job.job.min_runtime) > now:
        return Barrier.MIN_RUNTIME
    return Barrier.GIVEN_NOW if job.given_in == cycle else None


def guarded_until(job: JobState) -> float:
    """When no rule forbids any more to stop a preemptible job that runs, seconds."""
    return max(job.since + max(job.job.min_runtime, job.queue.granted), job.spared)


def loss(job: JobState, now: float) -> tuple[float, int, int]:
    """What a stop costs, in the order in which it counts: microseconds of a GPU's work since the job's start or last
    checkpoint, how often it was evicted, and its age: of the newest the least."""
    worked = max(0.0, now - job.since)
    every = job.job.checkpoint_every
    if every is not None:
        worked = worked % every if every else 0.0
    return worked * job.charge, job.evictions, -job.seq


def protected(job: JobState, policy: Policy, now: float) -> bool:
    """Was it evicted not long ago? That does not forbid a stop: else jobs that are evicted often could keep a queue
    from its share."""
    if not job.evictions:
        return False
    times: int = GROWTH ** (min(job.evictions, 20) - 1)
    return job.since + policy.protect * times > now


def may_backfill(preemptible: bool, backfill: bool, min_runtime: float) -> bool:
    """May such a job start on reserved nodes? It is stopped there when the gang is complete."""
    return preemptible and backfill and not min_runtime
