"""The engine in memory on the conformance suite's stand: by itself, and under the service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from conformance_stand import RUNS, Queued, Served, Work

from gpushare.cluster.engines import memory, paced
from gpushare.cluster.engines.memory import Memory
from gpushare.cluster.engines.runner import Context
from gpushare.cluster.model import Node, Policy
from gpushare.cluster.service.common import Caller

GIB = 2**30
NODES = (Node("n1", 2, 80 * GIB), Node("n2", 2, 80 * GIB))
POLICY = Policy(endings="reported", reserve_after=None, protect=0.0, back_off=2.0)


class Simulated:
    """Of a stand whose engine is `memory`, and whose time passes when it is told to."""

    memory: Memory
    shift: float
    close: Callable[[], None]
    policy = POLICY
    step = 1.0
    within = 300.0

    def mark(self, uid: str, work: Work) -> str:
        if work.stubborn:
            self.memory.stubborn.add(uid)
        if work.broken:
            self.memory.broken.add(uid)
        return uid

    def began(self, uid: str) -> int:
        return self.memory.jobs[uid].runs if uid in self.memory.jobs else 0

    def alive(self, uid: str) -> int:
        job = self.memory.jobs.get(uid)
        return 0 if job is None else sum(task.seen.holds for task in job.tasks.values())

    def foreign(self, node: str, gpu: int, amount: int) -> None:
        self.memory.others.setdefault(node, {})[gpu] = amount

    def silence(self, node: str) -> None:
        self.memory.stays[node] = "unknown"

    def lose(self, node: str) -> None:
        self.memory.stays[node] = "lost"

    def bring_back(self, node: str) -> None:
        del self.memory.stays[node]

    def clear(self) -> None:
        self.memory.judge()
        self.close()


class MemoryStand(Simulated, Queued):
    name = "memory"
    cannot = memory.CANNOT

    def __init__(self, directory: Path, environ: object) -> None:
        self.directory = directory
        self.engine = self.memory = Memory()
        self.memory.add(*NODES)
        self.cancelled: set[str] = set()
        self.open_ledger()

    def submit(
        self, work: Work = RUNS, *, queue="a", gpus=1, tasks=1, share=None, limit=None, held=False, **more
    ) -> str:
        uid = str(len(self.memory.jobs) + 1)
        job = self.job(uid, queue=queue, gpus=gpus, tasks=tasks, share=share, limit=limit, **more)
        self.memory.submit(job, float("inf") if work.seconds is None else work.seconds)
        self.memory.jobs[uid].held = held
        return self.mark(uid, work)

    def submit_array(self, count: int, work: Work = RUNS, *, queue: str = "a") -> list[str]:
        return [self.submit(work, queue=queue) for _ in range(count)]

    def cancel(self, uid: str) -> None:
        if not self.memory.jobs[uid].ended:
            self.memory.cancel(uid)
            self.cancelled.add(uid)

    def release(self, uid: str) -> None:
        self.memory.jobs[uid].held = False

    def cordon(self, node: str, *, draining: bool = False) -> None:
        self.memory.nodes[node].cordoned, self.memory.nodes[node].draining = True, draining

    def uncordon(self, node: str) -> None:
        self.memory.nodes[node].cordoned = self.memory.nodes[node].draining = False

    def wait(self, seconds: float) -> None:
        self.memory.tick(seconds)

    def clock(self) -> float:
        return self.memory.now + self.shift

    def result(self, uid: str) -> tuple[str, int | None] | None:
        if not self.memory.jobs[uid].ended:
            return None
        return "cancelled" if uid in self.cancelled else "done", None

    def seen_of_all(self) -> str:
        return f"{super().seen_of_all()}\n{self.store.allocator.leaving}"


class Remembering(paced.Paced):
    """It knows of jobs that are over how often they ran."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.runs: dict[str, int] = {}

    def collect(self, id: str) -> None:
        if id in self._memory.jobs:
            self.runs[id] = self._memory.jobs[id].runs
        super().collect(id)


class PacedStand(Simulated, Served):
    name = "paced"
    cannot = paced.CANNOT
    caller = Caller(1001, 1001, "alice", admin=False)

    def __init__(self, directory: Path, environ: object, nodes: tuple[Node, ...] = NODES) -> None:
        self.directory = directory
        self.now = 1e9
        self.runner = Remembering(Context({}, lambda: self.now, directory, nodes, False))
        self.memory = self.runner._memory
        self.open_service()

    def submit(self, work: Work = RUNS, **more) -> str:
        return self.mark(super().submit(work, **more), work)

    def run_of(self, work: Work) -> dict[str, object]:
        forever = work.seconds is None
        return {"exit": work.exit} if forever else {"duration": work.seconds, "exit": work.exit}

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.runner.nodes()  # what was to happen meanwhile

    def began(self, uid: str) -> int:
        return self.runner.runs.get(uid, 0) + super().began(uid)

    def clock(self) -> float:
        return self.now + self.shift


__all__ = ["MemoryStand", "PacedStand"]
