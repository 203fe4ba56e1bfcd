"""The index of free room beside a look at every node: random nodes of two sizes, needs of all kinds."""

from __future__ import annotations

import random

import pytest

from gpushare.cluster.model import Node
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.space import Need, NodeState, Space, fit_on

GIB = 2**30


def crowded(seed: int) -> Space:
    """Thirty nodes of which much is taken, in parts and as a whole."""
    rng, space = random.Random(seed), Space()
    for number in range(30):
        node = NodeState(number, Node(f"n{number}", rng.choice((2, 4, 8)), memory=rng.choice((40, 80)) * GIB))
        space.nodes.append(node)
        space.by_name[node.spec.name] = node
        space.link(node)
        for gpu in range(len(node.free)):
            taken = rng.choice((0, 1, 1, 1, rng.random()))
            space.take(node, (gpu,), int(taken * node.memory))
    return space


def any_need(rng: random.Random) -> Need:
    gpus = rng.choice((1, 2, 2, 3))
    if rng.random() < 0.3:
        return Need(gpus, MICRO, False)
    if rng.random() < 0.5:
        return Need(gpus, rng.randrange(1, MICRO), False)
    return Need(gpus, rng.randrange(1, 90) * GIB, True)


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
