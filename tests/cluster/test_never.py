"""Jobs that could not start even with the cluster to themselves: found, with the reason; the others are left out."""

from __future__ import annotations

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import (
    Code,
    Job,
    JobSubmitted,
    Node,
    NodeAdded,
    NodeLost,
    Queue,
    QueueAdded,
    Selector,
    Tasks,
)
from gpushare.cluster.quantity import gpus


def cluster() -> Allocator:
    """Two nodes of 4 GPUs, a third that is lost, all of them full; quotas and limits at two levels."""
    allocator = Allocator()
    nodes = [Node("n1", 4), Node("n2", 4, broken=frozenset({3})), Node("gone", 16)]
    queues = [
        Queue("lab", limit=gpus(6), quota=gpus(6)),
        Queue("a", "lab", quota=gpus(2)),
        Queue("free", quota=gpus(2)),
    ]
    allocator.handle([*map(NodeAdded, nodes), *map(QueueAdded, queues), NodeLost("gone")], 1.0)
    allocator.handle([JobSubmitted(job(f"old-{n}", "free", 1)) for n in range(7)], 2.0)
    return allocator


def job(name: str, queue: str, wanted: int, *, tasks: int = 1, **more) -> Job:
    return Job(name, queue, (Tasks(tasks, gpus=wanted),), **more)


def test_what_the_nodes_and_limits_can_never_hold() -> None:
    allocator = cluster()
    jobs = [
        job("fits", "free", 4),
        job("fits-in-parts", "free", 1, tasks=7),
        job("too-wide", "free", 5),
        job("too-many", "free", 4, tasks=2),
        job("within", "a", 3, tasks=2),
        job("over-parent", "a", 1, tasks=7),
        job("fixed", "a", 2, preemptible=False),
        job("over-quota", "a", 3, preemptible=False),
        job("elsewhere", "free", 1, selector=Selector(types=("H100",))),
        job("turned-away", "free", 5, wait=False),
        job("only-now", "free", 4, wait=False),
    ]
    before = allocator.dump()
    found = allocator.never(jobs)
    assert {name: reason.code for name, reason in found.items()} == {
        "too-wide": Code.NO_NODE,
        "too-many": Code.NO_SPACE,
        "over-parent": Code.LIMIT,
        "over-quota": Code.QUOTA,
        "elsewhere": Code.NO_NODE,
        "turned-away": Code.NO_NODE,
    }
    assert "7 GPUs are free" in found["too-many"].message  # in an empty cluster, not in this one
    assert allocator.dump() == before


def test_nothing_is_said_of_no_jobs() -> None:
    assert cluster().never([]) == {}
