"""What the shell keeps of each job beside the core: whom to tell, whom to signal, and how it ended.

The core knows budgets and processes with pages. It does not know the wrapper (`gpushare run`) that waits in a
call of ours, the child that the wrapper has started, nor the notices on their way to its terminal.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpushare.api import LEAST_OF_AN_ID
from gpushare.reasons import Reason
from gpushared.core.events import JobSpec
from gpushared.core.reveal import Viewer
from gpushared.follow import Backlog
from gpushared.held import MOST, Held
from gpushared.programs.processes import Process, Readers, Sent

NOTICES_KEPT = 64
ENDED_KEPT = 256
"""Ended jobs in memory. Of one more, the user who has most of them loses the oldest."""
MOST_OF_JOBS = MOST // 2
"""Bytes: the rest is for what a user can wait with. What jobs take comes back only when they end."""
AROUND_A_JOB = 4096
AROUND_A_NOTICE = 1024
"""Bytes."""

Notice = dict[str, Any]


@dataclass(slots=True, eq=False)
class Entry:
    """One job, from its submission until it is forgotten."""

    id: str
    spec: JobSpec
    started: float = field(default_factory=time.time)
    """As a date, for people. The system's clock may be set: what counts seconds counts from `began`."""
    began: float = field(default_factory=time.monotonic)
    wrapper: Process | None = None
    """Who submitted the job; its end is the job's. None: the environment alone, and the job ends with its processes."""
    main: Process | None = None
    """What the wrapper has started: stopped with the job, even while it has no GPU open."""
    patience: float | None = None
    """Until when (time.monotonic()) it queues for room; None: it does not."""
    over: bool = False
    """Its wrapper has said so, or is gone: it is there only as long as processes of its own are."""
    state: str = "queued"
    """queued, running or ended; what else a job may be (borrowing, asked_back, waiting) the core knows."""
    admission: asyncio.Future[Reason | None] | None = None
    """Resolved with None when the job is admitted, else with the reason of the refusal."""
    queued: bool = False
    notices: deque[Notice] = field(default_factory=lambda: deque(maxlen=NOTICES_KEPT))
    listeners: set[Backlog[Notice]] = field(default_factory=set)
    reclaim: dict[str, Any] | None = None
    """The Terminate or Kill that it stands under, unless it has been relieved; its owner's names are mentions."""
    stopping: signal.Signals | None = None
    """What `gpushare stop` has sent last: a program that starts just then gets it, too."""
    exit_code: int | None = None
    exit_signal: int | None = None
    ended: float | None = None
    duration: float | None = None
    """Seconds from its beginning to its end; None: it has not ended."""
    peak: dict[str, int] = field(default_factory=dict)
    refusals: int = 0
    """Of processes that have gone; the living ones count in their pages."""
    seen: bool = True
    """Whether a daemon saw it end, if it has."""
    of_earlier_daemon: bool = False
    """What happened to it is in the history, not in the core's story."""
    last_seen: dict[str, Any] | None = None
    """How the API showed the job last, for when the core has forgotten it."""
    bytes: int = 0
    """Counted for its user (held.py)."""

    @property
    def who(self) -> dict[str, str]:
        """For the daemon's log."""
        return {"job": self.id, "name": self.spec.name, "user": self.spec.user}

    def notify(self, kind: str, text: str, facts: Mapping[str, object]) -> None:
        notice: Notice = {"time": time.time(), "kind": kind, "text": text, "facts": dict(facts)}
        self.notices.append(notice)
        for listener in self.listeners:
            listener.put(notice)

    def backlog(self, held: Held) -> Backlog[Notice]:
        """For a new listener: all notices so far. Those that it has not read are held for the job's user."""

        def count(notice: Notice, sign: int) -> bool:
            held.change(self.spec.uid, sign * (AROUND_A_NOTICE + len(notice["text"])))
            return held.has_room(self.spec.uid)

        backlog = Backlog(self.notices, count=count)
        if self.state == "ended":
            backlog.end()
        return backlog

    def note_peak(self, gpu: str, usage: int) -> None:
        if usage > self.peak.get(gpu, 0):
            self.peak[gpu] = usage

    def outcome(self, refusals_alive: int) -> dict[str, Any]:
        """With mentions in what is said about the reclaim: not yet told to anybody."""
        return {
            "exit_code": self.exit_code,
            "signal": self.exit_signal,
            "killed": self.reclaim,
            "peak": dict(self.peak),
            "refusals": self.refusals + refusals_alive,
            "duration": time.monotonic() - self.began if self.duration is None else self.duration,
            "ended": self.ended,
            "seen": self.seen,
        }


class Book:
    """All jobs that anybody may still ask about."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._ended: dict[int, deque[Entry]] = {}
        self.held = Held(lambda _: False)
        self.on_wrapper_end: Callable[[Entry], None] = lambda _: None

    def open(self, job: str, spec: JobSpec) -> Entry:
        entry = Entry(job, spec, bytes=bytes_of(spec))
        self.held.change(spec.uid, entry.bytes)
        self._entries[job] = entry
        return entry

    def get(self, job: str) -> Entry | None:
        return self._entries.get(job)

    def live(self) -> Iterator[Entry]:
        return (entry for entry in list(self._entries.values()) if entry.state != "ended")

    def all(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def find(self, name: str, viewer: Viewer) -> list[Entry]:
        """By id, else by name (a living job before ended ones), else by the beginning of an id, four letters or more.

        By name only what the viewer may know by name: else who guesses would learn it. Of several, a user's own.
        """
        exact = self._entries.get(name)
        if exact is not None:
            return [exact]
        named = [one for one in self._entries.values() if one.spec.name == name and viewer.sees_name(one.spec.uid)]
        if not viewer.may_see_all:
            named = [one for one in named if one.spec.uid == viewer.uid] or named
        living = [entry for entry in named if entry.state != "ended"]
        if named:
            return living or named[-1:]
        if len(name) < LEAST_OF_AN_ID:
            return []
        return [entry for entry in self._entries.values() if entry.id.startswith(name.lower())]

    def set_wrapper(self, entry: Entry, wrapper: Process, readers: Readers) -> None:
        if entry.wrapper is not None:
            entry.wrapper.close()
        entry.wrapper = wrapper
        wrapper.watch(readers, lambda: self.on_wrapper_end(entry))

    def forget(self, entry: Entry) -> None:
        """A submission that came to nothing."""
        if self._entries.get(entry.id) is entry:  # else its wrapper has submitted it again meanwhile
            del self._entries[entry.id]
        self._let_go(entry)
        self._uncount(entry)

    def end(self, entry: Entry) -> None:
        """The job is over; it is kept for a while, for whoever asks what became of it."""
        if entry.state == "ended":
            return
        entry.state = "ended"
        entry.ended = entry.ended or time.time()
        if entry.duration is None:
            entry.duration = time.monotonic() - entry.began
        for listener in entry.listeners:
            listener.end()
        self._let_go(entry)
        self._ended.setdefault(entry.spec.uid, deque()).append(entry)
        if sum(map(len, self._ended.values())) > ENDED_KEPT:
            longest = max(self._ended.values(), key=len)
            oldest = longest.popleft()
            if self._entries.get(oldest.id) is oldest:
                del self._entries[oldest.id]
            self._uncount(oldest)

    def take_up(self, entry: Entry) -> None:
        """A job that ended under an earlier daemon. Older ones first."""
        self._entries[entry.id] = entry
        self._ended.setdefault(entry.spec.uid, deque()).append(entry)

    def end_streams(self) -> None:
        for entry in self._entries.values():
            for listener in entry.listeners:
                listener.end()

    def close(self) -> None:
        """Let go of all processes; the jobs stay."""
        for entry in self._entries.values():
            self._let_go(entry)

    def _uncount(self, entry: Entry) -> None:
        """Once: a call that breaks off late may forget an entry that has ended already."""
        self.held.change(entry.spec.uid, -entry.bytes)
        entry.bytes = 0

    @staticmethod
    def _let_go(entry: Entry) -> None:
        for process in (entry.wrapper, entry.main):
            if process is not None:
                process.close()
        entry.wrapper = entry.main = None


def bytes_of(spec: JobSpec) -> int:
    """What a job costs beside its notices: its text, here, in the core and in the notes, and what is around it."""
    texts = (spec.request_source, spec.limit_source, *spec.command, *(spec.devices or ()))
    return AROUND_A_JOB + 2 * sum(map(len, texts))


def killed_facts(reason: Reason) -> dict[str, Any]:
    """A reclaim's data in the shape of the API's Outcome.killed."""
    data = reason.data
    return {
        "code": reason.code.value,
        "claim": data.get("claim"),
        "owner": data.get("owner_name", data.get("owner")),
        "owner_user": data.get("owner_user"),
        "asked": data.get("asked", 0),
        "got": data.get("got", data.get("loan", 0)),
        "loan": data.get("loan", 0),
        "usage": data.get("usage", 0),
        "request": data.get("request", 0),
        "grace": data.get("grace", 0.0),
        "reason": reason.message,
        "time": time.time(),
    }


def stop(entry: Entry, processes: list[Process], number: signal.Signals) -> dict[Process, Sent]:
    """Signal a job as a whole, and say what became of it, process by process."""
    targets = list(processes)
    if number is signal.SIGKILL and entry.main is not None and not any(entry.main.same(one) for one in processes):
        targets.append(entry.main)
    return {target: target.send(number, entry.spec.uid) for target in targets}
