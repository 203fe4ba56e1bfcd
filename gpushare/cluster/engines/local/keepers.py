"""Starts the keepers of tasks (keeper.py), replaces those that were killed, and stops a task if its keeper does not."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.cluster.engines.local import force
from gpushare.cluster.engines.local.placing import Placing
from gpushare.cluster.engines.local.task_state import Task
from gpushare.errors import GpushareError

__all__ = ["Keepers"]

KEEPER = Path(__file__).with_name("keeper.py")
TRIES = 5
LONGEST_PAUSE = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Keepers:
    placing: Placing
    started: Callable[[], None]
    """Called when there is one more to watch."""

    def keep(self, task: Task, lock: int) -> None:
        """Start a keeper for a task that has none, unless the last ones have failed just now. Raises OSError."""
        now = time.monotonic()
        if now < task.next_try:
            return
        if task.tries >= TRIES and not task.folder.has("begun"):
            words = f"its keeper cannot run: {_last_line(task.folder.path / 'keeper.log')}"
            task.end = {"kind": "failed", "why": words}
            return
        task.next_try = now + min(0.5 * 2**task.tries, LONGEST_PAUSE)
        task.tries += 1
        self._start(task, lock)

    def enforce(self, task: Task) -> None:
        """Hold a task to its deadlines if its keeper does not."""
        now, limit = time.monotonic(), task.start["time"]
        if task.stop is None and limit is not None and task.begun is not None:
            over = task.begun + limit + float(task.start["grace"])
            if now >= over + force.LATE:
                task.folder.tell_to_stop(over, "over_time")
                task.stop = over
        if task.stop is None or now < max(task.stop, task.kept_since) + force.LATE:
            return
        keeper, identity = task.folder.keeper(), task.start["identity"]
        if keeper is not None and force.kill(keeper, identity[0] if identity else os.getuid()):
            words = "the keeper of a task of job %s did not stop it in time: all of it was killed"
            log.warning(words, task.start["job"])
            task.next_try = 0.0  # another keeper writes down how it ended

    def _start(self, task: Task, lock: int) -> None:
        uid, gid, groups = task.start["identity"] or (None, None, None)
        ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
        errors = os.open(task.folder.path / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        start = os.open(task.folder.path / "start.json", os.O_RDONLY | os.O_NOFOLLOW)
        try:
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), str(lock), str(ready_read)],
                stdin=start,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=task.folder.own,
                env={"PATH": os.defpath},
                start_new_session=True,
                pass_fds=(lock, ready_read),
                user=uid,
                group=gid,
                extra_groups=groups,
                umask=0o077,
            )
            if uid is not None:
                _raise_limits(keeper.pid, task.start["rlimits"])
            if (noted := force.noted(keeper.pid)) is not None:
                task.folder.note_keeper(noted)
            try:
                self.placing.enter(task.start, keeper.pid, task.folder.program())
            except (GpushareError, OSError) as error:
                log.warning("a task cannot be told of to the node daemon, and waits: %s", error)
            else:
                os.write(ready_write, b"1")
        finally:
            for descriptor in (ready_read, ready_write, errors, start):
                os.close(descriptor)
        task.close()
        task.keeper, task.kept_since = keeper, time.monotonic()
        with contextlib.suppress(OSError):
            task.pidfd = os.pidfd_open(keeper.pid)
        self.started()


def _raise_limits(pid: int, wanted: Mapping[str, Sequence[int]]) -> None:
    """Let a process of another user have what its user had at submission. Only root may."""
    for name, (_, hard) in wanted.items():
        which = getattr(resource, name, None)
        if which is None:
            continue
        with contextlib.suppress(OSError, ValueError):
            soft, most = resource.prlimit(pid, which)
            if most != resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or hard > most):
                resource.prlimit(pid, which, (soft, hard))


def _last_line(path: Path) -> str:
    with contextlib.suppress(OSError):
        lines = path.read_text(errors="replace").strip().splitlines()
        if lines:
            return lines[-1][:200]
    return "it said nothing"
