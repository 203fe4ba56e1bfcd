"""Before a job is suspended, none of its programs may be in a call that waits for the GPU or asks how far it is.

NVIDIA's driver ends a program that makes such a call while its memory is in host memory (shim/preload/gate.h). The
gates of its processes are closed already; each process is asked for quiet, as a trim of nothing, and says when it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpushare.standstill import LOOKED_AT, PROBLEM
from gpushared.clients.credit import CreditPages

LOOK_AGAIN = 0.05
"""Seconds: a process may also end, and say nothing."""
BUSY = "a call of its program waits for the GPU"
CANNOT = "its program cannot hold back its calls: it ends, or its library is from another version"

Then = Callable[[str, float], None]
"""Called with what is in the way, empty if nothing is, and the seconds that it took."""


@dataclass(slots=True)
class _Wait:
    processes: Sequence[int]
    began: float
    until: float
    then: Then
    timer: asyncio.TimerHandle | None = None
    still: dict[int, float] = field(default_factory=dict)
    """Since when processes that have not answered stand still."""


class Quiet:
    """The jobs whose processes have been asked."""

    def __init__(self, credit: CreditPages, stands_still: Callable[[int], bool]) -> None:
        self._credit = credit
        self._stands_still = stands_still
        """Of one of its processes, which can answer nothing then."""
        self._waits: dict[str, _Wait] = {}

    def begin(self, job: str, processes: Sequence[int], within: float, then: Then) -> None:
        """`then` is called once, unless the wait is dropped: when all are quiet, or one cannot be or stays still, or
        after `within` seconds."""
        self.drop(job)
        now = time.monotonic()
        self._waits[job] = _Wait(processes, now, now + within, then)
        for process in processes:
            self._credit.ask_quiet(process, within)
        self.look(job)

    def look(self, job: str) -> None:
        """One of the job's processes has said that it is quiet; or time has passed."""
        wait = self._waits.get(job)
        if wait is None:
            return
        if wait.timer is not None:
            wait.timer.cancel()
        answers = self._credit.trims_of(wait.processes)
        there = [process for process in wait.processes if process in self._credit.pages]
        now = time.monotonic()
        silent = [process for process in there if process not in answers or not answers[process].done]
        wait.still = {process: wait.still.get(process, now) for process in silent if self._stands_still(process)}
        if any(process not in answers for process in there):
            self._end(job, CANNOT, now)
        elif not silent:
            self._end(job, "", now)
        elif any(now - since >= LOOKED_AT for since in wait.still.values()):
            self._end(job, PROBLEM, now)
        elif now >= wait.until:
            self._end(job, BUSY, now)
        else:
            pause = min(LOOK_AGAIN, wait.until - now)
            wait.timer = asyncio.get_running_loop().call_later(pause, self.look, job)

    def drop(self, job: str) -> None:
        """It is not to be suspended any more."""
        wait = self._waits.pop(job, None)
        if wait is not None and wait.timer is not None:
            wait.timer.cancel()

    def close(self) -> None:
        for job in list(self._waits):
            self.drop(job)

    def _end(self, job: str, problem: str, now: float) -> None:
        wait = self._waits.pop(job)
        wait.then(problem, now - wait.began)
