"""The index of free room beside a look at every node: random nodes of two sizes, needs of all kinds."""

from __future__ import annotations

import random

import pytest
from crowded_space import GIB, any_need, crowded

from gpushare.cluster.model import Node, Selector
from gpushare.cluster.quantity import MICRO, charge_of_bytes
from gpushare.cluster.space import Need, NodeState, Space, fit_on


@pytest.mark.parametrize("seed", range(40))
def test_what_the_index_finds_is_what_a_look_at_every_node_finds(seed: int) -> None:
    rng, space = random.Random(seed), crowded(seed)
    for _ in range(100):
        need, mask = any_need(rng), rng.getrandbits(30)
        fitting = [node for node in space.nodes if mask >> node.number & 1 and fit_on(node, need)]
        found = space.find(need, mask)
        assert space.fits(need, mask) == bool(fitting) == (found is not None)
        if found is not None:
            assert found[0] in fitting
            if need.gpus > 1 and not need.whole:
                assert leftover(*found) == min(leftover(node, fit_on(node, need)) for node in fitting)


def leftover(node: NodeState, gpus: tuple[int, ...] | None) -> tuple[int, int]:
    """Of the best fit the least: GPUs that are wholly free, then bytes that are free on all of them."""
    assert gpus is not None
    return sum(node.free[gpu] == node.memory for gpu in gpus), sum(node.free[gpu] for gpu in gpus)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("spread", [False, True])
def test_what_is_found_is_the_best_fit(seed: int, spread: bool) -> None:
    """Or, where jobs should be spread, the worst: whole GPUs by their block, one part by what is left over."""
    rng, space = random.Random(seed), crowded(seed)
    for _ in range(60):
        need, mask = any_need(rng), rng.getrandbits(30)
        fitting = [node for node in space.nodes if mask >> node.number & 1 and fit_on(node, need)]
        found = space.find(need, mask, spread)
        assert (found is not None) == bool(fitting)
        if found is None:
            continue
        node, gpus = found
        assert len(set(gpus)) == need.gpus
        assert all(node.free[gpu] >= need.on(node.memory) for gpu in gpus)
        if need.whole:
            best = (max if spread else min)(one.whole for one in fitting)
            first = next(one for one in fitting if one.whole == best)
            assert (node, gpus) == (
                first,
                tuple(gpu for gpu, left in enumerate(node.free) if left == node.memory)[: need.gpus],
            )
        elif need.gpus == 1:
            assert over(need, node, gpus[0]) == best_part(need, fitting, spread)
        else:
            every = [leftover(one, fit_on(one, need)) for one in fitting]
            assert leftover(node, gpus) == (max(every) if spread else min(every))


def over(need: Need, node: NodeState, gpu: int) -> tuple[bool, int]:
    """Is the GPU wholly free, and if not: what is left over, in millionths of it."""
    fresh = node.free[gpu] == node.memory
    return fresh, 0 if fresh else (node.free[gpu] - need.on(node.memory)) * MICRO // node.memory


def best_part(need: Need, fitting: list[NodeState], spread: bool) -> tuple[bool, int]:
    each = [
        over(need, node, gpu)
        for node in fitting
        for gpu, left in enumerate(node.free)
        if need.on(node.memory) <= min(left, node.memory)
    ]
    return max(each) if spread else min(each)


@pytest.mark.parametrize("seed", range(10))
def test_counts_and_bounds_are_those_of_a_look_at_every_node(seed: int) -> None:
    rng, space = random.Random(seed), crowded(seed)
    for _ in range(40):
        need, mask = any_need(rng), rng.getrandbits(30) & rng.getrandbits(30)
        some = [node for node in space.nodes if mask >> node.number & 1]
        parts = [(node, left) for node in some for left in node.free if 0 < left < node.memory]
        assert space.free_whole(mask) == sum(node.free.count(node.memory) for node in some)
        assert space.largest(mask) == max((node.free.count(node.memory) for node in some), default=0)
        assert space.largest_part(mask, in_bytes=True) == max((left for _, left in parts), default=0)
        most = max((charge_of_bytes(left, node.memory) for node, left in parts), default=0)
        assert space.largest_part(mask, in_bytes=False) == most
        assert space.with_shared() & mask == sum({1 << node.number for node, _ in parts})
        large = [node for node in some if need.on(node.memory) <= node.memory]
        assert space.could_hold(need, mask) == any(len(node.free) >= need.gpus for node in large)
        assert space.nearest(need, mask) == nearest(need, some)
        for count in (0, 1, 2, 5):
            if need.whole:
                room = sum(node.free.count(node.memory) // need.gpus for node in some)
                assert space.holds(need, count, mask) == (room >= count)
            else:
                assert space.holds(need, count, mask) == (count == 0 or any(fit_on(node, need) for node in some))
        assert space.holds(Need(0, 0, False), 1, mask) == bool(some)


def nearest(need: Need, some: list[NodeState]) -> NodeState | None:
    order = sorted(
        some, key=lambda node: (need.on(node.memory) > node.memory, -len(node.free), -node.memory, node.number)
    )
    return order[0] if order else None


def test_a_node_that_leaves_and_comes_back_leaves_the_index_as_it_was() -> None:
    def index(space: Space) -> tuple[object, ...]:
        shared = {memory: dict(table) for memory, table in space.shared.items()}
        return (
            space.alive,
            space.closed,
            list(space.whole),
            shared,
            dict(space.sizes),
            dict(space.models),
            space.capacity,
        )

    for seed in range(5):
        space = crowded(seed)
        before = index(space)
        for node in space.nodes:
            space.unlink(node)
            bit = 1 << node.number
            assert not (space.alive | space.reach(Selector(nodes=(node.spec.name,))) | space.with_shared()) & bit
            assert not any(nodes & bit for nodes in [*space.whole, *space.models.values()])
        assert (space.alive, space.capacity, space.with_shared()) == (0, 0, 0)
        assert not any(space.sizes.values())
        for node in space.nodes:
            space.link(node)
        assert index(space) == before


def test_what_is_given_back_to_a_node_that_is_away_is_there_when_it_comes_back() -> None:
    space = Space()
    node = NodeState(0, Node("n", 2, memory=80 * GIB))
    space.nodes.append(node)
    space.link(node)
    space.take(node, (0,), 30 * GIB)
    space.unlink(node)
    space.take(node, (0,), -10 * GIB)
    assert space.find(Need(1, GIB, True), 1) is None
    space.link(node)
    assert node.free == [60 * GIB, 80 * GIB]
    assert space.find(Need(1, 55 * GIB, True), 1) == (node, (0,))
    assert space.find(Need(1, 65 * GIB, True), 1) == (node, (1,))


def test_a_selector_allows_the_nodes_that_have_all_it_names() -> None:
    space = Space()
    for number, (pool, kind, labels) in enumerate(
        [("a", "h100", {"x": "1", "y": "2"}), ("b", "h100", {"x": "1"}), ("a", "a100", {"y": "2"}), ("b", "a100", {})]
    ):
        node = NodeState(number, Node(f"n{number}", 2, pool=pool, type=kind, labels=tuple(labels.items())))
        space.nodes.append(node)
        space.link(node)
    for selector, nodes in (
        (Selector(), 0b1111),
        (Selector(pools=("a",)), 0b0101),
        (Selector(types=("h100",)), 0b0011),
        (Selector(pools=("a",), types=("h100",)), 0b0001),
        (Selector(labels=(("x", "1"),)), 0b0011),
        (Selector(labels=(("x", "1"), ("y", "2"))), 0b0001),
        (Selector(nodes=("n1", "n3", "none")), 0b1010),
        (Selector(nodes=("n1", "n2"), pools=("b",)), 0b0010),
    ):
        assert space.reach(selector) == space.mask(selector) == nodes
        assert space.reach(selector) == nodes, "kept"
    space.closed = 0b0001
    assert space.mask(Selector(pools=("a",))) == 0b0100
    assert space.mask(Selector()) == 0b1110
    assert space.reach(Selector(pools=("a",))) == 0b0101


def test_a_node_is_worth_what_works_and_is_ours_to_have() -> None:
    node = NodeState(0, Node("n", 4, memory=80 * GIB, broken=(3,)))
    assert (node.worth(), node.whole, node.odd) == (3 * MICRO, 3, False)
    node.charged = {}
    node.foreign[0] = 20 * GIB
    assert (node.worth(), node.odd) == (2 * MICRO + MICRO * 3 // 4, True)
    node.charged = {0: MICRO}
    assert node.worth() == 3 * MICRO, "what our jobs hold counts, whoever crowds them"
    node.cordoned = True
    assert node.worth() == MICRO, "on a closed node only that"
    assert [node.fitting(Need(1, size * GIB, True)) for size in (60, 61, 80, 81)] == [3, 2, 2, 0]
