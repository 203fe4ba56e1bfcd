"""What there is: nodes, queues, jobs, their tasks and places, and the numbers that an administrator may change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpushare.cluster.quantity import MICRO

MOST_GPUS_OF_NODE = 1024
USUAL_MEMORY = 80 * 2**30
"""Bytes of one GPU, where nobody says how many it has."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine. Its GPUs are alike; GPU i is known by its index."""

    name: str
    gpus: int
    memory: int = USUAL_MEMORY
    """Bytes of one GPU."""
    type: str = ""
    pool: str = "default"
    labels: tuple[tuple[str, str], ...] = ()
    broken: frozenset[int] = frozenset()
    """Indices of GPUs that must not be used."""
    uuids: tuple[str, ...] = ()
    """The identity of each GPU; () where it is not known. Another one at an index is another GPU: what ran there is
    gone."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A department, project or user: a node of the quota tree. Jobs are submitted to the leaves."""

    name: str
    parent: str | None = None
    quota: int | None = 0
    """Micro-GPUs that it is guaranteed; None is unlimited."""
    limit: int | None = None
    """Micro-GPUs that it never exceeds; None is no limit."""
    weight: int | None = None
    """Its part of what is left over when all quotas are met, against its siblings' (micro); None: as its quota."""
    priority: int = 0
    """Priority class: surplus goes to the highest class until that is satisfied."""
    static: bool = False
    """A hard quota: the limit is the quota."""
    min_runtime: float | None = None
    """Seconds that its jobs run undisturbed once started; None: as the parent's."""
    placement: Literal["pack", "spread"] | None = None
    """None: as the parent's; the top packs."""
    default_limit: int | None = None
    """A task's limit on each GPU (micro) where the job says none; None: the request."""
    max_limit: int | None = None
    """No task's limit may be more (micro)."""

    @property
    def cap(self) -> int | None:
        """The limit that counts."""
        if self.static and self.quota is not None:
            return self.quota if self.limit is None else min(self.limit, self.quota)
        return self.limit


@dataclass(frozen=True, slots=True)
class Tasks:
    """Equal tasks of a job: each takes the same amount of each of `gpus` GPUs of one node."""

    least: int = 1
    """So many must run at once, or the job does not run at all (a gang)."""
    most: int | None = None
    """Elastic: more are started while there is room, and stopped first; None: as `least`."""
    gpus: int = 1
    share: int | None = None
    """Micro of each GPU. One of `share` and `memory`; neither: whole GPUs."""
    memory: int | None = None
    """Bytes of each GPU."""
    limit: int | None = None
    """What it may use at most when others leave it idle, in the unit of the request; None: the queue's default."""
    ladder: tuple[int, ...] = ()
    """Smaller requests, in falling order and in the request's unit, with which it can also do."""
    name: str = ""

    @property
    def top(self) -> int:
        """The number of tasks when it has all."""
        return self.least if self.most is None else self.most

    @property
    def rungs(self) -> tuple[int, ...]:
        """All requests that it can do with, the largest first."""
        first = self.memory if self.memory is not None else MICRO if self.share is None else self.share
        return (first, *self.ladder)


@dataclass(frozen=True, slots=True)
class Selector:
    """Where a job may run. Empty means anywhere; labels must all match, of the others one of each must."""

    pools: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    nodes: tuple[str, ...] = ()


ANYWHERE = Selector()


@dataclass(frozen=True, slots=True)
class Job:
    """What a user submits. All `least` tasks of all groups start together or none does."""

    id: str
    """Names this job, and no later one. An engine uses its own identity of the job (a uid), which no other job has."""
    queue: str
    tasks: tuple[Tasks, ...] = (Tasks(),)
    priority: int = 50
    preemptible: bool = True
    min_runtime: float = 0.0
    """Seconds that it runs undisturbed once started, if its queue does not grant more."""
    selector: Selector = ANYWHERE
    wait: bool = True
    """False: refused, with the time to try again, if it cannot be placed now."""
    backfill: bool = True
    """May run on GPUs that are reserved for a gang, and is stopped when that gang is complete. What is not preemptible
    or has a minimum run time never does."""
    name: str = ""
    """What its user calls it, if that is not the id; several jobs may have one name."""
    movable: bool = False
    """Loses nothing when it is stopped and started elsewhere. Others are not moved: that costs what a stop costs."""
    checkpoint_every: float | None = None
    """Seconds between its checkpoints: a stop loses the work since the last. None: all work since the start."""


class Place(NamedTuple):
    """Where one task runs."""

    group: int
    """Index into Job.tasks."""
    task: int
    """Which of the group's tasks, from 0."""
    node: str
    gpus: tuple[int, ...]
    amount: int
    """Bytes of each of these GPUs."""
    charge: int
    """Micro-GPUs in all: what its queues pay."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers that an administrator may change."""

    endings: Literal["instant", "reported"] = "instant"
    grow_hold: float = 60.0
    """Seconds after a shrink before a job may grow again."""
    reserve_after: float | None = 600.0
    """A job blocked by lack of room for so long gets a reservation; None: never."""
    retry_after: float = 3.0
    """What a refused job is told."""
    consolidate: bool = True
    search_width: int = 64
    """How many nodes a search for moves looks at, the most promising first."""
    back_off: float = 10.0
    """Seconds that a job or a node rests after a failed start; twice as long after each further one, up to 64 times."""
    start_tries: int = 3
    """A job that failed to start so often in a row is held."""
    protect: float = 7200.0
    """Seconds that a job is protected after its first eviction, once it runs again; three times as long after each
    further one. Each second of it that is left counts against a stop as two of work."""
    patience: float = 86400.0
    """Seconds that a job waits before jobs that lose more than an hour of work are stopped for its queue's share. For
    its quota they are stopped at once."""
