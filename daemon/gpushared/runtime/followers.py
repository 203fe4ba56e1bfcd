"""Processes of the jobs' users that follow the daemon's commands: one for each job, of the job's own user.

They do what the daemon must not do itself: ask the driver to suspend a job (suspenders.py), call its hooks
(hook_runners.py). Each reads a stream of commands, one JSON object a line, and answers each. What it says is believed
only as far as its own job goes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpushared.core.events import Event
from gpushared.limits.backlog import Backlog
from gpushared.runtime.core_loop import CoreLoop
from gpushared.system.epoll import Epoll
from gpushared.system.processes import Process

Command = dict[str, object]


@dataclass(slots=True, eq=False)
class Follower:
    """One of these processes, with the commands that it has not read."""

    job: str
    process: Process
    commands: Backlog[Command] = field(default_factory=Backlog)
    known: Event | None = None
    """What it said when it came. A new core is told it."""


class Followers(ABC):
    """The connected followers of one kind, by job."""

    def __init__(self, core_loop: CoreLoop, epoll: Epoll, note: Callable[[], None]) -> None:
        """`note` writes down what a later daemon has to know; where that fails, it is tried again. Call it before a
        command that moves memory: if this daemon dies then, the next one has to know what is under way."""
        self.core_loop = core_loop
        self.note = note
        self._epoll = epoll
        self._by_job: dict[str, Follower] = {}

    @abstractmethod
    def first(self, job: str, /) -> Command:
        """The first command, which asks for the present state."""

    @abstractmethod
    def has_gone(self, job: str) -> Event:
        """What the core is told when the job's follower has gone."""

    def __len__(self) -> int:
        return len(self._by_job)

    def come(self, job: str, process: Process) -> Follower:
        """Connect a process that follows the job's commands. It replaces an earlier one."""
        self._drop(self._by_job.get(job))
        one = self._by_job[job] = Follower(job, process)
        process.watch(self._epoll, lambda: self.gone(one))
        one.commands.put(self.first(job))
        return one

    def gone(self, one: Follower) -> None:
        """The follower has ended or disconnected."""
        if self._by_job.get(one.job) is one:
            self._drop(one)
            self.core_loop.feed(self.has_gone(one.job))

    def _drop(self, one: Follower | None) -> None:
        if one is not None:
            self._by_job.pop(one.job, None)
            one.commands.end()
            one.process.close()

    def of(self, job: str, pid: int) -> Follower | None:
        """The job's, if it is the process with this id."""
        one = self._by_job.get(job)
        return one if one is not None and one.process.pid == pid else None

    def known(self, job: str) -> Event | None:
        """What a new core is told of the job's follower; None: there is none, or it has said nothing."""
        one = self._by_job.get(job)
        return None if one is None else one.known

    def ask_again(self, job: str) -> None:
        """A new core does not know whether the job's follower has heard the last command of the core that failed."""
        self.tell(job, self.first(job))

    def tell(self, job: str, command: Mapping[str, object]) -> None:
        """Send the command, if the job has a follower. If it has none, the core's deadline decides."""
        one = self._by_job.get(job)
        if one is not None:
            one.commands.put(dict(command))

    def end_job(self, job: str) -> None:
        """The job is over: its follower ends, too."""
        self._drop(self._by_job.get(job))

    def close(self) -> None:
        """The daemon stops: they look for the next one."""
        for one in list(self._by_job.values()):
            self._drop(one)
