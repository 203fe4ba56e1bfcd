"""Starting this user's daemon, and saying why it did not start.

Several wrappers may start one at the same moment: the daemon locks its directory and the losers end at once, so all
that a wrapper does is start, and connect until somebody answers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from gpushare.errors import DaemonUnreachable
from gpushare.paths import Runtime, history_dir

__all__ = ["Starter", "did_not_start", "last_error"]

NEVER_TOLD = (
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "GPUSHARE_JOB",
    "GPUSHARE_NAME",
    "GPUSHARE_REQUEST",
    "GPUSHARE_LIMIT",
)
MOST_LOG = 256 * 1024
SAID = "gpushared: "
"""Begins what a daemon says when it cannot start."""
SHOWN = 6
"""Lines of that, at most."""


class Starter:
    """Starts this user's daemon, one at a time, without ever blocking."""

    def __init__(self, runtime: Runtime, driver: str, environ: Mapping[str, str]) -> None:
        self.runtime = runtime
        self.driver = driver
        self._environ = {name: value for name, value in environ.items() if name not in NEVER_TOLD}
        self._pid: int | None = None
        self._log_began: int | None = None  # bytes of the log that are of earlier daemons
        self.failures = 0

    def start(self) -> None:
        """Unless the one we started last is still coming up."""
        self.reap()
        if self._pid is None:
            self.runtime.make()
            self._pid = self._spawn()

    def reap(self) -> None:
        """Forget ours when it has ended: it lost the race for the directory, or failed."""
        if self._pid is not None:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                self._pid = None
                self.failures += status != 0  # the loser of a race exits with 0

    @property
    def coming_up(self) -> bool:
        self.reap()
        return self._pid is not None

    def last_error(self) -> list[str]:
        """What the daemons that this one started have said at their end: lines of the log, none if it is empty."""
        try:
            with self.runtime.log.open("rb") as log:
                log.seek(self._log_began or 0)
                text = log.read(MOST_LOG).decode("utf-8", "backslashreplace")
        except OSError:
            return []
        return last_error(text)

    def _spawn(self) -> int:
        command = [
            sys.executable,
            "-P",  # a user's directory may hold a queue.py or a types.py
            *("-m", "gpushared", "--user", "--driver", self.driver, "--dir", str(self.runtime.directory)),
        ]
        history = history_dir(self.driver, self._environ)
        if history is not None:
            command += ["--history", str(history)]
        # O_APPEND: a loser of the race must not wipe the winner's log.
        log = os.open(self.runtime.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(log, 0o600)  # a umask may have taken our own rights
            if self._log_began is None:
                self._log_began = os.fstat(log).st_size
            return os.posix_spawn(
                sys.executable,
                command,
                self._environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                    *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable_fds()),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE),
            )
        finally:
            os.close(log)


def _inheritable_fds() -> list[int]:
    """What a shell or a build tool left open for its children: the daemon outlives them and must not hold it."""
    found = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    return [fd for fd in found if fd > 2 and _is_inheritable(fd)]


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False  # the one that listed the directory


def did_not_start(starter: Starter, within: float) -> DaemonUnreachable:
    """The error for `run`: what the daemon said at its end, and where its log is."""
    said = starter.last_error()
    why = f"no answer within {within:g} s" if starter.coming_up else "it ended at once"
    return DaemonUnreachable(
        f"the daemon did not start: {why}",
        code="did_not_start",
        facts=[*([("it says", "\n".join(said))] if said else []), ("log", str(starter.runtime.log))],
        hint="`gpushare doctor` looks for the cause",
    )


def last_error(log: str) -> list[str]:
    """The last thing said in a log: a message of gpushared with its facts and hint, else one line."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    first = len(lines) - 1
    while first > 0 and lines[first].startswith(("  ", "hint: ")):
        first -= 1
    if first >= 0 and lines[first].startswith(SAID):
        return [lines[first].removeprefix(SAID), *(line.strip() for line in lines[first + 1 :])][:SHOWN]
    return lines[first : first + 1]
