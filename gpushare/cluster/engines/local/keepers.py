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
from typing import Any

from gpushare.cluster.engines.local import force
from gpushare.cluster.engines.local.placing import Placing
from gpushare.cluster.engines.local.task_state import Task
from gpushare.errors import GpushareError, Refused

__all__ = ["Keepers"]

KEEPER = Path(__file__).with_name("keeper.py")
TRIES = 5
LONGEST_PAUSE = 60.0
RAN_LONG = 60.0
"""Seconds. A keeper that ran for so long was killed, and nothing hinders the next one."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Keepers:
    placing: Placing
    started: Callable[[], None]
    """Called when there is one more to watch."""

    def keep(self, task: Task, lock: int) -> dict[str, Any] | None:
        """Start a keeper for a task that has none, unless the last ones have failed just now. Raises OSError. How the
        task has ended, if no keeper can say it."""
        now = time.monotonic()
        if now < task.next_try:
            return None
        if task.kept_since and now >= task.kept_since + RAN_LONG:
            task.tries = 0
        if task.tries >= TRIES and (end := self._end_without(task, now)) is not None:
            return end
        task.next_try = now + min(0.5 * 2**task.tries, LONGEST_PAUSE)
        task.tries += 1
        self._start(task, lock)
        return None

    def _end_without(self, task: Task, now: float) -> dict[str, Any] | None:
        """How a task has ended whose keepers cannot run. None: its program lives."""
        if not task.folder.has("begun"):
            trouble = task.trouble or f"its keeper cannot run: {_last_line(task.folder.path / 'keeper.log')}"
            return {"kind": "stopped" if task.stop is not None else "failed", "why": trouble}
        program = task.folder.living_program()
        if program is not None and task.stop is not None and now >= task.stop:
            force.kill(program, _owner(task))
            program = task.folder.living_program()
        return {"kind": "lost", "why": "it was killed together with its keeper"} if program is None else None

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
        keeper = task.folder.keeper()
        if keeper is not None and force.kill(keeper, _owner(task)):
            words = "the keeper of a task of job %s did not stop it in time: all of it was killed"
            log.warning(words, task.start["job"])
            task.next_try = 0.0  # another keeper writes down how it ended

    def _start(self, task: Task, lock: int) -> None:
        uid, gid, groups = task.start["identity"] or (None, None, None)
        with contextlib.ExitStack() as opened:

            def closing(*descriptors: int) -> int:
                for one in descriptors:
                    opened.callback(os.close, one)
                return descriptors[0]

            ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
            closing(ready_read, ready_write)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            errors = closing(os.open(task.folder.path / "keeper.log", flags, 0o600))
            start = closing(os.open(task.folder.path / "start.json", os.O_RDONLY | os.O_NOFOLLOW))
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
                with contextlib.suppress(OSError):  # the disk is full: only enforce() would use it
                    task.folder.note_keeper(noted)
            if self._told_daemon(task, keeper.pid):
                os.write(ready_write, b"1")
        task.close()
        task.keeper, task.kept_since = keeper, time.monotonic()
        with contextlib.suppress(OSError):
            task.pidfd = os.pidfd_open(keeper.pid)
        self.started()

    def _told_daemon(self, task: Task, keeper: int) -> bool:
        """Whether it knows where the task runs. Else the keeper starts no program; one that runs is looked after."""
        try:
            self.placing.enter(task.start, keeper, task.folder.living_program())
        except (GpushareError, OSError) as error:
            words = error.message if isinstance(error, GpushareError) else str(error)
            task.trouble = f"the node daemon does not take it: {words}"
            if isinstance(error, Refused) and not task.folder.has("begun"):
                task.tries = TRIES  # asked again, it says the same
            log.warning("the node daemon cannot be told of a task of job %s: %s", task.start["job"], words)
            return False
        task.trouble = ""
        return True


def _owner(task: Task) -> int:
    """The user whose processes are the task's."""
    identity = task.start["identity"]
    return int(identity[0]) if identity else os.getuid()


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
