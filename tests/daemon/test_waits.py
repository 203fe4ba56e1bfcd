"""How long the daemon waits, and how often it bears what goes wrong: in seconds, by clocks of the tests; in numbers."""

from __future__ import annotations

import asyncio
import sqlite3
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import GIB, GPU, until

from gpushare import __version__
from gpushare._layout import lib
from gpushare.dashboard.daemon import SILENT_FOR
from gpushare.errors import UsageError
from gpushared.api import event_stream, follower_routes
from gpushared.api.history import HistoryHandler
from gpushared.api.history_question import HistoryQuestion
from gpushared.core.events import CreditAsked
from gpushared.history import file as history_file
from gpushared.history import usage
from gpushared.history.levels import OUTSIDE, TOTAL, Amounts, SeriesKey, Who
from gpushared.history.usage import Change, UsageHistory, _Writer
from gpushared.jobs import earlier
from gpushared.jobs.historian import Historian
from gpushared.limits import identities
from gpushared.runtime import suspenders
from gpushared.runtime.asks import INTERNAL, Asks
from gpushared.shims import connection
from gpushared.shims.connection import PendingHandshakes
from gpushared.shims.frames import OLDEST
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


def test_of_a_series_that_has_ended_nothing_is_kept_in_memory(tmp_path, clock, recorder) -> None:
    writer = _Writer(tmp_path / "usage.db")
    write(writer, clock, 1000.0)
    assert list(writer._known) == list(writer._who) == [KEY]
    writer.write(Change(1001_000, {KEY: None}, {}))
    assert not writer._known and not writer._who


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


# ---- the end of the daemon ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Historian, UsageHistory])
def test_a_disk_that_hangs_holds_the_end_up_for_two_seconds(tmp_path, make) -> None:
    waited: list[float] = []
    one = make(tmp_path)
    one._thread = SimpleNamespace(join=waited.append)
    one.close()
    assert waited == [2.0]


def test_a_start_waits_for_the_history_for_a_second(tmp_path) -> None:
    asked: list[Any] = []

    class Slow:
        async def ask(self, uid: int, question: Any, within: float) -> None:
            asked.append((uid, within))

    assert asyncio.run(earlier.read(Slow())) == earlier.Before([], [])  # type: ignore[arg-type]
    assert asked == [(0, 1.0)], "as root, who sees all"


# ---- failures of the core ------------------------------------------------------------------------------------


def test_an_ask_is_refused_at_the_second_failure_that_it_was_open_at() -> None:
    """It may be their cause. Others are repeated, with the time that they have waited."""
    asks, answers = Asks(), []
    for number in (1, 2):
        asks.add(CreditAsked(number, 7, GPU, 5, waited=1.0), lambda done, line: answers.append((done, line)))
    asks.count_failure()
    asks.drop(2)
    (again,) = asks.again()
    assert again.ask == 1 and again.waited >= 1.0 and answers == []
    asks.add(CreditAsked(3, 7, GPU, 5), lambda done, line: answers.append((done, line)))
    asks.count_failure()
    assert [one.ask for one in asks.again()] == [3] and list(asks.open) == [3]
    ((denied, line),) = answers
    assert (denied.ask, denied.process, denied.gpu, denied.reason, line) == (1, 7, GPU, INTERNAL, None)


# ---- a program that does not speak as it should ----------------------------------------------------------------


def test_eight_frames_that_make_no_sense_end_a_connection(daemon) -> None:
    """Not those of a later library: it may ask what this daemon does not know, and hears so each time."""

    def told(kind: int, *, version: int = lib.GS_WIRE_VERSION, **body: Any) -> str:
        frame = shim.frame(kind, **body)
        frame.version = version
        shim.send(frame)
        answer = shim.answer()
        assert (answer.status, answer.seq) == (lib.GS_BAD_FRAME, frame.seq)
        return str(answer.text).partition(": ")[2]

    with daemon.connect() as shim:
        shim.hello(request=0, limit=GIB)
        assert shim.attach(GPU).status == lib.GS_OK
        for _ in range(9):
            assert told(77, version=lib.GS_WIRE_VERSION + 1) == "a frame of type 77"
        assert told(lib.GS_ASK, ask={"line": 1, "bytes": 5}) == "no line 1"
        assert told(lib.GS_ASK, ask={"line": 0, "bytes": 0}) == "an ask for nothing"
        assert told(lib.GS_DETACH, detach={"line": 1}) == "no line 1"
        for _ in range(3):
            told(77)
        assert told(lib.GS_TRIMMED, version=OLDEST - 1).startswith(f"frames of version {OLDEST - 1};")
        assert shim.allocate(5) is None, "there is credit"
        assert told(lib.GS_HELLO) == f"a frame of type {lib.GS_HELLO}"
        with pytest.raises((EOFError, ConnectionError)):
            shim.receive()
    with daemon.connect() as shim:
        shim.send(shim.frame(lib.GS_ASK, ask={"line": 0, "bytes": 5}))
        assert shim.answer().status == lib.GS_BAD_FRAME
        with pytest.raises((EOFError, ConnectionError)):
            shim.receive()


# ---- what is known, and for how long -----------------------------------------------------------------------------


def test_groups_of_a_user_are_asked_for_again_after_five_minutes(monkeypatch) -> None:
    clock, asked = Clock(1000.0), []
    monkeypatch.setattr(identities, "time", clock)

    def run(threads: object, look_up: object, uid: int) -> Any:
        asked.append((clock.now, uid))
        return SimpleNamespace(add_done_callback=lambda _: None)

    one = identities.Identities(SimpleNamespace(run_in_executor=run))  # type: ignore[arg-type]
    one._known[7] = 1000.0, identities.Who(7, "ada", frozenset({"vision"}))
    for clock.now in (1000.0, 1299.0, 1300.0, 1300.5, 1301.0):
        assert one.known(7).groups == {"vision"}
    assert asked == [(1300.5, 7)], "once, until there is an answer"
    one.close()


def test_what_the_host_has_is_read_again_after_a_fifth_of_a_second(monkeypatch) -> None:
    clock, reads = Clock(1000.0), []
    monkeypatch.setattr(suspenders, "time", clock)
    monkeypatch.setattr(suspenders, "_available", lambda: reads.append(clock.now) or len(reads))
    one: Any = object.__new__(type("Some", (suspenders.Suspenders,), {"__len__": lambda _: 1}))
    one._host = float("-inf"), None
    found = []
    for clock.now in (1000.0, 1000.1, 1000.19, 1000.21, 1000.4):
        found.append(one.host_available())
    assert found == [1, 1, 1, 2, 2] and reads == [1000.0, 1000.21]


def question(**query: str) -> HistoryQuestion:
    return HistoryQuestion(SimpleNamespace(query=query), 10.0**9)  # type: ignore[arg-type]


def asked_for(one: HistoryQuestion) -> list[Any]:
    """Level, beginning and end."""
    found: list[Any] = []
    one.read(SimpleNamespace(read=lambda *what: found.extend(what[:3])))  # type: ignore[arg-type]
    return found


def test_a_question_about_the_past_is_about_the_last_ten_minutes_in_seconds() -> None:
    """Unless it says otherwise, for 400 days at most."""
    assert asked_for(question()) == [0, (10**9 - 600) * 1000, 10**12]
    assert asked_for(question(until="5000")) == [3, 4400 * 1000, 5000 * 1000]
    assert asked_for(question(until="500"))[1] == 0, "nothing is older than 1970"
    assert asked_for(question(since="999999000.5", step="59")) == [1, 999999000500, 10**12]
    longest = 400 * 24 * 3600
    assert asked_for(question(since=f"{10**9 - longest}", step="1e9"))[0] == 3
    for since in (f"{10**9 - longest - 1}", f"{10**9 + 1}", "-1", "nan", "1e12", "x"):
        with pytest.raises(UsageError):
            question(since=since)
    assert asked_for(question(since=f"{10**9}"))[1:] == [10**12, 10**12]


def test_the_series_of_a_whole_gpu_is_nobodys() -> None:
    handler: Any = object.__new__(HistoryHandler)
    for job in (TOTAL, OUTSIDE):
        assert handler._whose(SeriesKey(GPU, job)) == Who("", "", -1)


def test_who_says_nothing_for_ten_seconds_is_let_go() -> None:
    timers: list[tuple[float, Any]] = []

    class Timer:
        cancelled = 0

        def cancel(self) -> None:
            self.cancelled += 1

    def call_later(seconds: float, call: Any) -> Timer:
        timers.append((seconds, call))
        return timer

    timer, pending = Timer(), PendingHandshakes()

    class One:
        uid = 7

        def close(self) -> None:
            """Called when it is late."""

    one: Any = One()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection.asyncio, "get_running_loop", lambda: SimpleNamespace(call_later=call_later))
        pending.add(one)
        pending.start_timer(one)
        assert timers == [(10.0, one.close)]
        pending.end(one)
        pending.end(one)
        pending.start_timer(one)
    assert timer.cancelled == 1 and len(timers) == 1, "it has said HELLO, or has gone"


# ---- what is shown before anything is known -----------------------------------------------------------------------


def test_a_context_is_thought_to_cost_300_mib_until_one_was_seen(daemon) -> None:
    job = daemon.client.register({"name": "train", "command": ["x"], "request": "1Gi", "devices": ["0"]})
    assert [gpu["context"] for gpu in job["gpus"]] == [300 * 2**20]


def test_metrics_name_the_version_and_the_driver_once(daemon) -> None:
    _, text = daemon.http("GET", "/metrics")
    (line,) = [one for one in text.decode().splitlines() if one.startswith("gpushare_build_info{")]
    assert line == f'gpushare_build_info{{driver="sim",version="{__version__}"}} 1.0'


def test_metrics_tell_programs_that_are_connected_from_those_that_are_not(daemon) -> None:
    def clients() -> dict[str, str]:
        _, text = daemon.http("GET", "/metrics")
        lines = [one for one in text.decode().splitlines() if one.startswith("gpushare_clients{")]
        return dict(one.split() for one in lines)

    states = ['gpushare_clients{state="connected"}', 'gpushare_clients{state="detached"}']
    with daemon.connect() as shim:
        shim.hello(request=0, limit=GIB)
        assert clients() == dict(zip(states, ("1.0", "0.0"), strict=True))
        shim.sock.close()
        until(lambda: clients() == dict(zip(states, ("0.0", "1.0"), strict=True)))
