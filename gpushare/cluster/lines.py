"""The order of victims: a line for each queue, and the lines of several queues together.

In a line the lowest priority comes first, then the job that costs the least to stop. Of several queues the one that is
most over its share comes first. Each job stands where its queue would be if all jobs before it in the line were gone.
So its own line gives a job's place in the order; the other lines are not read.

A line is kept for one turn, as long as nothing changes in its queue. It is computed only as far as it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from heapq import heappop, heapreplace, merge
from itertools import groupby, takewhile
from operator import attrgetter
from typing import Any

from gpushare.cluster.candidates import Bounds, Candidate
from gpushare.cluster.jobs import JobClass, JobState
from gpushare.cluster.lists import Run
from gpushare.cluster.model import Place
from gpushare.cluster.order import ENDLESS, ratio
from gpushare.cluster.queues import QueueState
from gpushare.cluster.rules import Barrier, How, barrier, loses_little, price
from gpushare.cluster.space import Space
from gpushare.cluster.turn import Turn

Rank = tuple[int, int, int, int]
"""How full the queue is then (negative), its order (negative), what it holds (negative), and the place in the line."""

Head = tuple[int, Rank, int, Candidate]
"""A queue: its stage, the place of its first job in the order, a number, and what may go."""

Spot = tuple[tuple[int, int], tuple[int, Rank], Place]
"""A place of a job: how many GPUs it has and what it costs, and the job's place in the order."""

_priority = attrgetter("priority")


class Price:
    """What a stop may cost: seconds of work that are lost for each GPU of a job that is of use to the taker."""

    __slots__ = ("charge", "dear", "gently", "given", "most", "only", "turn")

    def __init__(self, turn: Turn, most: float, charge: int, *, gently: bool, only: Container[int] | None) -> None:
        self.turn = turn
        self.most = most
        self.charge = charge
        """What the taker needs."""
        self.gently = gently
        """Only jobs that lose little go."""
        self.only = only
        """If said, none but these go."""
        self.dear: dict[int, float] = {}
        """What the cheapest costs that was passed over for the price, by priority."""
        self.given = False
        """Somebody was passed over who can go in the next turn."""

    def too_dear(self, job: JobState) -> bool:
        use = max(1, min(job.charge, self.charge))
        if self.gently and not loses_little(job, use / max(1, job.charge), self.turn.now):
            return True
        if self.most == ENDLESS:
            return False
        lost = price(job, self.turn.state.policy, self.turn.now)[0] / use
        if lost <= self.most:
            return False
        priority = job.cls.priority
        self.dear[priority] = min(lost, self.dear.get(priority, lost))
        return True

    def of(self, run: Run) -> tuple[float, int, int]:
        return price(self.turn.state.by_seq[run[2]], self.turn.state.policy, self.turn.now)

    def may_go(self, job: JobState) -> bool:
        if self.only is not None and job.seq not in self.only:
            return False
        why = barrier(job, How.STOP, self.turn.now, self.turn.number)
        self.given = self.given or why is Barrier.GIVEN_NOW
        return why is None


class Line:
    """Jobs of one leaf that may be stopped, in the order in which they should go."""

    __slots__ = ("changes", "jobs", "leaf", "left", "price", "ranks", "rest", "share", "spots")

    def __init__(self, leaf: QueueState, price: Price, rest: Iterator[JobState]) -> None:
        self.leaf = leaf
        self.changes, self.share = leaf.changes, leaf.share
        """Of the leaf, when this was made."""
        self.price = price
        self.rest = rest
        """Who was not looked at yet."""
        self.jobs: list[JobState] = []
        self.ranks: dict[JobState, Rank] = {}
        self.left = leaf.allocated
        """What the leaf would hold without these."""
        self.spots: dict[tuple[int, int], list[tuple[int, Spot]]] = {}

    def __iter__(self) -> Iterator[JobState]:
        jobs, index = self.jobs, 0
        while index < len(jobs) or self._look():
            yield jobs[index]
            index += 1

    def _look(self) -> bool:
        job = next(self.rest, None)
        if job is None:
            return False
        left, leaf = self.left, self.leaf
        self.ranks[job] = -ratio(left, self.share), -leaf.order, -left, len(self.jobs)
        self.jobs.append(job)
        self.left = left - job.charge
        return True

    def end(self) -> None:
        """Look at all of them."""
        while self._look():
            pass

    def held(self, space: Space, group: int, top: int) -> list[tuple[int, Spot]]:
        """Where its jobs up to a priority are: numbers of nodes, and what they hold there."""
        found = self.spots.get((group, top))
        if found is None:
            found = self.spots[group, top] = []
            by_name = space.by_name
            for job in self.jobs:
                if job.cls.priority > top:
                    break
                rank = group, self.ranks[job]
                for place in job.places.values():
                    found.append((by_name[place.node].number, ((len(place.gpus), place.charge), rank, place)))
        return found


def line_of(one: Candidate, price: Price) -> Line:
    """Of the candidate's jobs those that may go for the price. Where it is said that `only` some may, all priorities
    are alike."""
    leaf, lines = one.queue, price.turn.lines
    if price.only is not None:
        return Line(leaf, price, _in_line([one.classes], price))
    charge = price.charge if price.gently or price.most < ENDLESS else 0
    key = leaf, price.most, price.gently, charge, tuple(one.classes)
    line: Line | None = lines.get(key)
    if line is None or line.changes != leaf.changes or line.share != leaf.share:
        levels = [list(some) for _, some in groupby(sorted(one.classes, key=_priority), key=_priority)]
        line = lines[key] = Line(leaf, price, _in_line(levels, price))
    return line


def heads_of(candidates: Iterable[Candidate]) -> list[Head]:
    """The queues in the order in which they give."""
    found = []
    for number, one in enumerate(candidates):
        leaf, held = one.queue, one.queue.allocated
        found.append((one.group, (-ratio(held, leaf.share), -leaf.order, -held, 0), number, one))
    return sorted(found)


def _in_line(levels: Iterable[Sequence[JobClass]], price: Price) -> Iterator[JobState]:
    by_seq = price.turn.state.by_seq
    for classes in levels:
        each = [_within_price(cls, price) for cls in classes]
        for run in merge(*each, key=price.of) if len(each) > 1 else each[0]:
            job = by_seq[run[2]]
            if price.may_go(job):
                yield job


def alike(cls: JobClass) -> bool:
    """Does the job of the class that started last cost the least? Where all hold as much, and nothing else counts."""
    shape = cls.shape
    return not (shape.elastic or shape.by_bytes or shape.rungs > 1 or cls.uneven)


def _within_price(cls: JobClass, price: Price) -> Iterator[Run]:
    """Its running jobs that are not too dear, the cheapest first. Where they are alike the first that is too dear ends
    the search for more."""
    by_seq = price.turn.state.by_seq
    if alike(cls):
        return takewhile(lambda run: not price.too_dear(by_seq[run[2]]), cls.running.newest_first())
    return iter(sorted([run for run in cls.running if not price.too_dear(by_seq[run[2]])], key=price.of))


class Order:
    """Victims of several queues, the best first. Where a queue stands is known before its line is read, so a line is
    read only when its turn comes."""

    def __init__(self, turn: Turn, stage: tuple[int, int], heads: Iterable[Head], price: Callable[[], Price]) -> None:
        self.turn = turn
        self.stage = stage
        """Up to which priority class of queues, and in this one up to which priority, jobs may go."""
        self.heads = [head for head in heads if head[0] <= stage[0]]
        self.price = price
        self.lines: dict[QueueState, tuple[int, int, Line]] = {}
        """Those that were read, by leaf: the stage of its queue, up to which priority its jobs may go, its line."""

    def _line(self, one: Candidate) -> tuple[int, int, Line]:
        found = self.lines.get(one.queue)
        if found is None:
            group, top = self.stage
            found = self.lines[one.queue] = one.group, ENDLESS if one.group < group else top, line_of(one, self.price())
        return found

    def rank(self, job: JobState) -> tuple[int, Rank] | None:
        """Its place in the order; None: it may not go, or was not looked at."""
        found = self.lines.get(job.queue)
        if found is None or job.cls.priority > found[1]:
            return None
        rank = found[2].ranks.get(job)
        return None if rank is None else (found[0], rank)

    def jobs(self, among: Container[QueueState] | None = None) -> Iterator[JobState]:
        """Of these leaves."""
        heap: list[Any] = [(*head, None, None) for head in self.heads if among is None or head[3].queue in among]
        while heap:
            group, _, number, one, job, rest = heap[0]
            _, top, line = self._line(one)
            if job is None:
                rest = iter(line)
            else:
                yield job
            job = next(rest, None)
            if job is None or job.cls.priority > top:
                heappop(heap)
            else:
                heapreplace(heap, (group, line.ranks[job], number, one, job, rest))

    def end(self) -> None:
        """Look at all of them."""
        for head in self.heads:
            _, _, line = self._line(head[3])
            line.end()
            if line.price.given:
                self.turn.again = True

    @property
    def dearer(self) -> float | None:
        """What the cheapest costs that was passed over for the price."""
        self.end()
        dear = [(top, *passed) for _, top, line in self.lines.values() for passed in line.price.dear.items()]
        return min([lost for top, priority, lost in dear if priority <= top], default=None)


class Latecomers:
    """Jobs in quota: those before them in the order of victims would bring their queues down to their bounds."""

    def __init__(self, bounds: Bounds, order: Order) -> None:
        self.chains = bounds.of
        self.order = order
        self.held = {queue: queue.allocated for chain in self.chains.values() if len(chain) > 1 for queue, _ in chain}
        """What the queues hold above several leaves, at the beginning."""
        self.below: dict[QueueState, set[JobState]] = {}
        """By such a queue, those of its jobs that come late."""

    def __contains__(self, job: object) -> bool:
        assert isinstance(job, JobState)
        chain, rank = self.chains.get(job.queue), self.order.rank(job)
        if not chain or rank is None:
            return False
        if len(chain) == 1:
            return -rank[1][2] <= chain[0][1]
        top = chain[0][0]
        if top not in self.below:
            self.below[top] = set(self._late_below(top))
        return job in self.below[top]

    def _late_below(self, top: QueueState) -> Iterator[JobState]:
        gone: dict[QueueState, int] = {}
        for job in self.order.jobs({leaf for leaf, chain in self.chains.items() if chain[0][0] is top}):
            chain = self.chains[job.queue]
            if any(self.held[queue] - gone.get(queue, 0) <= bound for queue, bound in chain):
                yield job
            else:
                for queue, _ in chain:
                    gone[queue] = gone.get(queue, 0) + job.charge
