"""What the allocator knows: nodes, queues, jobs, and the ledger of who holds what. No decisions.

All changes go through the journalled operations of State, so each can be undone. The sums that every decision needs
(allocated, demand) are kept along a queue's path to the top; `validate()` computes them again and compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushare.cluster.jobs import NO_PLACES, Ask, JobClass, JobState
from gpushare.cluster.journal import Journal
from gpushare.cluster.lists import Key, SeqList
from gpushare.cluster.nouns import Place, Policy, Queue
from gpushare.cluster.queues import QueueState, divide_shares
from gpushare.cluster.shapes import Shape
from gpushare.cluster.space import FOREVER, Space
from gpushare.cluster.watch import Watch

if TYPE_CHECKING:
    from gpushare.cluster.holes import Holes

FEW_CLASSES = 64
"""Fewer are never tidied up."""


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
        self.sequence = 0
        self.version = 0
        """Rises with everything that is taken or given back."""
        self.holes: Holes | None = None
        """As measured of the latest version that was asked about."""
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
        self.patient: dict[Ask, float] = {}
        """From when on others may be stopped for the share of those who wait, if that is later than now."""
        self.parked: dict[int, None] = {}
        """Jobs that are held or rest. They are in no list of their class and ask for nothing."""
        self.stalled: dict[int, None] = {}
        """Jobs that get no further tasks for a while (JobState.stall)."""
        self.resting: dict[int, None] = {}
        """Nodes that rest, by number."""
        self.reserve_at = -FOREVER
        """No job can have waited long enough for a reservation before this time."""
        self.reserver: JobState | None = None
        self.backfills: dict[int, None] = {}
        self.waiting: dict[int, None] = {}
        """Jobs with unstarted places."""

    # ---- marks ---------------------------------------------------------------------------------------

    def mark(self) -> tuple[int, int, int, int]:
        return len(self.journal.entries), len(self.watch.freed), len(self.watch.dropped), self.version

    def undo(self, mark: tuple[int, int, int, int]) -> None:
        self.journal.undo(mark[0])
        self.return_to(mark[3])
        del self.watch.freed[mark[1] :]
        del self.watch.dropped[mark[2] :]

    def return_to(self, version: int) -> None:
        """What comes from now on has numbers that others had."""
        self.version = version
        if self.holes is not None and self.holes.version > version:
            self.holes = None

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
        job.queue.changes += 1
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
        self.watch.freed.append(self.space.by_name[place.node])
        self._vacate(job, place)
        self.journal.entries.append((self._occupy, job, place))

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

    def open(self, cls: JobClass) -> None:
        """It must be tried again."""
        for ask in cls.asks:
            if ask.gate is not None:
                self.journal.set(ask, "gate", None)
            if ask.priced:
                self.journal.set(ask, "priced", False)
        if cls.pending or cls.short:
            self.to_try(cls)

    def to_try(self, cls: JobClass) -> None:
        """There may be room for it."""
        self.watch.leaves[cls.queue] = None

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

    def divide_shares(self) -> list[QueueState]:
        """Divide again where something has changed; the queues whose share is another one now."""
        return divide_shares(self.root, self.space.capacity, self.journal)
