"""Free GPUs, indexed: which node is the best fit, without looking at the nodes.

Sets of nodes are Python integers, bit i for node number i. They say the same whatever order things happened in,
intersect with a selector's set in one operation, count with bit_count(), and the lowest bit is the tie-break: the
node that came first.

    whole[k]               nodes with exactly k GPUs that nobody uses
    shared[memory][free]   nodes with GPUs of that size of which `free` bytes, not all and not none, are left

A task of g whole GPUs goes to the smallest k >= g: that keeps whole nodes and large blocks free. For equal tasks
this greedy choice is exact: a node with k free GPUs holds k // g of them whatever the order. A share of a GPU goes
where the least is left over on a GPU that is shared already, else to a node with few free GPUs. `spread` chooses the
opposite.

Free bytes are those of the plan: a GPU promised to a job that waits for others to end is not free. Where programs of
others (foreign) crowd a GPU that our jobs hold, they are below zero.

A node may be closed: cordoned, unknown, or at rest after failed starts. What runs there stays, nothing starts there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from gpushare.cluster.model import ANYWHERE, Node, Selector
from gpushare.cluster.quantity import MICRO, charge_of_bytes

FOREVER = float("inf")

BROKEN = -(2**62)
"""In place of free bytes."""


class Need(NamedTuple):
    """What one task takes of each of its GPUs."""

    gpus: int
    amount: int
    in_bytes: bool

    def on(self, memory: int) -> int:
        """Bytes of each GPU with so much memory."""
        return self.amount if self.in_bytes else self.amount * memory // MICRO

    def charge(self, memory: int) -> int:
        """What the task costs (micro) on GPUs with so much memory."""
        return self.gpus * (charge_of_bytes(self.amount, memory) if self.in_bytes else self.amount)

    @property
    def whole(self) -> bool:
        return not self.in_bytes and self.amount == MICRO


class NodeState:
    """A node and what is free on it."""

    __slots__ = (
        "alive",
        "charged",
        "claimed",
        "cordoned",
        "failures",
        "foreign",
        "free",
        "jobs",
        "leaving",
        "memory",
        "number",
        "spec",
        "trouble",
        "unknown",
        "until",
        "whole",
    )

    def __init__(self, number: int, spec: Node) -> None:
        self.number = number
        self.spec = spec
        self.memory = spec.memory
        self.alive = True
        self.free = [BROKEN if i in spec.broken else spec.memory for i in range(spec.gpus)]
        self.whole = spec.gpus - len(spec.broken)
        self.jobs: dict[int, int] = {}
        """Number of tasks here, by the job's sequence number."""
        self.leaving: dict[int, int] = {}
        """Bytes of GPUs that tasks told to stop still hold."""
        self.claimed: dict[int, int] = {}
        """Bytes of GPUs that tasks not yet started are promised."""
        self.cordoned = False
        self.unknown = False
        """It does not answer."""
        self.failures = 0
        """Starts that failed here since one worked."""
        self.trouble = ""
        """The job that failed last to start here, and why."""
        self.until = -FOREVER
        """It rests until then."""
        self.foreign: dict[int, int] = {}
        """Bytes of GPUs that programs of others use."""
        self.charged: dict[int, int] | None = None
        """Micro-GPUs that our jobs pay for each GPU; kept only while the node is odd()."""

    @property
    def closed(self) -> bool:
        return self.cordoned or self.unknown or self.until > -FOREVER

    @property
    def odd(self) -> bool:
        """Does it count otherwise than by its GPUs that work?"""
        return self.closed or bool(self.foreign)

    def worth(self) -> int:
        """Micro-GPUs that there are to divide: what our jobs hold, and what they could have besides."""
        if self.charged is None:
            return MICRO * sum(free != BROKEN for free in self.free)
        total = 0
        for gpu, free in enumerate(self.free):
            if free != BROKEN:
                held = self.charged.get(gpu, 0)
                left = 0 if self.closed else MICRO - charge_of_bytes(self.foreign.get(gpu, 0), self.memory)
                total += max(held, left)
        return total

    def fitting(self, need: Need) -> int:
        """GPUs on which so much would be free without our jobs."""
        amount, foreign = need.on(self.memory), self.foreign
        return sum(free != BROKEN and self.memory - foreign.get(gpu, 0) >= amount for gpu, free in enumerate(self.free))


class Space:
    """All nodes and the index."""

    def __init__(self) -> None:
        self.nodes: list[NodeState] = []
        self.by_name: dict[str, NodeState] = {}
        self.alive = 0
        self.closed = 0
        """Nodes where nothing starts."""
        self.whole: list[int] = [0]
        self.shared: dict[int, dict[int, int]] = {}
        self.sizes: dict[int, list[int]] = {}
        self.models: dict[int, int] = {}
        """Nodes by the memory of their GPUs."""
        self.capacity = 0
        """Micro-GPUs that there are to divide."""
        self.masks: dict[Selector, int] = {}
        self.reserved = 0
        """Nodes kept for gangs that have waited long enough."""

    # ---- nodes ---------------------------------------------------------------------------------------

    def link(self, node: NodeState) -> None:
        """Into the index. Its inverse is unlink."""
        bit = 1 << node.number
        self.alive |= bit
        node.alive = True
        if node.closed:
            self.closed |= bit
        while len(self.whole) <= len(node.free):
            self.whole.append(0)
        self.whole[node.whole] |= bit
        self.models[node.memory] = self.models.get(node.memory, 0) | bit
        if node.memory not in self.sizes:
            self.sizes[node.memory], self.shared[node.memory] = [], {}
        for size in {free for free in node.free if 0 < free < node.memory}:
            self._add_size(node, size)
        self.capacity += node.worth()
        self.masks.clear()

    def unlink(self, node: NodeState) -> None:
        bit = 1 << node.number
        self.alive &= ~bit
        self.closed &= ~bit
        node.alive = False
        self.whole[node.whole] &= ~bit
        self.models[node.memory] &= ~bit
        for size in {free for free in node.free if 0 < free < node.memory}:
            self._remove_size(node, size)
        self.capacity -= node.worth()
        self.masks.clear()

    def mask(self, selector: Selector) -> int:
        """The nodes that a selector allows, where something may start."""
        nodes = self.reach(selector)
        return nodes & ~self.closed if self.closed else nodes

    def pay(self, node: NodeState, gpus: tuple[int, ...], charge: int) -> None:
        """Note what our jobs pay for these GPUs of an odd node; may be negative."""
        charged = node.charged
        if charged is not None and gpus:
            self.capacity -= node.worth()
            for gpu in gpus:
                charged[gpu] = charged.get(gpu, 0) + charge // len(gpus)
            self.capacity += node.worth()

    def reach(self, selector: Selector) -> int:
        """The nodes that a selector allows."""
        if selector is ANYWHERE or selector == ANYWHERE:
            return self.alive
        found = self.masks.get(selector)
        if found is None:
            found = 0
            names = set(selector.nodes)
            for node in self.nodes:
                spec = node.spec
                if (
                    node.alive
                    and (not names or spec.name in names)
                    and (not selector.pools or spec.pool in selector.pools)
                    and (not selector.types or spec.type in selector.types)
                    and (not selector.labels or set(selector.labels) <= set(spec.labels))
                ):
                    found |= 1 << node.number
            self.masks[selector] = found
        return found

    # ---- what is taken and given back ----------------------------------------------------------------

    def take(self, node: NodeState, gpus: tuple[int, ...], amount: int) -> None:
        """`amount` may be negative: then it is given back."""
        free, memory = node.free, node.memory
        if not node.alive:
            for gpu in gpus:
                free[gpu] -= amount
            return
        whole = node.whole
        for gpu in gpus:
            old = free[gpu]
            new = free[gpu] = old - amount
            if old == memory:
                whole -= 1
            elif old > 0 and old not in free:
                self._remove_size(node, old)
            if new == memory:
                whole += 1
            elif new > 0 and free.count(new) == 1:
                self._add_size(node, new)
        if whole != node.whole:
            bit = 1 << node.number
            self.whole[node.whole] ^= bit
            self.whole[whole] ^= bit
            node.whole = whole

    def _add_size(self, node: NodeState, size: int) -> None:
        table = self.shared[node.memory]
        if size not in table:
            insort(self.sizes[node.memory], size)
            table[size] = 1 << node.number
        else:
            table[size] |= 1 << node.number

    def _remove_size(self, node: NodeState, size: int) -> None:
        table = self.shared[node.memory]
        left = table[size] & ~(1 << node.number)
        if left:
            table[size] = left
        else:
            del table[size]
            sizes = self.sizes[node.memory]
            del sizes[bisect_left(sizes, size)]

    # ---- finding -------------------------------------------------------------------------------------

    def find(self, need: Need, mask: int, spread: bool = False) -> tuple[NodeState, tuple[int, ...]] | None:
        """The best node and GPUs for one task."""
        if need.gpus == 0:
            allowed = self.alive & mask
            return (self.nodes[lowest(allowed)], ()) if allowed else None
        if need.whole:
            return self._find_whole(need.gpus, mask, spread)
        if need.gpus == 1:
            return self._find_part(need, mask, spread)
        return self._find_parts(need, mask, spread)

    def _find_whole(self, gpus: int, mask: int, spread: bool) -> tuple[NodeState, tuple[int, ...]] | None:
        whole = self.whole
        blocks = range(len(whole) - 1, gpus - 1, -1) if spread else range(gpus, len(whole))
        for count in blocks:
            nodes = whole[count]
            if nodes:
                nodes &= mask
                if nodes:
                    node = self.nodes[(nodes & -nodes).bit_length() - 1]
                    return node, whole_of(node, gpus)
        return None

    def _find_part(self, need: Need, mask: int, spread: bool) -> tuple[NodeState, tuple[int, ...]] | None:
        if spread:
            return self._on_fresh(need, mask, spread) or self._on_shared(need, mask, spread)
        return self._on_shared(need, mask, spread) or self._on_fresh(need, mask, spread)

    def _on_shared(self, need: Need, mask: int, spread: bool) -> tuple[NodeState, tuple[int, ...]] | None:
        best: tuple[int, int, int] | None = None
        for memory in sorted(self.models):
            amount, sizes, table = need.on(memory), self.sizes[memory], self.shared[memory]
            fitting = sizes[bisect_left(sizes, amount) :]
            for size in reversed(fitting) if spread else fitting:
                nodes = table[size] & mask
                if nodes:
                    over = (size - amount) * MICRO // memory
                    if best is None or (over > best[0] if spread else over < best[0]):
                        best = (over, lowest(nodes), size)
                    break
        if best is None:
            return None
        node = self.nodes[best[1]]
        return node, (node.free.index(best[2]),)

    def _on_fresh(self, need: Need, mask: int, spread: bool) -> tuple[NodeState, tuple[int, ...]] | None:
        blocks = range(len(self.whole) - 1, 0, -1) if spread else range(1, len(self.whole))
        for memory in sorted(self.models):
            if need.on(memory) <= memory:
                fresh = self.models[memory] & mask
                for count in blocks:
                    nodes = self.whole[count] & fresh
                    if nodes:
                        node = self.nodes[lowest(nodes)]
                        return node, (node.free.index(memory),)
        return None

    def _find_parts(self, need: Need, mask: int, spread: bool) -> tuple[NodeState, tuple[int, ...]] | None:
        """Parts of several GPUs: every node that may have them is looked at."""
        best: tuple[int, int, int] | None = None
        for node in self.among(mask & self._may_hold_parts(need)):
            gpus = parts_of(node, node.free, need)
            if gpus is not None:
                fresh = sum(node.free[gpu] == node.memory for gpu in gpus)
                over = sum(node.free[gpu] for gpu in gpus)
                cost = (-fresh, -over, node.number) if spread else (fresh, over, node.number)
                if best is None or cost < best:
                    best = cost
        if best is None:
            return None
        node = self.nodes[best[2]]
        gpus = parts_of(node, node.free, need)
        assert gpus is not None
        return node, gpus

    def _may_hold_parts(self, need: Need) -> int:
        """Nodes on which so much is left of a GPU that is in part free, or with as many wholly free GPUs."""
        nodes = reduce(or_, self.whole[need.gpus :], 0)
        for memory, table in self.shared.items():
            sizes = self.sizes[memory]
            nodes |= reduce(or_, [table[size] for size in sizes[bisect_left(sizes, need.on(memory)) :]], 0)
        return nodes

    def fits(self, need: Need, mask: int) -> bool:
        """Is there a place for one such task? As find() tells, without looking for the best."""
        if need.whole or need.gpus <= 1:
            return self.find(need, mask) is not None
        return any(fit_on(node, need) is not None for node in self.among(mask & self._may_hold_parts(need)))

    def with_shared(self) -> int:
        """Nodes that have a GPU in part free."""
        return reduce(or_, [bits for table in self.shared.values() for bits in table.values()], 0)

    def among(self, nodes: int) -> Iterator[NodeState]:
        """The nodes of a set, in their order."""
        bits = bin(nodes)[:1:-1]  # with thousands of nodes this is quicker than to take bit after bit off the number
        number = bits.find("1")
        while number >= 0:
            yield self.nodes[number]
            number = bits.find("1", number + 1)

    def holds(self, need: Need, count: int, mask: int) -> bool:
        """Might so many such tasks fit now? Exact for whole GPUs and for one task; else only a quick no."""
        if need.gpus == 0 or count == 0:
            return bool(self.alive & mask) or count == 0
        if need.whole:
            for block in range(need.gpus, len(self.whole)):
                nodes = self.whole[block]
                if nodes:
                    count -= (nodes & mask).bit_count() * (block // need.gpus)
                    if count <= 0:
                        return True
            return False
        return self.fits(need, mask)

    def could_hold(self, need: Need, mask: int) -> bool:
        """Would one such task fit on one of these nodes, if that were empty?"""
        return any(
            len(node.free) - len(node.spec.broken) >= need.gpus and need.on(node.memory) <= node.memory
            for node in self.among(mask)
        )

    def nearest(self, need: Need, mask: int) -> NodeState | None:
        """The node that comes nearest to holding it: GPUs that are large enough, then more GPUs, then larger ones."""

        def size(node: NodeState) -> tuple[bool, int, int, int]:
            working = len(node.free) - len(node.spec.broken)
            return need.on(node.memory) <= node.memory, working, node.memory, -node.number

        return max(self.among(mask), key=size, default=None)

    def largest(self, mask: int) -> int:
        """GPUs of the largest free block of whole GPUs."""
        for count in range(len(self.whole) - 1, 0, -1):
            if self.whole[count] & mask:
                return count
        return 0

    def largest_part(self, mask: int, in_bytes: bool) -> int:
        """Of the GPUs that are free in part, the most that is free of one: bytes, or micro-GPUs."""
        most = 0
        for memory, sizes in self.sizes.items():
            table = self.shared[memory]
            size = next((size for size in reversed(sizes) if table[size] & mask), 0)
            most = max(most, size if in_bytes else charge_of_bytes(size, memory))
        return most

    def free_whole(self, mask: int) -> int:
        """Wholly free GPUs of these nodes."""
        return sum(count * (nodes & mask).bit_count() for count, nodes in enumerate(self.whole))


def lowest(nodes: int) -> int:
    """Number of the first node of a set."""
    return (nodes & -nodes).bit_length() - 1


def whole_of(node: NodeState, count: int) -> tuple[int, ...]:
    """The first `count` wholly free GPUs of a node that has them."""
    memory, free = node.memory, node.free
    if count == 1:
        return (free.index(memory),)
    return tuple([gpu for gpu, left in enumerate(free) if left == memory][:count])


def parts_of(node: NodeState, free: Sequence[int], need: Need) -> tuple[int, ...] | None:
    """The GPUs of a node on which so much is left when so much is free, those with the least left over; None if too
    few."""
    amount = need.on(node.memory)
    fitting = [(left, gpu) for gpu, left in enumerate(free) if left >= amount]
    if len(fitting) < need.gpus or amount > node.memory:
        return None
    return tuple(sorted([gpu for _, gpu in sorted(fitting)[: need.gpus]]))


def fit_on(node: NodeState, need: Need) -> tuple[int, ...] | None:
    """GPUs of this very node for one task, or None."""
    if need.gpus == 0:
        return ()
    if need.whole:
        return whole_of(node, need.gpus) if node.whole >= need.gpus else None
    return parts_of(node, node.free, need)
