"""A job that was shrunk stays small for the hold, from the shrink on; when it grows it is told its share."""

from __future__ import annotations

from allocator_stage import Stage

from gpushare.cluster.model import Grow, Policy
from gpushare.cluster.quantity import gpus


def test_the_hold_begins_with_the_shrink_and_not_with_the_start() -> None:
    stage = Stage({"n": 1}, Policy(grow_hold=60, reserve_after=None))
    stage.queue("q", 1)
    elastic = stage.job("q", 1, ladder=(0.7, 0.4))
    stage.wait(100)
    assert stage.rung_share(elastic) == 1.0
    other = stage.job("q", 0.3)
    assert stage.rung_share(elastic) == 0.7
    stage.wait(1)
    stage.end(other)
    assert stage.rung_share(elastic) == 0.7, "it has been small for a second"
    stage.wait(58)
    assert stage.rung_share(elastic) == 0.7
    stage.wait(1)
    assert stage.rung_share(elastic) == 1.0


def test_a_job_that_has_grown_a_step_waits_again_before_the_next() -> None:
    stage = Stage({"n": 1}, Policy(grow_hold=60, reserve_after=None))
    stage.queue("q", 1)
    elastic = stage.job("q", 1, ladder=(0.7, 0.4))
    first, second = stage.job("q", 0.3), stage.job("q", 0.3)
    assert stage.rung_share(elastic) == 0.4
    stage.end(second)
    stage.wait(60)
    assert stage.rung_share(elastic) == 0.7
    stage.wait(30)
    stage.end(first)
    assert stage.rung_share(elastic) == 0.7, "it has grown half a minute ago"
    stage.wait(30)
    assert stage.rung_share(elastic) == 1.0


def test_what_grows_is_told_its_share_of_each_gpu() -> None:
    stage = Stage({"n": 2}, Policy(grow_hold=60, reserve_after=None))
    stage.queue("q", 2)
    elastic = stage.job("q", 1, devices=2, ladder=(0.5,))
    other = stage.job("q", 0.5)
    assert stage.rung_share(elastic) == 1.0, "half of each of two GPUs"
    stage.end(other)
    stage.now += 60
    (grow,) = [action for action in stage.wait(0) if isinstance(action, Grow)]
    assert grow.job == elastic
    assert grow.reason.data == {"share": gpus(1)}
    assert grow.reason.message == "there is room again for 1 GPU"
