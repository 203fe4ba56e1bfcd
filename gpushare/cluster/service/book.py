"""The service's records of jobs, in the cluster's file: what was submitted, by whom, and how it has ended.

What the allocator needs of a job is in the log (store.py). The rest is here, and both are written in one transaction.
What a job is run with (command, environment, ...) may be long: it stays on disk, once for all jobs of an array.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.cluster.codec import decode, encode
from gpushare.cluster.engines.runner import Record, Result
from gpushare.cluster.model import Job
from gpushare.cluster.store import Store

__all__ = ["Book", "Ended", "Entry"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS run (number INTEGER PRIMARY KEY, run BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS job (
    id TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    place INTEGER, -- in the array
    uid INTEGER NOT NULL,
    gid INTEGER NOT NULL,
    user TEXT NOT NULL,
    submitted REAL NOT NULL,
    job TEXT NOT NULL,
    held INTEGER NOT NULL,
    requeue INTEGER NOT NULL,
    after TEXT NOT NULL,
    started REAL,
    ended REAL, -- NULL: it is not over
    evictions INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    how TEXT, -- NULL: it is to go on
    exit INTEGER,
    text TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS job_number ON job (number);
CREATE INDEX IF NOT EXISTS job_ended ON job (ended);
CREATE TABLE IF NOT EXISTS cordon (node TEXT PRIMARY KEY, draining INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS own_queue (name TEXT PRIMARY KEY, uid INTEGER NOT NULL) WITHOUT ROWID;
"""
LIVE = (
    "SELECT id, number, place, uid, user, submitted, held, requeue, after, started, how, exit, text, attempt, evictions"
    " FROM job"
)
ENDED = (
    "SELECT id, number, place, uid, user, submitted, job, requeue, started, ended, evictions, attempt, how, exit, text"
    " FROM job WHERE ended IS NOT NULL"
)
MOST_DIGITS = 18
"""Of a job's number. SQLite's integers hold no more."""
KEPT = 10_000
"""Jobs that are over, of which the results are kept."""
SPARE = 500
"""So many more before the oldest are removed."""


@dataclass(slots=True)
class Entry:
    """A job that is not over."""

    id: str
    number: int
    index: int | None
    uid: int
    user: str
    submitted: float
    held: bool
    requeue: bool
    after: tuple[str, ...]
    """Jobs that it still waits for: ids, or the number of an array."""
    started: float | None = None
    result: Result | None = None
    """It is to end so, or has: nobody starts it again."""
    attempt: int = 0
    evictions: int = 0

    @property
    def array(self) -> str | None:
        return None if self.index is None else str(self.number)


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that is over."""

    id: str
    number: int
    index: int | None
    uid: int
    user: str
    submitted: float
    job: Job
    requeue: bool
    started: float | None
    ended: float
    evictions: int
    attempt: int
    result: Result


class Book:
    """The records of one store, which is open for writing. Changes that come with events are made inside the
    transaction of the store, by the methods that take a connection; the entries in memory follow after it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.write(_make_tables)
        self.entries: dict[str, Entry] = {}
        self.cordons: dict[str, bool] = {}
        self.own_queues: dict[str, int] = {}
        """Queues that were made for a user, and whose they are."""
        self._jobs: dict[str, Job] = {}
        self.load()

    def load(self) -> None:
        """Everything as the file has it."""
        self.entries = {entry.id: entry for entry in map(_entry, self._store.read(f"{LIVE} WHERE ended IS NULL"))}
        self.cordons = {node: bool(draining) for node, draining in self._store.read("SELECT * FROM cordon")}
        self.own_queues = dict(self._store.read("SELECT name, uid FROM own_queue"))
        self._ended = int(self._store.read("SELECT count(*) FROM job WHERE ended IS NOT NULL")[0][0])

    # ---- reading -------------------------------------------------------------------------------------

    def number(self) -> int:
        """The number of the next job."""
        found = self._store.read("SELECT value FROM meta WHERE key = 'last_job'")
        return 1 + int(found[0][0]) if found else 1

    def next_term(self) -> int:
        """A term (engines/seam.py) that no service of this file has had."""

        def grow(connection: sqlite3.Connection) -> None:
            term = 1 + int((connection.execute("SELECT value FROM meta WHERE key = 'term'").fetchone() or [0])[0])
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('term', ?)", (str(term),))

        self._store.write(grow)
        return int(self._store.read("SELECT value FROM meta WHERE key = 'term'")[0][0])

    def job(self, id: str) -> Job:
        """The job with this id that is not over: the same object that the allocator has."""
        view = self._store.allocator.jobs.get(id)
        if view is not None:
            return view.job
        ((text,),) = self._store.read("SELECT job FROM job WHERE id = ?", id)
        return decode(text, Job)

    def record(self, id: str) -> Record | None:
        """All that is known of a job, over or not. None: there is no such job."""
        found = self._store.read(
            "SELECT id, job, uid, gid, user, submitted, requeue, place, job.number, run"
            " FROM job LEFT JOIN run ON run.number = job.number WHERE id = ?",
            id,
        )
        if not found:
            return None
        id, job, uid, gid, user, submitted, requeue, index, number, run = found[0]
        return Record(
            id=id,
            job=decode(job, Job),
            uid=uid,
            gid=gid,
            user=user,
            submitted=submitted,
            run=json.loads(zlib.decompress(run)) if run is not None else {},
            array=None if index is None else str(number),
            index=index,
            requeue=bool(requeue),
        )

    def ended(self, id: str) -> Ended | None:
        found = self._store.read(f"{ENDED} AND id = ?", id)
        return _ended(found[0]) if found else None

    def ended_named(self, name: str) -> str | None:
        """The id of the latest job with this name that is over."""
        order = "ORDER BY ended DESC, number DESC, place DESC LIMIT 1"
        found = self._store.read(f"{ENDED} AND json_extract(job, '$.name') = ? {order}", name)
        return _ended(found[0]).id if found else None

    def ended_of(self, name: str) -> list[Ended]:
        """Jobs of the array with this number that are over. None: the name is not the number of a job."""
        if not name.isdecimal() or len(name) > MOST_DIGITS:
            return []
        return [_ended(row) for row in self._store.read(f"{ENDED} AND number = ?", int(name))]

    def last_ended(self, most: int) -> list[Ended]:
        """Jobs that are over, the latest last."""
        rows = self._store.read(f"{ENDED} ORDER BY ended DESC, number DESC, place DESC LIMIT ?", most)
        return [_ended(row) for row in reversed(rows)]

    def of(self, name: str) -> list[Entry]:
        """The job with this id, or all jobs of the array with this number."""
        entry = self.entries.get(name)
        if entry is not None:
            return [entry]
        return [one for one in self.entries.values() if one.array == name]

    # ---- changes, inside a transaction ---------------------------------------------------------------

    @staticmethod
    def insert(connection: sqlite3.Connection, number: int, jobs: Sequence[tuple[Record, Entry]]) -> None:
        """New jobs of one submission, which has this number."""
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('last_job', ?)", (str(number),))
        if not jobs:
            return
        packed = zlib.compress(json.dumps(jobs[0][0].run).encode(), 1)
        connection.execute("INSERT INTO run VALUES (?, ?)", (number, packed))
        connection.executemany(
            "INSERT INTO job (id, number, place, uid, gid, user, submitted, job, held, requeue, after)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    *(record.id, entry.number, entry.index, record.uid, record.gid, record.user, record.submitted),
                    *(encode(record.job, Job), entry.held, entry.requeue, json.dumps(entry.after)),
                )
                for record, entry in jobs
            ],
        )

    @staticmethod
    def insert_queue(connection: sqlite3.Connection, name: str, uid: int) -> None:
        connection.execute("INSERT OR REPLACE INTO own_queue VALUES (?, ?)", (name, uid))

    @staticmethod
    def set_held(connection: sqlite3.Connection, ids: Iterable[str], *, held: bool) -> None:
        connection.executemany("UPDATE job SET held = ? WHERE id = ?", [(held, id) for id in ids])

    @staticmethod
    def set_after(connection: sqlite3.Connection, after: Mapping[str, Sequence[str]]) -> None:
        connection.executemany(
            "UPDATE job SET after = ? WHERE id = ?", [(json.dumps(names), id) for id, names in after.items()]
        )

    @staticmethod
    def set_result(connection: sqlite3.Connection, results: Mapping[str, Result]) -> None:
        connection.executemany(
            "UPDATE job SET how = ?, exit = ?, text = ? WHERE id = ?",
            [(one.how, one.exit, one.text, id) for id, one in results.items()],
        )

    @staticmethod
    def set_progress(connection: sqlite3.Connection, entries: Iterable[Entry]) -> None:
        connection.executemany(
            "UPDATE job SET started = ?, attempt = ?, evictions = ? WHERE id = ?",
            [(entry.started, entry.attempt, entry.evictions, entry.id) for entry in entries],
        )

    @staticmethod
    def set_cordon(connection: sqlite3.Connection, node: str, draining: bool | None) -> None:
        """Note that a node is closed; None: jobs may start there again."""
        connection.execute("DELETE FROM cordon WHERE node = ?", (node,))
        if draining is not None:
            connection.execute("INSERT INTO cordon VALUES (?, ?)", (node, draining))

    # ---- changes by themselves -----------------------------------------------------------------------

    def close(self, entries: Sequence[Entry], ended: Sequence[float]) -> None:
        """Note that jobs are over, and when each has ended."""
        count = self._ended + len(entries)
        surplus = count - KEPT if count > KEPT + SPARE else 0

        def write(connection: sqlite3.Connection) -> None:
            self.set_progress(connection, entries)
            times = [(when, entry.id) for entry, when in zip(entries, ended, strict=True)]
            connection.executemany("UPDATE job SET ended = ? WHERE id = ?", times)
            if surplus:
                oldest = "SELECT id FROM job WHERE ended IS NOT NULL ORDER BY ended, number, place LIMIT ?"
                connection.execute(f"DELETE FROM job WHERE id IN ({oldest})", (surplus,))
                connection.execute("DELETE FROM run WHERE number NOT IN (SELECT number FROM job)")

        self._store.write(write)
        for entry in entries:
            self.entries.pop(entry.id, None)
        self._ended = count - surplus


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in SCHEMA.split(";\n"):
        connection.execute(statement)


def _entry(row: tuple[Any, ...]) -> Entry:
    id, number, index, uid, user, submitted, held, requeue, after, started, how, status, text, *counts = row
    result = None if how is None else Result(how, status, text)
    waits = tuple(json.loads(after))
    return Entry(id, number, index, uid, user, submitted, bool(held), bool(requeue), waits, started, result, *counts)


def _ended(row: tuple[Any, ...]) -> Ended:
    id, number, index, uid, user, submitted, job, requeue, started, ended, evictions, attempt, how, status, text = row
    return Ended(
        *(id, number, index, uid, user, submitted, decode(job, Job), bool(requeue), started, ended),
        *(evictions, attempt, Result(how, status, text)),
    )
