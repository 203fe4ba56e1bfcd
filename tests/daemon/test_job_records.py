"""What the daemon keeps of each job outside the core: its state, its bytes, its end, the signals that it gets."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX, NOTHING
from gpushare.reasons import Code, Reason
from gpushared.core.visibility import Viewer
from gpushared.jobs import registry as registry_
from gpushared.jobs.ending import Ending
from gpushared.jobs.registry import JobRecord, JobRegistry, JobState, new_job_id, stop
from gpushared.limits.byte_budget import ByteBudget, bytes_of
from gpushared.system.processes import Sent

ADA, BOB = 70001, 70002
GPU = "GPU-1"


def spec(name: str = "train", uid: int = ADA) -> JobSpec:
    return JobSpec(name, uid, f"user{uid}", ("a", "command"), NOTHING, MAX)


class Handle:
    """A process that notes what is done with it."""

    def __init__(self, pid: int, sent: Sent = Sent.REACHED) -> None:
        self.pid, self.start_time, self.sent = pid, 1, sent
        self.closed = 0
        self.signals: list[tuple[signal.Signals, int]] = []
        self.ended: Any = None

    def close(self) -> None:
        self.closed += 1

    def watch(self, _epoll: object, ended: Any) -> None:
        self.ended = ended

    def same(self, other: Handle) -> bool:
        return self.pid == other.pid

    def send(self, number: signal.Signals, uid: int) -> Sent:
        self.signals.append((number, uid))
        return self.sent


class Listener:
    """Of a job's notices."""

    def __init__(self, id: str, ended: list[str]) -> None:
        self.id, self.ended = id, ended

    def end(self) -> None:
        self.ended.append(self.id)


@pytest.fixture
def held() -> ByteBudget:
    return ByteBudget(lambda uid: True)


@pytest.fixture
def registry(held) -> JobRegistry:
    return JobRegistry(SimpleNamespace(), held)  # type: ignore[arg-type]


# ---- states -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", JobState)
@pytest.mark.parametrize("after", JobState)
def test_what_may_follow_a_state(before, after) -> None:
    record = JobRecord("ff", spec(), state=before)
    allowed = {("queued", "running"), ("queued", "ended"), ("running", "running"), ("running", "ended")}
    if (before, after) in allowed:
        record.become(after)
        assert record.state is after
    else:
        with pytest.raises(ValueError, match=f"job ff cannot become {after}: it is {before}"):
            record.become(after)
        assert record.state is before


def test_a_job_has_three_names_in_the_log() -> None:
    assert JobRecord("ff", spec()).who == {"job": "ff", "name": "train", "user": f"user{ADA}"}


# ---- the bytes of its user --------------------------------------------------------------------------


def test_a_job_counts_for_its_user_from_its_submission_until_it_is_forgotten(registry, held) -> None:
    size = bytes_of(spec())
    assert size > 0
    first, second = registry.open("a", spec()), registry.open("b", spec())
    other = registry.open("c", spec(uid=BOB))
    assert (held.of(ADA), held.of(BOB)) == (2 * size, bytes_of(spec(uid=BOB)))
    assert registry.bytes_of_live(ADA) == [size, size] and registry.bytes_of_live(BOB) == [other.bytes]
    registry.forget(first)
    assert held.of(ADA) == size and registry.get("a") is None
    registry.forget(first)
    assert held.of(ADA) == size, "once"
    second.become(JobState.RUNNING)
    registry.end(second)
    assert held.of(ADA) == size and registry.bytes_of_live(ADA) == [], "an ended job is kept, and counts"
    registry.forget(second)
    registry.forget(second)
    assert held.of(ADA) == 0 and held.of(BOB) > 0


def test_a_job_that_was_submitted_again_meanwhile_is_not_forgotten_with_the_first_call(registry, held) -> None:
    first = registry.open("a", spec())
    again = registry.open("a", spec())
    handle = first.wrapper = Handle(7)
    registry.forget(first)
    assert registry.get("a") is again and held.of(ADA) == again.bytes and handle.closed == 1
    assert first.wrapper is None


def test_of_too_many_ended_jobs_the_user_with_the_most_loses_the_oldest(registry, held, monkeypatch) -> None:
    monkeypatch.setattr(registry_, "ENDED_KEPT", 3)
    for number, uid in enumerate((BOB, ADA, ADA, ADA)):
        record = registry.open(str(number), spec(uid=uid))
        record.become(JobState.RUNNING)
        registry.end(record)
    assert [one.id for one in registry.all()] == ["0", "2", "3"] and list(registry.live()) == []
    assert held.of(ADA) == 2 * bytes_of(spec())
    again = registry.open("2", spec())  # an ended job's id is taken once more
    last = registry.open("4", spec())
    registry.end(last)
    assert registry.get("2") is again, "the older record with this id goes, and not the living one"
    assert [one.id for one in registry.all()] == ["0", "2", "3", "4"]


def test_ended_jobs_of_an_earlier_daemon_count_and_are_the_oldest(registry, monkeypatch) -> None:
    monkeypatch.setattr(registry_, "ENDED_KEPT", 3)
    for id in ("old", "older than none"):
        registry.take_up(JobRecord(id, spec(), state=JobState.ENDED))
    for id in ("a", "b"):
        registry.end(registry.open(id, spec()))
    assert [one.id for one in registry.all()] == ["older than none", "a", "b"]


# ---- the end ----------------------------------------------------------------------------------------


def test_the_end_of_a_job_is_noted_once(registry) -> None:
    record = registry.open("a", spec())
    record.become(JobState.RUNNING)
    wrapper, main = record.wrapper, record.main = Handle(1), Handle(2)
    heard: list[str] = []
    record.notices.listeners.add(Listener("end", heard))  # type: ignore[arg-type]
    record.began -= 5.0
    before = time.time()
    registry.end(record)
    assert record.state is JobState.ENDED and heard == ["end"] and (wrapper.closed, main.closed) == (1, 1)
    assert (record.wrapper, record.main) == (None, None)
    assert before <= record.ending.at <= time.time() and record.ending.duration == pytest.approx(5.0, abs=0.5)
    noted = record.ending.at, record.ending.duration
    registry.end(record)
    assert (record.ending.at, record.ending.duration) == noted and heard == ["end"] and len(registry._ended[ADA]) == 1


def test_an_end_that_was_noted_before_stays(registry) -> None:
    record = registry.open("a", spec())
    record.ending.at, record.ending.duration = 12.5, 0.0
    registry.end(record)
    assert (record.ending.at, record.ending.duration) == (12.5, 0.0)


def test_a_listener_that_comes_after_the_end_hears_all_and_then_the_end(registry, held) -> None:
    record = registry.open("a", spec())
    record.notices.put("waiting", "it waits", {})
    assert not record.backlog(held)._ended
    registry.end(record)
    late = record.backlog(held)
    assert late._ended and [one["text"] for one in late._items] == ["it waits"]


def test_an_outcome_says_how_long_a_job_has_lasted_and_what_it_had(registry) -> None:
    record = registry.open("a", spec())
    record.began -= 10.0
    record.totals.note_peak(GPU, 7)
    registry.note_peak("a", GPU, 9)
    registry.note_peak("gone", GPU, 99)
    registry.note_computing("a", GPU, 0.5, 4.0)
    registry.note_computing("gone", GPU, 0.5, 4.0)
    record.totals.refusals = 2
    record.ending.note_exit(3, None)
    shown = record.outcome(5)
    assert shown.pop("duration") == pytest.approx(10.0, abs=0.5), "it has not ended: until now"
    assert shown == {
        "exit_code": 3,
        "signal": None,
        "killed": None,
        "peak": {GPU: 9},
        "gpu_time": {GPU: 2.0},
        "refusals": 7,
        "ended": None,
        "seen": True,
    }
    record.ending.duration = 0.0
    assert record.outcome(0)["duration"] == 0.0


@pytest.mark.parametrize(
    ("number", "reclaim", "ago", "killed"),
    [
        (signal.SIGTERM, None, 1.0, "relieved"),
        (signal.SIGTERM, None, 3.0, None),
        (signal.SIGKILL, None, 1.0, None),
        (None, None, 1.0, None),
        (signal.SIGTERM, "another", 1.0, "another"),
    ],
)
def test_a_program_that_dies_of_sigterm_within_its_grace_dies_of_the_reclaim(number, reclaim, ago, killed) -> None:
    relieved = {"code": "relieved", "time": time.time() - ago, "grace": 2.0}
    ending = Ending(reclaim=relieved)
    ending.relieve()
    assert (ending.reclaim, ending.relieved) == (None, relieved)
    ending.reclaim = None if reclaim is None else {"code": reclaim}
    ending.note_exit(None if number else 0, number)
    assert (ending.reclaim and ending.reclaim["code"]) == killed
    assert (ending.exit_code, ending.exit_signal) == (None if number else 0, number)


def test_a_job_that_was_never_asked_back_dies_of_no_reclaim() -> None:
    ending = Ending()
    ending.note_exit(None, signal.SIGTERM)
    assert ending.reclaim is None


# ---- its processes ----------------------------------------------------------------------------------


def test_a_new_wrapper_takes_the_place_of_the_last_and_its_end_is_told(registry) -> None:
    record, told = registry.open("a", spec()), []
    registry.on_wrapper_end = told.append
    first, second = Handle(1), Handle(2)
    registry.set_wrapper(record, first)
    assert record.wrapper is first and first.closed == 0
    registry.set_wrapper(record, second)
    assert record.wrapper is second and (first.closed, second.closed) == (1, 0)
    second.ended()
    assert told == [record]
    registry.close()
    assert second.closed == 1 and registry.get("a") is record, "the handles go, and the jobs stay"


def test_all_streams_end_with_the_daemon(registry) -> None:
    ended: list[str] = []
    for id in "ab":
        registry.open(id, spec()).notices.listeners.add(Listener(id, ended))  # type: ignore[arg-type]
    registry.end_streams()
    assert ended == ["a", "b"]


def signals_of(*handles: Handle) -> list[list[int]]:
    return [[int(number) for number, _ in one.signals] for one in handles]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_program_that_is_stopped_is_continued_after_sigterm(monkeypatch, stopped) -> None:
    monkeypatch.setattr(registry_, "is_stopped", lambda pid: stopped and pid != 3)
    record = JobRecord("a", spec())
    record.main = Handle(9)  # type: ignore[assignment]
    reached, spared, running = Handle(1), Handle(2, Sent.NOT_THEIRS), Handle(3)
    sent = stop(record, [reached, spared, running], signal.SIGTERM)  # type: ignore[list-item]
    assert sent == {reached: Sent.REACHED, spared: Sent.NOT_THEIRS, running: Sent.REACHED}
    more = [signal.SIGCONT] if stopped else []
    assert signals_of(reached, spared, running) == [[signal.SIGTERM, *more], [signal.SIGTERM], [signal.SIGTERM]]
    assert {uid for one in (reached, spared, running) for _, uid in one.signals} == {ADA}
    assert record.main.signals == [], "SIGTERM goes to those that were named"  # type: ignore[union-attr]


def test_a_kill_reaches_the_main_program_once_and_continues_nothing(monkeypatch) -> None:
    monkeypatch.setattr(registry_, "is_stopped", lambda pid: True)
    record = JobRecord("a", spec())
    one, main = Handle(1), Handle(9)
    processes: list[Any] = [one]
    assert stop(record, processes, signal.SIGKILL) == {one: Sent.REACHED}, "it has no main program"
    record.main = main  # type: ignore[assignment]
    assert stop(record, processes, signal.SIGKILL) == {one: Sent.REACHED, main: Sent.REACHED}
    assert processes == [one], "the caller's list is its own"
    same = Handle(9)
    assert stop(record, [same], signal.SIGKILL) == {same: Sent.REACHED}  # type: ignore[list-item]
    assert signals_of(one, main, same) == [[signal.SIGKILL] * 2, [signal.SIGKILL], [signal.SIGKILL]]


# ---- names ------------------------------------------------------------------------------------------


def found(registry: JobRegistry, name: str, viewer: Viewer) -> list[str]:
    return [one.id for one in registry.find(name, viewer)]


def test_jobs_are_found_by_id_name_or_the_beginning_of_an_id(registry) -> None:
    for id, name, uid in (("aaaa1", "train", ADA), ("aaaa2", "train", BOB), ("bbbb1", "eval", BOB)):
        registry.open(id, spec(name, uid))
    ended = [registry.open(f"cccc{number}", spec("old", BOB)) for number in (1, 2)]
    for one in ended:
        registry.end(one)
    everybody, nobody = Viewer(ADA, "name"), Viewer(ADA, "none")
    root = Viewer(0, "name", True)
    assert found(registry, "bbbb1", nobody) == ["bbbb1"]
    assert found(registry, "train", everybody) == ["aaaa1"], "of several the viewer's own"
    assert found(registry, "train", Viewer(5, "name")) == ["aaaa1", "aaaa2"] == found(registry, "train", root)
    assert found(registry, "eval", everybody) == ["bbbb1"] and found(registry, "eval", nobody) == []
    assert found(registry, "old", everybody) == ["cccc2"], "the last of those that have ended"
    registry.open("dddd1", spec("old", BOB))
    assert found(registry, "old", everybody) == ["dddd1"], "a living one before them"
    registry.open("eeee1", spec("red?[31m", BOB))
    assert found(registry, "red\x1b[31m", everybody) == ["eeee1"], "as names are kept"
    assert found(registry, "AAAA", nobody) == ["aaaa1", "aaaa2"] and found(registry, "aaa", nobody) == []
    assert found(registry, "aaaa2", nobody) == ["aaaa2"] and found(registry, "ffff", nobody) == []


def test_an_id_is_never_nought(monkeypatch) -> None:
    made = iter(["0" * 16, "00000000000000a1"])
    monkeypatch.setattr(registry_.secrets, "token_hex", lambda count: next(made) if count == 8 else "")
    assert new_job_id() == "00000000000000a1"


def test_the_facts_of_a_kill_are_of_now() -> None:
    before = time.time()
    told = registry_.killed_facts(Reason(Code.RECLAIM, "why", data={"claim": "c1"}))
    assert told["claim"] == "c1" and before <= told["time"] <= time.time()
