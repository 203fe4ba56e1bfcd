"""Runs tasks on this machine: each under a keeper (keeper.py), on GPUs of the node daemon (gpus.py).

What runs is on disk (spool.py), so the service may be stopped, upgraded or killed, and finds it again. A keeper that
was killed is replaced by another one that finds the program; only if that is gone, too, the task counts as lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpushare.cluster.engines.local import admission
from gpushare.cluster.engines.local.gpus import Daemon
from gpushare.cluster.engines.local.keepers import Keepers
from gpushare.cluster.engines.local.placing import Placing, placing
from gpushare.cluster.engines.local.spool import Key, Spool, boot_id
from gpushare.cluster.engines.local.start_file import Site, start_of
from gpushare.cluster.engines.local.task_state import Task, began, may_start_again, seen, without_env
from gpushare.cluster.engines.obeyed import Obeyed
from gpushare.cluster.engines.runner import Context, Record
from gpushare.cluster.engines.seam import (
    Accepted,
    Answer,
    Busy,
    Evict,
    Gone,
    Refused,
    SeenNode,
    SeenTask,
    Start,
    Token,
    Unanswered,
)
from gpushare.cluster.model import Place
from gpushare.env import BY_NAME
from gpushare.errors import GpushareError, UsageError

__all__ = ["CANNOT", "Local", "make"]

log = logging.getLogger(__name__)

CANNOT = {
    "nodes": "it is one machine",
    "takeover": "one service has the file; the next one starts when it has ended",
    "forgotten": "the records are in the service's file, and jobs that are in no record are left alone",
}
"""Of ABILITIES (abilities.py)."""

SETTINGS = ("socket", "driver", "log_size")
LOG_SIZE = 64 * 2**20
"""Bytes of output that are kept of a task, in two files."""
LEAST_LOG = 64 * 2**10
LOOK_AGAIN = 0.25
"""Seconds between two looks while something starts or stops."""


@dataclass(slots=True)
class _Wake:
    """What ends watch() early."""

    read: int = field(init=False)
    write: int = field(init=False)

    def __post_init__(self) -> None:
        self.read, self.write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self.write, b"1")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.read, 4096)


def make(context: Context) -> Local:
    return Local(context)


class Local:
    """A Runner (engines/runner.py). Raises UsageError if another service uses the directory."""

    def __init__(self, context: Context, environ: Mapping[str, str] | None = None) -> None:
        unknown = sorted(set(context.settings) - set(SETTINGS))
        if unknown:
            raise UsageError(f"[local]: there is no {unknown[0]!r}", hint=f"known are {', '.join(SETTINGS)}")
        self._log_size = context.settings.get("log_size", LOG_SIZE)
        if not isinstance(self._log_size, int) or self._log_size < LEAST_LOG:
            raise UsageError(f"[local]: log_size must be a number of bytes, at least {LEAST_LOG}")
        driver, known = context.settings.get("driver", "auto"), BY_NAME["GPUSHARE_DRIVER"].choices
        if driver not in known:
            raise UsageError(f"[local]: there is no driver {driver!r}", hint=f"known are {', '.join(known)}")
        self._clock = context.clock
        self._system = context.system
        self._max_grace = context.max_grace
        self._directory = context.directory
        self._lock = self._lock_directory()
        self._environ = dict(os.environ if environ is None else environ)
        for name in ("socket", "driver"):
            if name in context.settings:
                self._environ[f"GPUSHARE_{name.upper()}"] = str(context.settings[name])
        self.daemon = Daemon(self._environ, start=not context.system)
        self.placing = Placing(self.daemon, self._directory, system=context.system)
        self._keepers = Keepers(self.placing, self.wake)  # watch() does not know a new one yet
        self._boot = boot_id()
        self._tasks: dict[Key, Task] = {}
        self._obeyed = Obeyed()
        self._wake = _Wake()
        self._find()

    def _find(self) -> None:
        self._spool = Spool(self._directory)
        for key, folder in self._spool.found():
            start = folder.start()
            if start is None or (start["boot"] != self._boot and folder.end() is None):
                folder.remove()  # the machine was started again: nothing of it runs
                continue
            told = folder.told_to_stop()
            self._tasks[key] = Task(folder, without_env(start), stop=told["kill_at"] if told else None)
            self._note(key, (int(start["token"][0]), int(start["token"][1])))

    def _lock_directory(self) -> int:
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise UsageError(
                f"another service runs the tasks of {self._directory}", code="in_use", hint="stop it first"
            ) from None
        return descriptor

    # ---- submissions ---------------------------------------------------------------------------------

    def check(self, record: Record) -> None:
        admission.check(record, self._max_grace, system=self._system)

    # ---- what there is -------------------------------------------------------------------------------

    def nodes(self) -> Sequence[SeenNode]:
        living = [task for task in self._tasks.values() if task.end is None]
        found = self.daemon.nodes({str(task.start["job"]) for task in living})
        with contextlib.suppress(GpushareError):  # it answered just now; the next round tries again
            self.placing.tidy([(task.start, task.folder) for task in living])
        return found

    def tasks(self) -> Mapping[str, Sequence[SeenTask]]:
        found: dict[str, list[SeenTask]] = {}
        for key, task in list(self._tasks.items()):
            self._look_at(key, task)
            if key in self._tasks:
                found.setdefault(key.job, []).append(seen(key, task))
        return found

    def _look_at(self, key: Key, task: Task) -> None:
        """Note the end of a task; start another keeper if it needs one."""
        if task.end is not None:
            return
        if task.keeper is not None:
            task.keeper.poll()
        if task.begun is None and task.folder.has("running"):
            task.begun, task.began = time.monotonic(), began(task.folder.since(), self._clock())
        lock = task.folder.lock()
        if lock is None:
            self._keepers.enforce(task)
            return
        if task.keeper is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                task.keeper.wait(1.0)  # it has let go of its lock: it is ending
        try:
            end = task.folder.end() or self._keepers.keep(task, lock)
        except OSError as error:
            log.warning("no keeper can be started for job %s: %s", key.job, error)
            return
        finally:
            os.close(lock)
        if end is None:
            return
        task.close()
        task.end = end
        self.placing.over(task.start)
        if may_start_again(task, end):
            self._drop(key, task)

    # ---- start ---------------------------------------------------------------------------------------

    def start(self, record: Record, command: Start, token: Token) -> Answer:
        self._obeyed.check_term(token)
        mine = [(key, task) for key, task in self._tasks.items() if key.job == command.uid]
        if any(key.attempt > command.attempt for key, _ in mine):
            return Refused("a later attempt is known")
        if any(key.attempt != command.attempt and task.end is None for key, task in mine):
            return Busy()
        for place in command.places:
            key = Key(command.uid, command.attempt, place.group, place.task)
            if not self._obeyed.is_news(key.job, key.group, key.task, token):
                continue
            task = self._tasks.get(key)
            refusal = self._begin(record, key, place, token) if task is None else self._resize(task, place)
            if refusal is not None:
                return refusal
            self._note(key, token)
        return Accepted()

    def _begin(self, record: Record, key: Key, place: Place, token: Token) -> Busy | Refused | None:
        devices = self.daemon.uuids(place.node, place.gpus)
        if devices is None:
            return Refused(f"there is no GPU {place.gpus} on {place.node}", place.node)
        if not self._fits(place):
            return Refused("it does not fit beside the tasks that run there", place.node)
        try:
            start = self._start_of(record, key, place, devices, token)
            refusal = self.placing.place(start)
            if refusal is not None:
                return refusal
            if not self.placing.able:
                start["placement"] = None
            identity = start["identity"]
            folder = self._spool.make(key, start, (identity[0], identity[1]) if identity else None)
        except GpushareError as error:
            return Refused(error.message)
        except OSError as error:
            self.placing.over(start)
            return Refused(f"cannot write to {self._directory}: {error.strerror}", place.node)
        task = self._tasks[key] = Task(folder, without_env(start))
        lock = folder.lock()
        if lock is not None:
            try:
                self._keepers.keep(task, lock)
            except OSError as error:
                self._drop(key, task)
                self.placing.over(start)
                return Refused(f"cannot start a keeper: {error.strerror}", place.node)
            finally:
                os.close(lock)
        return None

    def _fits(self, place: Place) -> bool:
        held = {gpu: place.amount for gpu in place.gpus}
        for task in self._tasks.values():
            if task.end is None and task.start["node"] == place.node:
                for gpu in task.start["gpus"]:
                    if gpu in held:
                        held[gpu] += task.amount
        memory = self.daemon.memory(place.node)
        return all(amount <= memory for amount in held.values())

    def _resize(self, task: Task, place: Place) -> Refused | None:
        """Give a task that exists another amount."""
        if (task.start["node"], tuple(task.start["gpus"])) != (place.node, place.gpus):
            return Refused("it runs elsewhere")
        if task.amount == place.amount or task.end is not None:
            return None
        limit = max(int(task.start["limit"]), place.amount)
        amounts = {"amount": place.amount, "limit": limit}
        try:
            if task.start.get("placement") is not None:
                self.placing.put({**task.start, **amounts})
            else:
                self.daemon.client().change(task.start["job"], {"request": str(place.amount), "limit": str(limit)})
        except GpushareError as error:
            return Refused(f"the node daemon does not change its request: {error.message}", place.node)
        whole = task.folder.start()
        if whole is not None:
            task.folder.rewrite_start({**whole, **amounts})
        task.start = {**task.start, **amounts}
        return None

    def _start_of(
        self, record: Record, key: Key, place: Place, devices: tuple[str, ...], token: Token
    ) -> dict[str, Any]:
        site = Site(self.daemon.place(), self.daemon.memory(place.node), self._directory, self._log_size, self._system)
        start = start_of(record, key, place, devices, site)
        placement = self.placing.name(key.job, key.group, key.task) if self.placing.able else None
        cgroup = self.placing.cgroup(start["mark"])
        said = {"placement": placement, "placing": placing(token), "cgroup": cgroup}
        return {**start, "token": list(token), "boot": self._boot, **said}

    # ---- stop ----------------------------------------------------------------------------------------

    def evict(self, command: Evict, token: Token) -> Answer:
        self._obeyed.check_term(token)
        found = False
        for group, number in command.tasks:
            key = Key(command.uid, command.attempt, group, number)
            if not self._obeyed.is_news(key.job, key.group, key.task, token):
                continue
            self._note(key, token)
            task = self._tasks.get(key)
            if task is None:
                continue
            found = True
            self._look_at(key, task)
            if task.end is not None:
                self._drop(key, task)
            elif key in self._tasks:
                try:
                    self._tell_to_stop(task, command.grace)
                except OSError as error:
                    raise Unanswered(f"cannot write to {self._directory}: {error.strerror}") from None
        return Accepted() if found else Gone()

    def _tell_to_stop(self, task: Task, grace: float) -> None:
        if grace > 0:
            grace = float(task.start["grace"])  # its own
        end = time.monotonic() + grace
        if task.stop is None or end < task.stop:
            task.folder.tell_to_stop(end, "stopped")
            task.stop = end
        if task.keeper is not None and task.keeper.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                task.keeper.send_signal(signal.SIGUSR1)
        self.wake()

    def collect(self, id: str) -> None:
        for key, task in list(self._tasks.items()):
            if key.job == id and task.end is not None:
                self._drop(key, task)
        if not any(key.job == id for key in self._tasks):
            self._obeyed.forget(id)

    def _note(self, key: Key, token: Token) -> None:
        self._obeyed.note(key.job, key.group, key.task, token)

    # ---- waiting -------------------------------------------------------------------------------------

    def watch(self, seconds: float) -> None:
        tasks = list(self._tasks.values())
        unsettled = any(one.end is None and (one.begun is None or one.stop is not None) for one in tasks)
        strange = any(one.end is None and one.pidfd is None for one in tasks)  # kept by a keeper of an earlier service
        patience = min(seconds, LOOK_AGAIN) if unsettled else min(seconds, 1.0) if strange else seconds
        poll = select.poll()
        poll.register(self._wake.read, select.POLLIN)
        for one in tasks:
            if one.pidfd is not None and one.end is None:
                poll.register(one.pidfd, select.POLLIN)
        events = self.daemon.events
        with contextlib.suppress(OSError, ValueError):
            if events is not None and not events.ended:
                poll.register(events.fileno(), select.POLLIN)
        poll.poll(max(0.0, patience) * 1000)
        self._wake.clear()
        if events is not None:
            with contextlib.suppress(OSError, ValueError, GpushareError):
                for _ in events.read():
                    pass

    def wake(self) -> None:
        self._wake.ring()

    def close(self) -> None:
        self.wake()
        for task in self._tasks.values():
            task.close()
            if task.keeper is not None and task.keeper.poll() is None:
                task.keeper.returncode = 0  # it runs on without us, and Popen would complain
        self.daemon.close()
        os.close(self._lock)

    def _drop(self, key: Key, task: Task) -> None:
        task.close()
        task.folder.remove()
        self._tasks.pop(key, None)
