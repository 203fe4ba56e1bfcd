"""The usage history: takes a sample each second, keeps its changes, tells followers, answers questions.

The loop only compares two dictionaries; everything else happens on a thread, the import of SQLite included. A full disk
or a broken file stops the history and nothing else: the log says so once, and writing is tried again every
COMMIT_EVERY.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gpushared.history.levels import Amounts, SeriesKey, Who
from gpushared.limits.backlog import Backlog
from gpushared.system.logs import facts, log
from gpushared.system.reply import Reply

if TYPE_CHECKING:
    from gpushared.history.file import File

FILE_NAME = "usage.db"
FILES = frozenset({FILE_NAME, *(FILE_NAME + end for end in ("-wal", "-shm", ".bad"))})
"""The names of all its files in a directory."""
KEEP_EVERY = 900
"""Milliseconds between two samples in the file: a second, and what a timer may be early."""
COMMIT_EVERY = 10.0
"""Seconds of history that are lost at most when the daemon is killed."""
PRUNE_EVERY = 300.0
WAITING = 120
"""Samples that wait for the thread; the oldest go when it hangs."""
INTERRUPTED_AFTER = 30.0
"""Seconds without a sample, after which nothing is known of the time between."""
CLOSE_WITHIN = 2.0

Answer = TypeVar("Answer")


class Change(NamedTuple):
    """The changes of one second."""

    time: int
    """Milliseconds since 1970."""
    changed: Mapping[SeriesKey, Amounts | None]
    """None: the series has ended."""
    who: Mapping[SeriesKey, Who]
    """The owners of all series in `changed` that have not ended. A series does not change its owner."""


class _Seen:
    """The last sample, to compare the next with."""

    def __init__(self) -> None:
        self.at = -(10**9)
        self.now: dict[SeriesKey, Amounts] = {}
        self.who: dict[SeriesKey, Who] = {}

    def take(self, seen: Mapping[SeriesKey, Amounts], whose: Callable[[SeriesKey], Who], at: int) -> Change:
        changed: dict[SeriesKey, Amounts | None] = {
            key: amounts for key, amounts in seen.items() if self.now.get(key) != amounts
        }
        for key in seen.keys() - self.who.keys():
            self.who[key] = whose(key)
        owners = {key: self.who[key] for key in changed}
        for key in self.now.keys() - seen.keys():
            changed[key] = None
            del self.who[key]
        self.now, self.at = dict(seen), at
        return Change(at, changed, owners)


class UsageHistory:
    """Without a directory it keeps nothing, and still tells its followers."""

    def __init__(self, directory: Path | None = None) -> None:
        self._path = directory / FILE_NAME if directory is not None else None
        self.followers: set[Backlog[Change]] = set()
        """Readers of each change."""
        self._told, self._kept = _Seen(), _Seen()
        self._lock = threading.Condition()
        self._changes: deque[Change] = deque(maxlen=WAITING)
        self._questions: deque[Callable[[File | None], None]] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._path is not None:
            self._thread = threading.Thread(target=self._work, name="usage-history", daemon=True)
            self._thread.start()

    # ---- on the loop -------------------------------------------------------------------------------

    def look(self, seen: Mapping[SeriesKey, Amounts], whose: Callable[[SeriesKey], Who], now: float) -> None:
        """Take the sample of `now`, in seconds since 1970: followers get each change, the file one sample a second.
        `whose` is called once for each series."""
        at = int(now * 1000)
        told = self._told.take(seen, whose, at)
        if told.changed:
            for follower in self.followers:
                follower.put(told)
        since = at - self._kept.at
        if self._thread is None or 0 <= since < KEEP_EVERY:
            return
        if self._kept.now and not 0 <= since <= INTERRUPTED_AFTER * 1000:
            self._put(self._kept.take({}, whose, self._kept.at + 1))
        self._put(self._kept.take(seen, whose, at))

    def now(self) -> Change:
        """All present values, for a new follower."""
        return Change(self._told.at, dict(self._told.now), dict(self._told.who))

    def _put(self, change: Change) -> None:
        with self._lock:
            self._changes.append(change)
            self._lock.notify()

    async def ask(self, question: Callable[[File], Answer], within: float = 10.0) -> Answer | None:
        """The answer; None: there is no history, or it takes longer. All that was sampled before is in it."""
        if self._thread is None:
            return None
        reply = Reply[Answer]()
        with self._lock:
            self._questions.append(lambda file: reply.give(question(file) if file is not None else None))
            self._lock.notify()
        return await reply.wait(within)

    def end_streams(self) -> None:
        """The daemon ends: followers should look for the next one."""
        for follower in self.followers:
            follower.end()

    def close(self) -> None:
        """Write what waits. A disk that hangs is not waited for."""
        with self._lock:
            self._closing = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_WITHIN)

    # ---- on the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        assert self._path is not None
        writer = _Writer(self._path)
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._changes or self._questions or self._closing)
                changes, questions, closing = list(self._changes), list(self._questions), self._closing
                self._changes.clear()
                self._questions.clear()
            for change in changes:
                writer.write(change)
            for question in questions:
                try:
                    question(writer.file)
                except Exception as error:
                    log.warning("a question about the usage history failed", extra=facts(error=str(error)))
                    question(None)
            if closing:
                writer.close()
                return


class _Writer:
    """Writes the file, and tries again while it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.file: File | None = None
        self._failing = False
        self._put_aside = False
        self._tried_at = self._pruned_at = self._committed_at = time.monotonic() - PRUNE_EVERY
        self._known: dict[SeriesKey, Amounts] = {}
        self._who: dict[SeriesKey, Who] = {}

    def write(self, change: Change) -> None:
        self._note(change)
        now = time.monotonic()
        if self.file is None and now - self._tried_at < COMMIT_EVERY:
            return
        import sqlite3

        try:
            if self.file is None:
                self._open(change.time)
            else:
                self.file.finish(change.time)
                self.file.write(change.time, change.changed, {key: self._who[key] for key in change.who})
            assert self.file is not None
            if now - self._committed_at >= COMMIT_EVERY:
                self._committed_at = now
                self.file.commit(change.time)
                self._succeeded()
            if now - self._pruned_at >= PRUNE_EVERY:
                self._pruned_at = now
                self.file.prune(change.time)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)

    def _note(self, change: Change) -> None:
        """Keep the present values, for a file that is opened later."""
        self._who.update(change.who)
        for key, amounts in change.changed.items():
            if amounts is None:
                self._known.pop(key, None)
                self._who.pop(key, None)
            else:
                self._known[key] = amounts

    def _open(self, now: int) -> None:
        from gpushared.history.file import File

        self.file = File(self._path, now)
        self.file.write(now, self._known, self._who)

    def _failed(self, error: Exception) -> None:
        """Uncommitted samples are lost, and the file is closed until the next attempt."""
        import sqlite3

        if not self._failing:
            self._failing = True
            log.warning("the usage history cannot be written", extra=facts(file=str(self._path), error=str(error)))
        file, self.file = self.file, None
        self._tried_at = time.monotonic()
        if file is None:
            return
        with contextlib.suppress(sqlite3.Error, OSError):
            file.roll_back()
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                file.make_room()
        with contextlib.suppress(sqlite3.Error, OSError):
            file.close()
        broken = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        if broken and not self._put_aside:
            self._put_aside = True
            with contextlib.suppress(OSError):
                file.put_aside()

    def _succeeded(self) -> None:
        if self._failing:
            self._failing = False
            log.warning("the usage history is written again", extra=facts(file=str(self._path)))

    def close(self) -> None:
        import sqlite3

        if self.file is not None:
            with contextlib.suppress(sqlite3.Error, OSError):
                self.file.commit(int(time.time() * 1000))
            self.file.close()
