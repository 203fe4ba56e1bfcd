"""Clusters that are not uniform: W10 has two types of nodes and jobs of every kind, WL has jobs with ladders.

The other workloads (cluster_shapes.py) follow public benchmarks, in which all jobs and nodes are alike. These are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from gpushare.cluster.model import Event, Job, JobSubmitted, Node, NodeAdded, Queue, QueueAdded, Selector, Tasks
from gpushare.cluster.quantity import MICRO, gpus

GIB = 2**30
GPUS = 8
TYPES = (("small", 40 * GIB), ("large", 80 * GIB))
DEPARTMENTS, TEAMS = 8, 5


def cluster(nodes: int) -> list[Event]:
    """Every other node has the larger GPUs. Quotas add up to all GPUs; every third team may borrow more than others."""
    events: list[Event] = []
    for n in range(nodes):
        kind, memory = TYPES[n % 2]
        events.append(NodeAdded(Node(f"node-{n}", GPUS, memory, type=kind)))
    total = nodes * GPUS * MICRO
    for d in range(DEPARTMENTS):
        department = f"dept-{d}"
        events.append(QueueAdded(Queue(department, quota=total // DEPARTMENTS, weight=MICRO)))
        for t in range(TEAMS):
            quota = total // DEPARTMENTS // TEAMS
            weight = 3 * MICRO if (d * TEAMS + t) % 3 == 0 else MICRO
            events.append(QueueAdded(Queue(f"team-{d}-{t}", department, quota, weight=weight)))
    return events


def jobs(count: int, seed: int = 10) -> Iterator[JobSubmitted]:
    """Half of them whole GPUs and gangs, a third parts of a GPU, a fifth bytes; some only for one type of node."""
    random = Random(f"mixed {seed}")
    for n in range(count):
        kind = random.random()
        if kind < 0.48:
            tasks = random.choice((1, 1, 1, 1, 1, 2, 4, 8))
            shape = Tasks(tasks, gpus=random.choice((1, 1, 2, 4, 8)))
        elif kind < 0.8:
            shape = Tasks(random.choice((1, 1, 1, 2)), share=gpus(random.choice((0.1, 0.2, 0.25, 0.3, 0.5, 0.7))))
        else:
            shape = Tasks(1, gpus=random.choice((1, 1, 2)), memory=random.choice((5, 10, 18, 24, 40, 60)) * GIB)
        team = random.randrange(DEPARTMENTS * TEAMS)
        selector = Selector(types=(random.choice(TYPES)[0],)) if random.random() < 0.15 else Selector()
        queue = f"team-{team // TEAMS}-{team % TEAMS}"
        yield JobSubmitted(
            Job(f"job-{n}", queue, (shape,), random.choice((40, 50, 50, 60)), selector=selector, movable=True)
        )


def ladders(nodes: int, count: int) -> tuple[list[Event], list[Event]]:
    """Nodes and queues; and jobs that can do with seven or four tenths of a GPU, twice as many as there are GPUs."""
    setup: list[Event] = [NodeAdded(Node(f"node-{n}", GPUS)) for n in range(nodes)]
    setup += [QueueAdded(Queue(f"queue-{n}", quota=nodes * GPUS * MICRO // 4)) for n in range(4)]
    tasks = (Tasks(share=MICRO, ladder=(gpus(0.7), gpus(0.4))),)
    return setup, [JobSubmitted(Job(f"job-{n}", f"queue-{n % 4}", tasks)) for n in range(count)]
