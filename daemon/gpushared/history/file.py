"""The file of the usage history: SQLite, on the thread that usage.py runs.

Rows are bounded by LEVELS, bytes by MOST_PAGES, series by the rows that name them. A broken file is renamed once, and a
new one is begun. All errors of SQLite or of the disk are raised as sqlite3.Error or OSError.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gpushare.paths import make_private
from gpushared.history.levels import FRAME, LEVELS, Amounts, Found, Point, SeriesKey, Steps, Who

__all__ = ["File"]

PAGE = 4096
MOST_PAGES = 16 * 1024
"""64 MiB."""
MOST_POINTS = 30_000
"""The most points in one answer. The latest are kept."""
VERSION = 2
SCHEMA = """
create table series (id integer primary key, gpu text, job text, name text, user text, uid integer, seen integer,
    unique (gpu, job));
create table point (level integer, time integer, series integer, usage integer, most integer, request integer,
    bound integer, loan integer, computing integer not null default 0, primary key (level, time, series)) without rowid;
create table alive (time integer);
insert into alive values (0);
"""
OF_VERSION_1 = "alter table point add column computing integer not null default 0;"
"""What makes this version of the first."""


class File:
    """Open, for one thread."""

    def __init__(self, path: Path, now: int) -> None:
        """`now` in milliseconds. The series of an earlier daemon end at its last write."""
        self._path = path
        make_private_parent(path)
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # an error of the disk, not of the file's content
            self.put_aside()
            self._open()
        self._ids: dict[SeriesKey, int] = {}
        self._steps = [Steps(level.step, now) for level in LEVELS[1:]]
        self._living: dict[SeriesKey, Amounts] = {}
        self._framed = self._written = now
        self._take_up(now)
        self.prune(now)

    def _open(self) -> None:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self._db = db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            db.execute("pragma journal_mode = wal")
            db.execute("pragma synchronous = normal")
            db.execute(f"pragma max_page_count = {MOST_PAGES}")
            (version,) = db.execute("pragma user_version").fetchone()
            if version == 0:
                db.executescript(f"begin; {SCHEMA} pragma user_version = {VERSION}; commit")
            elif version == 1:
                db.executescript(f"begin; {OF_VERSION_1} pragma user_version = {VERSION}; commit")
            _check_version(version)
        except BaseException:
            db.close()
            raise

    def put_aside(self) -> None:
        """Rename the broken file, for a look at it later, and begin another."""
        for end in ("-wal", "-shm"):
            self._path.with_name(self._path.name + end).unlink(missing_ok=True)
        self._path.replace(self._path.with_name(self._path.name + ".bad"))

    def close(self) -> None:
        self._db.close()

    # ---- what the daemon before has left -----------------------------------------------------------

    def _take_up(self, now: int) -> None:
        """Finish the steps that it had begun, and end its series: of the time in between nothing is known."""
        (alive,) = self._db.execute("select time from alive").fetchone()
        if not 0 < alive <= now:
            return  # the first, or the clock was set back: its steps are as it has written them
        self._steps = [Steps(level.step, alive) for level in LEVELS[1:]]
        keys = self._keys()
        self._ids = {key: id for id, (key, _) in keys.items()}
        since = min(steps.begun for steps in self._steps) - FRAME * 1000
        rows = self._db.execute(
            "select time, series, usage, request, bound, loan, computing from point where level = 0 and time >= ?"
            " order by time",
            (since,),
        )
        for time, id, *amounts in rows.fetchall():
            key = keys[id][0]
            found = None if amounts[0] is None else Amounts(*amounts)
            for steps in self._steps:
                steps.take(key, max(time, steps.begun), found)
            if found is None:
                self._living.pop(key, None)
            else:
                self._living[key] = found
        self.write(alive + 1, dict.fromkeys(self._living), {})
        self.finish(now)
        self.commit(now)

    def _keys(self) -> dict[int, tuple[SeriesKey, Who]]:
        rows = self._db.execute("select id, gpu, job, name, user, uid from series")
        return {id: (SeriesKey(gpu, job), Who(name, user, uid)) for id, gpu, job, name, user, uid in rows}

    # ---- writing -----------------------------------------------------------------------------------

    def begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("begin")

    def write(self, time: int, changed: Mapping[SeriesKey, Amounts | None], who: Mapping[SeriesKey, Who]) -> None:
        """Write the changes at `time`. None: the series ends. `who`: of the new series."""
        self.begin()
        self._written = time
        for key, one in who.items():
            if key not in self._ids:
                self._ids[key] = self._id(key, one, time)
        if time - self._framed >= FRAME * 1000:
            self._framed = time
            changed = {**self._living, **changed}
            self._db.executemany("update series set seen = ? where id = ?", ((time, self._ids[key]) for key in changed))
        points = []
        for key, amounts in changed.items():
            points.append(Point(key, time, amounts, amounts.usage if amounts is not None else 0))
            if amounts is None:
                self._living.pop(key, None)
            else:
                self._living[key] = amounts
            for steps in self._steps:
                steps.take(key, time, amounts)
        self._insert(0, points)

    def finish(self, now: int) -> None:
        """Write the coarser steps that are over. Before write() of the same moment."""
        self.begin()
        for index, steps in enumerate(self._steps, 1):
            self._insert(index, steps.finish(now))

    def _insert(self, level: int, points: Iterable[Point]) -> None:
        rows = ((level, one.time, self._ids[one.series], *_row(one)) for one in points)
        self._db.executemany("insert or replace into point values (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def _id(self, key: SeriesKey, who: Who, time: int) -> int:
        self._db.execute(
            "insert into series (gpu, job, name, user, uid, seen) values (?, ?, ?, ?, ?, ?) on conflict (gpu, job)"
            " do update set name = excluded.name, user = excluded.user, uid = excluded.uid, seen = excluded.seen",
            (*key, *who, time),
        )
        found: tuple[int] = self._db.execute("select id from series where gpu = ? and job = ?", key).fetchone()
        return found[0]

    def commit(self, now: int) -> None:
        self.begin()
        self._db.execute("update alive set time = ?", (now,))
        self._db.execute("commit")

    def roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("rollback")

    def prune(self, now: int) -> None:
        """Remove rows that are too old or too many, and rows in the future, from a clock that was ahead."""
        self.begin()
        for index, level in enumerate(LEVELS):
            self._db.execute(
                "delete from point where level = ? and (time < ? or time > ?)",
                (index, now - level.kept * 1000, now + FRAME * level.step * 1000),
            )
            surplus = self._count(index) - level.rows
            if surplus > 0:
                self._drop(index, surplus + level.rows // 10)
        oldest = now - max(level.kept for level in LEVELS) * 1000
        self._db.execute("delete from series where seen < ?", (oldest,))
        self._db.execute("commit")
        self._ids = {key: id for id, (key, _) in self._keys().items()}

    def make_room(self) -> None:
        """Remove half of each level if the file has nearly all of its pages. A disk that is full for other reasons
        costs no rows."""
        (pages,) = self._db.execute("pragma page_count").fetchone()
        if pages < MOST_PAGES * 0.9:
            return
        self.begin()
        for index in range(len(LEVELS)):
            self._drop(index, self._count(index) // 2)
        self._db.execute("commit")

    def _count(self, level: int) -> int:
        found: tuple[int] = self._db.execute("select count(*) from point where level = ?", (level,)).fetchone()
        return found[0]

    def _drop(self, level: int, rows: int) -> None:
        """The oldest."""
        self._db.execute(
            "delete from point where level = ?1 and time <="
            " (select time from point where level = ?1 order by time limit 1 offset ?2)",
            (level, rows),
        )

    # ---- reading -----------------------------------------------------------------------------------

    def read(self, level: int, since: int, until: int, job: str | None, gpu: str | None) -> tuple[list[Found], bool]:
        """The series that have points in the range, or hold a value at its beginning; and whether some are left out."""
        step = LEVELS[level].step * 1000
        keys = {
            id: found
            for id, found in self._keys().items()
            if job in (None, found[0].job) and gpu in (None, found[0].gpu)
        }
        which = f" and series in ({', '.join(map(str, keys))})" if (job, gpu) != (None, None) else ""
        rows = self._db.execute(
            "select time, series, usage, most, request, bound, loan, computing from point where level = ? and time >= ?"
            f" and time < ?{which} order by time desc limit ?",
            (level, since - FRAME * step, until, MOST_POINTS + 1),
        ).fetchall()
        cut = len(rows) > MOST_POINTS
        points: dict[int, list[Point]] = {}
        for time, id, usage, most, request, bound, loan, computing in reversed(rows[:MOST_POINTS]):
            if id not in keys:
                continue
            amounts = None if usage is None else Amounts(usage, request, bound, loan, computing)
            one = Point(keys[id][0], time, amounts, most or 0)
            _put(points.setdefault(id, []), one, since)
        for one in self._steps[level - 1].so_far(self._written) if level else ():
            id = self._ids[one.series]
            if id in keys and since - FRAME * step <= one.time < until:
                _put(points.setdefault(id, []), one, since)
        return list(_within(points, keys, since)), cut


def _put(own: list[Point], one: Point, since: int) -> None:
    """The next point of a series. Of those at the beginning of the range or before it only the last holds there."""
    if one.time <= since:
        own.clear()
    own.append(one)


def _within(
    points: Mapping[int, list[Point]], keys: Mapping[int, tuple[SeriesKey, Who]], since: int
) -> Iterator[Found]:
    for id, own in points.items():
        first = own[0]
        if first.time < since:
            own[0] = first._replace(time=since)
        if len(own) > 1 or first.amounts is not None:
            yield Found(*keys[id], own)


def _check_version(version: int) -> None:
    if version not in (0, 1, VERSION):
        raise sqlite3.DatabaseError(f"the file has version {version}, and this daemon writes version {VERSION}")


def _row(point: Point) -> tuple[int | None, ...]:
    if point.amounts is None:
        return (*(None,) * 5, 0)
    usage, request, limit, loan, computing = point.amounts
    return usage, point.most, request, limit, loan, computing


def make_private_parent(path: Path) -> None:
    """Make the directory, readable for this user only, if it does not exist."""
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_private(path.parent)
