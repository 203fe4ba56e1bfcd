"""The wrapper's connection to the daemon: how often it is looked for when it has gone, and what is said of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpushare
from gpushare import daemon_link, follower
from gpushare.daemon_link import Link
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob


class Absent:
    """A node whose daemon does not answer, and cannot be started again."""

    starter = None
    runtime = SimpleNamespace(log=Path("/nowhere/daemon.log"))

    def __init__(self) -> None:
        self.asked: list[float] = []

    def client(self, _timeout: float):
        self.asked.append(daemon_link.time.monotonic())
        raise DaemonUnreachable("no daemon answers")


class NotStarting:
    """What would start this user's daemon."""

    def start(self) -> None:
        raise GpushareError("no room on the disk")

    def reap(self) -> None:
        pass


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(daemon_link, "time", clock)
    return clock


@pytest.fixture
def said() -> list[tuple[int, str]]:
    return []


def linked(node, said: list[tuple[int, str]]) -> Link:
    return Link(node, {"id": "0" * 16}, os.getpid(), dict, lambda text, *, level: said.append((level, text)))


def until(one: Link, clock: Clock, seconds: float) -> None:
    """What the wrapper's wait does: it comes back when it is time to try again."""
    while one.retry_at is not None and one.retry_at <= seconds:
        assert one.retry_at > clock.now, "it tries again and again without a pause"
        clock.now = one.retry_at
        one.retry()


def test_a_daemon_that_has_gone_is_looked_for_ever_less_often(clock, said) -> None:
    node = Absent()
    until(linked(node, said), clock, 160.0)
    pauses = [after - before for before, after in zip(node.asked, node.asked[1:], strict=False)]
    assert pauses[0] == pytest.approx(0.05)
    assert pauses[1] == pytest.approx(0.1)
    assert max(pauses) == pytest.approx(5.0)
    assert pauses == sorted(pauses)
    assert len(pauses) < 25


def test_that_it_is_away_for_long_is_said_once_with_its_log(clock, said) -> None:
    until(linked(Absent(), said), clock, 112.0)
    assert said == []
    until(linked(Absent(), said), clock, 200.0)
    ((level, text),) = said
    assert level == 0
    assert "no daemon answers, for 15 s now: the program keeps the memory that it has and gets no more" in text
    assert "journalctl -u gpushared" in text


def test_a_daemon_that_a_setting_names_has_its_log_beside_its_socket(clock, said, tmp_path) -> None:
    node = Absent()
    node.runtime = SimpleNamespace(log=tmp_path / "daemon.log")
    node.runtime.log.touch()
    until(linked(node, said), clock, 200.0)
    assert f"the log: {tmp_path}/daemon.log" in said[0][1]


def test_a_daemon_that_cannot_be_started_again_is_said_even_without_v(clock, said) -> None:
    node = Absent()
    node.starter = NotStarting()
    until(linked(node, said), clock, 101.0)
    assert said == [(0, "cannot start the daemon again: no room on the disk")]


def test_a_job_that_is_being_killed_looks_for_no_daemon(clock, said) -> None:
    one = linked(Absent(), said)
    one.retry_at = None
    one._take({"kind": "killed", "text": "killed: its loan is needed"})
    one._retry_later()
    assert one.retry_at is None
    assert one.killed_notice == "killed: its loan is needed"
    assert said == [], "it is told at the end"


def test_notices_that_the_program_prints_itself_are_told_with_v_only_and_one_a_second(clock, said) -> None:
    one = linked(Absent(), said)
    for kind in ("asked_back", "trim", "asked_back", "asked_back"):
        one._take({"kind": kind, "text": kind})
    assert said == [(0, "asked_back"), (1, "trim")]
    clock.now += 1.0
    one._take({"kind": "asked_back", "text": "asked_back"})
    one._take({"kind": "trim", "text": "trim"})
    assert said[2:] == [(0, "asked_back (and 2 more like it)"), (1, "trim")]
    clock.now += 1.0
    one._take({"kind": "asked_back", "text": "asked_back"})
    assert said[-1] == (0, "asked_back"), "what was held back is counted once"


def test_what_a_stop_says_is_told_once(clock, said) -> None:
    one = linked(Absent(), said)
    assert not one.stopped
    for _ in range(2):
        one._take({"kind": "stopped", "text": "stopped by alice"})
    assert one.stopped
    assert said == [(0, "stopped by alice")]


class Refusing(Absent):
    """A daemon that answers and does not see the program."""

    def client(self, _timeout: float):
        def set_main(_job, _child):
            raise GpushareError("no process 7")

        return SimpleNamespace(set_main=set_main, events=self._none)

    def _none(self, _job):
        raise DaemonUnreachable("it has gone again")


@pytest.mark.parametrize("ended", [False, True])
def test_a_program_that_the_daemon_cannot_see_is_told_with_v_unless_it_has_ended(
    clock, said, monkeypatch, ended
) -> None:
    monkeypatch.setattr(daemon_link, "has_ended", lambda _child: ended)
    linked(Refusing(), said)
    assert said == ([] if ended else [(1, "the daemon cannot see the program: no process 7")])


class Stream:
    """The daemon's notices. Each read gives the next batch; an error is raised."""

    def __init__(self, *batches) -> None:
        self.batches = list(batches)
        self.ended = self.closed = False

    def read(self):
        batch = self.batches.pop(0)
        self.ended = not self.batches
        if isinstance(batch, Exception):
            raise batch
        return batch

    def close(self) -> None:
        self.closed = True


class Telling(Absent):
    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream

    def client(self, _timeout: float):
        return SimpleNamespace(set_main=lambda _job, _child: None, events=lambda _job: self.stream)


NOTICE = {"kind": "asked_back", "text": "give it back"}


@pytest.fixture
def unwatched(monkeypatch) -> None:
    """No signal comes when something arrives: these streams have no descriptor."""
    monkeypatch.setattr(daemon_link, "watch", lambda _events: None)


@pytest.mark.usefixtures("unwatched")
def test_a_stream_that_goes_on_is_kept_and_its_notices_are_told(clock, said) -> None:
    stream = Stream([NOTICE], [], [], [])  # its first batch is read as soon as it is open
    one = linked(Telling(stream), said)
    one.read()
    one.read()
    assert said == [(0, "give it back")]
    assert not stream.closed and one.retry_at is None


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("last", [[NOTICE], DaemonUnreachable("it has gone")])
def test_a_stream_that_ends_is_closed_and_the_daemon_looked_for(clock, said, last) -> None:
    stream = Stream(last)
    node = Telling(stream)
    one = linked(node, said)
    one.read()
    assert said == ([] if isinstance(last, Exception) else [(0, "give it back")])
    assert stream.closed and one.retry_at == pytest.approx(clock.now + daemon_link.RETRY_FIRST)
    one.read()  # there is nothing to read from until then


class Present:
    """A node whose daemon answers as it is told, and has a stream of notices."""

    starter = None
    runtime = SimpleNamespace(log="daemon.log", api_socket="/api")

    def __init__(self, *, state: str | None = "running", refuses: GpushareError | None = None) -> None:
        self.state, self.refuses = state, refuses
        self.did: list[object] = []
        self.timeouts: list[float] = []
        self.notices: list[dict[str, object]] = []
        self.ended = False
        self.pipe = os.pipe()

    def client(self, timeout: float):
        self.timeouts.append(timeout)
        return self

    def job(self, _id: str):
        if self.state is None:
            raise NoSuchJob("no such job")
        return {"state": self.state}

    def register(self, body) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.did.append(("register", body))

    def set_main(self, _id: str, child: int) -> None:
        self.did.append(("main", child))

    def end(self, _id: str, code: int | None, number: int | None):
        self.did.append(("end", code, number))
        return {"job": {"id": "later"}, "outcome": {"killed": None}}

    def events(self, _id: str):
        return self

    def fileno(self) -> int:
        return self.pipe[0]

    def read(self):
        now, self.notices = self.notices, []
        return now

    def close(self) -> None:
        self.did.append("closed")


@pytest.fixture
def present(monkeypatch):
    monkeypatch.setattr(daemon_link, "watch", lambda _events: None)
    made = []

    def make(**how) -> Present:
        made.append(Present(**how))
        return made[-1]

    yield make
    for one in made:
        os.close(one.pipe[0])
        os.close(one.pipe[1])


def test_a_stream_that_ends_is_opened_again_with_the_job_if_the_daemon_has_lost_it(present, clock, said) -> None:
    node = present()
    link = linked(node, said)
    assert node.did == [("main", os.getpid())]
    node.ended = True
    link.read()
    link.read()
    assert node.did[1:] == ["closed"] and link.retry_at == clock.now + daemon_link.RETRY_FIRST
    node.ended, node.state = False, None
    link.retry()
    assert node.did[2:] == [("register", {"job": "0" * 16}), ("main", os.getpid())] and link.retry_at is None
    node.ended = True
    link.read()
    node.ended, node.state = False, "running"
    link.retry()
    assert node.did[4:] == ["closed", ("main", os.getpid())], "the daemon knows it"
    node.ended = True
    link.read()
    assert link.retry_at == clock.now + daemon_link.RETRY_FIRST, "after an answer the pauses are short again"
    node.state = "ended"
    link.retry()
    assert node.did[6:] == ["closed"], "the daemon was ended on purpose"


def test_a_daemon_that_does_not_take_the_job_is_asked_seldom_and_said_once(present, clock, said) -> None:
    node = present()
    link = linked(node, said)
    node.ended = True
    link.read()
    node.state, node.refuses = None, GpushareError("no room")
    for _ in range(3):
        link.retry()
        assert link.retry_at == clock.now + daemon_link.RETRY_LAST
    assert said == [(0, "the daemon does not take the job back: no room")]


@pytest.mark.parametrize(("status", "told"), [(3 << 8, (3, None)), (15, (None, 15)), (0, (0, None))])
def test_the_end_is_told_and_the_job_is_what_it_has_become(present, said, monkeypatch, status, told) -> None:
    monkeypatch.setattr(daemon_link, "LAST_WORDS", 0.01)
    node = present()
    link = linked(node, said)
    assert link.end(status) == {"killed": None}
    assert node.did == [("main", os.getpid()), ("end", *told), "closed"] and link.job == {"id": "later"}


def test_notices_raise_a_signal_from_the_start_and_those_from_before_are_read(present, said, monkeypatch) -> None:
    node = present()
    node.notices = [NOTICE]
    watched = []
    monkeypatch.setattr(daemon_link, "watch", lambda events: watched.append((events, list(said))))
    linked(node, said)
    assert watched == [(node, [])] and said == [(0, "give it back")]


def test_a_daemon_that_hangs_holds_the_program_up_for_two_seconds_at_most(present, clock, said) -> None:
    node = present()
    link = linked(node, said)
    node.ended = True
    link.read()
    link.retry()
    link.end(0)
    assert node.timeouts == [2.0] * 3, "at its start, when it comes back, and at the end"


def test_a_notice_that_came_with_the_end_is_read(present, clock, said) -> None:
    node = present()
    link = linked(node, said)
    node.notices = [{"kind": "killed", "text": "its loan is needed"}]
    link.end(0)
    assert link.killed_notice == "its loan is needed"


def test_each_absence_of_the_daemon_is_counted_for_itself(present, clock, said) -> None:
    node = present()
    link = linked(node, said)

    def away_for(seconds: float) -> None:
        node.ended = True
        link.read()
        node.client = Absent().client
        until(link, clock, clock.now + seconds)
        del node.client
        node.ended = False
        clock.now = link.retry_at
        link.retry()
        assert link.retry_at is None

    away_for(10.0)
    clock.now += 100.0
    away_for(2.0)
    assert said == []


def test_a_job_without_hooks_and_suspending_loads_nothing_for_it(present, said, monkeypatch) -> None:
    """Each module counts: a program waits for it."""
    monkeypatch.setitem(sys.modules, "gpushare.follower", None)  # to import it would fail
    monkeypatch.delattr(gpushare, "follower")
    link = linked(present(), said)
    link.job = {"id": "0" * 16, "on_reclaim": ["trim", "term", "kill"]}
    link.start_followers({}, {})
    assert link._followers == []


def test_without_a_daemon_an_end_has_no_outcome(said, clock) -> None:
    link = linked(Absent(), said)
    assert link.end(0) is None and link.job == {"id": "0" * 16}


@pytest.mark.parametrize(
    ("steps", "hooks", "started"),
    [
        (["term", "kill"], {}, []),
        (["term", "kill"], {"H": "x"}, []),
        (["suspend"], {}, [("gpushare.suspender", {"A": "1"})]),
        (["hook"], {}, []),
        (["hook", "suspend"], {}, [("gpushare.suspender", {"A": "1"})]),
        (["hook"], {"H": "x"}, [("gpushare.hook_runner", {"A": "1", "H": "x"})]),
        (
            ["hook", "suspend"],
            {"H": "x"},
            [("gpushare.suspender", {"A": "1"}), ("gpushare.hook_runner", {"A": "1", "H": "x"})],
        ),
    ],
)
def test_the_processes_beside_the_program(present, said, monkeypatch, steps, hooks, started) -> None:
    made = []

    class Kept:
        def __init__(self, module, environ, job, socket, without) -> None:
            made.append((module, environ))
            assert (job, socket) == ("0" * 16, "/api")
            assert without == (follower.OWN_GPUS if module == follower.SUSPENDER else ())

    monkeypatch.setattr(follower, "KeptFollower", Kept)
    link = linked(present(), said)
    link.job["on_reclaim"] = steps
    link.start_followers({"A": "1"}, hooks)
    assert made == started


def test_a_process_that_does_not_start_is_told(present, said, monkeypatch) -> None:
    def fails(*_arguments):
        raise OSError(12, "no memory")

    monkeypatch.setattr(follower, "KeptFollower", fails)
    link = linked(present(), said)
    link.job["on_reclaim"] = ["suspend"]
    link.start_followers({}, {})
    assert said == [(0, "gpushare.suspender does not start, so its reclaim step is left out: no memory")]
