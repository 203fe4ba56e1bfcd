"""How much room there is for those who move: a bound, so that most searches for moves need not begin.

On a full cluster much of what is free lies in holes that are smaller than anything that could move: dust. A task that
is moved goes where there is room already, so it needs a hole that is at least as large as the smallest need of all who
could move. Moving makes no room, it only brings together what there is. So what a gang gets by moves is at most what is
free in such holes, and for each of its tasks the dust of the one node that is cleared for it.

The widened search (widening.py) also exchanges tasks, which joins dust. Where it may find a first answer this says
nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_

from gpushare.cluster.quantity import MICRO
from gpushare.cluster.shapes import Shape
from gpushare.cluster.space import Space
from gpushare.cluster.state import State


class Holes:
    """What is known of moves, true of one version of the state; in micro-GPUs."""

    __slots__ = ("dust", "failed", "room", "version")

    def __init__(self, version: int, room: Mapping[int, int], dust: int) -> None:
        self.version = version
        self.room = room
        """What those who leave a node can have elsewhere, at most, by the memory of the node's GPUs: who asks for bytes
        costs less on larger GPUs."""
        self.dust = dust
        """What is free besides on one node, at most."""
        self.failed: dict[Shape, int] = {}
        """Shapes for which moves made no room, and the nodes that were looked at."""

    def allow(self, memories: Iterable[int], charge: int, tasks: int) -> bool:
        """Could moves make room on such nodes for so many tasks that cost so much together?"""
        room = max([self.room.get(memory, 0) for memory in memories], default=0)
        return room > 0 and charge <= room + tasks * self.dust

    def failed_for(self, shape: Shape, mask: int) -> bool:
        """Have moves made no room on these nodes for this shape, or for one that needs no more?"""
        return any(
            not mask & ~nodes and (other is shape or _needs_as_much(shape, other, self.room))
            for other, nodes in self.failed.items()
        )


def _needs_as_much(one: Shape, other: Shape, memories: Iterable[int]) -> bool:
    """Would there be room for the other wherever there is room for the one?"""
    if len(one.groups) > 1 or len(other.groups) > 1:
        return False
    mine, its = one.groups[0], other.groups[0]
    need, least = mine.needs[-1], its.needs[-1]
    return (
        mine.least >= its.least
        and need.gpus >= least.gpus
        and all(need.on(memory) >= least.on(memory) for memory in memories)
    )


def holes(state: State) -> Holes:
    found = state.holes
    if found is None or found.version != state.version:
        found = state.holes = _measure(state)
    return found


def _measure(state: State) -> Holes:
    space, dust = state.space, 0
    needs = [need for shape in state.shapes.values() if shape.movable for group in shape.groups for need in group.needs]
    used = [memory for memory, nodes in space.models.items() if nodes]
    in_bytes = any(need.in_bytes for need in needs)
    free: dict[int, int] = {}
    for memory in used:
        least = min([need.on(memory) for need in needs if need.gpus], default=memory + 1)
        free[memory] = _free(space, memory, least)
        sizes = space.sizes[memory]
        small = bisect_left(sizes, least)
        if small:
            dust = max(dust, sizes[small - 1] * MICRO // memory)
    room = {}
    for memory in used:
        room[memory] = sum(left * MICRO // (min(memory, other) if in_bytes else other) for other, left in free.items())
    return Holes(state.version, room, dust * (len(space.whole) - 1))


def _free(space: Space, memory: int, least: int) -> int:
    """Bytes that are free on GPUs with so much memory, in holes of so many bytes or more."""
    if least > memory:
        return 0
    nodes, sizes = space.models[memory], space.sizes[memory]
    whole = sum(count * (some & nodes).bit_count() for count, some in enumerate(space.whole))
    table = space.shared[memory]
    shared = reduce(or_, [table[size] for size in sizes[bisect_left(sizes, least) :]], 0)
    return whole * memory + sum(left for node in space.among(shared) for left in node.free if least <= left < memory)
