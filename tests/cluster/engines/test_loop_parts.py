"""The loop's own parts: how long it waits, what it does without an answer, and what it says in the log."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from engine_stage import SETTINGS, Disk, Stage

from gpushare.cluster.engines import loop as loops
from gpushare.cluster.engines.loop import POLL, TERM, Loop, Part, start_each
from gpushare.cluster.engines.reconcile import Notes, Patience
from gpushare.cluster.engines.seam import Accepted, Busy, Deposed, Evict, Refused, Start, Unanswered
from gpushare.cluster.model import Place


class Wakes:
    """A ledger that wakes at some time."""

    def __init__(self, wake: float | None, now: float) -> None:
        self.allocator = SimpleNamespace(next_wake=wake)
        self.now = now

    def at(self, clock: float) -> float:
        return self.now


@pytest.mark.parametrize(
    ("wake", "waits"), [(None, POLL), (1e9, POLL), (107.5, 7.5), (100.0, 0.0), (99.0, 0.0), (110.5, POLL)]
)
def test_it_waits_until_the_allocator_wakes_and_at_most_ten_seconds(wake, waits):
    watched: list[float] = []
    loop = Loop(Wakes(wake, 100.0), SimpleNamespace(watch=watched.append), lambda: 100.0)  # type: ignore[arg-type]
    loop.step = lambda: True  # type: ignore[method-assign, assignment]
    loop.run(lambda: len(watched) == 2)
    assert watched == [waits] * 2 and POLL < TERM


@pytest.mark.parametrize(
    ("error", "words"),
    [(Unanswered("nobody"), "nobody"), (Deposed("another leads"), "another leads"), (Deposed(), "Deposed")],
)
def test_a_round_that_fails_is_logged_and_the_next_one_comes(caplog, error, words):
    rounds: list[int] = []

    def step() -> bool:
        rounds.append(1)
        raise error

    loop = Loop(Wakes(None, 0.0), SimpleNamespace(watch=lambda seconds: None), lambda: 0.0)  # type: ignore[arg-type]
    loop.step = step  # type: ignore[method-assign, assignment]
    with caplog.at_level(logging.WARNING):
        loop.run(lambda: len(rounds) == 2)
    assert [one.message for one in caplog.records] == [f"this round was not finished: {words}"] * 2


# ---- starts -----------------------------------------------------------------------------------------------


def started(name: str) -> Start:
    return Start(name, 1, (), 0)


def test_starts_go_one_after_the_other_and_one_without_an_answer_keeps_none_from_its_turn(caplog):
    def start(command: Start, token: Any) -> Any:
        if command.uid == "b":
            raise Unanswered("it is lost")
        return Accepted()

    given = [(started(name), (1, number)) for number, name in enumerate("abc")]
    with caplog.at_level(logging.WARNING):
        found = list(start_each(SimpleNamespace(start=start), given))  # type: ignore[arg-type]
    assert found == [(started("a"), Accepted()), (started("b"), None), (started("c"), Accepted())]
    assert [one.message for one in caplog.records] == ["no answer to the start of b: it is lost"]


def test_an_engine_that_can_starts_many_at_once():
    class Many:
        def start_all(self, commands: Any) -> Any:
            return iter([(command, Busy()) for command, _ in commands])

    assert list(start_each(Many(), [(started("a"), (1, 1))])) == [(started("a"), Busy())]  # type: ignore[arg-type]


def test_no_command_is_given_when_the_term_may_be_over():
    now = [100.0]
    loop = Loop(Wakes(None, 0.0), None, lambda: now[0])  # type: ignore[arg-type]
    given = loop._numbered([started(name) for name in "abcde"], 7, 100.0)
    assert next(given) == (started("a"), (7, 1))
    now[0] = 100.0 + TERM - 0.001
    assert next(given) == (started("b"), (7, 2))
    now[0] = 100.0 + TERM
    assert list(given) == []
    now[0] = 99.9
    assert list(loop._numbered([started("a")], 7, 100.0)) == [], "the clock was set back"
    now[0] = 100.0
    assert list(loop._numbered([started("a")], 8, 100.0)) == [(started("a"), (8, 3))], "numbers grow"


def test_an_eviction_without_an_answer_is_counted_as_such(caplog):
    def lost(*_: Any) -> Any:
        raise Unanswered("it is lost")

    stage = Stage({"n": 1}, [("a", 1)])
    loop = stage.loop
    evict = Evict("j", 1, ((0, 0),), 5.0, True)
    loop.engine = SimpleNamespace(evict=lost, annotate=lost)  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        loop._tell([(evict, (1, 1)), (loops.Note("k", "it waits"), (1, 2))])
    assert [one.message for one in caplog.records] == [
        "no answer to evict of j: it is lost",
        "no answer to note of k: it is lost",
    ]
    assert loop.answers == {("evict", "none"): 1}
    loop.engine = SimpleNamespace(evict=lambda *_: Accepted(), annotate=lambda *_: None)  # type: ignore[assignment]
    loop._tell([(evict, (1, 3)), (loops.Note("k", "it waits"), (1, 4))])
    assert loop.answers == {("evict", "none"): 1, ("evict", "accepted"): 1}


# ---- few jobs -------------------------------------------------------------------------------------------------


def test_a_part_has_the_jobs_that_are_named_and_are_there():
    places = {("a", 1): ("x",), ("b", 2): ("y",)}
    allocator = SimpleNamespace(jobs={"a": 1, "b": 2, "c": 3}, nodes={"n": 4}, leaving=places)
    part = Part(allocator, {"a", "c", "gone"})  # type: ignore[arg-type]
    assert dict(part.jobs) == {"a": 1, "c": 3} and len(part.jobs) == 2 and part.nodes == {"n": 4}
    assert "a" in part.jobs and "b" not in part.jobs and "gone" not in part.jobs
    for name in ("b", "gone"):
        with pytest.raises(KeyError):
            part.jobs[name]
    assert part.leaving == {("a", 1): ("x",)}


def test_who_is_to_hurry_is_told_once_more():
    loop = Loop(Disk(), None, lambda: 0.0)  # type: ignore[arg-type]
    loop.notes = Notes(stops={("a", 1, 0, 0): Patience(0.0, 0.0), ("b", 1, 0, 0): Patience(0.0, 0.0)}, hurry={"c"})
    loop.hurry(["a"])
    assert loop.notes.hurry == {"a", "c"} and list(loop.notes.stops) == [("b", 1, 0, 0)]


@pytest.mark.parametrize(("node", "where"), [(None, ""), ("n", " on n")])
def test_a_start_that_failed_is_in_the_log_with_its_reason(caplog, node, where):
    stage = Stage({"n": 2}, [("a", 1)])
    stage.submit("j", "a")
    stage.round()
    refused = Refused("no such file", node)
    with caplog.at_level(logging.WARNING):
        stage.loop._learn(Start("j", 1, (Place(0, 0, "n", (0,), 1, 0),), 0), refused)
        stage.round()
    assert [one.message for one in caplog.records] == [
        f"job j, attempt 1: these tasks did not start{where}: 0.0: no such file"
    ]


def test_what_was_decided_is_in_the_log(caplog):
    stage = Stage({"n": 1}, [("a", 1)])
    stage.loop.tell = loops.log_each
    stage.submit("j", "a")
    with caplog.at_level(logging.INFO):
        stage.round()
    told = [one.message for one in caplog.records]
    assert any(words.startswith("start j: ") for words in told), told
    assert Loop(Disk(), None, lambda: 0.0, settings=SETTINGS).settings is SETTINGS  # type: ignore[arg-type]
