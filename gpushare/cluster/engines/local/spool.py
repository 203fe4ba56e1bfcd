"""The folders of tasks on disk. What is there is the truth about what runs; the service may be killed at any time.

    tasks/ID.ATTEMPT.GROUP.TASK/    appears whole
        start.json      what the keeper starts, and where the task was placed
        stop.json       it was told to stop
        keeper.json     the process id of its latest keeper, and when that process started
        lock            held as long as its keeper lives
        keeper.log      what went wrong in the keeper
        own/            belongs to the user of the job; the keeper writes here (keeper.py says what)

In a system-wide service the folders belong to root and `own` to the user, who may put anything there. So it is read
without following links, and never more than a bounded amount.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpushare.cluster.engines.local.keeper import process

__all__ = ["Folder", "Key", "Spool", "boot_id"]

MOST_READ = 256 * 1024
"""Bytes of a file that a user may have written."""


class Key(NamedTuple):
    """A task of an attempt of a job."""

    job: str
    attempt: int
    group: int
    task: int

    @property
    def name(self) -> str:
        return f"{self.job}.{self.attempt}.{self.group}.{self.task}"

    @classmethod
    def of(cls, name: str) -> Key | None:
        job, *numbers = name.rsplit(".", 3)
        if not job or len(numbers) != 3 or not all(one.isdecimal() for one in numbers):
            return None
        attempt, group, task = map(int, numbers)
        return cls(job, attempt, group, task)


def boot_id() -> str:
    """The id of this start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Folder:
    """The folder of one task."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def own(self) -> Path:
        return self.path / "own"

    def start(self) -> dict[str, Any] | None:
        value = _read(self.path / "start.json", 8 * 2**20)
        return value if isinstance(value, dict) else None

    def rewrite_start(self, start: Mapping[str, Any]) -> None:
        _write(self.path / "start.json", start, 0o600)

    def told_to_stop(self) -> dict[str, Any] | None:
        value = _read(self.path / "stop.json", MOST_READ)
        return value if isinstance(value, dict) else None

    def tell_to_stop(self, kill_at: float, kind: str) -> None:
        """Tell the keeper that nothing may run after `kill_at`, in seconds of time.monotonic(). `kind` as in end()."""
        _write(self.path / "stop.json", {"kill_at": kill_at, "kind": kind}, 0o644)

    def keeper(self) -> dict[str, int] | None:
        value = _read(self.path / "keeper.json", MOST_READ)
        return value if isinstance(value, dict) else None

    def note_keeper(self, keeper: Mapping[str, int]) -> None:
        _write(self.path / "keeper.json", keeper, 0o600)

    def end(self) -> dict[str, Any] | None:
        """How the task ended; None: it has not."""
        value = _read(self.own / "end.json", MOST_READ)
        sound = isinstance(value, dict) and isinstance(value.get("kind"), str)
        return value if sound else None

    def living_program(self) -> dict[str, Any] | None:
        """What identifies its first process, as its keeper has noted it; None: it has none that lives."""
        return _living(_read(self.own / "running.json", MOST_READ))

    def since(self) -> object:
        """When its first process was started, by time.monotonic(), as its keeper has noted it."""
        value = _read(self.own / "running.json", MOST_READ)
        return value.get("since") if isinstance(value, dict) else None

    def living_keeper(self) -> dict[str, Any] | None:
        return _living(self.keeper())

    def has(self, name: str) -> bool:
        return os.path.lexists(self.own / name)

    def lock(self) -> int | None:
        """Take the lock. None: a keeper has it."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Spool:
    def __init__(self, directory: Path) -> None:
        self.directory = directory / "tasks"
        self.directory.mkdir(mode=0o700, exist_ok=True)
        for entry in self.directory.iterdir():
            if entry.name.startswith("."):  # a folder that never became whole, or was being removed
                shutil.rmtree(entry, ignore_errors=True)

    def found(self) -> Iterator[tuple[Key, Folder]]:
        for entry in sorted(self.directory.iterdir()):
            key = Key.of(entry.name)
            if key is not None:
                yield key, Folder(entry)

    def make(self, key: Key, start: Mapping[str, Any], owner: tuple[int, int] | None) -> Folder:
        """`owner`: user and group of what the keeper writes; None: our own."""
        fresh = self.directory / f".{key.name}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        fresh.chmod(0o711)
        own = fresh / "own"
        own.mkdir(mode=0o700)
        if owner is not None:
            os.chown(own, *owner)
        _write(fresh / "start.json", start, 0o600)
        path = self.directory / key.name
        fresh.rename(path)
        return Folder(path)


def _living(noted: Any) -> dict[str, Any] | None:
    """The pid and the start time of a process that was noted, if it lives."""
    pid = noted.get("pid") if isinstance(noted, dict) else None
    found = process(pid) if type(pid) is int and 1 < pid < 2**31 else None
    return {"pid": pid, "start": found.start} if found is not None and found.start == noted.get("start") else None


def _read(path: Path, most: int) -> Any:
    """None where there is no such file, or it is not what it should be."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = _all(descriptor, most + 1)
    finally:
        os.close(descriptor)
    if len(data) > most:
        return None
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(data)
    return None


def _all(descriptor: int, most: int) -> bytes:
    data = b""
    while len(data) < most and (more := os.read(descriptor, most - len(data))):
        data += more
    return data


def _write(path: Path, value: Any, mode: int) -> None:
    """The file appears whole, or not at all."""
    fresh = path.with_name(f".{path.name}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)  # whatever our umask is
        json.dump(value, file)
    fresh.replace(path)
