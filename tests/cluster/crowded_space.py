"""An index of free room on nodes of which much is taken, and needs of all kinds."""

from __future__ import annotations

import random

from gpushare.cluster.model import Node
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.space import Need, NodeState, Space

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
