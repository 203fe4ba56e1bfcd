"""A process of a job's user that does for the daemon what the daemon must not do itself: base of two of them.

`gpushare run` starts it beside a program: the one that asks the driver (suspender.py) and the one that calls hooks
(hook_runner.py). It is of the same user as the job, follows the daemon's commands and answers each. It ends with the
job. If it is killed, `gpushare run` starts another; that one is asked first how things stand.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from gpushare.client import Client, Events
from gpushare.errors import GpushareError, NoSuchJob

__all__ = ["HOOK_RUNNER", "OWN_GPUS", "SUSPENDER", "Follower", "KeptFollower"]

SUSPENDER, HOOK_RUNNER = "gpushare.suspender", "gpushare.hook_runner"
"""The modules of the two."""
OWN_GPUS = ("CUDA_VISIBLE_DEVICES",)
"""What a suspender is not given: the driver numbers all GPUs for it."""

RETRY = 0.1
LONGEST_RETRY = 2.0
ALONE = 600.0
"""Seconds without a daemon, if the wrapper has gone, too."""
SILENT = 15.0
"""Seconds without a line until the daemon counts as gone: it sends an empty one every few."""
LONGEST_PROBLEM = 300
MOST_RESTARTS = 20

Command = TypeVar("Command", bound=Mapping[str, object])


class Follower(ABC, Generic[Command]):
    """Follows one job's commands."""

    def __init__(self, client: Client, job: str) -> None:
        self.client = client
        self.job = job
        self.parent = os.getppid()

    @abstractmethod
    def commands(self) -> Events[Command]:
        """A stream of them, from the daemon."""

    @abstractmethod
    def answer(self, command: Command) -> None:
        """Do it, and tell the daemon."""

    def run(self) -> None:
        """Returns when the job is over; or when there is neither daemon nor wrapper any more."""
        pause, seen = RETRY, time.monotonic()
        while time.monotonic() - seen < ALONE or os.getppid() == self.parent:
            try:
                if self._follow():
                    return
                pause, seen = RETRY, time.monotonic()
            except NoSuchJob:
                return
            except (GpushareError, OSError):
                pause = min(LONGEST_RETRY, pause * 2)
            time.sleep(pause)

    def _follow(self) -> bool:
        """Whether the job is over; False: the daemon has gone."""
        if self.client.job(self.job)["state"] == "ended":
            return True
        stream = self.commands()
        try:
            while not stream.ended:
                if not select.select([stream], [], [], SILENT)[0]:
                    return False
                for command in stream.read():
                    self.answer(command)
        finally:
            stream.close()
        return False


class KeptFollower:
    """One of them that this process has started: started again if it ends before the job does."""

    def __init__(
        self, module: str, environ: Mapping[str, str], job: str, api_socket: Path, without: Collection[str] = ()
    ) -> None:
        """`module`: its program. `without`: variables that it is not given, beside LD_PRELOAD. Raises OSError."""
        self._arguments = [sys.executable, "-P", "-m", module, job, str(api_socket)]
        self._environ = {name: value for name, value in environ.items() if name not in ("LD_PRELOAD", *without)}
        self._restarts = 0
        self.pid = self._start()

    def look_after(self) -> None:
        """After a SIGCHLD."""
        if self.pid and os.waitpid(self.pid, os.WNOHANG)[0]:
            self._restarts += 1
            self.pid = self._start() if self._restarts <= MOST_RESTARTS else 0

    def end(self) -> None:
        """The program has ended. It is our own child, so its number is its own until we wait for it."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def _start(self) -> int:
        """As our child. It has no part in our terminal and our output."""
        return os.posix_spawn(
            sys.executable,
            self._arguments,
            self._environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
        )
