"""What the allocator knows: queues, jobs, classes of equal jobs, and the ledger of who holds what. No decisions.

Jobs of one queue that differ in nothing but their names and arrivals are one JobClass with two ordered lists: those
that wait, and those that run. If one of them cannot start, none can; so a class, not a job, carries the reason why
it waits (its gate), and a hundred thousand waiting jobs cost as much as the few classes that they form.

All changes go through the journalled operations of State, so each can be undone. The sums that every decision needs
(allocated, demand) are kept along a queue's path to the top; `validate()` computes them again and compares.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Generic, TypeVar

from gpushare.cluster.journal import Journal
from gpushare.cluster.model import USUAL_MEMORY, Job, Place, Policy, Queue, Reason, Selector, Tasks
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.reasons import THERE_IS_ROOM
from gpushare.cluster.rules import may_backfill
from gpushare.cluster.shares import Claim, Part, divide, share_out
from gpushare.cluster.space import FOREVER, Need, NodeState, Space
from gpushare.cluster.watch import Watch

FEW_CLASSES = 64
"""Fewer are never tidied up."""

NO_PLACES: dict[tuple[int, int], Place] = {}
"""Of jobs that have none; never written to. A hundred thousand empty dictionaries would keep the collector busy."""


NOTHING_SEEN: dict[tuple[int, int], None] = {}
"""The same for tasks that are known to run."""


Run = tuple[float, int, int]
"""When a job started, how often it was evicted (negative), its sequence number: the last of these has lost the least if
it is stopped now."""

Key = TypeVar("Key", int, Run)


class SeqList(Generic[Key]):
    """Sequence numbers, or runs, in rising order; cheap at both ends, where nearly all changes happen."""

    __slots__ = ("head", "items")

    def __init__(self) -> None:
        self.items: list[Key] = []
        self.head = 0

    def __len__(self) -> int:
        return len(self.items) - self.head

    def __iter__(self) -> Iterator[Key]:
        return iter(self.items[self.head :])

    def __bool__(self) -> bool:
        return self.head < len(self.items)

    def __contains__(self, seq: Key) -> bool:
        index = bisect_left(self.items, seq, self.head)
        return index < len(self.items) and self.items[index] == seq

    def newest_first(self) -> Iterator[Key]:
        """Of the list as it was when the iteration began."""
        return iter(self.items[self.head :][::-1]) if len(self) < 64 else self._newest_first()

    def _newest_first(self) -> Iterator[Key]:
        items = self.items
        for index in range(len(items) - 1, self.head - 1, -1):
            yield items[index]

    def falling(self) -> Iterator[Key]:
        """Newest first; the list may change between two, each time."""
        index = len(self.items) - 1
        while index >= self.head:
            seq = self.items[index]
            yield seq
            index = bisect_left(self.items, seq, self.head) - 1

    @property
    def first(self) -> Key:
        return self.items[self.head]

    def add(self, seq: Key) -> None:
        items, head = self.items, self.head
        if head == len(items):
            items.clear()
            items.append(seq)
            self.head = 0
        elif seq > items[-1]:
            items.append(seq)
        elif head and seq < items[head]:
            self.head = head - 1
            items[head - 1] = seq
        else:
            insort(items, seq, head)

    def remove(self, seq: Key) -> None:
        items, head = self.items, self.head
        if items[head] == seq:
            self.head = head + 1
            if self.head > 64 and self.head * 2 > len(items):
                del items[: self.head]
                self.head = 0
        elif items[-1] == seq:
            items.pop()
        else:
            index = bisect_left(items, seq, head)
            assert items[index] == seq
            del items[index]


class QueueState:
    """A queue and its sums, in micro-GPUs."""

    __slots__ = (
        "allocated",
        "cap",
        "children",
        "classes",
        "demand",
        "divided",
        "fixed",
        "granted",
        "least",
        "level",
        "mixed",
        "name",
        "order",
        "parent",
        "path",
        "quota",
        "share",
        "spec",
        "standing",
        "weight",
    )

    def __init__(self, spec: Queue, order: int, parent: QueueState | None) -> None:
        self.name = spec.name
        self.order = order
        self.parent = parent
        self.children: dict[str, QueueState] = {}
        self.path: tuple[QueueState, ...] = (self, *parent.path) if parent is not None and parent.parent else (self,)
        """This queue and its ancestors, without the root that holds the top queues."""
        self.allocated = 0
        self.fixed = 0
        """Of what is allocated, what non-preemptible jobs hold."""
        self.demand = 0
        self.share = 0
        self.divided = -1
        """What its children were last given to divide; -1: their numbers have changed since."""
        self.level: Level | None = None
        """What its children bring to that division; None: to be gathered again."""
        self.classes: dict[object, JobClass] = {}
        self.mixed = False
        """Its jobs have not all the same priority, or had not."""
        self.least = 0
        """What a job of it costs at least (micro); 0: it has elastic jobs, or jobs of two priorities."""
        self.standing: tuple[int, int, int, tuple[int, int, int, int, int]] | None = None
        """Its place in the order of its siblings, and for which numbers that is so: see order.py."""
        self.granted = 0.0
        """The minimum run time of its jobs: its own, else its parent's."""
        self.adopt(spec)

    def adopt(self, spec: Queue) -> None:
        self.spec = spec
        self.standing = None
        self.grant()
        self.quota = spec.quota
        self.cap = spec.cap
        self.weight = (
            spec.weight if spec.weight is not None else spec.quota if spec.quota is not None else 10**9 * MICRO
        )

    def grant(self) -> None:
        inherited = self.parent.granted if self.parent is not None else 0.0
        self.granted = inherited if self.spec.min_runtime is None else self.spec.min_runtime
        for child in self.children.values():
            child.grant()

    @property
    def useful(self) -> int:
        """What it can use at most: its demand within its limit."""
        return self.demand if self.cap is None or self.demand < self.cap else self.cap


class Level:
    """The claims of a queue's children as columns, and what they got: kept, because one arrival divides again for a
    thousand queues and changes the claim of one. Only what has changed is read again from the queues."""

    __slots__ = ("caps", "children", "index", "priorities", "quotas", "shares", "stale", "weights")

    def __init__(self, parent: QueueState) -> None:
        self.children = sorted(parent.children.values(), key=_by_order)
        self.index = {child: index for index, child in enumerate(self.children)}
        self.quotas = [child.quota for child in self.children]
        self.weights = [child.weight for child in self.children]
        self.priorities = [child.spec.priority for child in self.children]
        self.caps = [child.useful for child in self.children]
        self.shares = [child.share for child in self.children]
        self.stale: dict[QueueState, None] = {}
        """Children whose demand has changed since."""

    def divide(self, total: int) -> list[int]:
        for child in self.stale:
            self.caps[self.index[child]] = child.useful
        self.stale.clear()
        shares, _, _ = share_out(total, self.quotas, self.caps, self.weights, self.priorities)
        return shares


@dataclass(slots=True, frozen=True)
class TaskShape:
    """Tasks, worked out."""

    least: int
    top: int
    needs: tuple[Need, ...]
    """By rung."""


class Shape:
    """What placing a job depends on. Classes of different queues share it, and what is known about it."""

    __slots__ = (
        "asked",
        "backfill",
        "by_bytes",
        "cheapest",
        "classes",
        "elastic",
        "full",
        "full_more",
        "groups",
        "key",
        "possible",
        "rungs",
        "selector",
        "simple",
        "stuck",
        "tasks",
    )

    def __init__(self, tasks: tuple[Tasks, ...], selector: Selector, backfill: bool) -> None:
        self.key = (tasks, selector, backfill)
        self.asked = tasks
        rungs = max(len(one.rungs) for one in tasks)
        self.rungs = rungs
        self.groups = tuple(
            TaskShape(
                one.least,
                one.top,
                tuple(
                    Need(one.gpus, one.rungs[min(rung, len(one.rungs) - 1)], one.memory is not None)
                    for rung in range(rungs)
                ),
            )
            for one in tasks
        )
        self.tasks = sum(group.least for group in self.groups)
        self.elastic = any(group.top > group.least for group in self.groups)
        self.selector = selector
        self.backfill = backfill
        self.simple = self.groups[0].needs[0] if self.tasks == 1 and len(self.groups) == 1 and rungs == 1 else None
        """Its need, if it is one task without a choice."""
        self.by_bytes = any(group.needs[0].in_bytes for group in self.groups)
        self.cheapest = 0
        """What a gang of it costs at least (micro), as its classes know it."""
        self.possible = True
        """Some node could hold it, if empty; what none can does not count as demand."""
        self.full = False
        """No room when last tried, and nothing that would help has been freed since."""
        self.full_more = False
        """The same for one further task of an elastic job."""
        self.stuck = -1
        """The version of the state for which moving others was found not to help."""
        self.classes: dict[JobClass, None] = {}

    @property
    def several(self) -> bool:
        """Takes one of its tasks parts of several GPUs?"""
        return any(need.gpus > 1 and not need.whole for group in self.groups for need in group.needs)

    @property
    def least_step(self) -> int:
        """The smallest part of a GPU by which a task of it goes up its ladder."""
        needs = [group.needs for group in self.groups]
        return min(up.amount - low.amount for one in needs for up, low in pairwise(one) if up.amount > low.amount)

    def least_charge(self, memory: int, rung: int = 0) -> int:
        """What the gang costs on GPUs with so much memory."""
        return sum(group.least * group.needs[rung].charge(memory) for group in self.groups)

    def top_charge(self, memory: int) -> int:
        return sum(group.top * group.needs[0].charge(memory) for group in self.groups)


class JobClass:
    """Equal jobs of one queue."""

    __slots__ = (
        "charge",
        "checkpoints",
        "demand",
        "gate",
        "held",
        "key",
        "more_gate",
        "more_priced",
        "movable",
        "parked",
        "pending",
        "preemptible",
        "priced",
        "priority",
        "queue",
        "running",
        "shape",
        "short",
        "tall",
    )

    def __init__(self, key: object, queue: QueueState, job: Job, shape: Shape) -> None:
        self.key = key
        self.queue = queue
        self.priority = job.priority
        self.preemptible = job.preemptible
        self.shape = shape
        self.pending: SeqList[int] = SeqList()
        self.running: SeqList[Run] = SeqList()
        """Placed, whether their tasks have started or not."""
        self.checkpoints = False
        """One of its jobs has checkpoints, or had."""
        self.movable = False
        """One of its jobs may be moved, or might."""
        self.short: SeqList[int] = SeqList()
        """Of those placed, elastic ones that have fewer tasks than they could."""
        self.tall: SeqList[int] = SeqList()
        """Of those placed, those that can go down their ladder."""
        self.parked = 0
        """Jobs of it that are held or rest."""
        self.gate: Reason | None = None
        """Why its first waiting job cannot start; None: not known, it must be tried."""
        self.more_gate: Reason | None = None
        """The same for the next task of its elastic jobs."""
        self.priced = self.more_priced = False
        """There may be room for its first waiting job, but only on GPUs on which it would break a limit."""
        self.charge = 0
        """What one more of it would cost at least (micro), by the GPUs that there are."""
        self.demand = 0
        """What one asks for at most."""
        self.held = 0
        """What its jobs hold."""

    @property
    def busy(self) -> bool:
        """Has it jobs?"""
        return bool(self.pending or self.running or self.parked)


class JobState:
    """A job."""

    __slots__ = (
        "attempt",
        "backfill",
        "changed",
        "charge",
        "cls",
        "demand",
        "evicted_in",
        "evictions",
        "failures",
        "given_in",
        "job",
        "min_runtime",
        "places",
        "queue",
        "reason",
        "resized_in",
        "rung",
        "seen",
        "seq",
        "since",
        "spared",
        "unstarted",
        "until",
    )

    def __init__(self, job: Job, seq: int, queue: QueueState, cls: JobClass, now: float) -> None:
        self.job = job
        self.seq = seq
        self.queue = queue
        self.cls = cls
        self.places: dict[tuple[int, int], Place] = NO_PLACES
        """By group and task; empty: it waits."""
        self.unstarted: dict[tuple[int, int], Place] = NO_PLACES
        """Those of its places that others have not yet left."""
        self.charge = 0
        self.demand = 0
        self.attempt = 0
        self.rung = 0
        self.since = now
        """When it was submitted or queued again, or started."""
        self.changed = now
        """When it was last shrunk, or started below its top rung."""
        self.backfill = False
        self.reason: Reason = THERE_IS_ROOM
        self.given_in = -1
        """The turn in which it was last given a place: none is taken from it in the same turn."""
        self.resized_in = -1
        """The turn in which it was last moved or let grow: it is not shrunk in the same turn."""
        self.evicted_in = -1
        """The turn in which it lost its last place: it may not take from others in the same turn."""
        self.evictions = 0
        """How often all of it was stopped for others."""
        self.failures = 0
        """Starts that failed since one worked."""
        self.seen: dict[tuple[int, int], None] = NOTHING_SEEN
        """Those of its tasks that are known to run."""
        self.spared = -FOREVER
        """Nothing is taken from it before then: the engine has refused to stop it."""
        self.until = -FOREVER
        """It rests until then; infinity: it is held."""

    @property
    def shape(self) -> Shape:
        return self.cls.shape

    @property
    def run(self) -> Run:
        """Its place in the order of the jobs of its class that run."""
        return self.since, -self.evictions, self.seq

    @property
    def ordered(self) -> list[Place]:
        return [self.places[key] for key in sorted(self.places)]

    def count(self, group: int) -> int:
        return sum(1 for one, _ in self.places if one == group)

    @property
    def complete(self) -> bool:
        """Does all of its gang have places?"""
        return all(self.count(index) >= group.least for index, group in enumerate(self.cls.shape.groups))

    def extra(self) -> int:
        """Tasks above the least of their groups."""
        shape = self.cls.shape
        if not shape.elastic:
            return 0
        if len(shape.groups) == 1:
            return max(0, len(self.places) - shape.tasks)
        return sum(max(0, self.count(index) - group.least) for index, group in enumerate(shape.groups))


class State:
    """Everything, and the journalled operations on it."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.journal = Journal()
        self.space = Space()
        self.root = QueueState(Queue("", quota=None), -1, None)
        self.queues: dict[str, QueueState] = {}
        self.jobs: dict[str, JobState] = {}
        self.by_seq: dict[int, JobState] = {}
        self.classes: dict[object, JobClass] = {}
        self.shapes: dict[object, Shape] = {}
        self.tidy_at = FEW_CLASSES
        """When there are so many classes, those without jobs are forgotten."""
        self.several = 0
        """Shapes of which a task takes parts of several GPUs. Searches do not look at all ways to place such tasks, so
        even a start, which takes room, may turn them to a way that works."""
        self.sequence = 0
        self.version = 0
        """Rises with everything that is taken or given back."""
        self.turn = 0
        self.leaving: dict[tuple[str, int], tuple[Place, ...]] = {}
        """Places that tasks told to stop still hold, by job and attempt."""
        self.shrunk: dict[int, None] = {}
        """Placed jobs below their top rung."""
        self.tall: dict[JobClass, None] = {}
        """Classes with jobs that can go down their ladder."""
        self.least_step = FOREVER
        """The smallest part of a GPU (micro) by which any of them goes up."""
        self.watch = Watch(self.journal)
        self.guarded: dict[int, float] = {}
        """Until when running jobs cannot be stopped because of their minimum run time, if that is later than now."""
        self.parked: dict[int, None] = {}
        """Jobs that are held or rest. They are in no list of their class and ask for nothing."""
        self.resting: dict[int, None] = {}
        """Nodes that rest, by number."""
        self.reserve_at = -FOREVER
        """No further job can have waited long enough for a reservation before this time."""
        self.aged: dict[JobClass, None] = {}
        """Classes of which one had waited long enough when that was last looked at."""
        self.reserver: JobState | None = None
        self.backfills: dict[int, None] = {}
        self.waiting: dict[int, None] = {}
        """Jobs with unstarted places."""

    def leaves(self) -> Iterator[QueueState]:
        return (queue for queue in self.queues.values() if not queue.children)

    # ---- marks ---------------------------------------------------------------------------------------

    def mark(self) -> tuple[int, int, int, int]:
        return len(self.journal.entries), len(self.watch.freed), len(self.watch.dropped), self.version

    def undo(self, mark: tuple[int, int, int, int]) -> None:
        self.journal.undo(mark[0])
        self.version = mark[3]
        del self.watch.freed[mark[1] :]
        del self.watch.dropped[mark[2] :]

    # ---- raw operations: their own inverses ------------------------------------------------------------

    def enter(self, job: JobState, demand: int) -> None:
        """A job that nobody knew."""
        self.jobs[job.job.id] = job
        self.by_seq[job.seq] = job
        self._ask(job, demand)
        self.journal.entries.append((self._forget, job, demand))

    def _forget(self, job: JobState, demand: int) -> None:
        del self.jobs[job.job.id]
        del self.by_seq[job.seq]
        self._ask(job, -demand)

    def _pay(self, job: JobState, charge: int) -> None:
        job.charge += charge
        job.cls.held += charge
        fixed = not job.cls.preemptible
        for queue in job.queue.path:
            queue.allocated += charge
            if fixed:
                queue.fixed += charge
        self.root.allocated += charge

    def _ask(self, job: JobState, demand: int) -> None:
        """Demand bubbles up as what each level can use of it."""
        job.demand += demand
        self._bubble(job.queue, demand)

    def _bubble(self, queue: QueueState, demand: int) -> None:
        while demand:
            before = queue.useful
            queue.demand += demand
            after = queue.useful
            demand = after - before
            parent = queue.parent
            if parent is None:
                return
            if parent.level is not None:
                parent.level.stale[queue] = None
            # Who has less than it can use, before and after, does not move the water: its share and all others stay.
            if demand and min(before, after) <= queue.share:
                parent.divided = -1
            queue = parent

    def _occupy(self, job: JobState, place: Place) -> None:
        node = self.space.by_name[place.node]
        if place.gpus:
            self.space.take(node, place.gpus, place.amount)
            if node.charged is not None:
                self.space.pay(node, place.gpus, place.charge)
        if job.places is NO_PLACES:
            job.places = {}
        job.places[place[0], place[1]] = place
        node.jobs[job.seq] = node.jobs.get(job.seq, 0) + 1
        self.version += 1

    def _vacate(self, job: JobState, place: Place) -> None:
        node = self.space.by_name[place.node]
        if place.gpus:
            self.space.take(node, place.gpus, -place.amount)
            if node.charged is not None:
                self.space.pay(node, place.gpus, -place.charge)
        del job.places[place[0], place[1]]
        left = node.jobs[job.seq] - 1
        if left:
            node.jobs[job.seq] = left
        else:
            del node.jobs[job.seq]
        self.version += 1

    def _claim(self, place: Place, times: int) -> None:
        node = self.space.by_name[place.node]
        for gpu in place.gpus:
            node.claimed[gpu] = node.claimed.get(gpu, 0) + times * place.amount
            if not node.claimed[gpu]:
                del node.claimed[gpu]

    def _hold(self, place: Place, times: int) -> None:
        node = self.space.by_name[place.node]
        for gpu in place.gpus:
            node.leaving[gpu] = node.leaving.get(gpu, 0) + times * place.amount
            if not node.leaving[gpu]:
                del node.leaving[gpu]

    # ---- journalled ----------------------------------------------------------------------------------

    def pay(self, job: JobState, charge: int) -> None:
        if charge:
            self._pay(job, charge)
            self.journal.entries.append((self._pay, job, -charge))
            if charge < 0:
                self.watch.dropped.append(job.queue)

    def ask(self, job: JobState, demand: int) -> None:
        if demand:
            self._ask(job, demand)
            self.journal.entries.append((self._ask, job, -demand))

    def occupy(self, job: JobState, place: Place) -> None:
        self._occupy(job, place)
        self.journal.entries.append((self._vacate, job, place))

    def vacate(self, job: JobState, place: Place) -> None:
        self._vacate(job, place)
        self.journal.entries.append((self._occupy, job, place))
        self.watch.freed.append(self.space.by_name[place.node])

    def claim(self, place: Place, times: int) -> None:
        """The place is promised to a task that has not started (1), or no longer so (-1)."""
        self._claim(place, times)
        self.journal.entries.append((self._claim, place, -times))

    def hold(self, place: Place, times: int) -> None:
        """A task that was told to stop is still there (1), or no longer (-1)."""
        self._hold(place, times)
        self.journal.entries.append((self._hold, place, -times))

    def enlist(self, seqs: SeqList[Key], seq: Key) -> None:
        seqs.add(seq)
        self.journal.entries.append((seqs.remove, seq))

    def delist(self, seqs: SeqList[Key], seq: Key) -> None:
        seqs.remove(seq)
        self.journal.entries.append((seqs.add, seq))

    def set_gate(self, cls: JobClass, more: bool, gate: Reason) -> None:
        """Why the class's first waiting job, or (more) the next task of an elastic one, cannot start."""
        self.journal.set(cls, "more_gate" if more else "gate", gate)

    def open(self, cls: JobClass) -> None:
        """It must be tried again."""
        if cls.gate is not None:
            self.journal.set(cls, "gate", None)
        if cls.priced:
            self.journal.set(cls, "priced", False)
        if cls.more_priced:
            self.journal.set(cls, "more_priced", False)
        if cls.more_gate is not None:
            self.journal.set(cls, "more_gate", None)
        if cls.pending or cls.short:
            self.to_try(cls)

    def to_try(self, cls: JobClass) -> None:
        """There may be room for it."""
        self.watch.leaves[cls.queue] = None
        self.watch.classes[cls] = None

    def adopt(self, queue: QueueState, spec: Queue) -> None:
        """New numbers for a queue."""
        self.journal.note(self._adopt, queue, queue.spec)
        self._adopt(queue, spec)
        assert queue.parent is not None
        self.regroup(queue.parent)

    def regroup(self, parent: QueueState) -> None:
        """Its children are others now, or their numbers."""
        self.journal.set(parent, "level", None)
        parent.divided = -1

    def _adopt(self, queue: QueueState, spec: Queue) -> None:
        before = queue.useful
        queue.adopt(spec)
        parent = queue.parent
        assert parent is not None
        parent.divided = -1
        self._bubble(parent, queue.useful - before)

    # ---- classes -------------------------------------------------------------------------------------

    def class_of(self, job: Job, queue: QueueState) -> JobClass:
        backfill = may_backfill(job.preemptible, job.backfill, job.min_runtime)
        shape_key = (job.tasks, job.selector, backfill)
        key = (queue.name, job.priority, job.preemptible, shape_key)
        cls = self.classes.get(key)
        if cls is None:
            if len(self.classes) >= self.tidy_at:
                self._tidy()
            shape = self.shapes.get(shape_key)
            if shape is None:
                shape = Shape(job.tasks, job.selector, backfill)
                shape.possible = self.too_large(shape) is None
                self.journal.put(self.shapes, shape_key, shape)
                if shape.several:
                    self.journal.set(self, "several", self.several + 1)
            cls = JobClass(key, queue, job, shape)
            cls.charge = self.least_charge(shape)
            cls.demand = self.demand_of(shape)
            shape.cheapest = cls.charge
            if shape.rungs > 1:
                self.least_step = min(self.least_step, shape.least_step)
            self.journal.put(self.classes, key, cls)
            if not queue.mixed and any(one.priority != cls.priority for one in queue.classes.values()):
                self.journal.set(queue, "mixed", True)
            self.journal.put(queue.classes, key, cls)
            self.weigh(queue)
            self.journal.put(shape.classes, cls, None)
        return cls

    def _tidy(self) -> None:
        """Forget the classes that have no jobs: where no two jobs are alike there would be one for every job that ever
        came. Seldom, since a class is dear to make and the next such job may come soon."""
        for cls in [cls for cls in self.classes.values() if not cls.busy]:
            self.forget(cls)
        self.journal.set(self, "tidy_at", max(FEW_CLASSES, 2 * len(self.classes)))

    def forget(self, cls: JobClass) -> None:
        """A class without jobs, and its shape if it was the last of it."""
        journal, shape = self.journal, cls.shape
        journal.drop(self.classes, cls.key)
        journal.drop(self.aged, cls)
        for ask in ((cls, False), (cls, True)):
            self.watch.forget(ask)
            self.watch.woken.pop(ask, None)
        journal.drop(cls.queue.classes, cls.key)
        self.weigh(cls.queue)
        self.watch.classes.pop(cls, None)
        journal.drop(shape.classes, cls)
        if not shape.classes:
            journal.drop(self.shapes, shape.key)
            if shape.several:
                journal.set(self, "several", self.several - 1)
            journal.drop(self.watch.crowded, shape)
            self.watch.shapes.pop(shape, None)

    def weigh(self, queue: QueueState) -> None:
        """Its classes or what they cost have changed."""
        alike = not queue.mixed and not any(cls.shape.elastic for cls in queue.classes.values())
        least = min((cls.charge for cls in queue.classes.values()), default=0) if alike else 0
        self.journal.set(queue, "least", least)

    def memories(self, shape: Shape) -> list[int]:
        """The sizes of GPUs that it may run on, in rising order."""
        mask = self.space.reach(shape.selector)
        found = [memory for memory, nodes in sorted(self.space.models.items()) if nodes & mask]
        if shape.by_bytes:
            most = max(group.needs[-1].amount for group in shape.groups if group.needs[0].in_bytes)
            found = [memory for memory in found if memory >= most]
        return found

    def too_large(self, shape: Shape) -> tuple[Need, NodeState | None] | None:
        """Tasks of its gang that none of the nodes that it selects could hold, even if empty, and the largest of these
        nodes. None if all could be held; before there are nodes nobody can know."""
        if not self.space.alive:
            return None
        mask = self.space.reach(shape.selector)
        for group in shape.groups:
            if group.least and not self.space.could_hold(group.needs[-1], mask):
                return group.needs[-1], self.space.nearest(group.needs[-1], mask)
        return None

    def least_charge(self, shape: Shape) -> int:
        """Least cost of its gang: on the largest GPUs, on the last rung."""
        memories = self.memories(shape)
        return shape.least_charge(memories[-1] if memories else USUAL_MEMORY, shape.rungs - 1)

    def demand_of(self, shape: Shape) -> int:
        """What it would hold if it had all that it asks for."""
        if not shape.possible:
            return 0
        memories = self.memories(shape)
        return shape.top_charge(memories[-1] if memories else USUAL_MEMORY)

    # ---- shares --------------------------------------------------------------------------------------

    def settle_shares(self) -> list[QueueState]:
        """Divide again where something has changed; the queues whose share is another one now."""
        changed: list[QueueState] = []
        levels = [(self.root, self.space.capacity)]
        while levels:
            parent, total = levels.pop()
            if parent.divided != total:
                self._divide(parent, total, changed)
            levels += [(child, child.share) for child in parent.children.values() if child.children]
        return changed

    def _divide(self, parent: QueueState, total: int, changed: list[QueueState]) -> None:
        level = parent.level
        if level is None:
            level = parent.level = Level(parent)
        entries = self.journal.entries
        shares = level.divide(total)
        for index, (new, old) in enumerate(zip(shares, level.shares, strict=True)):
            if new != old:
                child = level.children[index]
                entries.append((setattr, child, "share", old))
                child.share = new
                changed.append(child)
        self.journal.set(level, "shares", shares)
        self.journal.set(parent, "divided", total)


def parts(state: State) -> dict[str, Part]:
    """What each queue's share comes from."""
    found: dict[str, Part] = {}
    for parent in (state.root, *state.queues.values()):
        children = sorted(parent.children.values(), key=_by_order)
        total = state.space.capacity if parent is state.root else parent.share
        claims = [Claim(child.quota, child.useful, child.weight, child.spec.priority) for child in children]
        found |= {child.name: part for child, part in zip(children, divide(total, claims), strict=True)}
    return found


_by_order = attrgetter("order")
