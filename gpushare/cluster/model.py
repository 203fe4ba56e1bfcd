"""The nouns of the cluster allocator: nodes, queues, jobs; events in, actions out. Data and checks, no decisions.

Interface, version 1 (changes are noted here)::

    allocator = Allocator(Policy())
    actions = allocator.handle(event, now)            # one event, or several that are decided on together
    allocator.explain("job-7")                        # why it waits or runs, and the smallest change that helps
    allocator.what_if([QueueChanged(queue)])          # what would happen; nothing changes
    allocator.shares()                                # each queue's fair share as the sum that it comes from
    allocator.loans()                                 # who borrows from whom
    allocator.limit("job-7", place)                   # bytes that its tasks may use at most
    allocator.next_wake                               # hand in TimePassed() at this time, if nothing comes before
    allocator.validate()                              # raises if an invariant is broken

Since version 1 was written down: Explanation.who and .others, Allocator.limit(), Allocator.now; a JobRestored with a
part of its gang is completed or stopped instead of refused; Code.TAKEN, Code.TAKEN_AND_MOVED and Code.INCOMPLETE; the
events of engines: NodeUnknown, NodeCordoned, NodeDrained, NodeUncordoned, ForeignUse, Started, StartFailed, TasksLost,
StopRefused, JobHeld, JobReleased, Stopped.tasks, Node.uuids, Job.name, and what their jobs and nodes show in the views.

Quantities are integers: micro-GPUs (`quantity.gpus(0.5) == 500_000`) and bytes. Times are seconds of any clock that
does not go back; only their differences matter.

An event that makes no sense raises an error of gpushare.errors that names its place (`queue ml: limit`), and nothing
has changed then.

Two ways to run it, `Policy.endings`:

    "instant"    a job that is told to stop is gone at once: for plans, simulations and tests
    "reported"   a task told to stop holds its GPUs until Stopped(job, attempt) arrives. What it frees belongs from
                 the decision on to the job that it was freed for; that job's Start comes when all of it is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpushare.cluster.quantity import MICRO, format_gpus
from gpushare.cluster.reasons import Code, Reason
from gpushare.errors import NoSuchJob

__all__ = [
    "ANYWHERE",
    "Action",
    "Code",
    "Event",
    "ForeignUse",
    "GpuHealth",
    "Grow",
    "Job",
    "JobChanged",
    "JobEnded",
    "JobHeld",
    "JobReleased",
    "JobRestored",
    "JobSubmitted",
    "JobWithdrawn",
    "Move",
    "NoSuchJob",
    "Node",
    "NodeAdded",
    "NodeCordoned",
    "NodeDrained",
    "NodeLost",
    "NodeUncordoned",
    "NodeUnknown",
    "Place",
    "Policy",
    "Preempt",
    "Queue",
    "QueueAdded",
    "QueueChanged",
    "QueueRemoved",
    "Reason",
    "Refuse",
    "Selector",
    "Shrink",
    "Start",
    "StartFailed",
    "Started",
    "Stop",
    "StopRefused",
    "Stopped",
    "Tasks",
    "TasksLost",
    "TimePassed",
    "Wait",
]

MOST_GPUS_OF_NODE = 1024
USUAL_MEMORY = 80 * 2**30
"""Bytes of one GPU, where nobody says how many it has."""


# ---- what there is -----------------------------------------------------------------------------------


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
    further one. It is stopped then only where nobody else will do."""


# ---- events ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeAdded:
    """A new node, or a known one that is back or has changed (then its jobs stay where GPUs remain).

    A cordon outlives it; that the node was unknown does not."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The node and all that runs there are gone."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeUnknown:
    """It does not answer. Nothing starts there; what ran there may still run and keeps its places, so nothing runs
    twice. NodeAdded ends it, or NodeLost."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeCordoned:
    """Nothing starts there any more; what runs stays."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """Cordoned, and what runs there is stopped and waits again."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeUncordoned:
    """Jobs may start there again."""

    node: str


@dataclass(frozen=True, slots=True)
class ForeignUse:
    """So many bytes of a GPU are in use by programs that are no jobs of ours. They belong to no queue, are left alone,
    and nothing starts in their place. 0: no longer."""

    node: str
    gpu: int
    memory: int


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """A GPU broke (what runs on it is gone) or works again."""

    node: str
    gpu: int
    healthy: bool


@dataclass(frozen=True, slots=True)
class QueueAdded:
    """Parents come first. The order in which queues came is the last tie-break."""

    queue: Queue


@dataclass(frozen=True, slots=True)
class QueueChanged:
    """New numbers for a known queue; its parent cannot change."""

    queue: Queue


@dataclass(frozen=True, slots=True)
class QueueRemoved:
    """Only of a queue without jobs and children."""

    queue: str


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    job: Job
    since: float | None = None
    """When it began to wait, if not now."""
    attempt: int = 0
    """The last attempt that it has had: the next start is a later one."""
    evictions: int = 0
    """How often it has been stopped for others."""


@dataclass(frozen=True, slots=True)
class JobRestored:
    """A job that runs already, as an engine found it. The order in which jobs came is their age.

    If only a part of its gang runs, the rest is started, if need be in place of others from whom the job may take; if
    that cannot be, it is stopped and waits.
    """

    job: Job
    places: tuple[Place, ...]
    """amount and charge are computed again; 0 will do. With a ladder, `rung` says where on it the job is."""
    since: float
    attempt: int = 1
    rung: int = 0
    evictions: int = 0


@dataclass(frozen=True, slots=True)
class JobHeld:
    """A job that waits is not started until JobReleased. UsageError for one that runs."""

    job: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class JobReleased:
    """It may start now, whatever held it back: a JobHeld, failed starts."""

    job: str


@dataclass(frozen=True, slots=True)
class JobChanged:
    """Another priority or preemptibility for a job, running or not; None leaves it."""

    job: str
    priority: int | None = None
    preemptible: bool | None = None


@dataclass(frozen=True, slots=True)
class JobWithdrawn:
    """Its user does not want it any more: it is stopped if it runs."""

    job: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """It has finished by itself and holds nothing any more."""

    job: str


# About an attempt. What is said of one that is over, or of a job that is gone, changes nothing. `tasks` are pairs of
# group and task; () are all of them.


@dataclass(frozen=True, slots=True)
class Started:
    """These tasks run."""

    job: str
    attempt: int
    tasks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StartFailed:
    """These tasks do not run, and will not in this attempt. Their places are given up as if they had been told to stop.

    With `node` the node is to blame and rests for a while; else the job does, and is held after Policy.start_tries."""

    job: str
    attempt: int
    tasks: tuple[tuple[int, int], ...] = ()
    node: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class TasksLost:
    """These tasks ran and are gone, though nobody told them to stop, and the job is not done."""

    job: str
    attempt: int
    tasks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Stopped:
    """With Policy.endings == "reported": these tasks of an attempt that was told to stop are gone."""

    job: str
    attempt: int
    tasks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StopRefused:
    """With Policy.endings == "reported": this attempt was told to stop and goes on running, all of it.

    It has its places again, and nothing is taken from it for some time. The job that was to get them waits again."""

    job: str
    attempt: int
    retry_after: float = 60.0
    """Seconds."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing but time: see Allocator.next_wake."""


Event = (
    NodeAdded
    | NodeLost
    | NodeUnknown
    | NodeCordoned
    | NodeDrained
    | NodeUncordoned
    | ForeignUse
    | GpuHealth
    | QueueAdded
    | QueueChanged
    | QueueRemoved
    | JobSubmitted
    | JobRestored
    | JobChanged
    | JobHeld
    | JobReleased
    | JobWithdrawn
    | JobEnded
    | Started
    | StartFailed
    | TasksLost
    | Stopped
    | StopRefused
    | TimePassed
)


# ---- actions -----------------------------------------------------------------------------------------


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


# ---- answers -----------------------------------------------------------------------------------------


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


def started(actions: list[Action]) -> Iterator[str]:
    """Names of the jobs that the actions start, in order."""
    return (action.job for action in actions if isinstance(action, Start))
