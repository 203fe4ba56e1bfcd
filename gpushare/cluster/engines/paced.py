"""The engine `memory` for the service: the engine in memory, with the clock's time. Nothing runs outside of it.

A job takes as long as its `run` says: {"duration": 60, "exit": 0}; without a duration, until it is cancelled. All ends
with the service. For trying things out, and for tests.

Settings, in the table [memory]: `seed`, and the name of any fault (memory.Faults) with its probability.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from math import inf

from gpushare.cluster.engines import memory
from gpushare.cluster.engines.memory import START_SECONDS, Faults, Memory
from gpushare.cluster.engines.runner import Context, Record, Runner
from gpushare.cluster.engines.seam import Answer, Evict, SeenNode, SeenTask, Start, Token
from gpushare.errors import UsageError

__all__ = ["CANNOT", "Paced", "make"]

CANNOT = {
    **{name: why for name, why in memory.CANNOT.items() if name != "exit"},
    "takeover": "one service has the file; the next one starts when it has ended",
    "forgotten": "the records are in the service's file, and jobs that are in no record are left alone",
}

FAULTS = tuple(one.name for one in fields(Faults))
STEP = 1.0
"""Seconds: faults are by the second."""


def make(context: Context) -> Runner:
    return Paced(context)


class Paced:
    """A Runner (runner.py)."""

    def __init__(self, context: Context) -> None:
        for key in context.settings:
            if key not in (*FAULTS, "seed"):
                raise UsageError(f"[memory]: no such key {key!r}", hint=f"there are: seed, {', '.join(FAULTS)}")
        faults = {name: float(context.settings[name]) for name in FAULTS if name in context.settings}
        self._clock = context.clock
        self._memory = Memory(int(context.settings.get("seed", 0)), Faults(**faults))
        self._faulty = any(faults.values())
        self._memory.now = context.clock()
        self._memory.add(*context.nodes)
        self._exits: dict[str, int] = {}
        self._due = inf
        self._woken = threading.Event()

    def check(self, record: Record) -> None:
        duration, status = record.run.get("duration", 0), record.run.get("exit", 0)
        if isinstance(duration, bool) or not isinstance(duration, int | float) or not duration >= 0:
            raise UsageError(f"run.duration: {duration!r} is not a number of seconds")
        if isinstance(status, bool) or not isinstance(status, int) or abs(status) > 255:
            raise UsageError(f"run.exit: {status!r} is not an exit status")

    def nodes(self) -> Sequence[SeenNode]:
        self._pass_time()
        return self._memory.snapshot().nodes

    def tasks(self) -> Mapping[str, Sequence[SeenTask]]:
        self._pass_time()
        return {
            uid: [self._with_exit(uid, task.seen) for _, task in sorted(job.tasks.items())]
            for uid, job in self._memory.jobs.items()
            if job.tasks
        }

    def _with_exit(self, uid: str, task: SeenTask) -> SeenTask:
        return replace(task, exit=self._exits[uid]) if task.phase == "done" else task

    def start(self, record: Record, command: Start, token: Token) -> Answer:
        self._pass_time()
        if record.id not in self._memory.jobs:
            self._memory.submit(record.job, float(record.run.get("duration", inf)))
            self._exits[record.id] = int(record.run.get("exit", 0))
        answer = self._memory.start(command, token)
        self._plan()
        return answer

    def evict(self, command: Evict, token: Token) -> Answer:
        self._pass_time()
        answer = self._memory.evict(command, token)
        self._plan()
        return answer

    def collect(self, id: str) -> None:
        self._memory.jobs.pop(id, None)
        self._exits.pop(id, None)

    def watch(self, seconds: float) -> None:
        soonest = STEP if self._faulty else self._due - self._clock()
        self._woken.wait(max(0.0, min(seconds, soonest)))
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self.wake()

    # ---- time ----------------------------------------------------------------------------------------

    def _pass_time(self) -> None:
        """Up to the clock's, in steps: a task begins in one and ends in a later one."""
        now = self._clock()
        while self._memory.now < now:
            soonest = self._memory.now + STEP if self._faulty else min(self._soonest(), now)
            self._memory.tick(max(0.0, min(soonest, now) - self._memory.now) or now - self._memory.now)
        self._plan()

    def _plan(self) -> None:
        soonest = self._soonest()
        if soonest < self._due:
            self._woken.set()  # who waits for the later one
        self._due = soonest

    def _soonest(self) -> float:
        """When the next task changes by itself."""
        return min((at for at in self._changes() if at > self._memory.now), default=inf)

    def _changes(self) -> Iterator[float]:
        for job in self._memory.jobs.values():
            for task in job.tasks.values():
                if task.seen.phase == "starting":
                    yield task.since + START_SECONDS
                elif task.seen.phase == "running":
                    yield task.since + job.duration
                elif task.seen.phase == "stopping" and task.kill_at is not None:
                    yield task.kill_at
