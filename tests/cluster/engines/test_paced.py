"""The engine `memory` of the service: the clock's time, what may be asked of it, and when it wakes those that watch."""

from __future__ import annotations

import threading
import time
from math import inf
from pathlib import Path

import pytest

from gpushare.cluster.engines import paced
from gpushare.cluster.engines.memory import START_SECONDS
from gpushare.cluster.engines.paced import FAULTS, Paced
from gpushare.cluster.engines.runner import Context, Record
from gpushare.cluster.engines.seam import Accepted, Evict, Gone, Start, Unanswered
from gpushare.cluster.model import Job, Node, Place
from gpushare.errors import UsageError

NODES = (Node("n", 2, 100), Node("m", 1, 100))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def engine(clock: Clock, **settings: object) -> Paced:
    return paced.make(Context(settings, clock, Path("/nowhere"), NODES, False))  # type: ignore[return-value]


def record(name: str = "j", **run: object) -> Record:
    return Record(name, Job(name, "q"), 0, 0, "root", 0.0, run)


def start(one: Paced, token: int = 1, name: str = "j", gpu: int = 0, **run: object) -> object:
    command = Start(name, 1, (Place(0, 0, "n", (gpu,), 100, 1),), 0)
    return one.start(record(name, **run), command, (1, token))


def phases(one: Paced) -> dict[str, list[str]]:
    return {name: [task.phase for task in tasks] for name, tasks in one.tasks().items()}


# ---- what is asked --------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"seed": 3}, dict.fromkeys(FAULTS, 0.5), {"seed": "4", "lost": "0.5"}])
def test_settings_that_there_are(clock, settings):
    engine(clock, **settings)


def test_a_setting_that_there_is_not(clock):
    with pytest.raises(UsageError, match=r"\[memory\]: no such key 'sed'") as caught:
        engine(clock, seed=1, sed=2)
    assert caught.value.hint == f"there are: seed, {', '.join(FAULTS)}" and "stop_refused" in FAULTS


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"duration": 0},
        {"duration": 1.5},
        {"duration": inf},
        {"exit": 0},
        {"exit": 255},
        {"exit": -255},
        {"other": 1},
    ],
)
def test_what_it_can_run(clock, run):
    engine(clock).check(record(**run))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        *(
            ({"duration": bad}, f"run.duration: {bad!r} is not a number of seconds")
            for bad in (-1, -0.5, float("nan"), True, "5", None)
        ),
        *(({"exit": bad}, f"run.exit: {bad!r} is not an exit status") for bad in (256, -256, 1.0, True, "0", None)),
    ],
)
def test_what_it_cannot_run(clock, run, words):
    with pytest.raises(UsageError) as caught:
        engine(clock).check(record(**run))
    assert caught.value.message == words


def test_it_has_the_nodes_of_the_file(clock):
    assert [(seen.node, seen.state) for seen in engine(clock).nodes()] == [(node, "ready") for node in NODES]


# ---- time -----------------------------------------------------------------------------------------


def test_a_task_begins_runs_and_ends_by_the_clock(clock):
    one = engine(clock)
    assert start(one, duration=10, exit=3) == Accepted()
    assert phases(one) == {"j": ["starting"]}
    clock.now += START_SECONDS - 0.01
    assert phases(one) == {"j": ["starting"]}
    clock.now += 0.01
    assert phases(one) == {"j": ["running"]}
    clock.now += 9.99
    assert [(task.phase, task.exit) for task in one.tasks()["j"]] == [("running", None)]
    clock.now += 0.01
    assert [(task.phase, task.exit) for task in one.tasks()["j"]] == [("done", 3)]


@pytest.mark.parametrize("late", [12.0, 500.0])
def test_who_looks_late_sees_what_has_happened_since(clock, late):
    one = engine(clock)
    start(one, duration=10)
    clock.now += late
    assert [(task.phase, task.exit) for task in one.tasks()["j"]] == [("done", 0)]


def test_without_a_duration_it_runs_until_it_is_stopped(clock):
    one = engine(clock)
    start(one)
    clock.now += 1e6
    assert phases(one) == {"j": ["running"]}
    assert one.evict(Evict("j", 1, ((0, 0),), 0.0, False), (1, 2)) == Accepted()
    assert phases(one) == {"j": ["stopping"]}
    clock.now += 1.0
    assert one.tasks() == {}


def test_a_job_is_forgotten_when_it_is_collected(clock):
    one = engine(clock)
    start(one, duration=1, exit=4)
    clock.now += 10
    assert phases(one) == {"j": ["done"]}
    one.collect("j")
    one.collect("j")
    assert one.tasks() == {}
    assert one.evict(Evict("j", 1, ((0, 0),), 0.0, False), (1, 2)) == Gone()
    assert start(one, 3, duration=1) == Accepted()
    clock.now += 10
    assert one.tasks()["j"][0].exit == 0, "it is another job"


def test_it_stands_still_while_the_clock_does(clock):
    one = engine(clock)
    start(one, duration=10)
    for _ in range(5):
        one.nodes()
    clock.now -= 50.0
    assert phases(one) == {"j": ["starting"]}
    clock.now += 50.0 + START_SECONDS
    assert phases(one) == {"j": ["running"]}


# ---- watching -------------------------------------------------------------------------------------


class Waits:
    """The event that a watch waits for."""

    def __init__(self, one: Paced) -> None:
        self.seconds: list[float] = []
        self.event = one._woken
        one._woken = self  # type: ignore[assignment]

    def wait(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def set(self) -> None:
        self.event.set()

    def clear(self) -> None:
        self.event.clear()


def test_a_watch_ends_when_the_next_task_changes(clock):
    one = engine(clock)
    waits = Waits(one)
    one.watch(60.0)
    start(one, duration=10)
    one.watch(60.0)
    one.watch(1.0)
    clock.now += START_SECONDS + 1
    one.tasks()
    one.watch(60.0)
    clock.now += 8.5
    one.watch(60.0)
    clock.now += 5
    one.watch(60.0)
    assert waits.seconds == [60.0, START_SECONDS, 1.0, 9.0, 0.5, 0.0]


def test_the_soonest_of_several_counts_and_what_is_over_does_not(clock):
    one = engine(clock)
    waits = Waits(one)
    start(one, 1, "a", 0, duration=100)
    start(one, 2, "b", 1, duration=20)
    clock.now += START_SECONDS
    one.tasks()
    one.watch(1000.0)
    clock.now += 20.0
    one.tasks()
    one.watch(1000.0)
    one.evict(Evict("a", 1, ((0, 0),), 50.0, False), (1, 3))
    one.watch(1000.0)
    assert waits.seconds[:2] == [20.0, 80.0] and 0.0 <= waits.seconds[2] <= 50.0


def test_with_faults_it_looks_each_second(clock):
    one = engine(clock, vanish=1.0)
    waits = Waits(one)
    start(one, duration=100)
    one.watch(60.0)
    one.watch(0.25)
    assert waits.seconds == [1.0, 0.25]
    clock.now += START_SECONDS
    assert phases(one) == {"j": ["running"]}
    clock.now += 1.0
    assert one.tasks() == {}, "it has vanished"


def test_a_sooner_change_wakes_who_waits_for_a_later_one(clock):
    one = engine(clock)
    one._woken.clear()
    start(one, duration=100)
    assert one._woken.is_set()
    one._woken.clear()
    one.tasks()
    assert not one._woken.is_set(), "nothing comes sooner"


@pytest.mark.parametrize("how", ["wake", "close"])
def test_a_watch_ends_early(clock, how):
    one = engine(clock)
    timer = threading.Timer(0.02, getattr(one, how))
    timer.start()
    began = time.monotonic()
    one.watch(30.0)
    assert time.monotonic() - began < 20.0
    timer.join()
    waits = Waits(one)
    one.watch(5.0)
    assert waits.seconds == [5.0] and not one._woken.event.is_set(), "once is once"  # type: ignore[attr-defined]


def test_what_goes_wrong_is_by_the_seed(clock):
    def answers(seed: int) -> list[bool]:
        one, found = engine(clock, seed=seed, lost=0.5), []
        for number in range(40):
            try:
                start(one, number + 1, f"j{number}", number % 2)
                found.append(True)
            except Unanswered:
                found.append(False)
        return found

    assert answers(1) == answers(1) != answers(2)
    assert 5 < sum(answers(1)) < 35
