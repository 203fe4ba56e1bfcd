"""What each queue holds, may have and asks for at this moment: for reports, histories and overviews."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.quantity import MICRO

__all__ = ["Amounts", "capacity", "of_queues"]


class Amounts(NamedTuple):
    """Of a queue, in micro-GPUs."""

    held: int
    share: int
    quota: int
    """Of a queue without one: all that works."""
    demand: int


def capacity(allocator: Allocator) -> int:
    """Micro-GPUs that work, on nodes that are there."""
    return sum(MICRO * (view.node.gpus - len(view.node.broken)) for view in allocator.nodes.values() if view.alive)


def of_queues(allocator: Allocator) -> Iterator[tuple[str, Amounts]]:
    """Of each queue, by its name."""
    shares, whole = allocator.shares(), capacity(allocator)
    for name, view in allocator.queues.items():
        quota = whole if view.queue.quota is None else view.queue.quota
        yield name, Amounts(view.allocated, shares[name].share, quota, view.demand)
