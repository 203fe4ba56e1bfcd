"""Writes records and ended jobs into the files of gpushare/history.py, and reads them for the API, on a thread.

The thread does both in order: a question finds every line that was handed in before it. A full disk or a hanging file
server costs lines of history and nothing else; the log says so once.

What is bounded, and how much of it:

    each file of a user      FILE_BYTES; when it is full it becomes the old one, and the older one goes
    users with files         USERS; a new user gets no file while so many have files that were written within KEPT
    a line                   LINE_BYTES; a longer one loses its facts, or is left out
    lines that wait          WAITING_BYTES for each file; more lines are left out
    records of one kind      BURST of a job at once, then one a second: a program that asks in a loop does not displace
                             the rest of its user's story

There is no fsync: lines survive the end of the daemon, and the last half minute may be lost when the machine fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import stat
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gpushare.history import EVENTS, JOBS, NAMES, OLD, History, file_name, written
from gpushare.paths import make_private
from gpushared.core.instructions import Record
from gpushared.history.usage import FILES
from gpushared.system.logs import facts, log
from gpushared.system.reply import Reply

FILE_BYTES = {EVENTS: 512 * 1024, JOBS: 256 * 1024}
LINE_BYTES = 8 * 1024
WAITING_BYTES = 256 * 1024
USERS = 256
KEPT = 30 * 24 * 3600.0
"""Seconds."""
BURST = 20.0
KINDS = 4096
"""The most kinds of records that are counted at once."""
PAUSE = 0.02
"""Seconds between two batches, so that lines are written together."""
CLOSE_WITHIN = 2.0
"""Seconds that an ending daemon waits for the last lines."""

APPENDING = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

Answer = TypeVar("Answer")


class Historian:
    """Takes lines, and answers questions about earlier ones. Without a directory it does nothing."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._allowance = Allowance()
        self._changed = threading.Condition()
        self._lines: deque[tuple[int | None, str, bytes]] = deque()
        self._waiting: dict[tuple[int | None, str], int] = {}
        self._questions: deque[Callable[[], None]] = deque()
        self._asking: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._closing = False
        self._thread: threading.Thread | None = None
        self._files = Files(directory) if directory is not None else None
        self.left_out = 0
        """Lines for which there was no room."""

    def start(self) -> None:
        if self._files is not None:
            self._thread = threading.Thread(target=self._work, name="historian", daemon=True)
            self._thread.start()

    # ---- writing -----------------------------------------------------------------------------------

    def record(self, record: Record, now: float) -> None:
        """`now` is the time on the wall's clock."""
        if self._files is None:
            return
        left_out = self._allowance.take((record.event, record.job, record.gpu, record.uid), now)
        if left_out is None:
            return
        more = {"left_out": left_out} if left_out else {}
        line = {
            "time": now,
            "event": record.event,
            "gpu": record.gpu,
            "job": record.job,
            "name": record.name,
            "text": written(record.text),
            "facts": written({**record.facts, **more}),
        }
        text = _line(line)
        if len(text) > LINE_BYTES:
            text = _line({**line, "facts": {}})
        self._put(record.uid, EVENTS, text)

    def job(self, uid: int, job: Mapping[str, object], now: float, stop: Mapping[str, object] | None = None) -> None:
        """`job` is an api.Job whose outcome may have mentions. `stop` is for a job that lives (gpushare/history.py,
        Stop)."""
        if self._files is None:
            return
        more = {} if stop is None else {"stop": written(stop)}
        text = _line({"time": now, "job": written(job), **more})
        if len(text) > LINE_BYTES:
            text = _line({"time": now, "job": {**job, "outcome": written(job["outcome"]), "command": []}, **more})
        self._put(uid, JOBS, text)

    def _put(self, uid: int | None, kind: str, line: bytes) -> None:
        with self._changed:
            waiting = self._waiting.get((uid, kind), 0) + len(line)
            if len(line) > LINE_BYTES or waiting > WAITING_BYTES:
                self.left_out += 1
                return
            self._waiting[uid, kind] = waiting
            self._lines.append((uid, kind, line))
            self._changed.notify()

    # ---- reading -----------------------------------------------------------------------------------

    async def ask(self, uid: int, question: Callable[[History], Answer], within: float = 10.0) -> Answer | None:
        """The answer; None: there is no history, or it takes longer. One question of a user at a time."""
        directory = self._directory
        if directory is None or self._thread is None:
            return None
        async with self._asking[uid]:
            reply = Reply[Answer]()
            with self._changed:
                self._questions.append(lambda: reply.give(question(History(directory))))
                self._changed.notify()
            return await reply.wait(within)

    # ---- the thread --------------------------------------------------------------------------------

    def _work(self) -> None:
        assert self._files is not None
        self._files.open()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._questions or self._closing)
                lines, self._lines = self._lines, deque()
                self._waiting.clear()
                questions, self._questions = self._questions, deque()
                if self._closing and not lines and not questions:
                    return
            self._files.append(lines)
            for question in questions:
                try:
                    question()
                except Exception:
                    log.exception("a question about the history failed")
            if not self._closing:
                time.sleep(PAUSE)

    def close(self) -> None:
        """Write what waits. A disk that hangs is not waited for."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_WITHIN)


class Allowance:
    """BURST records of a kind at once, and one a second."""

    def __init__(self) -> None:
        self._left: dict[object, tuple[float, float, int]] = {}

    def take(self, kind: object, now: float) -> int | None:
        """How many were left out since the last one that was allowed; None: this one is left out, too."""
        if len(self._left) >= KINDS and kind not in self._left:
            self._left.clear()
        left, then, missing = self._left.get(kind, (BURST, now, 0))
        left = min(BURST, left + max(0.0, now - then))
        if left < 1.0:
            self._left[kind] = left, now, missing + 1
            return None
        self._left[kind] = left - 1.0, now, 0
        return missing


class Files:
    """The writing end of the files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._failing = False
        self._full = False

    def open(self) -> None:
        """Make the directory, and remove what is older than KEPT: here, and of hosts that share the home."""
        try:
            self._directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_private(self._directory)
            status = self._directory.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise PermissionError(errno.EPERM, "it is not a directory of our own that only we write to")
        except OSError as error:
            self._failed(error)
            return
        others = []
        if self._directory.parent.name.startswith("history"):
            found = self._directory.parent.iterdir()
            others = [one for one in found if one != self._directory and not one.is_symlink()]
        prune(self._directory, *others)
        for other in others:
            with contextlib.suppress(OSError):
                other.rmdir()

    def append(self, lines: deque[tuple[int | None, str, bytes]]) -> None:
        by_file: dict[tuple[int | None, str], list[bytes]] = {}
        for uid, kind, line in lines:
            by_file.setdefault((uid, kind), []).append(line)
        for (uid, kind), texts in by_file.items():
            try:
                self._append(uid, kind, texts)
            except OSError as error:
                self._failed(error)
            else:
                self._succeeded()

    def _append(self, uid: int | None, kind: str, lines: list[bytes]) -> None:
        path = self._directory / file_name(uid, kind)
        if not path.exists() and not self._has_room(uid):
            return
        while lines:
            fd = os.open(path, APPENDING, 0o600)
            with os.fdopen(fd, "r+b", buffering=0) as file:
                size = os.fstat(fd).st_size
                room = FILE_BYTES[kind] - size
                fitting = 0
                while fitting < len(lines) and (room >= len(lines[fitting]) or (size == 0 and fitting == 0)):
                    room -= len(lines[fitting])
                    fitting += 1
                if fitting:
                    # A line that was torn by a crash or a full disk ends here.
                    torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
                    _write(file.fileno(), (b"\n" if torn else b"") + b"".join(lines[:fitting]))
                    lines = lines[fitting:]
            if lines:
                path.replace(path.with_name(path.name + OLD))

    def _has_room(self, uid: int | None) -> bool:
        """Whether this user may have files."""
        if uid is None or str(uid) in self._users():
            return True
        if len(self._users()) >= USERS:
            prune(self._directory)
        room = len(self._users()) < USERS
        if not room and not self._full:
            log.warning("the history has no room for more users", extra=facts(directory=str(self._directory), uid=uid))
        self._full = not room
        return room

    def _users(self) -> set[str]:
        found = (NAMES.fullmatch(path.name) for path in self._directory.iterdir())
        return {match[1] for match in found if match is not None}

    def _failed(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            why = error.strerror or str(error)
            log.warning("the history cannot be written", extra=facts(directory=str(self._directory), error=why))

    def _succeeded(self) -> None:
        if self._failing:
            self._failing = False
            log.warning("the history is written again", extra=facts(directory=str(self._directory)))


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, default=str).encode() + b"\n"


def _write(fd: int, text: bytes) -> None:
    while text:
        text = text[os.write(fd, text) :]


def prune(*directories: Path) -> None:
    """Remove files of ours whose last line is KEPT seconds older than the last line of all.

    The clock alone does not decide: a clock that is far ahead would cost the whole history. Its time counts once a line
    was written by it. A file with a time in the future makes no other file old.
    """
    written_at: dict[Path, float] = {}
    for directory in directories:
        with contextlib.suppress(OSError):
            found = [path for path in directory.iterdir() if NAMES.fullmatch(path.name) or path.name in FILES]
            written_at |= {path: path.lstat().st_mtime for path in found}
    oldest = min(time.time(), max(written_at.values(), default=0.0)) - KEPT
    for path, at in written_at.items():
        if at < oldest:
            with contextlib.suppress(OSError):
                path.unlink()
