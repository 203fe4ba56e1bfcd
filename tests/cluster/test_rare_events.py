"""Events that seldom come: jobs restored wrongly, that ask for something else, or cannot have their place back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from allocator_stage import GIB, Stage

from gpushare.cluster.codec import plain, read_action, read_reason
from gpushare.cluster.engines.reconcile import Notes, Round, Settings, job_facts
from gpushare.cluster.engines.seam import Observed, SeenJob, SeenNode, SeenTask
from gpushare.cluster.model import (
    Code,
    ForeignUse,
    GpuHealth,
    Grow,
    Job,
    JobChanged,
    JobEnded,
    JobRestored,
    JobSubmitted,
    JobWithdrawn,
    Move,
    Node,
    Place,
    Policy,
    Preempt,
    Reason,
    Refuse,
    Shrink,
    Start,
    Started,
    Stop,
    StopRefused,
    Tasks,
    Wait,
)
from gpushare.errors import UsageError

REPORTED = Policy(endings="reported", reserve_after=None)


# ---- actions that are written and read again ----------------------------------------------------------


PLACES = (Place(0, 1, "n", (0, 2), 5, 7), Place(1, 0, "m", (), 0, 0))
WHY = Reason(Code.LIMIT, {"queue": "q", "limit": 2, "names": ("a", "b")})


@pytest.mark.parametrize(
    "action",
    [
        Start("j", 2, PLACES, 1, WHY, True),
        Preempt("j", 2, PLACES, True, "k", WHY),
        Move("j", 2, PLACES[:1], PLACES[1:], "k", WHY),
        Shrink("j", 1, PLACES, "k", WHY),
        Grow("j", 0, PLACES, WHY),
        Stop("j", 2, PLACES, True, WHY),
        Wait("j", WHY),
        Refuse("j", 3.0, WHY),
    ],
    ids=lambda action: type(action).__name__,
)
def test_an_action_is_read_as_it_was_written(action):
    told = plain(action)
    assert told["action"] == type(action).__name__.lower() and told["reason"]["message"] == action.reason.message
    assert read_action(told) == action
    assert read_reason(told["reason"]) == action.reason


def test_nouns_are_plain_data():
    node = Node("n", 2, labels=(("a", "b"),), broken=frozenset({1, 0}))
    told = plain(node)
    assert told["broken"] == [0, 1] and told["labels"] == [["a", "b"]] and told["name"] == "n"
    assert plain({1: Code.LIMIT, "x": {2, 1}}) == {"1": "limit", "x": [1, 2]}
    assert plain(PLACES[0]) == {"group": 0, "task": 1, "node": "n", "gpus": [0, 2], "amount": 5, "charge": 7}


# ---- jobs that are restored ------------------------------------------------------------------------------


@pytest.fixture
def stage() -> Stage:
    one = Stage([Node("n", 4, 16 * GIB)], REPORTED)
    one.queue("q", 4)
    return one


def at(*gpus: int, task: int = 0, group: int = 0) -> Place:
    return Place(group, task, "n", gpus, 0, 0)


LADDER = Job("j", "q", (Tasks(share=1_000_000, ladder=(500_000,)),))


@pytest.mark.parametrize(
    ("event", "place", "words"),
    [
        (JobRestored(LADDER, (at(0),), 0.0, attempt=0), "job j: attempt", "0 is not from 1 on"),
        (JobRestored(LADDER, (at(0),), 0.0, attempt=-3), "job j: attempt", "-3 is not from 1 on"),
        (JobRestored(LADDER, (at(0),), 0.0, rung=2), "job j: rung", "2 is not one of 2"),
        (JobRestored(LADDER, (at(0),), 0.0, rung=-1), "job j: rung", "-1 is not one of 2"),
        (
            JobRestored(Job("j", "q", (Tasks(2),)), (at(0), at(1)), 0.0),
            "job j: places[1]",
            "task 0 of group 0 is there twice",
        ),
    ],
)
def test_what_cannot_be_restored_changes_nothing(stage, event, place, words):
    with pytest.raises(UsageError) as caught:
        stage.send(event)
    assert caught.value.message.startswith(f"{place}: ") and words in caught.value.message and caught.value.hint
    assert not stage.allocator.jobs and stage.held("q") == (0.0,)
    stage.send(JobRestored(LADDER, (at(0),), 0.0, rung=1, attempt=1))
    view = stage.allocator.jobs["j"]
    assert (view.state, view.rung, view.attempt, view.charge) == ("running", 1, 1, 500_000)


# ---- jobs that change ------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [JobChanged("low", 80), JobChanged("low", None, False), JobChanged("low", 50, True)])
def test_a_job_on_a_lower_rung_changes_and_grows_when_there_is_room(change):
    stage = Stage({"n": 1}, Policy(grow_hold=0.0, reserve_after=None))
    stage.queue("q", 1)
    stage.job("q", 0.5, name="other")
    stage.job("q", 1.0, name="low", ladder=(0.5, 0.25))
    assert stage.rung_share("low") == 0.5
    stage.send(change)
    view = stage.allocator.jobs["low"]
    assert view.job.priority == (50 if change.priority is None else change.priority)
    assert view.job.preemptible is (change.preemptible is not False)
    stage.end("other")
    stage.wait(1.0)
    assert stage.rung_share("low") == 1.0


def test_a_gang_that_lacks_tasks_changes_and_gets_them():
    stage = Stage({"n": 4})
    stage.queue("q", 4)
    stage.job("q", 2, name="other")
    stage.job("q", 1, name="gang", count=1, most=4)
    assert len(stage.allocator.jobs["gang"].places) == 2
    stage.send(JobChanged("gang", 9))
    stage.end("other")
    assert len(stage.allocator.jobs["gang"].places) == 4


# ---- stops that are refused ------------------------------------------------------------------------------


def told_to_stop(size: int = 1) -> Stage:
    stage = Stage({"n": 2}, REPORTED)
    stage.queue("a", 2)
    stage.queue("b", 0)
    names = ["b1", "b2"][: 2 // size]
    for name in names:
        stage.job("b", size, name=name)
    stage.send([Started(name, 1) for name in names])
    stage.job("a", 2, name="a1")
    assert stage.allocator.jobs["a1"].state == "starting" and sorted(stage.waiting()) == names
    return stage


def test_a_job_that_could_not_be_stopped_has_its_place_again_and_is_spared():
    stage = told_to_stop(2)
    stage.send(StopRefused("b1", 1, 30.0))
    assert "b1" in stage.running() and "a1" in stage.waiting()
    assert stage.allocator.jobs["b1"].reason.code is Code.STOP_REFUSED
    stage.now = 29.0
    stage.wait(0.5)
    assert "b1" in stage.running()
    stage.wait(1.0)
    assert stage.allocator.jobs["a1"].state == "starting", "it is asked once more"


@pytest.mark.parametrize("attempt", [0, 2])
def test_a_refusal_of_another_attempt_changes_nothing(attempt):
    stage = told_to_stop()
    before = stage.allocator.jobs["b1"]
    assert stage.send(StopRefused("b1", attempt)) == []
    assert stage.allocator.jobs["b1"] == before and stage.allocator.jobs["a1"].state == "starting"


def test_where_something_else_is_by_now_it_does_not_come_back():
    stage = told_to_stop()
    (gpu,) = next(places for (name, _), places in stage.allocator.leaving.items() if name == "b1")[0].gpus
    stage.send(GpuHealth("n", gpu, False))
    before = stage.allocator.leaving
    stage.send(StopRefused("b1", 1))
    assert "b1" not in stage.running() and dict(stage.allocator.leaving) == dict(before)


def test_a_refusal_without_a_time_spares_it_for_none():
    stage = told_to_stop(2)
    stage.send(StopRefused("b1", 1, -5.0))
    stage.wait(0.1)
    assert stage.allocator.jobs["a1"].state == "starting"


# ---- jobs that ask for something else while they wait -----------------------------------------------------


def facts(job: SeenJob, *, mine: Job | None = None) -> list[Any]:
    """What follows from a look at a job that waits here for a node with 8 GPUs."""
    stage = Stage({"n": 2})
    stage.queue("q", 8)
    stage.send(JobSubmitted(mine or Job("j", "q", (Tasks(gpus=8),), priority=70, name="mine")))
    seen = Observed((SeenNode(Node("n", 2)),), (job,))
    return list(job_facts(Round(stage.allocator, seen, Notes(), 5.0, Settings())))


ASKS = Job("j", "q", (Tasks(gpus=8),), priority=50, preemptible=True, name="theirs")
OTHER = replace(ASKS, tasks=(Tasks(gpus=2),))


@pytest.mark.parametrize(
    ("seen", "again"),
    [
        (SeenJob(ASKS, 1.0, changes=True), False),
        (SeenJob(OTHER, 1.0, changes=True), True),
        (SeenJob(OTHER, 1.0), False),
        (SeenJob(OTHER, 1.0, changes=True, tasks=(SeenTask(1, 0, 0, "n", (0,), 1, "stopping"),)), False),
        (SeenJob(OTHER, 1.0, changes=True, tasks=(SeenTask(1, 0, 0, "n", (0,), 1, "done"),)), True),
        (SeenJob(replace(ASKS, movable=True), 1.0, changes=True), True),
    ],
)
def test_a_job_that_asks_for_something_else_is_submitted_again(seen, again):
    found = facts(seen)
    ended = [batch for batch in found if JobEnded("j") in batch]
    submitted = [one for batch in found for one in batch if isinstance(one, JobSubmitted)]
    assert bool(ended) is bool(submitted) is again
    if again:
        assert submitted[0].job == seen.job and submitted[0].since == 1.0


def test_a_job_that_is_gone_is_withdrawn_and_one_that_has_ended_ends():
    assert facts(SeenJob(replace(ASKS, id="k"), 1.0))[0] == [JobWithdrawn("j")]
    assert facts(SeenJob(ASKS, 1.0, ended=True)) == [[JobEnded("j")]]


# ---- programs of others -----------------------------------------------------------------------------------


def test_programs_of_others_on_a_broken_gpu_and_of_none():
    stage = Stage([Node("n", 2, 16 * GIB)])
    stage.queue("q", None)
    stage.send([GpuHealth("n", 0, False), ForeignUse("n", 0, GIB), ForeignUse("n", 1, GIB)])
    view = stage.allocator.nodes["n"]
    assert view.free == (0, 15 * GIB) and view.foreign == ((0, GIB), (1, GIB))
    stage.send(GpuHealth("n", 0, True))
    assert stage.allocator.nodes["n"].free == (15 * GIB, 15 * GIB)
    stage.send([ForeignUse("n", 0, 0), ForeignUse("n", 1, 0)])
    assert stage.allocator.nodes["n"].free == (16 * GIB, 16 * GIB) and stage.allocator.nodes["n"].foreign == ()
