"""What is given and taken within one list of actions: nobody is told to do what is undone in the same breath."""

from __future__ import annotations

import pytest
from allocator_stage import Stage, gpus

from gpushare.cluster import elastic
from gpushare.cluster.model import (
    Job,
    JobEnded,
    JobRestored,
    JobSubmitted,
    JobWithdrawn,
    Move,
    Place,
    Policy,
    Shrink,
    Start,
    Tasks,
    Wait,
)

LADDER = Tasks(share=gpus(1), ladder=(gpus(0.7), gpus(0.4)))
HALF = Tasks(share=gpus(0.5))


def test_what_starts_and_shrinks_in_one_turn_starts_small() -> None:
    stage = Stage({"n1": 1})
    stage.queue("a", 1)
    actions = stage.send([JobSubmitted(Job("large", "a", (LADDER,))), JobSubmitted(Job("half", "a", (HALF,)))])
    starts = {action.job: action for action in actions if isinstance(action, Start)}
    assert not any(isinstance(action, Shrink) for action in actions)
    assert [place.charge for place in starts["large"].places] == [gpus(0.4)]
    assert starts["large"].rung == 2
    assert starts["half"].places[0].gpus == starts["large"].places[0].gpus
    assert stage.rung_share("large") == 0.4


def test_a_further_task_starts_at_the_size_to_which_the_rest_of_its_job_shrinks() -> None:
    stage = Stage({"n1": 2})
    stage.queue("a", 2)
    elastic = Tasks(1, 2, share=gpus(1), ladder=(gpus(0.7), gpus(0.4)))
    stage.job("a", 1, name="first")
    stage.send(JobSubmitted(Job("ladder", "a", (elastic,))))
    actions = stage.send([JobEnded("first"), JobSubmitted(Job("half", "a", (HALF,), priority=10))])
    (start,) = [action for action in actions if isinstance(action, Start) and action.job == "ladder"]
    (shrink,) = [action for action in actions if isinstance(action, Shrink)]
    assert start.places == shrink.places[1:]
    assert {place.charge for place in shrink.places} == {gpus(0.4)}
    assert start.rung == shrink.rung == 2


def test_nothing_grows_only_to_be_taken() -> None:
    """b is in its right and waits. Grown, the ladder of a would be above what a may keep, and be stopped for b."""
    stage = Stage({"n1": 1, "n2": 1}, Policy(grow_hold=60, reserve_after=None, consolidate=False))
    stage.queue("a", 0.9)
    stage.queue("b", 1.1)
    stage.job("a", 0.5, name="a-half")
    stage.job("b", 0.2, name="b-fifth")
    stage.job("b", 0.6, name="b-more")
    stage.job("a", 1, name="ladder", ladder=(0.7, 0.4))
    assert stage.rung_share("ladder") == 0.4
    stage.end("b-more")
    stage.job("b", 0.8, name="b-large")
    assert stage.waiting() == ["b-large"]
    stage.wait(100)
    assert stage.rung_share("ladder") == 0.4
    assert stage.evicted == []
    stage.send(JobWithdrawn("b-large"))
    assert stage.rung_share("ladder") == 1


def test_an_older_job_that_would_borrow_does_not_keep_back_one_that_is_in_its_right() -> None:
    """Else the last GPU went to b, and b's job was stopped for the small one a moment later."""
    stage = Stage({"n1": 6})
    stage.queue("a", 2)
    stage.queue("b", 4)
    stage.job("a", 1)
    stage.job("b", 4)
    actions = stage.send(
        [
            JobSubmitted(Job("a-large", "a", (Tasks(gpus=2),))),
            JobSubmitted(Job("a-small", "a")),
            JobSubmitted(Job("b-more", "b")),
        ]
    )
    assert [action.job for action in actions if isinstance(action, Start)] == ["a-small"]
    assert stage.evicted == []
    assert stage.held("a", "b") == (2, 4)


def test_but_a_job_of_lower_priority_does_not_pass_one_of_higher() -> None:
    stage = Stage({"n1": 3})
    stage.queue("a", 2)
    stage.queue("b", 1)
    stage.job("a", 1)
    stage.send([JobSubmitted(Job("high", "a", (Tasks(gpus=2),), 90)), JobSubmitted(Job("low", "a", priority=10))])
    assert stage.running("a") == ["a-1", "high"]


def test_what_moves_is_shrunk_in_another_turn() -> None:
    """A block sends it to another node; there it would have to shrink for a further task of the same job."""
    stage = Stage({"n1": 2, "n2": 2, "n3": 1})
    stage.queue("a", 5)
    place = Place(0, 0, "n1", (0,), 0, 0)
    stage.send(JobRestored(Job("ladder", "a", (LADDER,), movable=True), (place,), since=0.0))
    fixed = Job("fixed", "a", (Tasks(gpus=1),), preemptible=False)
    stage.send(JobRestored(fixed, (place._replace(node="n2"),), since=0.0))
    elastic = Job("elastic", "a", (Tasks(gpus=2), Tasks(1, 2, share=gpus(0.6))))
    actions = [one for one in stage.allocator.handle(JobSubmitted(elastic), stage.now) if not isinstance(one, Wait)]
    assert [(type(one), one.job, len(one.places)) for one in actions] == [(Move, "ladder", 1), (Start, "elastic", 2)]
    actions = stage.wait(0)
    assert [(type(one), one.job, len(one.places)) for one in actions] == [(Shrink, "ladder", 1), (Start, "elastic", 1)]


def test_a_decision_that_breaks_off_after_a_start_has_changed_nothing(monkeypatch) -> None:
    stage = Stage({"n1": 2})
    stage.queue("a", 2)
    stage.job("a", 1, name="first")
    before = stage.allocator.dump()

    def breaks_off(turn) -> None:
        assert any(isinstance(action, Start) for action in turn.out)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(elastic, "grow", breaks_off)
        with pytest.raises(KeyboardInterrupt):
            stage.allocator.handle(JobSubmitted(Job("second", "a", (Tasks(gpus=1),))), stage.now)
    stage.allocator.validate()
    assert stage.allocator.dump() == before
    assert stage.job("a", 1, name="second") in stage.running()
