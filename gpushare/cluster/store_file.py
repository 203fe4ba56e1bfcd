"""The file of a cluster: an SQLite database with a log, and a snapshot in place of the rows that are gone.

What the rows and the snapshot mean is in store.py. Here is what SQLite has to be asked and told, and what it says.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpushare.errors import GpushareError

__all__ = ["Connection", "Snapshot", "StoreError", "StoreFile", "readable"]

Connection = sqlite3.Connection

APPLICATION = 0x67707573  # "gpus": so that `file` and we know one when we see it
FORMAT = 1
COMPACTED = 3
"""The format of a file that has a snapshot: a version that knows only the first would miss the rows that are gone. In
format 2 the snapshot had no checksum."""
OF_ENGINES = 4
"""The format of a file, with or without a snapshot, that has had events of engines: older versions do not know them."""
BUSY_SECONDS = 10.0
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE log (
    seq INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    events TEXT NOT NULL,
    actions TEXT NOT NULL
);
"""
SNAPSHOT = """
CREATE TABLE snapshot (
    seq INTEGER PRIMARY KEY, -- the last row that it replaces
    time REAL NOT NULL,
    state TEXT NOT NULL,
    checksum TEXT NOT NULL -- of the policy and of the three above
)
"""

HAS_SNAPSHOT = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'snapshot'"


class StoreError(GpushareError):
    """The file cannot be used."""

    code = "store"


class Snapshot(NamedTuple):
    seq: int
    """The last row that it replaces."""
    now: float
    state: str


class StoreFile:
    """An open file. All methods raise StoreError."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @staticmethod
    def create(path: Path, policy: str) -> None:
        """A new log; one that is there already is an error. It appears under its name when it is whole."""
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished.unlink(missing_ok=True)
            os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with _understood(path), contextlib.closing(_connect(unfinished, read_only=False)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(SCHEMA)
                connection.execute("INSERT INTO meta VALUES ('policy', ?)", (policy,))
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
            os.link(unfinished, path)
        except FileExistsError:
            raise StoreError(
                f"{path} exists already", hint="name another file with --store, or move this one"
            ) from None
        except OSError as error:
            raise StoreError(f"cannot make {path}: {error.strerror}", hint="name another file with --store") from None
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)

    @classmethod
    def open(cls, path: Path, *, read_only: bool) -> StoreFile:
        with _understood(path):
            opened = cls(path, _connect(path, read_only=read_only))
            application, version = opened._pragma("application_id"), opened._pragma("user_version")
            if application != APPLICATION:
                raise StoreError(f"{path} is not a cluster of gpushare", hint="name another file with --store")
            if not FORMAT <= version <= OF_ENGINES:
                raise StoreError(
                    f"{path} has format {version}, this gpushare reads up to {OF_ENGINES}",
                    hint="use the gpushare that wrote it",
                )
            return opened

    def close(self) -> None:
        self._connection.close()

    # ---- transactions ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """All of what is written in it, or nothing if it ends with an exception."""
        try:
            with _understood(self.path):
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """All that is read in it is of one moment."""
        with _understood(self.path):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._roll_back()

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def read(self, query: str, *values: object) -> list[Any]:
        with _understood(self.path):
            return self._connection.execute(query, values).fetchall()

    # ---- what it has ----------------------------------------------------------------------------

    def meta(self, key: str, default: str | None = None) -> str:
        with _understood(self.path):
            found = self._connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if found is None and default is not None:
            return default
        if found is None:
            raise StoreError(f"{self.path}: {key} is missing", hint="restore a copy of it")
        return str(found[0])

    def set_meta(self, key: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def rows(self, after: int) -> Iterator[tuple[int, float, str, str]]:
        """Number, time, events and actions of each."""
        query = "SELECT seq, time, events, actions FROM log WHERE seq > ? ORDER BY seq"
        yield from self._connection.execute(query, (after,))

    def add(self, seq: int, now: float, events: str, actions: str, *, of_engines: bool) -> None:
        """A row. `of_engines`: older versions do not know its events."""
        self._connection.execute("INSERT INTO log VALUES (?, ?, ?, ?)", (seq, now, events, actions))
        if of_engines:
            self._connection.execute(f"PRAGMA user_version = {OF_ENGINES}")

    def snapshot_seq(self) -> int:
        """The last row that a snapshot replaces; 0: there is none."""
        if self._pragma("user_version") == FORMAT or not self._connection.execute(HAS_SNAPSHOT).fetchone():
            return 0
        return int(self._connection.execute("SELECT seq FROM snapshot").fetchone()[0])

    def snapshot(self) -> Snapshot:
        """Raises ValueError if it is not what was written."""
        seq, now, state, *checksum = self._connection.execute("SELECT * FROM snapshot").fetchone()
        if checksum and checksum != [_checksum(self.meta("policy"), seq, now, state)]:
            raise ValueError("the checksum is another")
        return Snapshot(seq, now, state)

    def put_snapshot(self, new: Snapshot) -> None:
        """In place of all rows up to its last."""
        self._connection.execute("DROP TABLE IF EXISTS snapshot")
        self._connection.execute(SNAPSHOT)
        checksum = _checksum(self.meta("policy"), *new)
        self._connection.execute("INSERT INTO snapshot VALUES (?, ?, ?, ?)", (*new, checksum))
        self._connection.execute("DELETE FROM log WHERE seq <= ?", (new.seq,))
        self._connection.execute(f"PRAGMA user_version = {max(COMPACTED, self._pragma('user_version'))}")

    def shrink(self) -> None:
        """Give what compacting has left unused of it back to the disk."""
        with _understood(self.path):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])


def _checksum(policy: str, seq: int, now: float, state: str) -> str:
    """A byte that flips on the disk may leave the text well-formed; this finds it."""
    return hashlib.sha256("\n".join((policy, str(seq), float(now).hex(), state)).encode()).hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    # Even a reader of a WAL file may have to make the -shm file, so it opens for writing unless it may not. Then it can
    # only read a file that nobody has open (a writer's -wal is gone when it closes), and SQLite takes no locks.
    mode = "rw"
    if read_only and not os.access(path.parent, os.W_OK):
        mode = "ro" if _size(path.with_name(f"{path.name}-wal")) else "ro&immutable=1"
    name = path.absolute().as_uri() + f"?mode={mode}"
    # The service opens it in one thread and uses it in another, never in two at once.
    connection = sqlite3.connect(name, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


@contextlib.contextmanager
def readable(path: Path, what: str) -> Iterator[None]:
    """Text that was damaged fails in as many ways as there are parsers: whatever it is, the file is what is wrong."""
    try:
        yield
    except (GpushareError, sqlite3.Error):
        raise
    except Exception as error:
        raise StoreError(f"{path}: {what} cannot be read: it is damaged", hint="restore a copy of it") from error


@contextlib.contextmanager
def _understood(path: Path) -> Iterator[None]:
    """What SQLite says, in our words."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is damaged: {error.reason}", hint="restore a copy of it") from error
    except sqlite3.Error as error:
        text = str(error)
        if "locked" in text or "busy" in text:
            hint = "another gpushare is writing to it; try again"
        elif "not a database" in text or "malformed" in text:
            hint = "name another file with --store, or restore a copy of this one"
        elif "full" in text or "disk I/O" in text:
            hint = "free some space there"
        elif "readonly" in text:
            hint = "you may not write there: name another file with --store, or ask its owner"
        else:
            hint = "see that it can be read and written"
        raise StoreError(f"{path}: {text}", hint=hint) from error
