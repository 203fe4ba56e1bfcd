"""A cluster on disk: the log of its events, in SQLite.

The log is the truth: the state is what the allocator makes of the events, and it makes the same of them every time. One
row is one handing-in: the events that were decided on together, when, and the actions that followed. A row is there
wholly or not at all, and once append() has returned it survives kill -9 and power cuts (WAL, synchronous=FULL). So
nothing is lost, because what was answered is in the log; and nothing is there twice, because the allocator refuses a
job that it has.

On opening, the actions are decided again and compared with those in the log. If a newer version decides otherwise, what
was carried out is not what the state says; that is an error, and never repaired silently.

Several processes may use one file: each row is appended by a writer who has seen all rows before it.

A log that has become long is compacted: the state after its last row is written beside it (snapshot.py), and the rows
go, in one transaction, after the state that was written has been read back and found to be the same. It happens by
itself when the log has more rows than the cluster has jobs, and FEW at least. So opening depends on the present state,
not on history, and appends share the cost of compaction. What happened before is forgotten then; what is, with
the reason of every job, is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.codec import decode, decode_events, encode, encode_actions, encode_events
from gpushare.cluster.model import (
    Action,
    Event,
    ForeignUse,
    JobHeld,
    JobReleased,
    NodeCordoned,
    NodeDrained,
    NodeUncordoned,
    NodeUnknown,
    Policy,
    Started,
    StartFailed,
    StopRefused,
    TasksLost,
    TimePassed,
)
from gpushare.cluster.snapshot import restore, take
from gpushare.errors import GpushareError

__all__ = ["Row", "Store", "StoreError", "default_path"]

APPLICATION = 0x67707573  # "gpus": so that `file` and we know one when we see it
FORMAT = 1
COMPACTED = 3
"""The format of a file that has a snapshot: a version that knows only the first would miss the rows that are gone. In
format 2 the snapshot had no checksum."""
OF_ENGINES = 4
"""The format of a file, with or without a snapshot, that has had events of engines: older versions do not know them."""
SET_BACK = 300.0
"""Seconds by which the clocks of machines that write to one file may disagree. A clock that is further behind was set
back: the cluster's time goes on from where it is."""
FEW = 500
"""Rows that are no burden: a fraction of a second."""
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
ENGINE_EVENTS = (
    *(NodeUnknown, NodeCordoned, NodeDrained, NodeUncordoned, ForeignUse, JobHeld, JobReleased),
    *(Started, StartFailed, TasksLost, StopRefused),
)


Also = Callable[[sqlite3.Connection, list[Action]], None]


class StoreError(GpushareError):
    """The file cannot be used."""

    code = "store"


class Row(NamedTuple):
    seq: int
    time: float
    events: list[Event]
    actions: str
    """JSON."""


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    environ = os.environ if environ is None else environ
    state = environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path(environ.get("HOME") or "~").expanduser() / ".local" / "state"
    return base / "gpushare" / "cluster.db"


class Store:
    """An open log, and the allocator that has seen all of it."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._connection = connection
        with _readable(path, "its policy"):
            self.policy = decode(self._meta("policy"), Policy)
        self.allocator = Allocator(self.policy)
        self.seq = 0
        """The last row that the allocator has seen."""
        self.now = 0.0
        """The cluster's time. It does not go back, and stands still for no clock that was set wrong."""
        self._shift = 0.0
        """Seconds that the cluster's time is ahead of the machine's clock."""
        self._folded, self._long = 0, FEW
        self.compacts = True
        """An append that makes the log long compacts it. False: somebody else does (compact_behind)."""
        self._catch_up_safely()

    @classmethod
    def create(cls, path: Path, policy: Policy | None = None) -> Store:
        """A new log; one that is there already is an error. It appears under its name when it is whole."""
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished.unlink(missing_ok=True)
            os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with _understood(path), contextlib.closing(_connect(unfinished, read_only=False)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.executescript(SCHEMA)
                connection.execute("INSERT INTO meta VALUES ('policy', ?)", (encode(policy or Policy(), Policy),))
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
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Store:
        if not path.exists():
            raise StoreError(
                f"there is no cluster in {path}",
                hint="make one from a file of nodes and queues: `gpushare cluster apply FILE`",
            )
        with _understood(path):
            before = path.stat().st_mtime_ns
            connection = _connect(path, read_only=read_only)
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if application != APPLICATION:
                raise StoreError(f"{path} is not a cluster of gpushare", hint="name another file with --store")
            if not FORMAT <= version <= OF_ENGINES:
                raise StoreError(
                    f"{path} has format {version}, this gpushare reads up to {OF_ENGINES}",
                    hint="use the gpushare that wrote it",
                )
            opened = cls(path, connection, read_only=read_only)
            if (
                read_only and path.stat().st_mtime_ns != before
            ):  # see _connect: perhaps it was read half before, half after
                opened.close()
                return cls.open(path, read_only=True)
            return opened

    # ---- writing --------------------------------------------------------------------------------

    def at(self, clock: float) -> float:
        """The cluster's time when the machine's clock (seconds) shows this. It does not go back."""
        return max(self.now, clock + self._shift_at(clock))

    def _shift_at(self, clock: float) -> float:
        set_back = clock + self._shift < self.now - SET_BACK
        return self.now - clock if set_back else self._shift

    def append(self, events: Sequence[Event], now: float, also: Also | None = None) -> list[Action]:
        """Decide on events that come together, and keep both. If they are refused, nothing has changed.

        `now` is what the machine's clock shows (seconds); what counts is at(now). `also` writes more in the same
        transaction; it is given the actions."""
        return self._append(events, lambda: (self.at(now), self._shift_at(now)), also)

    def _append(
        self, events: Sequence[Event], clock: Callable[[], tuple[float, float]], also: Also | None = None
    ) -> list[Action]:
        """`clock` says the cluster's time, and how far it is ahead, once all rows have been seen."""
        if self.read_only:
            raise StoreError(f"{self.path} was opened for reading", hint="open it for writing")
        handled = False
        try:
            with _understood(self.path):
                self._connection.execute("BEGIN IMMEDIATE")
                self._catch_up()
                now, shift = clock()
                actions = self.allocator.handle(list(events), now)
                handled = True
                self._connection.execute(
                    "INSERT INTO log VALUES (?, ?, ?, ?)",
                    (self.seq + 1, now, encode_events(events), encode_actions(actions)),
                )
                if shift != self._shift:
                    self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('shift', ?)", (shift.hex(),))
                if any(isinstance(event, ENGINE_EVENTS) for event in events):
                    self._connection.execute(f"PRAGMA user_version = {OF_ENGINES}")
                if also is not None:
                    also(self._connection, actions)
                self._connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            refused = isinstance(error, GpushareError) and not isinstance(error, StoreError)
            if handled or not refused:  # the allocator may have seen what the disk has not
                self._begin_again()
            raise
        self.seq += 1
        self.now, self._shift = now, shift
        if self.compacts and self.is_long():
            with contextlib.suppress(StoreError):
                self.compact()
        return actions

    def is_long(self) -> bool:
        """The log is to be compacted now. If it cannot be, it is asked for again when it is twice as long."""
        if self.length < self._long:
            return False
        self._long = self.length * 2
        return True

    def write(self, change: Callable[[sqlite3.Connection], None]) -> None:
        """A change of what the file has beside the log, in one transaction."""
        try:
            with _understood(self.path):
                self._connection.execute("BEGIN IMMEDIATE")
                change(self._connection)
                self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def read(self, query: str, *values: object) -> list[Any]:
        """Rows of what the file has beside the log."""
        with _understood(self.path):
            return self._connection.execute(query, values).fetchall()

    @property
    def length(self) -> int:
        """Rows of the log that are there."""
        return self.seq - self._folded

    def compact(self, policy: Policy | None = None) -> int:
        """Replace all rows by the state that they lead to; how many that were. With another policy, if one is given."""
        if self.read_only:
            raise StoreError(f"{self.path} was opened for reading", hint="open it for writing")
        try:
            with _understood(self.path):
                self._connection.execute("BEGIN IMMEDIATE")
                self._catch_up()
                rows = self.length
                state = self._written()
                if policy is not None:
                    allocator = restore(policy, state)
                    state = take(allocator)
                    self._connection.execute(
                        "UPDATE meta SET value = ? WHERE key = 'policy'", (encode(policy, Policy),)
                    )
                self._put_snapshot(self.seq, self.now, state)
        except BaseException:
            self._roll_back()
            raise
        if policy is not None:
            self.policy, self.allocator = policy, allocator
        self._fold(self.seq)
        return rows

    def compact_behind(self) -> int:
        """The same for a process beside the one that appends: it waits for this only while the result is written.

        What has been appended meanwhile stays in the log."""
        rows, seq, now, state = self.length, self.seq, self.now, self._written()
        try:
            with _understood(self.path):
                self._connection.execute("BEGIN IMMEDIATE")
                known = self._connection.execute(HAS_SNAPSHOT).fetchone()
                found = self._connection.execute("SELECT seq FROM snapshot").fetchone() if known else None
                if self._meta("policy") != encode(self.policy, Policy) or (found is not None and found[0] >= seq):
                    self._roll_back()  # another has compacted it meanwhile
                    return 0
                self._put_snapshot(seq, now, state)
        except BaseException:
            self._roll_back()
            raise
        self._fold(seq)
        return rows

    def shrink(self) -> None:
        """Give what compacting has left unused of the file back to the disk."""
        with _understood(self.path):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _put_snapshot(self, seq: int, now: float, state: str) -> None:
        """In place of all rows up to this one; the end of a transaction."""
        checksum = _checksum(self._meta("policy"), seq, now, state)
        self._connection.execute("DROP TABLE IF EXISTS snapshot")
        self._connection.execute(SNAPSHOT)
        self._connection.execute("INSERT INTO snapshot VALUES (?, ?, ?, ?)", (seq, now, state, checksum))
        self._connection.execute("DELETE FROM log WHERE seq <= ?", (seq,))
        self._connection.execute(f"PRAGMA user_version = {max(COMPACTED, self._format())}")
        self._connection.execute("COMMIT")

    def _written(self) -> str:
        state = take(self.allocator)
        if take(restore(self.policy, state)) != state:
            raise StoreError(f"{self.path}: its state reads otherwise than it was written", hint="the log is kept")
        return state

    def _fold(self, seq: int) -> None:
        """Up to this row the log is a snapshot."""
        self._folded = seq
        self._long = max(FEW, len(self.allocator.jobs))

    def pass_time(self, now: float) -> list[Action]:
        """What time alone has led to since the last event: holds that ended, jobs that have waited long enough.

        `now` is what the machine's clock shows (seconds)."""
        actions: list[Action] = []
        last = None
        now = self.at(now)
        while (wake := self.allocator.next_wake) is not None and wake <= now and wake != last:
            last = wake
            if self.read_only:
                self.now = max(self.now, wake)
                actions += self.allocator.handle(TimePassed(), self.now)
            else:
                actions += self._append([TimePassed()], partial(self._at_least, wake))
        return actions

    def _at_least(self, time: float) -> tuple[float, float]:
        return max(time, self.now), self._shift

    # ---- reading --------------------------------------------------------------------------------

    def rows(self, after: int = 0) -> Iterator[Row]:
        query = "SELECT seq, time, events, actions FROM log WHERE seq > ? ORDER BY seq"
        for seq, time, events, actions in self._connection.execute(query, (after,)):
            with _readable(self.path, f"row {seq} of the log"):
                decoded = decode_events(events)
            yield Row(seq, time, decoded, actions)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- inside ---------------------------------------------------------------------------------

    def _begin_again(self) -> None:
        self.allocator, self.seq, self.now = Allocator(self.policy), 0, 0.0
        self._fold(0)
        self._catch_up_safely()

    def _catch_up_safely(self) -> None:
        """The snapshot and the rows of one moment."""
        with _understood(self.path):
            self._connection.execute("BEGIN")
            try:
                self._catch_up()
            finally:
                self._roll_back()

    def _catch_up(self) -> None:
        """Hand in the rows that others have appended, and see that they mean what they meant."""
        self._catch_up_with_snapshot()
        with _readable(self.path, "its time"):
            self._shift = float.fromhex(self._meta("shift", "0x0p+0"))
        for row in self.rows(self.seq):
            if row.seq != self.seq + 1:
                raise StoreError(f"{self.path}: row {self.seq + 1} of the log is missing", hint="restore a copy of it")
            try:
                actions = encode_actions(self.allocator.handle(row.events, row.time))
            except GpushareError as error:
                raise self._differs(row.seq, f"refused: {error.message}") from error
            if actions != row.actions:
                raise self._differs(row.seq, "decided otherwise")
            self.seq, self.now = row.seq, row.time

    def _catch_up_with_snapshot(self) -> None:
        """Another has compacted the log: rows that this one has not seen may be gone."""
        if self._format() == FORMAT or not self._connection.execute(HAS_SNAPSHOT).fetchone():
            return
        with _readable(self.path, "its state"):
            (seq,) = self._connection.execute("SELECT seq FROM snapshot").fetchone()
            if seq > self.seq:
                _, now, state, *checksum = self._connection.execute("SELECT * FROM snapshot").fetchone()
                if checksum and checksum != [_checksum(self._meta("policy"), seq, now, state)]:
                    raise ValueError("the checksum is another")
                self.allocator = restore(self.policy, state)
                self.seq, self.now = seq, now
            if seq > self._folded:
                self._fold(seq)

    def _differs(self, seq: int, how: str) -> StoreError:
        return StoreError(
            f"{self.path}: row {seq} of the log is {how} than it was when it was written",
            hint="compact it with the version of gpushare that wrote it: `gpushare cluster compact`",
            code="log_differs",
        )

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _format(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def _meta(self, key: str, default: str | None = None) -> str:
        with _understood(self.path):
            found = self._connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if found is None and default is not None:
            return default
        if found is None:
            raise StoreError(f"{self.path}: {key} is missing", hint="restore a copy of it")
        return str(found[0])


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
def _readable(path: Path, what: str) -> Iterator[None]:
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
