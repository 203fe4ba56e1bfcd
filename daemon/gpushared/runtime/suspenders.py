"""The processes that ask the driver to suspend jobs: one for each job that may be suspended, of the job's own user.

The daemon opens no CUDA, and may not have the rights. So the job's wrapper starts a suspender (gpushare/suspender.py).
It follows a stream of commands, one JSON object a line, and answers each with where the job's processes are now:

    report   where are they? The first command, also after a restart of the daemon
    suspend  take their memory from the GPU, within so many seconds, or leave all as it was
    resume   put it back

What a suspender says is believed only as far as its own job goes: memory is free for others when NVML shows it free.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpushare.standstill import stands_still
from gpushared.clients.clients import Clients
from gpushared.clients.credit import CreditPages
from gpushared.core import instructions as do
from gpushared.core.events import SuspenderAnswered, SuspenderGone
from gpushared.runtime.core_loop import CoreLoop, Effect
from gpushared.runtime.followers import Command, Followers
from gpushared.runtime.quiet import Quiet
from gpushared.system.epoll import Epoll
from gpushared.system.logs import facts, log

QUIET_SHARE = 0.5
"""Of the time that a job has for leaving the GPU, its calls may take so much to end."""
SPARE_SHARE = 20
"""A twentieth of the host's memory stays free."""
MEMINFO = Path("/proc/meminfo")
FRESH = 0.2
"""Seconds for which a reading of the host's memory is used again."""


class Suspenders(Followers):
    """The connected suspenders, by job, and the instructions for them."""

    def __init__(
        self,
        core_loop: CoreLoop,
        credit: CreditPages,
        clients: Clients,
        epoll: Epoll,
        note: Callable[[], None],
    ) -> None:
        super().__init__(core_loop, epoll, note)
        self._credit = credit
        self._clients = clients
        self._quiet = Quiet(credit, lambda process: any(map(stands_still, self._pids([process]))))
        self._host: tuple[float, int | None] = (float("-inf"), None)

    def effects(self) -> dict[type, Effect]:
        return {do.Suspend: self._suspend, do.Resume: self._resume, do.OpenGate: self._open_gate}

    # ---- their life --------------------------------------------------------------------------------

    def first(self, job: str, /) -> Command:
        pids = self._pids(self._processes_of(job))
        return {"command": "report", "number": 0, "pids": pids, "within": 0.0, "bytes": 0}

    def has_gone(self, job: str) -> SuspenderGone:
        return SuspenderGone(job)

    def answered(self, job: str, pid: int, answer: SuspenderAnswered) -> bool:
        """Take the answer of the process with this id. False: it is not the job's suspender."""
        one = self.of(job, pid)
        if one is None:
            return False
        if answer.number == 0:
            one.known = SuspenderAnswered(job, 0, "unknown", answer.problem)
            log.info("a suspender is ready", extra=facts(job=job, where=answer.where, problem=answer.problem or "none"))
        if answer.where == "running":
            self._open(job, self._processes_of(job))
        self.core_loop.feed(answer)
        return True

    def ask_again(self, job: str) -> None:
        self._quiet.drop(job)
        super().ask_again(job)

    def end_job(self, job: str) -> None:
        self._quiet.drop(job)
        super().end_job(job)

    def close(self) -> None:
        self._quiet.close()
        super().close()

    def trimmed(self, job: str) -> None:
        """A process of the job has ended a trim, or says that it is quiet."""
        self._quiet.look(job)

    def open_gates(self) -> None:
        """Open the gates that an earlier daemon has left closed, of jobs that run."""
        suspended = self.core_loop.core.suspended_jobs
        self._turn_gates((client.id for client in self._clients if client.job not in suspended), closed=False)

    # ---- instructions ------------------------------------------------------------------------------

    def _suspend(self, wish: do.Suspend) -> None:
        self._turn_gates(wish.processes, closed=True)
        self._quiet.begin(wish.job, wish.processes, wish.within * QUIET_SHARE, partial(self._go_on, wish))

    def _go_on(self, wish: do.Suspend, problem: str, seconds: float) -> None:
        """Its programs are quiet, unless there is a problem."""
        if problem:
            self._open(wish.job, wish.processes)
            self.core_loop.feed(SuspenderAnswered(wish.job, wish.number, "running", problem))
        else:
            self._tell("suspend", replace(wish, within=wish.within - seconds))

    def _resume(self, wish: do.Resume) -> None:
        self._tell("resume", wish)

    def _tell(self, command: str, wish: do.Suspend | do.Resume) -> None:
        self.note()
        pids = self._pids(wish.processes)
        log.info(command, extra=facts(job=wish.job, processes=len(pids), seconds=round(wish.within, 1)))
        words = {"command": command, "number": wish.number, "pids": pids, "within": wish.within}
        self.tell(wish.job, {**words, "bytes": wish.size})

    def _open_gate(self, wish: do.OpenGate) -> None:
        self._open(wish.job, wish.processes)

    def _open(self, job: str, processes: Iterable[int]) -> None:
        self._quiet.drop(job)
        self._turn_gates(processes, closed=False)

    def keep_gates(self) -> None:
        """Call this every second or so: calls that wait at a gate see that a daemon lives."""
        for job in self.core_loop.core.suspended_jobs:
            self._turn_gates(self._processes_of(job), closed=True)

    def _turn_gates(self, processes: Iterable[int], *, closed: bool) -> None:
        for process in processes:
            self._credit.turn_gate(process, closed=closed)

    def _processes_of(self, job: str) -> list[int]:
        return [client.id for client in self._clients.of_job(job)]

    def _pids(self, processes: Iterable[int]) -> list[int]:
        clients = (self._clients.get(process) for process in processes)
        return [client.process.pid for client in clients if client is not None and client.page.gpus]

    # ---- host memory -------------------------------------------------------------------------------

    def host_available(self) -> int | None:
        """Bytes that can be used without swapping, less a reserve. None: no job can be suspended, or it cannot be
        read."""
        if not len(self):
            return None
        read_at, found = self._host
        if time.monotonic() - read_at > FRESH:
            found = _available()
            self._host = time.monotonic(), found
        return found


def _available() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        total, available = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return max(0, available - total // SPARE_SHARE)
