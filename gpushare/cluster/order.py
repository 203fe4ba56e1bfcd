"""Which job is next: from the top of the tree down, the child that comes first by

    1. tier        with this job the queue is still within its quota (0), its share (1), or above both (2)
    2. priority    the higher class
    3. ratio       allocated with this job / share: weighted max-min, one job at a time
    4. ratio       the same without the job
    5. served      the queue whose latest start is longest ago: equal queues take turns
    6. order       the queue that came first

and in a leaf the job of the highest priority, gangs before further tasks of elastic jobs, the oldest first. While only
entitled jobs are started, jobs that fit within the leaf's quota or share go before others of the same priority: else an
older job that is too large for that would keep a smaller one back until other queues have borrowed the room, and these
would be stopped for it at once.

The order is a heap per inner queue, built for the queues that have something to try. Starting a job changes the
standing of its own path only, so only that is put in its place again.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace

from gpushare.cluster.jobs import Ask
from gpushare.cluster.model import Code
from gpushare.cluster.queues import QueueState

WITHIN_QUOTA, WITHIN_SHARE, ABOVE = 0, 1, 2

ENDLESS = 10**18

Rank = tuple[int, int, int, int, float, int]

ROOM = frozenset({Code.NO_SPACE, Code.RESERVED, Code.NO_NODE})
"""Codes of gates that lack of room has closed."""


def standing(queue: QueueState, charge: int) -> Rank:
    """The sort key of a queue whose next job costs so much."""
    before = queue.allocated
    after = before + charge
    share = queue.share
    tier = WITHIN_QUOTA if queue.within_quota(after) else WITHIN_SHARE if after <= share else ABOVE
    return tier, -queue.spec.priority, ratio(after, share), ratio(before, share), queue.served, queue.order


def ratio(allocated: int, share: int) -> int:
    """How full a queue is, to a 65,536th. Finer, the millionths that rounding gives to one of equal queues would
    decide, and a cluster twice as large would run other jobs."""
    return ((allocated << 16) + (share >> 1)) // share if share else allocated << 40


def is_open(ask: Ask) -> bool:
    """May the first that asks be tried? Gates of room are opened and closed for all classes of a shape at once."""
    gate = ask.gate
    return gate is None or (ask.more not in ask.cls.shape.full and not ask.priced and gate.code in ROOM)


def next_ask(leaf: QueueState, highest_tier: int = ABOVE) -> Ask | None:
    """The leaf's first ask with an open gate.

    Below the tier ABOVE, what fits into the leaf's right goes before what of the same priority does not and is older.
    """
    room = ENDLESS
    if highest_tier < ABOVE and leaf.quota is not None:
        room = (leaf.share if leaf.share > leaf.quota else leaf.quota) - leaf.allocated
    best: tuple[int, bool, bool, int] | None = None
    found: Ask | None = None
    for cls in leaf.classes.values():
        for ask in cls.asks:
            seqs = ask.seqs
            if seqs.head < len(seqs.items) and is_open(ask):
                key = (-cls.priority, cls.charge > room, ask.more, seqs.items[seqs.head])
                if best is None or key < best:
                    best, found = key, ask
                break
    return found


class Order:
    """The queues that have something to try, in order."""

    def __init__(self, leaves: Iterable[QueueState], highest_tier: int) -> None:
        self.highest_tier = highest_tier
        self.heaps: dict[QueueState, list[tuple[Rank, QueueState]]] = {}
        self.heads: dict[QueueState, tuple[Ask, int]] = {}
        """What each leaf would start next, and what that costs."""
        levels: dict[int, dict[QueueState, None]] = {}
        for leaf in leaves:
            levels.setdefault(len(leaf.path), {})[leaf] = None
        for depth in range(max(levels, default=0), 0, -1):
            for queue in levels.get(depth, {}):
                entry = self._entry(queue)
                if entry is not None:
                    parent = queue.parent
                    assert parent is not None
                    self.heaps.setdefault(parent, []).append(entry)
                    levels.setdefault(depth - 1, {})[parent] = None
            for parent in levels.get(depth - 1, {}):
                heapify(self.heaps[parent]) if parent in self.heaps else None

    def _entry(self, queue: QueueState) -> tuple[Rank, QueueState] | None:
        """The queue's place in its parent's heap; None if it has nothing that may come now."""
        if queue.children:
            heap = self.heaps.get(queue)
            if not heap:
                return None
            child = heap[0][1]
            while child.children:
                child = self.heaps[child][0][1]
            charge = self.heads[child][1]
        else:
            head = next_ask(queue, self.highest_tier)
            if head is None:
                self.heads.pop(queue, None)
                return None
            charge = head.cls.charge
            self.heads[queue] = head, charge
        rank = standing(queue, charge)
        return None if rank[0] > self.highest_tier else (rank, queue)

    def pop(self, root: QueueState) -> Ask | None:
        """The ask that is next; it stays so until update() is told what came of it."""
        heap = self.heaps.get(root)
        if not heap:
            return None
        queue = heap[0][1]
        while queue.children:
            queue = self.heaps[queue][0][1]
        return self.heads[queue][0]

    def update(self, leaf: QueueState) -> None:
        """The first leaf has started its head, or its head is blocked."""
        queue = leaf
        while queue.parent is not None:
            heap = self.heaps[queue.parent]
            entry = self._entry(queue)
            if entry is None:
                heappop(heap)
            else:
                heapreplace(heap, entry)
            queue = queue.parent
