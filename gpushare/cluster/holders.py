"""Who could be stopped, by node; and of the nodes the cheapest to clear."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from gpushare.cluster.candidates import Bounds, Unit, units_on
from gpushare.cluster.clearing import Cost, clear
from gpushare.cluster.jobs import JobState
from gpushare.cluster.placement import Want
from gpushare.cluster.search import Way
from gpushare.cluster.space import Need, NodeState
from gpushare.cluster.state import State

FIRST = (64, 256, 1024, 4096, 16384)
"""So many victims are looked at first: then it is seen whether those after them matter."""


class Holders:
    """The victims of one stage, which come in the order in which they should go."""

    def __init__(self, state: State, victims: Iterable[JobState], mask: int, bounds: Bounds) -> None:
        self.state = state
        self.mask = mask
        """Nodes that may be used."""
        self.bounds = bounds
        self.on: dict[NodeState, list[Unit]] = {}
        """By node, who could go as a whole; of elastic jobs what goes is worked out when it is needed."""
        self.looks = self._gather(victims)
        """Takes the first few of them, and then ever more."""
        self.order: tuple[Need | None, Iterator[Way]] = (None, iter(()))
        """The nodes to clear for equal tasks, the cheapest first."""

    def gather(self) -> None:
        """Take all of them. The ledger is as at the beginning of the stage."""
        for _ in self.looks:
            pass
        self.order = None, iter(())

    def end(self) -> None:
        """The generators are closed: they hold this object, and it holds them."""
        self.looks.close()
        self.order = None, iter(())

    def _gather(self, victims: Iterable[JobState]) -> Generator[None, None, None]:
        by_name = self.state.space.by_name
        for rank, job in enumerate(victims):
            if rank in FIRST:
                yield
            places = tuple(job.ordered) if len(job.places) > 1 else tuple(job.places.values())
            for name in sorted({place.node for place in places}) if len(places) > 1 else (places[0].node,):
                self.on.setdefault(by_name[name], []).append(Unit(job, places, name, rank))

    def could_suffice(self, wants: Sequence[Want]) -> bool:
        """With all of them gone, would there be room? For whole GPUs only; else yes."""
        needs = {want.need for want in wants}
        if not all(need.whole for need in needs):
            return True
        need = min(needs, key=lambda need: need.gpus)
        if not need.gpus:
            return True
        room = 0
        for count, nodes in enumerate(self.state.space.whole):
            room += (nodes & self.mask).bit_count() * (count // need.gpus)
        for node, jobs in self.on.items():
            if not self.mask >> node.number & 1:
                continue
            # At most: a GPU that two of them share is counted twice.
            whole = min(len(node.free), node.whole + sum(unit.freed for unit in jobs))
            room += whole // need.gpus - node.whole // need.gpus
        return room >= len(wants)

    def ways(self, need: Need) -> Iterator[Way]:
        """The nodes to clear for such a task, the cheapest first. Equal tasks go on with the same."""
        if self.order[0] != need:
            self.order = need, self.cheapest(need, self.costs(need))
        return self.order[1]

    def costs(self, need: Need) -> list[tuple[Cost, int, int]]:
        """As a heap: what clearing each node costs, its number, and the version of the state of which that is true."""
        heap = []
        for node in self.on:
            found = self._clear(node, need) if self.mask >> node.number & 1 else None
            if found is not None:
                heap.append((found[0], node.number, self.state.version))
        heapify(heap)
        return heap

    def cheapest(self, need: Need, heap: list[tuple[Cost, int, int]]) -> Iterator[Way]:
        """Costs may have risen since they were worked out, so the first is looked at again."""
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
        spare = list(self.units(node, extras_first=True))
        found = clear(node, need, spare, self.bounds)
        if any(unit.job.extra() for unit in self.on[node]):
            core = list(self.units(node, extras_first=False))
            other = clear(node, need, core, self.bounds)
            if other is not None and (found is None or other[0][:2] < found[0][:2]):
                found = other
        return found

    def units(self, node: NodeState, *, extras_first: bool) -> Iterator[Unit]:
        """What is still there of those who could go."""
        for unit in self.on[node]:
            if unit.job.cls.shape.elastic:
                yield from units_on(unit.job, node, unit.rank, extras_first=extras_first)
            elif unit.job.places:
                yield unit
