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
part of its gang is completed or stopped instead of refused; Code.TAKEN, Code.TAKEN_AND_MOVED and Code.INCOMPLETE.

Quantities are integers: micro-GPUs (`quantity.gpus(0.5) == 500_000`) and bytes. Times are seconds of any clock that
does not go back; only their differences matter.

An event that makes no sense raises an error of gpushare.errors that names its place (`queue ml: limit`), and nothing
has changed then.

Two ways to run it, `Policy.endings`:

    "instant"    whoever is told to stop is gone at once: for plans, simulations and tests
    "reported"   a task told to stop holds its GPUs until Stopped(job, attempt) arrives. What it frees belongs from
                 the decision on to the job that it was freed for; that job's Start comes when all of it is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from gpushare.cluster.quantity import MICRO, MOST, format_gpus
from gpushare.cluster.reasons import Code, Reason
from gpushare.errors import NoSuchJob, UsageError
from gpushare.quantity import format_bytes

__all__ = [
    "ANYWHERE",
    "Action",
    "Code",
    "Event",
    "GpuHealth",
    "Grow",
    "Job",
    "JobChanged",
    "JobEnded",
    "JobRestored",
    "JobSubmitted",
    "JobWithdrawn",
    "Move",
    "NoSuchJob",
    "Node",
    "NodeAdded",
    "NodeLost",
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
    "Stop",
    "Stopped",
    "Tasks",
    "TimePassed",
    "Wait",
]

MOST_GPUS_OF_NODE = 1024
MOST_TASKS = 10**6
MOST_BYTES = 2**50


# ---- what there is -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """A machine. Its GPUs are alike; GPU i is known by its index."""

    name: str
    gpus: int
    memory: int = 80 * 2**30
    """Bytes of one GPU."""
    type: str = ""
    pool: str = "default"
    labels: tuple[tuple[str, str], ...] = ()
    broken: frozenset[int] = frozenset()
    """Indices of GPUs that must not be used."""


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
    queue: str
    tasks: tuple[Tasks, ...] = (Tasks(),)
    priority: int = 50
    preemptible: bool = True
    min_runtime: float = 0.0
    """Seconds that it runs undisturbed once started, if its queue does not grant more."""
    selector: Selector = ANYWHERE
    wait: bool = True
    """False: refused, with the time to try again, if it cannot be placed now."""
    backfill: bool = False
    """May run on GPUs that are reserved for a gang, and is stopped when that gang is complete."""


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


# ---- events ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeAdded:
    """A new node, or a known one that is back or has changed (then its jobs stay where GPUs remain)."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The node and all that runs there are gone."""

    node: str


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


@dataclass(frozen=True, slots=True)
class Stopped:
    """With Policy.endings == "reported": all that this attempt was told to stop is gone."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing but time: see Allocator.next_wake."""


Event = (
    NodeAdded
    | NodeLost
    | GpuHealth
    | QueueAdded
    | QueueChanged
    | QueueRemoved
    | JobSubmitted
    | JobRestored
    | JobChanged
    | JobWithdrawn
    | JobEnded
    | Stopped
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


# ---- checks ------------------------------------------------------------------------------------------


def bad(place: str, what: str, hint: str, code: str = "bad_input") -> UsageError:
    """An error in the input: where, what, and the remedy."""
    return UsageError(f"{place}: {what}", hint=hint, code=code)


def _number(place: str, value: Any, least: int, most: int, show: Callable[[int], str] = str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad(place, f"{value!r} is not a whole number", "write micro-GPUs or bytes as an int: gpus(0.5)")
    if value < least or value > most:
        raise bad(place, f"{show(value)} is not between {show(least)} and {show(most)}", "correct the number")


def _seconds(place: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**40:
        raise bad(place, f"{value!r} is not a number of seconds", "write a number from 0 on")


def _name(place: str, value: Any) -> None:
    if not isinstance(value, str) or not value or len(value) > 253 or not value.isprintable():
        raise bad(place, f"{value!r} is not a name", "write 1 to 253 printable characters")


def check_node(node: Node) -> None:
    _name("node", node.name)
    _number(f"node {node.name}: gpus", node.gpus, 0, MOST_GPUS_OF_NODE)
    _number(f"node {node.name}: memory", node.memory, MICRO, MOST_BYTES, format_bytes)
    for index in sorted(node.broken):
        _number(f"node {node.name}: broken", index, 0, node.gpus - 1)


def check_policy(policy: Policy) -> None:
    if policy.endings not in ("instant", "reported"):
        raise bad("policy: endings", f"{policy.endings!r} is unknown", "write instant or reported")
    for name in ("grow_hold", "reserve_after", "retry_after"):
        value = getattr(policy, name)
        if value is not None or name != "reserve_after":
            _seconds(f"policy: {name}", value)
    _number("policy: search_width", policy.search_width, 1, 100_000)


def _refuse(at: str, *rules: tuple[bool, str, str, str] | tuple[bool, str, str, str, str]) -> None:
    """The first rule that is broken: (whether it is, where, what, remedy, code)."""
    for broken, where, *words in rules:
        if broken:
            raise bad(at + where, *words)


def check_queue(queue: Queue) -> None:
    """The queue by itself; the allocator checks its place in the tree."""
    _name("queue", queue.name)
    at = f"queue {queue.name}: "
    for name, least, most in (
        *((name, 0, MOST) for name in ("quota", "limit", "weight")),
        *((name, 1, MICRO) for name in ("default_limit", "max_limit")),
    ):
        value = getattr(queue, name)
        if value is not None:
            _number(at + name, value, least, most, format_gpus)
    _number(at + "priority", queue.priority, -(2**31), 2**31)
    if queue.min_runtime is not None:
        _seconds(at + "min_runtime", queue.min_runtime)
    unknown, quota, limit = queue.placement not in (None, "pack", "spread"), queue.quota, queue.limit
    below_quota = limit is not None and quota is not None and limit < quota
    too_low = f"{format_gpus(limit or 0)} is below the quota of {format_gpus(quota or 0)}"
    above_most = None not in (queue.default_limit, queue.max_limit) and queue.default_limit > queue.max_limit  # type: ignore[operator]
    _refuse(
        at,
        (unknown, "placement", f"{queue.placement!r} is unknown", "write pack or spread"),
        (below_quota, "limit", too_low, "raise the limit or lower the quota"),
        (queue.static and quota is None, "static", "a static queue needs a quota", "give it a quota"),
        (above_most, "default_limit", "it is above max_limit", "lower default_limit or raise max_limit"),
    )


def check_job(job: Job) -> None:
    """The job by itself; the allocator checks its queue."""
    _name("job", job.id)
    at = f"job {job.id}: "
    _number(at + "priority", job.priority, -(2**31), 2**31)
    _seconds(at + "min_runtime", job.min_runtime)
    for index, tasks in enumerate(job.tasks):
        _check_tasks(f"{at}tasks[{index}]", tasks)
    lengths = {len(tasks.ladder) for tasks in job.tasks if tasks.ladder}
    _refuse(
        at + "tasks",
        (not job.tasks, "", "there are none", "give it at least one group of tasks"),
        (not any(tasks.top for tasks in job.tasks), "", "all groups are empty", "give it at least one task"),
        (
            not any(tasks.least for tasks in job.tasks),
            "",
            "none of its tasks has to run",
            "give one group a `least` of 1 or more",
        ),
        (len(lengths) > 1, "", "the ladders have different lengths", "give all groups as many rungs, or none"),
    )


def _check_tasks(at: str, tasks: Tasks) -> None:
    _number(f"{at}.least", tasks.least, 0, MOST_TASKS)
    if tasks.most is not None:
        _number(f"{at}.most", tasks.most, 0, MOST_TASKS)
    _number(f"{at}.gpus", tasks.gpus, 0, MOST_GPUS_OF_NODE)
    both = tasks.share is not None and tasks.memory is not None
    _refuse(
        at,
        (tasks.top < tasks.least, ".most", f"{tasks.most} is below least, {tasks.least}", "raise most or lower least"),
        (both, "", "both a share and bytes are asked for", "say one of share and memory", "mixed_request"),
    )
    unit, most, show = ("share", MICRO, format_gpus) if tasks.memory is None else ("memory", MOST_BYTES, format_bytes)
    rungs = tasks.rungs
    _number(f"{at}.{unit}", rungs[0], 1, most, show)
    for lower in rungs[1:]:
        _number(f"{at}.ladder", lower, 1, most, show)
    if tasks.limit is not None:
        _number(f"{at}.limit", tasks.limit, 1, most, show)
    limit = rungs[0] if tasks.limit is None else tasks.limit
    hint = "raise the limit, or leave it out: then it equals the request"
    _refuse(
        at,
        *(
            (
                lower >= higher,
                ".ladder",
                f"{show(lower)} does not come after {show(higher)}",
                "list them in falling order",
            )
            for lower, higher in zip(rungs[1:], rungs, strict=False)
        ),
        (
            limit < rungs[0],
            ".limit",
            f"{show(limit)} is below the request of {show(rungs[0])}",
            hint,
            "request_over_limit",
        ),
    )


def started(actions: list[Action]) -> Iterator[str]:
    """Names of the jobs that the actions start, in order."""
    return (action.job for action in actions if isinstance(action, Start))
