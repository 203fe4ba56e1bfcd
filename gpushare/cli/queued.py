"""What the commands about queued jobs share: the service, a job's end in words, and waiting for it."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpushare.client import Events
from gpushare.cluster.client import ClusterClient, need
from gpushare.cluster.engines.runner import ENDINGS
from gpushare.errors import DaemonUnreachable, NoSuchJob, NotPermitted, UsageError
from gpushare.quantity import format_duration

__all__ = ["away", "ending", "exit_status", "how", "log_files", "named", "service", "until"]

AWAY = 60.0
"""Seconds that a command waits for a service that is being restarted."""
LOOK_AGAIN = 2.0
"""Seconds: changes come as events; this is for one that was missed."""
PAUSE = 0.25
HINT = "start one: `gpushare cluster serve --engine local` for yourself; with --system, as root, for all users"

Job = dict[str, Any]


def service() -> ClusterClient:
    """The service that runs jobs here. DaemonUnreachable with the command that starts one."""
    try:
        return need()
    except DaemonUnreachable as error:
        error.hint = HINT
        raise


def named(client: ClusterClient, name: str) -> list[Job]:
    """The job with this id or name, or all jobs of the array with this id."""
    try:
        return [client.job(name)]
    except (UsageError, NoSuchJob) as error:
        of_array = [job for job in client.jobs(ended=True) if job["array"] == name]
        if not of_array or error.code not in ("ambiguous_job", "ended", NoSuchJob.code):
            raise
        return of_array


def title(job: Job) -> str:
    return f"job {job['id']}" + (f" ({job['name']})" if job["name"] else "")


def exit_status(job: Job) -> int:
    """Of a command that stands for a job that has ended, as a shell would give it."""
    result = job["result"]
    if result["how"] == "done":
        return 0
    code = result["exit"]
    if not isinstance(code, int) or code == 0:
        return 1
    return 128 - code if code < 0 else code


def ending(job: Job) -> str:
    """How it ended: job 17 (train) has failed after 5m3s: exit status 3"""
    return f"{title(job)} {how(job)}"


def how(job: Job) -> str:
    """How it ended, without its title."""
    result = job["result"]
    parts = [] if result["exit"] is None or result["how"] == "done" else [_status(result["exit"])]
    if result["text"] and result["text"] not in parts:
        parts.append(result["text"])
    lasted = ""
    if job["started"] is not None and job["ended"] is not None:
        lasted = f" after {format_duration(float(round(max(0.0, job['ended'] - job['started']))))}"
    return f"{ENDINGS[result['how']]}{lasted}" + (f": {', '.join(parts)}" if parts else "")


def _status(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def until(client: ClusterClient, id: str, meanwhile: Callable[[], None] = lambda: None) -> Iterator[Job]:
    """The job, again after each thing that may have changed it, and every few seconds. The service may restart.

    `meanwhile` is called several times a second."""
    away_since: float | None = None
    events: Events[Job] | None = None
    try:
        while True:
            try:
                if events is None or events.ended:
                    _close(events)
                    events = client.follow(client.status()["seq"], id)
                job = client.job(id)
            except DaemonUnreachable:
                away_since = time.monotonic() if away_since is None else away_since
                if time.monotonic() - away_since > AWAY:
                    raise
                time.sleep(PAUSE)
                continue
            away_since = None
            yield job
            again = time.monotonic() + LOOK_AGAIN
            while time.monotonic() < again and not select.select([events], [], [], PAUSE)[0]:
                meanwhile()
            for _ in events.read():
                pass
    finally:
        _close(events)


def _close(events: Events[Job] | None) -> None:
    if events is not None:
        events.close()


def log_files(job: Job) -> list[Path]:
    """Its log files, one for each task; they need not be there. NotPermitted for another user's job."""
    run = job.get("run")
    if run is None:
        raise NotPermitted(f"{title(job)} belongs to {job['user']}", hint="its output is its user's own")
    output = run.get("output")
    if not output:
        raise UsageError(f"{title(job)} has no log that is known here", hint="`gpushare submit` gives it one")
    path = output.replace("%j", job["id"]).replace("%a", str(job["index"] or 0))
    tasks = [(group, task) for group, one in enumerate(job["asks"]) for task in range(one["most"] or one["least"])]
    return [Path(path)] if len(tasks) == 1 else [Path(f"{path}.{group}-{task}") for group, task in tasks]


def away(job: Job) -> str:
    """Why there is no output yet."""
    reason = (job["reason"] or {}).get("message") or "it waits"
    return f"{title(job)} has not started: {reason}"


class Tail:
    """The end of a log file that grows and is replaced when it is full."""

    def __init__(self, path: Path, last: int | None) -> None:
        """last: lines to show of what is there; None: all, of the older file too."""
        self.path = path
        self._file = -1
        self._inode = 0
        self._first = last
        self._begun = False

    def read(self) -> bytes:
        """What is new."""
        data = b"" if self._begun else self._beginning()
        while self._begun:
            data += self._rest()
            if not self._replaced():
                break
            if self._file >= 0:
                os.close(self._file)
            self._file, self._inode = -1, 0
            self._open()  # it may have gone since: then the next one is looked for
        return data

    def _beginning(self) -> bytes:
        self._open()
        if self._file < 0:
            return b""
        self._begun = True
        older = b""
        with contextlib.suppress(OSError):
            older = self.path.with_name(f"{self.path.name}.1").read_bytes()
        data = older + self._rest()
        if self._first is None:
            return data
        lines = data.splitlines(keepends=True)
        return b"".join(lines[len(lines) - self._first :]) if self._first < len(lines) else data

    def _open(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._file = os.open(self.path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
            self._inode = os.fstat(self._file).st_ino

    def _rest(self) -> bytes:
        data = b""
        while self._file >= 0 and (more := os.read(self._file, 1 << 20)):
            data += more
        return data

    def _replaced(self) -> bool:
        """Whether there is another file in its place."""
        try:
            return self.path.stat().st_ino != self._inode
        except FileNotFoundError:
            return False
