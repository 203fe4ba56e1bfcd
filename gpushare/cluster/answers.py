"""Answers of the allocator: why a job waits, what would happen, shares, loans, and what there is now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpushare.cluster.actions import Action, Start
from gpushare.cluster.events import Event
from gpushare.cluster.nouns import Job, Node, Place, Queue
from gpushare.cluster.quantity import format_gpus
from gpushare.cluster.reasons import Reason


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job runs or waits."""

    job: str
    state: Literal["pending", "starting", "running"]
    reason: Reason
    who: tuple[str, ...] = ()
    """Whom it could take from and why it does not, or what stands in the way, one line each."""
    changes: tuple[Event, ...] = ()
    """The smallest change that would start it, as events for what_if(); () if it does not wait or none is known."""
    change: str = ""
    """The same in words."""
    others: tuple[tuple[str, tuple[Event, ...]], ...] = ()
    """Further changes, each of which would start it too."""
    by_itself: float | None = None
    """Seconds until it starts without any change, if only minimum run times of other jobs are in its way."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What changes would lead to. Nothing has happened."""

    actions: tuple[Action, ...]
    running: frozenset[str]
    """Jobs that would run (or be about to)."""
    allocated: Mapping[str, int]
    """Micro-GPUs that each queue would hold."""
    shares: Mapping[str, int]
    """Micro-GPUs that each queue could hold if everybody got what is theirs."""

    @property
    def started(self) -> tuple[str, ...]:
        return tuple(action.job for action in self.actions if isinstance(action, Start))


@dataclass(frozen=True, slots=True)
class Share:
    """A queue's fair share as the sum that it comes from (micro-GPUs)."""

    queue: str
    share: int
    """= guaranteed + surplus."""
    guaranteed: int
    """What it gets of its quota: min(quota, cap), or less where quotas exceed what exists."""
    surplus: int
    quota: int | None
    cap: int
    """min(limit, demand): a share is never more."""
    demand: int
    """What its jobs ask for, running and waiting."""
    allocated: int
    weight: int
    weights: int
    """Sum of the weights of those of its class who shared the surplus that was left unsatisfied."""
    left: int
    """The surplus that these shared: surplus = left * weight / weights, unless capped."""
    capped: bool
    parent_share: int
    """What the level had to divide."""

    @property
    def words(self) -> str:
        parts = [f"{format_gpus(self.guaranteed)} of its quota"]
        if self.quota is not None and self.guaranteed < min(self.quota, self.cap):
            parts[0] += f" of {format_gpus(self.quota)} (quotas exceed what there is)"
        if self.surplus and self.capped:
            parts.append(f"{format_gpus(self.surplus)} of the surplus, all that it can use")
        elif self.surplus:
            parts.append(
                f"{format_gpus(self.surplus)} of the surplus"
                f" ({format_gpus(self.weight)}/{format_gpus(self.weights)} of {format_gpus(self.left)})"
            )
        return f"{format_gpus(self.share)} = " + " + ".join(parts)


class Loan(NamedTuple):
    """Micro-GPUs that a queue holds above its quota and another leaves unused of its own."""

    borrower: str
    lender: str | None
    """None: no queue's quota; GPUs that are promised to nobody."""
    amount: int


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as it is now."""

    job: Job
    state: Literal["pending", "starting", "running"]
    attempt: int
    rung: int
    places: tuple[Place, ...]
    since: float
    """Submitted, or started."""
    charge: int
    reason: Reason
    backfill: bool = False
    unstarted: tuple[Place, ...] = ()
    """Those of its places that others have not left yet."""
    seen: tuple[tuple[int, int], ...] = ()
    """Group and task of those that are known to run."""
    evictions: int = 0
    failures: int = 0
    """Starts that failed, one after the other."""
    held: bool = False
    """It is not started before it is released."""
    until: float | None = None
    """It rests after a failed start, until this time."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue as it is now (micro-GPUs)."""

    queue: Queue
    allocated: int
    allocated_fixed: int
    """Of it by jobs that are not preemptible."""
    demand: int
    pending: int
    """Number of jobs that wait."""
    running: int


@dataclass(frozen=True, slots=True)
class NodeView:
    node: Node
    free: tuple[int, ...]
    """Bytes of each GPU not promised to anybody; 0 where it is broken."""
    alive: bool = True
    cordoned: bool = False
    unknown: bool = False
    until: float | None = None
    """It rests after failed starts, until this time."""
    foreign: tuple[tuple[int, int], ...] = ()
    """GPU and bytes that are in use by programs that are no jobs of ours."""
