"""Queues as the allocator knows them: their sums, and the division of what there is among the children of each."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from gpushare.cluster.journal import Journal
from gpushare.cluster.nouns import Queue
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.shares import Claim, Part, divide, share_out
from gpushare.cluster.space import FOREVER

if TYPE_CHECKING:
    from gpushare.cluster.jobs import JobClass


class QueueState:
    """A queue and its sums, in micro-GPUs."""

    __slots__ = (
        "allocated",
        "cap",
        "changes",
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
        "served",
        "share",
        "spec",
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
        self.changes = 0
        """Rises, and never falls, with all that changes who could be stopped of its jobs, and in which order."""
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
        self.served = -FOREVER
        """Seconds: when a job of it started last."""
        self.granted = 0.0
        """The minimum run time of its jobs: its own, else its parent's."""
        self.adopt(spec)

    def within_quota(self, amount: int) -> bool:
        """May it hold so much (micro-GPU) by right of its quota?"""
        return self.quota is None or amount <= self.quota

    def entitled_to(self, amount: int) -> bool:
        """By right of its quota or of its share?"""
        return amount <= self.share or self.quota is None or amount <= self.quota

    def adopt(self, spec: Queue) -> None:
        self.spec = spec
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


def divide_shares(root: QueueState, capacity: int, journal: Journal) -> list[QueueState]:
    """Divide again where something has changed; the queues whose share is another one now."""
    changed: list[QueueState] = []
    levels = [(root, capacity)]
    while levels:
        parent, total = levels.pop()
        if parent.divided != total:
            _divide(parent, total, journal, changed)
        levels += [(child, child.share) for child in parent.children.values() if child.children]
    return changed


def _divide(parent: QueueState, total: int, journal: Journal, changed: list[QueueState]) -> None:
    level = parent.level
    if level is None:
        level = parent.level = Level(parent)
    shares = level.divide(total)
    for index, (new, old) in enumerate(zip(shares, level.shares, strict=True)):
        if new != old:
            child = level.children[index]
            journal.entries.append((setattr, child, "share", old))
            child.share = new
            changed.append(child)
    journal.set(level, "shares", shares)
    journal.set(parent, "divided", total)


def parts(root: QueueState, queues: Iterable[QueueState], capacity: int) -> dict[str, Part]:
    """What each queue's share comes from."""
    found: dict[str, Part] = {}
    for parent in (root, *queues):
        children = sorted(parent.children.values(), key=_by_order)
        total = capacity if parent is root else parent.share
        claims = [Claim(child.quota, child.useful, child.weight, child.spec.priority) for child in children]
        found |= {child.name: part for child, part in zip(children, divide(total, claims), strict=True)}
    return found


_by_order = attrgetter("order")
