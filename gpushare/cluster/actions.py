"""What the allocator decides: what an engine is to do, and what a job is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpushare.cluster.nouns import Place
from gpushare.cluster.reasons import Reason


class Start(NamedTuple):
    """Start these tasks: the whole gang, or further ones of an elastic job that runs."""

    job: str
    attempt: int
    places: tuple[Place, ...]
    rung: int
    """Index into Tasks.rungs of each group."""
    reason: Reason
    backfill: bool = False


class Preempt(NamedTuple):
    """Stop these tasks of a job. `whole`: all of it; it waits again. Otherwise it goes on with the others."""

    job: str
    attempt: int
    places: tuple[Place, ...]
    whole: bool
    for_job: str
    reason: Reason


class Move(NamedTuple):
    """Stop these tasks and start them again elsewhere; the rest of the job stays.

    With Policy.endings == "reported" they are stopped, and a Start follows when that is done and there is room.
    """

    job: str
    attempt: int
    places: tuple[Place, ...]
    to: tuple[Place, ...]
    for_job: str
    reason: Reason


class Shrink(NamedTuple):
    """From now on the tasks do with less of the same GPUs."""

    job: str
    rung: int
    places: tuple[Place, ...]
    for_job: str
    reason: Reason


class Grow(NamedTuple):
    """From now on the tasks have more of the same GPUs."""

    job: str
    rung: int
    places: tuple[Place, ...]
    reason: Reason


class Stop(NamedTuple):
    """Stop what is left of a job that was withdrawn, or of a gang that lost a part; with `again` it waits again."""

    job: str
    attempt: int
    places: tuple[Place, ...]
    again: bool
    reason: Reason


class Wait(NamedTuple):
    """The job has come and waits; later see Allocator.explain() for what it waits for then."""

    job: str
    reason: Reason


class Refuse(NamedTuple):
    """The job does not wait, and is forgotten."""

    job: str
    retry_after: float
    reason: Reason


Action = Start | Preempt | Move | Shrink | Grow | Stop | Wait | Refuse


def started(actions: list[Action]) -> Iterator[str]:
    """Names of the jobs that the actions start, in order."""
    return (action.job for action in actions if isinstance(action, Start))
