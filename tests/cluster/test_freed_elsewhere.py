"""A job that waits at its queue's limit may stop jobs of its queue; what ends elsewhere may make that enough."""

from __future__ import annotations

import pytest

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import Job, JobEnded, JobSubmitted, Node, NodeAdded, Queue, QueueAdded, Selector, Tasks
from gpushare.cluster.quantity import gpus

NODES = ("a", "b")


@pytest.mark.parametrize("where", NODES)
def test_what_ends_beside_a_victim_makes_its_node_enough(where: str) -> None:
    """On each node a job that nobody may stop has one GPU, and a job of the queue the other: its limit is reached.
    A job that needs a whole node waits until a GPU of another queue is free."""
    allocator = Allocator()
    allocator.handle(
        [QueueAdded(Queue("q", quota=gpus(2), limit=gpus(2))), QueueAdded(Queue("other", quota=gpus(2)))], 0
    )
    allocator.handle([NodeAdded(Node(name, 2)) for name in NODES], 0)
    for name in NODES:
        on = Selector(nodes=(name,))
        allocator.handle(JobSubmitted(Job(f"kept-{name}", "other", (Tasks(),), preemptible=False, selector=on)), 1)
        allocator.handle(JobSubmitted(Job(f"small-{name}", "q", (Tasks(),), priority=10, selector=on)), 2)
    allocator.handle(JobSubmitted(Job("large", "q", (Tasks(gpus=2),), priority=90)), 3)
    assert allocator.jobs["large"].state == "pending"
    allocator.handle(JobEnded(f"kept-{where}"), 4)
    allocator.validate()
    large = allocator.jobs["large"]
    assert large.state == "running" and {place.node for place in large.places} == {where}
