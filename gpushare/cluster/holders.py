"""Where those are who could be stopped; and of the nodes the cheapest to clear."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush

from gpushare.cluster.candidates import Bounds, Unit, units_on
from gpushare.cluster.clearing import Cost, clear, fewest, fits_without
from gpushare.cluster.jobs import JobState
from gpushare.cluster.lines import Order, Spot
from gpushare.cluster.order import ENDLESS
from gpushare.cluster.placement import Want
from gpushare.cluster.search import Way
from gpushare.cluster.space import Need, NodeState
from gpushare.cluster.state import State


class Holders:
    """The victims of one stage by node. The ledger is as at the beginning of the search when this is made."""

    def __init__(self, state: State, order: Order, mask: int, bounds: Bounds) -> None:
        self.state = state
        self.order = order
        self.mask = mask
        """Nodes that may be used."""
        self.bounds = bounds
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
            found = self.least[need] = {}
            nodes = self.state.space.nodes
            for number, held in self.held.items():
                least = self._least(need, nodes[number], held)
                if least is not None:
                    found[number] = least
        return found

    @cached_property
    def held(self) -> dict[int, list[Spot]]:
        """By node the places of victims."""
        found: dict[int, list[Spot]] = defaultdict(list)
        may_use = bin(self.mask)[:1:-1].ljust(len(self.state.space.nodes), "0")
        for group, top, line in self.order.lines.values():
            for number, spot in line.held(self.state.space, group, top):
                if may_use[number] == "1":
                    found[number].append(spot)
        return found

    def _least(self, need: Need, node: NodeState, held: list[Spot]) -> Cost | None:
        if not need.whole:
            return Cost(1, -ENDLESS, ()) if fits_without(node, need, [place for _, _, place in held]) else None
        least = fewest(tuple([(gpus, 1, charge) for (gpus, charge), _, _ in held]), need.gpus - node.whole)
        return least and Cost(least[0], least[1] - need.charge(node.memory), ())

    def could_suffice(self, wants: Sequence[Want]) -> bool:
        """With all of them gone, would there be room for any one of these tasks?"""
        needs = dict.fromkeys(want.need for want in wants)
        return all(self.could_clear(need) or self.state.space.find(need, self.mask) for need in needs)

    # ---- the cheapest --------------------------------------------------------------------------------

    def ways(self, need: Need) -> Iterator[Way]:
        """The nodes to clear for such a task, the cheapest first. Equal tasks go on with the same."""
        if self.next[0] != need:
            self.next = need, self._cheapest(need)
        return self.next[1]

    def end(self) -> None:
        """The generator is closed: it holds this object, and it is held by it."""
        self.next = None, iter(())

    def _cheapest(self, need: Need) -> Iterator[Way]:
        """Costs are bounds, or true of a version of the state: the first is looked at again."""
        levels: dict[Cost, list[int]] = {}
        for number, cost in self.could_clear(need).items():
            levels.setdefault(cost, []).append(number)
        heap: list[tuple[Cost, int, int, list[Unit]]] = []
        later = sorted(levels, reverse=True)
        while heap or later:
            if later and not (heap and heap[0][0] < later[-1]):
                cost = later.pop()
                heap += [(self._with_rank(cost, number), number, -1, []) for number in levels[cost]]
                heapify(heap)
                continue
            cost, number, version, units = heappop(heap)
            node = self.state.space.nodes[number]
            if version == self.state.version:
                heappush(heap, (cost, number, -1, []))
                yield Way(node, units)
            elif (found := self._clear(node, need)) is not None:
                heappush(heap, (found[0], number, self.state.version, found[1]))

    def _with_rank(self, cost: Cost, number: int) -> Cost:
        """Of so many victims the last is not before this one."""
        ranks = sorted([rank for _, rank, _ in self.held.get(number, ())])
        return Cost(cost.tasks, cost.excess, tuple(ranks[cost.tasks - 1 : cost.tasks])) if cost.tasks else cost

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
