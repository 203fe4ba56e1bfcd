"""Where those are who could be stopped; and of the nodes the cheapest to clear."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush, heapreplace

from gpushare.cluster.candidates import Bounds, Unit, units_on
from gpushare.cluster.clearing import Cost, clear
from gpushare.cluster.jobs import JobState
from gpushare.cluster.lines import Order
from gpushare.cluster.order import ENDLESS
from gpushare.cluster.placement import Want
from gpushare.cluster.search import Way
from gpushare.cluster.space import BROKEN, Need, NodeState
from gpushare.cluster.state import State


class Holders:
    """The victims of one stage by node. The ledger is as at the beginning of the search when this is made."""

    def __init__(self, state: State, order: Order, mask: int, bounds: Bounds) -> None:
        self.state = state
        self.order = order
        self.mask = mask
        """Nodes that may be used."""
        self.bounds = bounds
        self.freed: dict[int, int] = {}
        """By node so many of its GPUs are those of victims, at most."""
        self.least: dict[Need, dict[int, Cost]] = {}
        """By need the nodes where it would fit with all victims gone, and what that costs at least."""
        self.next: tuple[Need | None, Iterator[Way]] = (None, iter(()))
        """The nodes to clear for equal tasks, the cheapest first."""
        order.end()

    # ---- bounds --------------------------------------------------------------------------------------

    def could_clear(self, need: Need) -> dict[int, Cost]:
        """Nodes where the task would fit if all who could go were gone, and no clearing of them costs less."""
        found = self.least.get(need)
        if found is None:
            found = self.least[need] = self._for_whole(need) if need.whole else self._for_parts(need)
        return found

    def _held(self, *, whole: bool) -> Iterator[list[tuple[int, tuple[int, int]]]]:
        return (line.held(self.state.space, top, whole=whole) for _, top, line in self.order.lines.values())

    def _for_whole(self, need: Need) -> dict[int, Cost]:
        sizes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for held in self._held(whole=True):
            for number, size in held:
                sizes[number].append(size)
        nodes, found = self.state.space.nodes, {}
        for number, some in sizes.items():
            node = nodes[number]
            missing = need.gpus - node.whole
            freed = self.freed[number] = sum([gpus for gpus, _ in some])
            if freed >= missing and self.mask >> number & 1:
                some.sort()
                least = least_of(tuple(some), missing)
                if least is not None:
                    found[number] = Cost(least[0], least[1] - need.charge(node.memory), ())
        return found

    def _for_parts(self, need: Need) -> dict[int, Cost]:
        held: dict[int, dict[int, int]] = {}
        for some in self._held(whole=False):
            for number, (gpu, amount) in some:
                on = held.setdefault(number, {})
                on[gpu] = on.get(gpu, 0) + amount
        nodes, found = self.state.space.nodes, {}
        for number, on in held.items():
            node = nodes[number]
            amount = need.on(node.memory)
            if self.mask >> number & 1 and amount <= node.memory:
                room = [left + on.get(gpu, 0) for gpu, left in enumerate(node.free) if left != BROKEN]
                if sum([left >= amount for left in room]) >= need.gpus:
                    found[number] = Cost(1, -ENDLESS, ())
        return found

    def begin(self, wants: Sequence[Want]) -> bool:
        """Clear nodes for these; False if there would not be room for all."""
        self.end()
        return self.could_suffice(wants)

    def could_suffice(self, wants: Sequence[Want]) -> bool:
        """With all of them gone, would there be room for each kind of task, whatever the other kinds take?"""
        needs = [want.need for want in wants if want.need.gpus]
        return all(
            self._room(need, sum(one.whole and one.gpus >= need.gpus for one in needs) if need.whole else 1)
            for need in dict.fromkeys(needs)
        )

    def _room(self, need: Need, times: int) -> bool:
        """For so many such tasks? Of parts of GPUs only one is asked about."""
        space, cleared = self.state.space, self.could_clear(need)
        if not need.whole:
            return bool(cleared) or space.find(need, self.mask) is not None
        if times == 1 and cleared:
            return True
        room = 0
        for count, nodes in enumerate(space.whole):
            room += (nodes & self.mask).bit_count() * (count // need.gpus)
        for number in cleared:
            node = space.nodes[number]
            whole = min(len(node.free), node.whole + self.freed[number])
            room += whole // need.gpus - node.whole // need.gpus
        return room >= times

    # ---- the cheapest --------------------------------------------------------------------------------

    def ways(self, need: Need) -> Iterator[Way]:
        """The nodes to clear for such a task, the cheapest first. Equal tasks go on with the same."""
        if self.next[0] != need:
            heap = [(cost, number, -1) for number, cost in self.could_clear(need).items()]
            heapify(heap)
            self.next = need, self._cheapest(need, heap)
        return self.next[1]

    def end(self) -> None:
        """The generator is closed: it holds this object, and it is held by it."""
        self.next = None, iter(())

    def _cheapest(self, need: Need, heap: list[tuple[Cost, int, int]]) -> Iterator[Way]:
        """Costs are bounds, or true of a version of the state: the first is looked at again."""
        while heap:
            cost, number, version = heap[0]
            node = self.state.space.nodes[number]
            found = self._clear(node, need)
            if found is None:
                heappop(heap)
                continue
            if version != self.state.version and found[0] > cost and len(heap) > 1:
                heapreplace(heap, (found[0], number, self.state.version))
                if heap[0][1] != number:
                    continue
            heappop(heap)
            heappush(heap, (found[0], number, -1))
            yield Way(node, found[1])

    def _clear(self, node: NodeState, need: Need) -> tuple[Cost, list[Unit]] | None:
        """The best set of victims that makes room for one such task on the node."""
        jobs = [(job, rank) for job in self._jobs(node) if (rank := self.order.rank(job)) is not None]
        spare = [unit for job, rank in jobs for unit in units_on(job, node, rank, extras_first=True)]
        found = clear(node, need, spare, self.bounds)
        if any(job.cls.shape.elastic and job.extra() for job, _ in jobs):
            core = [unit for job, rank in jobs for unit in units_on(job, node, rank, extras_first=False)]
            other = clear(node, need, core, self.bounds)
            if other is not None and (found is None or other[0][:2] < found[0][:2]):
                found = other
        return found

    def _jobs(self, node: NodeState) -> Iterator[JobState]:
        return (self.state.by_seq[seq] for seq in node.jobs)


@lru_cache(maxsize=4096)
def least_of(sizes: tuple[tuple[int, int], ...], missing: int) -> tuple[int, int] | None:
    """Of tasks that hold so many GPUs and cost so much: how few have all that is missing, and the least these cost.

    Nodes with the same sizes are asked about by the thousand.
    """
    best: dict[int, tuple[int, int]] = {0: (0, 0)}
    for gpus, charge in sizes:
        for freed, (tasks, paid) in list(best.items()):
            if freed < missing:
                new = (tasks + 1, paid + charge)
                best[freed + gpus] = min(new, best.get(freed + gpus, new))
    return min((cost for freed, cost in best.items() if freed >= missing), default=None)
