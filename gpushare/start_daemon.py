"""Starting this user's daemon, and saying why it did not start.

Several wrappers may start one at the same moment. The first daemon locks its directory and the others end at once, so a
wrapper only starts a daemon and then connects until one answers.
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
"""The beginning of a daemon's message when it cannot start."""
SHOWN = 6
"""Most lines of that message."""


class Starter:
    """Starts this user's daemon, one at a time. Never blocks."""

    def __init__(self, runtime: Runtime, driver: str, environ: Mapping[str, str]) -> None:
        self.runtime = runtime
        self.driver = driver
        self._environ = {name: value for name, value in environ.items() if name not in NEVER_TOLD}
        self._pid: int | None = None
        self._log_began: int | None = None  # bytes of the log that earlier daemons wrote
        self.failures = 0

    def start(self) -> None:
        """Start a daemon, unless the last one is still starting."""
        self.reap()
        if self._pid is None:
            self.runtime.make()
            self._pid = self._spawn()

    def reap(self) -> None:
        """Forget our daemon if it has ended: another one had the directory, or it failed."""
        if self._pid is not None:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                self._pid = None
                self.failures += status != 0  # a daemon that finds the directory locked exits with 0

    @property
    def coming_up(self) -> bool:
        self.reap()
        return self._pid is not None

    def last_error(self) -> list[str]:
        """The last log lines of the daemons that this object started; empty if there are none."""
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
            "-P",  # the current directory may have a queue.py or a types.py
            *("-m", "gpushared", "--user", "--driver", self.driver, "--dir", str(self.runtime.directory)),
        ]
        history = history_dir(self.driver, self._environ)
        if history is not None:
            command += ["--history", str(history)]
        # O_APPEND: a daemon that finds the directory locked must not overwrite the other one's log.
        log = os.open(self.runtime.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(log, 0o600)  # a umask may have removed our own rights
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
                    *((os.POSIX_SPAWN_CLOSE, fd) for fd in _open_fds()),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE),
            )
        finally:
            os.close(log)


def _open_fds() -> list[int]:
    """Descriptors that a shell or a build tool left open. The daemon lives longer and must not keep them open.
    Others would be closed by themselves; the one that lists them here is closed already, which does not matter."""
    found = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    return [fd for fd in found if fd > 2]


def did_not_start(starter: Starter, within: float) -> DaemonUnreachable:
    """The error for `run`: the daemon's last message, and where its log is."""
    said = starter.last_error()
    why = f"no answer within {within:g} s" if starter.coming_up else "it ended at once"
    return DaemonUnreachable(
        f"the daemon did not start: {why}",
        code="did_not_start",
        facts=[*([("it says", "\n".join(said))] if said else []), ("log", str(starter.runtime.log))],
        hint="`gpushare doctor` looks for the cause",
    )


def last_error(log: str) -> list[str]:
    """The last message in a log: gpushared's, with its facts and hint, else one line."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    first = len(lines) - 1
    while first > 0 and lines[first].startswith(("  ", "hint: ")):
        first -= 1
    if first >= 0 and lines[first].startswith(SAID):
        return [lines[first].removeprefix(SAID), *(line.strip() for line in lines[first + 1 :])][:SHOWN]
    return lines[first : first + 1]
