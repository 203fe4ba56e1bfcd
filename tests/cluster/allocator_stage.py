"""A cluster to tell stories with: short names for events, and books of what was started, evicted and moved."""

from __future__ import annotations

from collections import Counter

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import (
    Job,
    JobEnded,
    JobSubmitted,
    Move,
    Node,
    NodeAdded,
    Policy,
    Preempt,
    Queue,
    QueueAdded,
    Selector,
    Start,
    Stopped,
    Tasks,
    TimePassed,
)
from gpushare.cluster.quantity import gpus

GIB = 2**30


class Stage:
    """One cluster, its time, and what has happened."""

    def __init__(self, nodes: dict[str, int] | list[Node], policy: Policy | None = None) -> None:
        self.allocator = Allocator(policy or Policy(reserve_after=None))
        self.now = 0.0
        self.evicted: list[str] = []
        self.moves = 0
        self.serial = 0
        listed = nodes if isinstance(nodes, list) else [Node(name, count) for name, count in nodes.items()]
        self.send([NodeAdded(node) for node in listed])

    def send(self, event):
        actions = list(self.allocator.handle(event, self.now))
        self.allocator.validate()
        for _ in range(50):
            wake = self.allocator.next_wake
            if wake is None or wake > self.now:
                break
            actions += self.allocator.handle(TimePassed(), self.now)
            self.allocator.validate()
        else:
            raise AssertionError("it does not come to rest")
        for action in actions:
            if isinstance(action, Preempt):
                self.evicted += [action.job] * len(action.places)
            if isinstance(action, Move):
                self.moves += len(action.places)
        return actions

    def queue(self, name, quota=0, *, parent=None, **more):
        for key in ("limit", "weight"):
            if more.get(key) is not None:
                more[key] = gpus(more[key])
        return self.send(QueueAdded(Queue(name, parent, None if quota is None else gpus(quota), **more)))

    def job(self, queue, amount=1, *, name=None, count=1, most=None, limit=None, memory=None, ladder=(), **more):
        """`amount` up to 1 is a share of a GPU, above it whole GPUs of a node."""
        self.serial += 1
        name = name or f"{queue}-{self.serial}"
        devices = more.pop("devices", None)
        if memory is not None:
            tasks = Tasks(count, most, devices or 1, memory=memory, limit=limit, ladder=ladder)
        elif amount > 1:
            tasks = Tasks(count, most, int(amount))
        else:
            tasks = Tasks(
                count,
                most,
                devices or 1,
                share=gpus(amount),
                limit=limit and gpus(limit),
                ladder=tuple(map(gpus, ladder)),
            )
        more.setdefault("preemptible", True)
        more.setdefault("movable", True)
        self.actions = self.send(JobSubmitted(Job(name, queue, (tasks,), **more)))
        return name

    def end(self, *names):
        self.actions = self.send([JobEnded(name) for name in names])
        return self.actions

    def stopped(self, name, attempt=1):
        return self.send(Stopped(name, attempt))

    def wait(self, seconds):
        self.now += seconds
        return self.send(TimePassed())

    def held(self, *queues):
        """GPUs that each queue holds."""
        return tuple(self.allocator.queues[name].allocated / 1_000_000 for name in queues)

    def waiting(self, queue=None):
        return [
            name
            for name, view in self.allocator.jobs.items()
            if view.state == "pending" and queue in (None, view.job.queue)
        ]

    def running(self, queue=None):
        return [
            name
            for name, view in self.allocator.jobs.items()
            if view.state == "running" and queue in (None, view.job.queue)
        ]

    def place(self, name):
        (place,) = self.allocator.jobs[name].places
        return place

    def rung_share(self, name):
        place = self.place(name)
        return place.charge / 1_000_000

    def why(self, name):
        return self.allocator.jobs[name].reason

    def per_gpu(self):
        """Number of tasks on each GPU in use."""
        count: Counter[tuple[str, int]] = Counter()
        for view in self.allocator.jobs.values():
            for place in view.places:
                count.update((place.node, gpu) for gpu in place.gpus)
        return count


__all__ = ["GIB", "Selector", "Stage", "Start", "gpus"]
