"""What may be done to a running job so that others have its room, and what is lost: one table.

    how           what it means                             forbidden to
    SHRINK        it goes down its ladder where it is       jobs that moved or grew in this cycle
    MOVE          it goes on elsewhere, and loses nothing   jobs that are not movable
    STOP          it waits again

All of them are forbidden to jobs that have not started yet, and all but SHRINK to jobs that are not preemptible, are
within their minimum run time, were given a place in this cycle, or are refused by their engine. Searches, checks and
explanations ask `barrier`. Of jobs that may be stopped those that cost the least go first (`price`, `BANDS`). For a
fair share only jobs that lose little are stopped at first (`loses_little`). Rules about several victims together, such
as how far a queue may be taken from, are in Bounds (candidates.py).
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from gpushare.cluster.model import Policy

if TYPE_CHECKING:
    from gpushare.cluster.jobs import JobState

NO_CYCLE = -2

GROWTH = 3
"""Each further eviction makes the protection so many times as long."""

SPARED = 2
"""A second of protection that is left counts as so many seconds of lost work."""

HOUR = 3600.0

OFTEN = 3
"""A job that was evicted so many times within a day goes last until the first of them is a day ago."""

DAY = 86400.0

LITTLE = HOUR
"""Lost work, in seconds for each GPU that the waiting job gets: a share may cost so much at once."""

BANDS = tuple([4**power * HOUR for power in range(7)])
"""Lost work, in seconds for each GPU that the waiting job gets. Jobs that lose more than one of these bounds are
stopped only if those that lose less are not enough. So ten jobs that began minutes ago go before one that has run for
days."""

LAST = 1000 * BANDS[-1]
"""Seconds of lost work, more than any job loses."""


class How(IntEnum):
    """In the order of harm."""

    SHRINK = 1
    MOVE = 2
    STOP = 3


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
    """The time (seconds) from which the rules allow to stop a preemptible job that runs."""
    return max(job.since + max(job.job.min_runtime, job.queue.granted), job.spared)


def claims_share_from(job: JobState, policy: Policy) -> float:
    """From when on anybody may be stopped so that the job's queue has its fair share. Before, only jobs that lose
    little may be. For its quota anybody may be stopped at once."""
    return job.since + policy.patience


def loses_little(job: JobState, part: float, now: float) -> bool:
    """May the job be stopped at once for a share? `part`: how much of it is of use to the job that takes.

    Jobs that were evicted before are left alone. The answer never becomes yes because time passes, so a job that waits
    need not ask again."""
    worked, every = now - job.since, job.job.checkpoint_every
    return not job.evictions and (worked if every is None else min(worked, every)) <= LITTLE * part


def price(job: JobState, policy: Policy, now: float) -> tuple[float, int, int]:
    """What a stop costs, compared in this order: the lost work (microseconds of a GPU), how often the job was evicted,
    and its age; the newest job costs the least.

    The work since the start or the last checkpoint is lost. If the job was evicted before and is still protected, the
    rest of that time counts as well, SPARED times. Who was evicted OFTEN within a day goes after all others. Both only
    add to the price: if they forbade stops, jobs that are evicted often could keep a queue from its share."""
    worked = max(0.0, now - job.since)
    every = job.job.checkpoint_every
    if every is not None:
        worked = worked % every if every else 0.0
    if job.evictions:
        times: int = GROWTH ** (min(job.evictions, 20) - 1)
        worked += SPARED * max(0.0, job.since + policy.protect * times - now)
        if policy.protect and len(job.disturbed) == OFTEN and now < job.disturbed[0] + DAY:
            worked += LAST
    return worked * job.charge, job.evictions, -job.seq


def may_backfill(preemptible: bool, backfill: bool, min_runtime: float) -> bool:
    """May such a job start on reserved nodes? It is stopped there when the gang is complete."""
    return preemptible and backfill and not min_runtime
