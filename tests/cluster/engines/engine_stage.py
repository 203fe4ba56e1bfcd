"""A loop on the memory engine, with a ledger that survives the loop and crashes wherever one wants."""

from __future__ import annotations

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.codec import decode_events, encode_events
from gpushare.cluster.engines.loop import Loop
from gpushare.cluster.engines.memory import Memory
from gpushare.cluster.engines.reconcile import Settings
from gpushare.cluster.engines.seam import Deposed, Unanswered
from gpushare.cluster.model import Job, Node, Policy, Queue, QueueAdded, Tasks, TimePassed
from gpushare.cluster.quantity import gpus

POLICY = Policy(endings="reported", reserve_after=None, back_off=2.0, start_tries=1000, grow_hold=5.0)
SETTINGS = Settings(grace=5.0, start_within=30.0, stop_within=15.0, last_retry=8.0, annotate_every=1.0)


class Killed(Exception):
    """The loop's process is gone."""


class Points:
    """Moments at which the loop may be killed: before and after each thing that it does to the world."""

    def __init__(self) -> None:
        self.count = 0
        self.kill_at: int | None = None

    def here(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            raise Killed

    def around(self, thing, names):
        points = self

        class Around:
            def __getattr__(self, name):
                found = getattr(thing, name)
                if name not in names:
                    return found

                def call(*arguments):
                    points.here()
                    answer = found(*arguments)
                    points.here()
                    return answer

                return call

        return Around()


class Disk:
    """A ledger: rows that are read again after a crash."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.policy = policy
        self.rows: list[tuple[str, float]] = []
        self.open()

    def open(self) -> None:
        self.allocator = Allocator(self.policy)
        for events, now in self.rows:
            self.allocator.handle(decode_events(events), now)

    def at(self, clock: float) -> float:
        return max(self.allocator.now, clock)

    def append(self, events, now: float):
        actions = self.allocator.handle(list(events), self.at(now))
        self.allocator.validate()
        self.rows.append((encode_events(events), self.at(now)))
        return actions

    def pass_time(self, now: float):
        actions = []
        last = None
        while (wake := self.allocator.next_wake) is not None and wake <= now and wake != last:
            last = wake
            actions += self.append([TimePassed()], wake)
        return actions


class Stage:
    """One cluster, driven second by second."""

    def __init__(self, nodes: dict[str, int] | list[Node], queues, *, engine: Memory | None = None, disk=None) -> None:
        self.engine = engine or Memory()
        listed = nodes if isinstance(nodes, list) else [Node(name, count) for name, count in nodes.items()]
        self.engine.add(*listed)
        self.queues = [one if isinstance(one, Queue) else Queue(one, quota=gpus(amount)) for one, amount in queues]
        self.points = Points()
        self.disk = disk or Disk()
        self.disk.append([QueueAdded(queue) for queue in self.queues], 0.0)
        self.crashes = 0
        self.whole = True
        """Whether rounds look at all jobs."""
        self.loop = self.new_loop()

    def new_loop(self, holder: str = "one") -> Loop:
        engine = self.points.around(self.engine, {"lead", "snapshot", "start", "evict", "annotate"})
        ledger = self.points.around(self.disk, {"append"})
        return Loop(ledger, engine, lambda: self.engine.now, holder=holder, settings=SETTINGS)

    def submit(self, name: str, queue: str, duration: float = 20.0, **tasks) -> None:
        self.engine.submit(Job(name, queue, (Tasks(**tasks),)), duration)

    def round(self) -> None:
        """The loop's round; what kills it starts another."""
        try:
            self.loop.step(whole=self.whole)
        except (Unanswered, Deposed):
            pass
        except Killed:
            self.crashes += 1
            self.disk.open()
            self.loop = self.new_loop()

    def go(self, seconds: int) -> None:
        for _ in range(seconds):
            self.round()
            self.engine.tick()

    def finish(self, most: int = 2000) -> None:
        """Until all jobs have ended and nothing is left."""
        for _ in range(most):
            if self.over():
                return
            self.round()
            self.engine.tick()
        left = {uid: self.allocator.jobs.get(uid) for uid, job in self.engine.jobs.items() if not job.ended}
        raise AssertionError(f"not over: {left}, {self.allocator.leaving}")

    def over(self) -> bool:
        return (
            all(job.ended for job in self.engine.jobs.values())
            and not self.allocator.jobs
            and not self.allocator.leaving
        )

    @property
    def allocator(self) -> Allocator:
        return self.disk.allocator

    def running(self) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
        """What really runs, and where."""
        return {
            uid: [(task.seen.node, task.seen.gpus) for task in job.tasks.values() if task.seen.holds]
            for uid, job in self.engine.jobs.items()
            if any(task.seen.holds for task in job.tasks.values())
        }


__all__ = ["POLICY", "SETTINGS", "Disk", "Killed", "Points", "Stage"]
