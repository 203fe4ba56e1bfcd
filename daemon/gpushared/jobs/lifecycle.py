"""A job's life as its submitter sees it: queued, running, ended. Carries out the core's instructions about jobs."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpushare import api
from gpushare.history import Stop
from gpushare.reasons import Code, Reason
from gpushared.core import instructions as do
from gpushared.core.events import Event, JobEnded, JobWithdrawn
from gpushared.core.visibility import Viewer
from gpushared.jobs.historian import Historian
from gpushared.jobs.placements import Placements
from gpushared.jobs.registry import JobRecord, JobRegistry, JobState
from gpushared.system.processes import Process

WITHDRAWN = Reason(Code.NOT_ADMITTED, "the job was withdrawn while it waited for room")

RUNS_ON = ("relieved", "suspended", "not_suspended", "resumed")
"""Notices after which a job that had been told to end need not end any more."""


class JobLifecycle:
    """Moves records from state to state."""

    def __init__(self, registry: JobRegistry, feed: Callable[[Event], None], historian: Historian) -> None:
        self.registry = registry
        self.placements = Placements()
        self.viewer_of: Callable[[int], Viewer] = lambda uid: Viewer(uid, "none")
        """What a user may read; access.py knows."""
        self.picture_of: Callable[[JobRecord], api.Job | None] = lambda _: None
        """The job as the API shows it to its user, with mentions in its outcome; views.py knows."""
        self._feed = feed
        self._historian = historian
        registry.on_wrapper_end = self._wrapper_ended

    def admitted(self, done: do.JobAdmitted) -> None:
        record = self.registry.get(done.job)
        if record is not None:
            record.become(JobState.RUNNING)
            self._note_in_history(record)
            record.resolve(None)

    def refused(self, done: do.JobRefused) -> None:
        record = self.registry.get(done.job)
        if record is not None:
            record.resolve(done.reason)

    def queued(self, done: do.JobQueued) -> None:
        record = self.registry.get(done.job)
        if record is not None:
            self.tell(record, "waiting", done.reason)

    def closed(self, done: do.JobClosed) -> None:
        record = self.registry.get(done.job)
        if record is not None:
            self.placements.closed(record.id)
            self.registry.end(record)
            self._note_in_history(record)

    def notify(self, wish: do.Notify) -> None:
        record = self.registry.get(wish.job)
        if record is None:
            return
        if wish.kind in RUNS_ON and record.ending.relieve():
            self._note_in_history(record)
        self.tell(record, wish.kind, wish.reason)

    def end(self, record: JobRecord) -> None:
        """The wrapper says that the job is over, or is gone."""
        self.note_end(record)
        self._feed(JobEnded(record.id))

    def note_end(self, record: JobRecord) -> None:
        """Note the end before the core is told: the core forgets the job then."""
        record.over = True
        picture = self.picture_of(record)
        if picture is not None and picture["gpus"]:
            record.ending.last_seen = {"gpus": picture["gpus"]}

    def told_to_end(self, record: JobRecord, stop: Stop | None) -> None:
        """Note that a reclaim has told the job to end, or (None) no longer does. The history gets it at once, because
        this daemon may end before the job does."""
        record.ending.reclaim = None if stop is None else stop.killed
        self._note_in_history(record, stop)

    def placed(self, pid: int) -> str | None:
        """The job of the placement that a process runs in."""
        found = self.placements.of_process(pid)
        return None if found is None else found.job

    def lasts_without_processes(self, record: JobRecord) -> bool:
        """A wrapper or an engine holds it."""
        return record.wrapper is not None or self.placements.of_job(record.id) is not None

    def withdraw(self, record: JobRecord) -> None:
        """The submitter of a queued job has gone; one that still waits is told."""
        self._feed(JobWithdrawn(record.id))
        self.registry.forget(record)
        record.resolve(WITHDRAWN)

    def tell(self, record: JobRecord, kind: str, reason: Reason, *, with_facts: bool = False) -> None:
        """Send a notice, in the words that the job's user may read."""
        told = self.viewer_of(record.spec.uid).told(reason)
        more = {"facts": [list(one) for one in told.facts]} if with_facts else {}
        record.notices.put(kind, told.render(), {**told.data, **more})

    def _wrapper_ended(self, record: JobRecord) -> None:
        if record.state is JobState.QUEUED:
            self.withdraw(record)
            return
        main = None if record.over else record.main
        program = None if main is None else Process.open(main.pid, main.start_time)
        if program is None:
            self.end(record)
        else:
            # The wrapper was killed and its program goes on. The job keeps its request while no process has a page.
            self.registry.set_wrapper(record, program)

    def _note_in_history(self, record: JobRecord, stop: Stop | None = None) -> None:
        picture = self.picture_of(record)
        if picture is not None:
            told = None if stop is None else stop._asdict()
            self._historian.job(record.spec.uid, picture, time.time(), told)
