"""The registry: what the daemon knows of each job outside the core: its wrapper, its program, its notices, its end.

The core knows budgets and processes with pages. It does not know the wrapper (`gpushare run`) that waits in a call to
the daemon, the child that the wrapper has started, nor the notices for its terminal.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpushare.api import LEAST_OF_AN_ID
from gpushare.job_spec import MOST_NAME, JobSpec
from gpushare.reasons import Reason
from gpushared.core.visibility import Viewer
from gpushared.jobs.ending import Ending
from gpushared.jobs.notices import Notice, Notices
from gpushared.jobs.totals import Totals
from gpushared.limits.backlog import Backlog
from gpushared.limits.byte_budget import ByteBudget, bytes_of
from gpushared.system.epoll import Epoll
from gpushared.system.processes import Process, Sent, is_stopped, printable

ENDED_KEPT = 256
"""Ended jobs in memory. If there are more, the user who has the most of them loses the oldest."""


class JobState(StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"
    """Submitted, and not admitted yet."""
    RUNNING = "running"
    """Admitted."""
    ENDED = "ended"


NEXT = {
    JobState.QUEUED: (JobState.RUNNING, JobState.ENDED),
    JobState.RUNNING: (JobState.RUNNING, JobState.ENDED),  # admitted again: its wrapper has come back
    JobState.ENDED: (),
}
"""What may follow a state. A queued job that is refused or withdrawn is forgotten."""


@dataclass(slots=True, eq=False)
class JobRecord:
    """One job, from its submission until it is forgotten."""

    id: str
    spec: JobSpec
    started: float = field(default_factory=time.time)
    """The system's time, shown as a date. That clock may be set, so durations are counted from `began`."""
    began: float = field(default_factory=time.monotonic)
    wrapper: Process | None = None
    """The process that submitted the job; its end ends the job. If it is killed, the program that it started takes its
    place. None: the environment alone made the job, and it ends with its processes."""
    main: Process | None = None
    """The program that the wrapper started: stopped with the job, even while it has no GPU open."""
    patience: float | None = None
    """The end of its time in the queue (time.monotonic()); None: it does not queue."""
    over: bool = False
    """Its wrapper has said that the job is over, or has ended. The job lasts only as long as its processes."""
    state: JobState = JobState.QUEUED
    """The core knows the finer states (borrowing, asked_back, waiting)."""
    admission: asyncio.Future[Reason | None] | None = None
    """Resolved with None when the job is admitted, else with the reason of the refusal."""
    notices: Notices = field(default_factory=Notices)
    totals: Totals = field(default_factory=Totals)
    ending: Ending = field(default_factory=Ending)
    of_earlier_daemon: bool = False
    """Its story is in the history, not in the core."""
    bytes: int = 0
    """Counted for its user (byte_budget.py)."""

    @property
    def who(self) -> dict[str, str]:
        """The job's names, for the daemon's log."""
        return {"job": self.id, "name": self.spec.name, "user": self.spec.user}

    def become(self, state: JobState) -> None:
        """Raises ValueError where the new state cannot follow the present one."""
        if state not in NEXT[self.state]:
            raise ValueError(f"job {self.id} cannot become {state}: it is {self.state}")
        self.state = state

    def resolve(self, refusal: Reason | None) -> None:
        """Answer the submission, if it waits for an answer: admitted, or refused and why."""
        if self.is_asked_for:
            self.admission.set_result(refusal)  # type: ignore[union-attr]

    @property
    def is_asked_for(self) -> bool:
        """A submission waits for its admission."""
        return self.admission is not None and not self.admission.done()

    def backlog(self, held: ByteBudget) -> Backlog[Notice]:
        """All notices so far, for a new listener."""
        backlog = self.notices.backlog(held, self.spec.uid)
        if self.state is JobState.ENDED:
            backlog.end()
        return backlog

    def outcome(self, refusals_alive: int) -> dict[str, Any]:
        """How it ended, with mentions in its reclaim: to be told to a viewer."""
        ending, totals = self.ending, self.totals
        return {
            "exit_code": ending.exit_code,
            "signal": ending.exit_signal,
            "killed": ending.reclaim,
            "peak": dict(totals.peak),
            "gpu_time": dict(totals.gpu_time),
            "refusals": totals.refusals + refusals_alive,
            "duration": time.monotonic() - self.began if ending.duration is None else ending.duration,
            "ended": ending.at,
            "seen": ending.seen,
        }


class JobRegistry:
    """All living jobs, and the last that have ended."""

    def __init__(self, epoll: Epoll, budget: ByteBudget) -> None:
        self._epoll = epoll
        self._records: dict[str, JobRecord] = {}
        self._ended: dict[int, deque[JobRecord]] = {}
        self.byte_budget = budget
        self.closing = False
        """The daemon stops: a submission whose call ends now keeps its place."""
        self.on_wrapper_end: Callable[[JobRecord], None] = lambda _: None

    def open(self, job: str, spec: JobSpec) -> JobRecord:
        record = JobRecord(job, spec, bytes=bytes_of(spec))
        self.byte_budget.change(spec.uid, record.bytes)
        self._records[job] = record
        return record

    def get(self, job: str) -> JobRecord | None:
        return self._records.get(job)

    def live(self) -> Iterator[JobRecord]:
        return (record for record in list(self._records.values()) if record.state is not JobState.ENDED)

    def bytes_of_live(self, uid: int) -> list[int]:
        """What each live job of this user costs."""
        return [record.bytes for record in self.live() if record.spec.uid == uid]

    def all(self) -> Iterator[JobRecord]:
        return iter(list(self._records.values()))

    def find(self, name: str, viewer: Viewer) -> list[JobRecord]:
        """By id, else by name (a living job before ended ones), else by the beginning of an id, four letters or more.

        By name only jobs whose names the viewer may see: otherwise a guess could be confirmed. Of several, the viewer's
        own.
        """
        exact = self._records.get(name)
        if exact is not None:
            return [exact]
        name = printable(name, MOST_NAME)  # as names are kept
        named = [one for one in self._records.values() if one.spec.name == name and viewer.sees_name(one.spec.uid)]
        if not viewer.may_see_all:
            named = [one for one in named if one.spec.uid == viewer.uid] or named
        living = [record for record in named if record.state is not JobState.ENDED]
        if named:
            return living or named[-1:]
        if len(name) < LEAST_OF_AN_ID:
            return []
        return [record for record in self._records.values() if record.id.startswith(name.lower())]

    def note_peak(self, job: str, gpu: str, usage: int) -> None:
        record = self.get(job)
        if record is not None:
            record.totals.note_peak(gpu, usage)

    def note_computing(self, job: str, gpu: str, part: float, seconds: float) -> None:
        record = self.get(job)
        if record is not None:
            record.totals.note_computing(gpu, part, seconds)

    def set_wrapper(self, record: JobRecord, wrapper: Process) -> None:
        if record.wrapper is not None:
            record.wrapper.close()
        record.wrapper = wrapper
        wrapper.watch(self._epoll, lambda: self.on_wrapper_end(record))

    def forget(self, record: JobRecord) -> None:
        """Forget a submission that was not admitted."""
        if self._records.get(record.id) is record:  # else its wrapper has submitted it again meanwhile
            del self._records[record.id]
        self._let_go(record)
        self._uncount(record)

    def end(self, record: JobRecord) -> None:
        """The job has ended. It is kept for a while, for questions about its end."""
        if record.state is JobState.ENDED:
            return
        record.become(JobState.ENDED)
        record.ending.at = record.ending.at or time.time()
        if record.ending.duration is None:
            record.ending.duration = time.monotonic() - record.began
        record.notices.end()
        self._let_go(record)
        self._ended.setdefault(record.spec.uid, deque()).append(record)
        if sum(map(len, self._ended.values())) > ENDED_KEPT:
            longest = max(self._ended.values(), key=len)
            oldest = longest.popleft()
            if self._records.get(oldest.id) is oldest:
                del self._records[oldest.id]
            self._uncount(oldest)

    def take_up(self, record: JobRecord) -> None:
        """A job that ended under an earlier daemon. Older ones first."""
        self._records[record.id] = record
        self._ended.setdefault(record.spec.uid, deque()).append(record)

    def end_streams(self) -> None:
        for record in self._records.values():
            record.notices.end()

    def close(self) -> None:
        """Close the handles of all processes; the jobs stay."""
        for record in self._records.values():
            self._let_go(record)

    def _uncount(self, record: JobRecord) -> None:
        """Once: a call that ends late may forget a record that has ended already."""
        self.byte_budget.change(record.spec.uid, -record.bytes)
        record.bytes = 0

    @staticmethod
    def _let_go(record: JobRecord) -> None:
        for process in (record.wrapper, record.main):
            if process is not None:
                process.close()
        record.wrapper = record.main = None


def killed_facts(reason: Reason) -> dict[str, Any]:
    """The shape of the API's Outcome.killed. A job that is killed for overuse owes nobody and has no grace, one
    whose suspension is stuck has nothing on loan, and one that cannot be signalled has only the reason."""
    data = reason.data
    return {
        "code": reason.code.value,
        "claim": data.get("claim"),
        "owner": data.get("owner_name"),
        "owner_user": data.get("owner_user"),
        "asked": data.get("asked", 0),
        "got": data.get("loan", 0),
        "loan": data.get("loan", 0),
        "usage": data.get("usage", 0),
        "request": data.get("request", 0),
        "grace": data.get("grace", 0.0),
        "reason": reason.message,
        "time": time.time(),
    }


def stop(record: JobRecord, processes: list[Process], number: signal.Signals) -> dict[Process, Sent]:
    """Signal a job as a whole, and say what became of it, process by process.

    A program that is stopped (Ctrl-Z) is continued after SIGTERM, as systemd does it: else its grace would pass before
    its handler runs.
    """
    targets = list(processes)
    if number is signal.SIGKILL and record.main is not None and not any(record.main.same(one) for one in processes):
        targets.append(record.main)
    sent = {target: target.send(number, record.spec.uid) for target in targets}
    if number is signal.SIGTERM:
        for target, result in sent.items():
            if result is Sent.REACHED and is_stopped(target.pid):
                target.send(signal.SIGCONT, record.spec.uid)
    return sent


def new_job_id() -> str:
    job = ""
    while not int(job or "0", 16):
        job = secrets.token_hex(8)
    return job
