"""How long the daemon waits: for programs, for drivers, for a server that ends; in seconds, by clocks of the tests."""

from __future__ import annotations

import asyncio
import sqlite3
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import GIB, GPU

from gpushare.dashboard.daemon import SILENT_FOR
from gpushared.api import event_stream, follower_routes
from gpushared.history import file as history_file
from gpushared.history import usage
from gpushared.history.levels import Amounts, SeriesKey, Who
from gpushared.history.usage import Change, UsageHistory, _Writer
from gpushared.system import dashboard
from gpushared.system.dashboard import Dashboard

KEY, WHO = SeriesKey(GPU, "j"), Who("train", "ada", 70001)


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    time = monotonic


# ---- the page for administrators ---------------------------------------------------------------------


def test_a_server_of_pages_that_ends_is_started_again_later_each_time(directory, monkeypatch) -> None:
    """As soon as it has worked for a while, its next end counts as the first."""
    clock, pauses, lasts = Clock(5.0), [], [0.0] * 8 + [10.0, 10.1, 0.0]

    class Over(Exception):
        pass

    async def run() -> str:
        if not lasts:
            raise Over
        clock.now += lasts.pop(0)
        return "it says"

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    page = Dashboard(directory, 1, read_only=False)
    monkeypatch.setattr(page, "_run", run)
    monkeypatch.setattr(dashboard.asyncio, "sleep", sleep)
    monkeypatch.setattr(dashboard.asyncio, "get_running_loop", lambda: SimpleNamespace(time=clock.time))
    with pytest.raises(Over):
        asyncio.run(page._keep())
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 1.0, 2.0]


# ---- readers of streams --------------------------------------------------------------------------------


def test_a_stream_on_which_nothing_happens_says_so_before_its_reader_gives_it_up() -> None:
    """Twice, as a busy node may be late once."""
    assert 2 * event_stream.HEARTBEAT < SILENT_FOR
    assert follower_routes.HEARTBEAT == 5.0, "who stands at a gate must see soon that its daemon has gone"


def test_a_program_waits_longer_for_the_daemon_than_the_daemon_for_memory(make_daemon) -> None:
    """By 5 s: then it takes the daemon for stuck."""
    with make_daemon(claim_timeout=7.0).connect() as shim:
        assert shim.hello(request=0, limit=GIB).patience_ms == 12_000


# ---- the usage history -----------------------------------------------------------------------------------


class Recorder:
    """A file of the history that notes when it is asked for what, and fails when it is told to."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.done = clock, []
        self.failing = False

    def __call__(self, path: Any, now: int) -> Recorder:
        self._note("open")
        return self

    def _note(self, what: str) -> None:
        self.done.append((what, self.clock.now))
        if self.failing:
            raise sqlite3.OperationalError("disk I/O error")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self._note(name) if name in ("commit", "prune", "close") else None

    def times(self, what: str) -> list[float]:
        return [at for done, at in self.done if done == what]


@pytest.fixture
def clock(monkeypatch) -> Clock:
    one = Clock(1000.0)
    monkeypatch.setattr(usage, "time", one)
    return one


@pytest.fixture
def recorder(clock: Clock, monkeypatch) -> Recorder:
    one = Recorder(clock)
    monkeypatch.setattr(history_file, "File", one)
    return one


def write(writer: _Writer, clock: Clock, at: float) -> None:
    clock.now = at
    writer.write(Change(int(at * 1000), {KEY: Amounts(int(at), 0, 0, 0)}, {KEY: WHO}))


def test_the_file_is_committed_each_10_seconds_and_old_rows_go_each_five_minutes(tmp_path, clock, recorder) -> None:
    writer = _Writer(tmp_path / "usage.db")
    for second in range(1000, 1901):
        write(writer, clock, float(second))
    assert recorder.times("open") == [1000.0]
    assert recorder.times("commit") == [float(at) for at in range(1000, 1901, 10)]
    assert recorder.times("prune") == [1000.0, 1300.0, 1600.0, 1900.0]


def test_a_disk_that_fails_is_tried_each_10_seconds(tmp_path, clock, recorder) -> None:
    writer, recorder.failing = _Writer(tmp_path / "usage.db"), True
    for second in range(1000, 1035):
        write(writer, clock, float(second))
    assert recorder.times("open") == [1000.0, 1010.0, 1020.0, 1030.0] and writer.file is None
    recorder.failing = False
    for second in range(1035, 1060):
        write(writer, clock, float(second))
    assert recorder.times("open")[4:] == [1040.0]
    writer.close()
    assert recorder.done[-2:] == [("commit", 1059.0), ("close", 1059.0)]


def looks(tmp_path: Any, *moments: float) -> list[tuple[float, list[int | None]]]:
    """What is put for the file at each look."""
    one = UsageHistory(tmp_path)
    one._thread = SimpleNamespace()  # type: ignore[assignment]  # nothing takes what waits
    for moment in moments:
        one.look({KEY: Amounts(int(moment * 10), 0, 0, 0)}, lambda _: WHO, moment)
    return [
        (change.time / 1000, [None if amounts is None else amounts.usage for amounts in change.changed.values()])
        for change in one._changes
    ]


def test_each_second_is_kept_also_if_a_timer_is_a_little_early(tmp_path) -> None:
    kept = looks(tmp_path, 10.0, 10.5, 10.899, 11.0, 11.5, 11.9, 12.7, 12.799, 12.8)
    assert [at for at, _ in kept] == [10.0, 11.0, 11.9, 12.8]


@pytest.mark.parametrize(("pause", "known"), [(30.0, True), (30.001, False), (-0.001, False)])
def test_of_a_pause_of_half_a_minute_nothing_is_known(tmp_path, pause, known) -> None:
    """The daemon stood still, or the clock was set."""
    kept = looks(tmp_path, 100.0, 100.0 + pause)
    ended = [] if known else [(100.001, [None])]
    assert kept == [(100.0, [1000]), *ended, (100.0 + pause, [int((100.0 + pause) * 10)])]


def test_of_a_thread_that_hangs_the_last_two_minutes_wait(tmp_path) -> None:
    kept = looks(tmp_path, *(float(second) for second in range(100, 300)))
    assert [at for at, _ in kept] == [float(second) for second in range(180, 300)]
