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
import os
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
from gpushare.cluster.store_file import Connection, Snapshot, StoreError, StoreFile, readable
from gpushare.errors import GpushareError

__all__ = ["Row", "Store", "StoreError", "default_path"]

SET_BACK = 300.0
"""Seconds by which the clocks of machines that write to one file may disagree. A clock that is further behind was set
back: the cluster's time goes on from where it is."""
FEW = 500
"""Rows that are no burden: a fraction of a second."""
ENGINE_EVENTS = (
    *(NodeUnknown, NodeCordoned, NodeDrained, NodeUncordoned, ForeignUse, JobHeld, JobReleased),
    *(Started, StartFailed, TasksLost, StopRefused),
)


Also = Callable[[Connection, list[Action]], None]


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

    def __init__(self, file: StoreFile, *, read_only: bool) -> None:
        self.path = file.path
        self.read_only = read_only
        self._file = file
        self.policy = self._kept_policy()
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
        StoreFile.create(path, encode(policy or Policy(), Policy))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Store:
        if not path.exists():
            raise StoreError(
                f"there is no cluster in {path}",
                hint="make one from a file of nodes and queues: `gpushare cluster apply FILE`",
            )
        before = path.stat().st_mtime_ns
        opened = cls(StoreFile.open(path, read_only=read_only), read_only=read_only)
        if read_only and path.stat().st_mtime_ns != before:  # perhaps it was read half before a change, half after it
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
            with self._file.writing() as connection:
                self._catch_up()
                now, shift = clock()
                actions = self.allocator.handle(list(events), now)
                handled = True
                of_engines = any(isinstance(event, ENGINE_EVENTS) for event in events)
                decided = encode_actions(actions)
                self._file.add(self.seq + 1, now, encode_events(events), decided, of_engines=of_engines)
                if shift != self._shift:
                    self._file.set_meta("shift", shift.hex())
                if also is not None:
                    also(connection, actions)
        except BaseException as error:
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

    def write(self, change: Callable[[Connection], None]) -> None:
        """A change of what the file has beside the log, in one transaction."""
        with self._file.writing() as connection:
            change(connection)

    def read(self, query: str, *values: object) -> list[Any]:
        """Rows of what the file has beside the log."""
        return self._file.read(query, *values)

    @property
    def length(self) -> int:
        """Rows of the log that are there."""
        return self.seq - self._folded

    def compact(self, policy: Policy | None = None) -> int:
        """Replace all rows by the state that they lead to; how many that were. With another policy, if one is given."""
        if self.read_only:
            raise StoreError(f"{self.path} was opened for reading", hint="open it for writing")
        with self._file.writing():
            self._catch_up()
            rows = self.length
            state = self._written()
            if policy is not None:
                allocator = restore(policy, state)
                state = take(allocator)
                self._file.set_meta("policy", encode(policy, Policy))
            self._file.put_snapshot(Snapshot(self.seq, self.now, state))
        if policy is not None:
            self.policy, self.allocator = policy, allocator
        self._fold(self.seq)
        return rows

    def compact_behind(self) -> int:
        """The same for a process beside the one that appends: it waits for this only while the result is written.

        What has been appended meanwhile stays in the log."""
        rows, new = self.length, Snapshot(self.seq, self.now, self._written())
        with self._file.writing():
            if self._kept_policy() != self.policy or self._file.snapshot_seq() >= new.seq:
                return 0  # another has compacted it meanwhile
            self._file.put_snapshot(new)
        self._fold(new.seq)
        return rows

    def _kept_policy(self) -> Policy:
        with readable(self.path, "its policy"):
            return decode(self._file.meta("policy"), Policy)

    def shrink(self) -> None:
        """Give what compacting has left unused of the file back to the disk."""
        self._file.shrink()

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
        for seq, time, events, actions in self._file.rows(after):
            with readable(self.path, f"row {seq} of the log"):
                decoded = decode_events(events)
            yield Row(seq, time, decoded, actions)

    def close(self) -> None:
        self._file.close()

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
        with self._file.reading():
            self._catch_up()

    def _catch_up(self) -> None:
        """Hand in the rows that others have appended, and see that they mean what they meant."""
        self._catch_up_with_snapshot()
        with readable(self.path, "its time"):
            self._shift = float.fromhex(self._file.meta("shift", "0x0p+0"))
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
        with readable(self.path, "its state"):
            seq = self._file.snapshot_seq()
            if seq > self.seq:
                kept = self._file.snapshot()
                self.allocator = restore(self.policy, kept.state)
                self.seq, self.now = kept.seq, kept.now
            if seq > self._folded:
                self._fold(seq)

    def _differs(self, seq: int, how: str) -> StoreError:
        return StoreError(
            f"{self.path}: row {seq} of the log is {how} than it was when it was written",
            hint="compact it with the version of gpushare that wrote it: `gpushare cluster compact`",
            code="log_differs",
        )
