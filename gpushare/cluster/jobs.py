"""Jobs as the allocator knows them, and classes of equal jobs.

Jobs of one queue that differ in nothing but their names and arrivals are one JobClass with two ordered lists: those
that wait, and those that run. If one of them cannot start, none can; so a class, not a job, carries the reason why
it waits, and a hundred thousand waiting jobs cost as much as the few classes that they form. What a class asks for is
an Ask: a place for its next job, or for one more task of an elastic job.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpushare.cluster.lists import Run, SeqList
from gpushare.cluster.nouns import Job, Place
from gpushare.cluster.queues import QueueState
from gpushare.cluster.reasons import THERE_IS_ROOM, Reason
from gpushare.cluster.shapes import Shape
from gpushare.cluster.space import FOREVER

NO_PLACES: dict[tuple[int, int], Place] = {}
"""Of jobs that have none; never written to. A hundred thousand empty dictionaries would keep the collector busy."""

NOTHING_SEEN: dict[tuple[int, int], None] = {}
"""The same for tasks that are known to run."""


class Ask:
    """What a class asks for: to start its next job, or `more`: one more task for an elastic job of it."""

    __slots__ = ("cls", "gate", "more", "priced", "seqs")

    def __init__(self, cls: JobClass, *, more: bool) -> None:
        self.cls = cls
        self.more = more
        self.seqs: SeqList[int] = SeqList()
        """Of the jobs that wait for it."""
        self.gate: Reason | None = None
        """Why the first of them cannot have it; None: not known, it must be tried."""
        self.priced = False
        """There may be room for the first, but only on GPUs on which it would break a limit."""


class JobClass:
    """Equal jobs of one queue."""

    __slots__ = (
        "asks",
        "charge",
        "demand",
        "held",
        "key",
        "more",
        "next",
        "parked",
        "pending",
        "preemptible",
        "priority",
        "queue",
        "running",
        "shape",
        "short",
        "tall",
        "uneven",
    )

    def __init__(self, key: object, queue: QueueState, job: Job, shape: Shape) -> None:
        self.key = key
        self.queue = queue
        self.priority = job.priority
        self.preemptible = job.preemptible
        self.shape = shape
        self.next = Ask(self, more=False)
        self.more = Ask(self, more=True)
        self.asks = (self.next, self.more)
        self.pending = self.next.seqs
        self.running: SeqList[Run] = SeqList()
        """Placed, whether their tasks have started or not."""
        self.uneven = False
        """A job of it has checkpoints, or was evicted and runs again: the newest need not cost the least to stop."""
        self.short = self.more.seqs
        """Of those placed, elastic ones that have fewer tasks than they could."""
        self.tall: SeqList[int] = SeqList()
        """Of those placed, those that can go down their ladder."""
        self.parked = 0
        """Jobs of it that are held or rest."""
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


@dataclass(frozen=True, slots=True)
class Stall:
    """Further tasks of an elastic job that runs did not start."""

    until: float
    """It gets none before then."""
    failures: int
    """So often in a row."""
    why: str


class JobState:
    """A job."""

    __slots__ = (
        "attempt",
        "backfill",
        "changed",
        "charge",
        "cls",
        "demand",
        "disturbed",
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
        "stall",
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
        self.disturbed: tuple[float, ...] = ()
        """When, the last OFTEN times."""
        self.failures = 0
        """Starts that failed since one worked."""
        self.seen: dict[tuple[int, int], None] = NOTHING_SEEN
        """Those of its tasks that are known to run."""
        self.stall: Stall | None = None
        """Until a further task starts."""
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
        return self.complete_without(())

    def complete_without(self, lost: Collection[Place]) -> bool:
        """Would all of its gang have places if these were lost?"""
        left = [place.group for place in self.places.values() if place not in lost]
        return all(left.count(index) >= group.least for index, group in enumerate(self.cls.shape.groups))

    def extra(self) -> int:
        """Tasks above the least of their groups."""
        shape = self.cls.shape
        if not shape.elastic:
            return 0
        if len(shape.groups) == 1:
            return max(0, len(self.places) - shape.tasks)
        return sum(max(0, self.count(index) - group.least) for index, group in enumerate(shape.groups))
