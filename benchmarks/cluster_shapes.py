"""The workloads of other schedulers' public benchmarks, described by their parameters, so that anybody can repeat them
on the other side. The functions of KAI-Scheduler v0.17.0 that each follows are named; so is Kueue's configuration.

A shape is plain data; cluster.py turns it into a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

GPUS = 8


class QueueShape(NamedTuple):
    name: str
    quota: int
    parent: str | None = None
    weight: int | None = 1
    limit: int | None = None
    priority: int = 0


class JobShape(NamedTuple):
    name: str
    queue: str
    gpus: int = 1
    tasks: int = 1
    node: str | None = None
    """Where it runs at the start; None: it is pending."""
    priority: int = 0


class Shape(NamedTuple):
    nodes: list[tuple[str, int]]
    queues: list[QueueShape]
    jobs: list[JobShape]


class Arrival(NamedTuple):
    """One workload of a timed run; times in microseconds."""

    time: int
    job: JobShape
    runtime: int


def _nodes(count: int) -> list[tuple[str, int]]:
    return [(f"node-{n}", GPUS) for n in range(count)]


def _four_queues(nodes: int) -> list[QueueShape]:
    total = nodes * GPUS
    parents = [QueueShape("dept-a", total // 2), QueueShape("dept-b", total // 2)]
    return parents + [QueueShape(f"queue-{n}", total // 4, "dept-a" if n < 2 else "dept-b") for n in range(4)]


def pending(nodes: int, jobs: int) -> Shape:
    """createBenchmarkTopology: jobs of one GPU in four queues of two departments, nothing runs."""
    return Shape(_nodes(nodes), _four_queues(nodes), [JobShape(f"job-{n}", f"queue-{n % 4}") for n in range(jobs)])


def mixed(nodes: int, jobs: int) -> Shape:
    """createBenchmarkTopologyWithMixedJobs: every other job runs, on node n modulo the nodes."""
    where = [f"node-{n % nodes}" if n % 2 == 0 else None for n in range(jobs)]
    shapes = [JobShape(f"job-{n}", f"queue-{n % 4}", node=where[n]) for n in range(jobs)]
    return Shape(_nodes(nodes), _four_queues(nodes), shapes)


def _full(nodes: int, queue: str) -> list[JobShape]:
    return [JobShape(f"running-job-{n}", queue, node=f"node-{n % nodes}") for n in range(nodes * GPUS)]


def large_reclaim(nodes: int) -> Shape:
    """buildLargeJobReclaimTopology: a queue without quota holds everything; one gang wants half of the nodes."""
    queues = [QueueShape("queue-0", 0, weight=0), QueueShape("queue-1", nodes * GPUS, weight=0)]
    gang = JobShape("very-large-job", "queue-1", gpus=GPUS, tasks=nodes // 2)
    return Shape(_nodes(nodes), queues, [*_full(nodes, "queue-0"), gang])


def many_single(nodes: int) -> Shape:
    """buildManySingleGPUJobsReclaimTopology: as many pending as running jobs, and all of the running ones must go."""
    queues = [QueueShape("running", 0, weight=0), QueueShape("pending", nodes * GPUS, weight=0)]
    wanting = [JobShape(f"pending-job-{n}", "pending") for n in range(nodes * GPUS)]
    return Shape(_nodes(nodes), queues, [*_full(nodes, "running"), *wanting])


def unschedulable(nodes: int) -> Shape:
    """defaultUnschedulableDistributedReclaimParams: a gang of ten nodes, and one GPU less than that may be taken."""
    total = nodes * GPUS
    queues = [QueueShape("queue-0", total - 10 * GPUS + 1, weight=0), QueueShape("queue-1", 10 * GPUS, weight=0)]
    gang = JobShape("unschedulable-distributed-job", "queue-1", gpus=GPUS, tasks=10)
    return Shape(_nodes(nodes), queues, [*_full(nodes, "queue-0"), gang])


def fragmented(nodes: int) -> Shape:
    """Ours, beside the mixed shape, in which nothing has to move: every node holds five GPUs of movable jobs, and
    jobs of a whole node wait."""
    queues = [QueueShape("small", nodes * GPUS), QueueShape("whole", nodes * GPUS)]
    running = [
        JobShape(f"small-{n}-{k}", "small", gpus=size, node=f"node-{n}")
        for n in range(nodes)
        for k, size in enumerate((3, 2))
    ]
    whole = [JobShape(f"whole-{n}", "whole", gpus=GPUS) for n in range(nodes // 4)]
    return Shape(_nodes(nodes), queues, [*running, *whole])


def huge(gpus: int, jobs: int, queues: int) -> Shape:
    """Jobs of one to eight GPUs in many queues of equal quota. No peer has a benchmark of this size."""
    nodes = gpus // GPUS
    sizes = (1, 1, 1, 1, 2, 2, 4, 8)
    shapes = [JobShape(f"job-{n}", f"queue-{n % queues}", gpus=sizes[(n * 7919) % len(sizes)]) for n in range(jobs)]
    return Shape(_nodes(nodes), [QueueShape(f"queue-{n}", gpus // queues) for n in range(queues)], shapes)


def borrowed(gpus: int, queues: int, blocks: int) -> Shape:
    """Half of the queues hold everything in small jobs; of the others each wants a whole node back, `blocks` in all."""
    nodes, half = gpus // GPUS, queues // 2
    sizes = ((4, 2, 2), (2, 2, 1, 1, 1, 1), (1,) * GPUS, (4, 2, 1, 1))
    running = [(f"node-{n}", size) for n in range(nodes) for size in sizes[n % len(sizes)]]
    jobs = [JobShape(f"small-{i}", f"queue-{i % half}", gpus=size, node=node) for i, (node, size) in enumerate(running)]
    jobs += [JobShape(f"block-{n}", f"queue-{half + n % half}", gpus=GPUS) for n in range(blocks)]
    return Shape(_nodes(nodes), [QueueShape(f"queue-{n}", gpus // queues) for n in range(queues)], jobs)


# Kueue test/performance/scheduler/configs/large-scale/generator.yaml as of 1000 queues and 50,000 workloads:
# name, count per queue, milliseconds between two, milliseconds each runs, priority, units
KUEUE_CLASSES = (("small", 35, 60, 150, 50, 1), ("medium", 11, 300, 350, 100, 5), ("large", 4, 700, 700, 200, 20))
KUEUE_COHORTS, KUEUE_QUEUES, KUEUE_QUOTA, KUEUE_BORROWING = 10, 100, 20, 100


def kueue_queues(cohorts: int, queues: int) -> list[QueueShape]:
    """A cohort is a parent; nominal quota plus borrowing limit is the limit."""
    found = [QueueShape(f"cohort-{c}", queues * KUEUE_QUOTA, limit=queues * KUEUE_QUOTA) for c in range(cohorts)]
    limit = KUEUE_QUOTA + KUEUE_BORROWING
    for c in range(cohorts):
        found += [QueueShape(f"cq-{c}-{q}", KUEUE_QUOTA, f"cohort-{c}", limit=limit) for q in range(queues)]
    return found


def kueue_arrivals(cohorts: int, queues: int) -> Iterator[Arrival]:
    """All queues receive the same: each class starts one interval after the beginning."""
    for name, count, interval, runtime, priority, units in KUEUE_CLASSES:
        for n in range(count):
            for c in range(cohorts):
                for q in range(queues):
                    job = JobShape(f"{name}-{n}-{c}-{q}", f"cq-{c}-{q}", gpus=units, priority=priority)
                    yield Arrival((n + 1) * interval * 1000, job, runtime * 1000)
