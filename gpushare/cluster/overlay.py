"""Free bytes as they would be: copies of the few nodes that a wide search touches. The ledger stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from gpushare.cluster.space import Need, NodeState, parts_of
from gpushare.cluster.state import State


class Overlay:
    def __init__(self, state: State) -> None:
        self.state = state
        self.space = state.space
        self.width = state.policy.search_width
        self.free: dict[int, list[int]] = {}
        """Free bytes of the nodes that were touched."""
        self.touched = 0
        self.room = 0
        """Micro-GPUs that are free, wherever."""
        self.found: dict[tuple[Need, int], bool] = {}
        """Whether there is room for a need on nodes that are as they were."""

    def begin(self) -> None:
        """Nothing is touched."""
        self.free.clear()
        self.touched = 0
        self.room = self.space.capacity - self.state.root.allocated

    def free_on(self, node: NodeState) -> list[int]:
        return self.free[node.number] if self.touched >> node.number & 1 else node.free

    def change(self, node: NodeState, gpus: Iterable[int], amount: int, charge: int) -> None:
        """So much more is free there."""
        if not self.touched >> node.number & 1:
            self.touched |= 1 << node.number
            self.free[node.number] = list(node.free)
        free = self.free[node.number]
        for gpu in gpus:
            free[gpu] += amount
        self.room += charge

    def _untouched(self, need: Need, mask: int) -> bool:
        """Is there room for it on one of these nodes that was not touched?"""
        key = (need, mask & ~self.touched)
        found = self.found.get(key)
        if found is None:
            found = self.found[key] = self.space.find(*key) is not None
        return found

    def has_room(self, need: Need, mask: int) -> bool:
        """Is there room for it now, without anybody else leaving?"""
        if self._untouched(need, mask):
            return True
        nodes = self.space.among(mask & self.touched)
        return any(fit(node, self.free_on(node), need, None) for node in nodes)

    def nodes(self, need: Need, mask: int, *, open_: bool, each: int) -> list[NodeState]:
        """Where there is room for it, or where it might be made; of nodes with equally many free GPUs so many."""
        space = self.space
        found = list(space.among(mask & self.touched))
        if open_ and not self._untouched(need, mask):
            return found
        mask &= ~self.touched
        top = len(space.whole)
        if not need.whole:
            shared = space.with_shared() & mask
            found += islice(space.among(shared), self.width)
            mask &= ~shared
            counts = range(1, top) if open_ else range(top)
        else:
            counts = range(need.gpus, top) if open_ else range(min(need.gpus, top) - 1, -1, -1)
        for count in counts:
            found += islice(space.among(space.whole[count] & mask), each)
        return found


def each_gpu(need: Need, free: Sequence[int]) -> Sequence[int | None]:
    """A part of one GPU may go to any of them; of other tasks it does not matter which GPUs of a node they get."""
    return (None,) if need.whole or need.gpus != 1 else range(len(free))


def fit(node: NodeState, free: Sequence[int], need: Need, gpu: int | None) -> tuple[int, ...]:
    """GPUs of the node for one task where so much is free, or that very one; none if it does not fit."""
    if gpu is None:
        return parts_of(node, free, need) or ()
    return (gpu,) if need.on(node.memory) <= min(free[gpu], node.memory) else ()
