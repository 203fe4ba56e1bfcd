"""What may be done to a running job, and which of several jobs is stopped."""

from __future__ import annotations

import pytest
from allocator_stage import Stage

from gpushare.cluster.model import Policy, Selector
from gpushare.cluster.rules import Barrier, How, barrier, guarded_until, loss, protected
from gpushare.errors import UsageError

HOUR = 3600.0


def running(stage: Stage, name: str):
    """The allocator's own record of a job."""
    return stage.allocator._state.jobs[name]


def one_job(**more):
    stage = Stage({"n": 8})
    stage.queue("q", 8)
    return stage, running(stage, stage.job("q", 2, **more))


def test_each_rule_forbids_what_it_says() -> None:
    stage, job = one_job(movable=False, min_runtime=100.0)
    assert barrier(job, How.STOP, 99.0) is Barrier.MIN_RUNTIME
    assert barrier(job, How.GIVE_WAY, 99.0) is Barrier.MIN_RUNTIME
    assert barrier(job, How.SHRINK, 0.0) is None
    assert barrier(job, How.STOP, 100.0) is None
    assert barrier(job, How.MOVE, 100.0) is Barrier.NOT_MOVABLE
    assert barrier(job, How.STOP, 100.0, cycle=job.given_in) is Barrier.GIVEN_NOW
    assert barrier(job, How.STOP, 99.0, cycle=job.given_in) is Barrier.MIN_RUNTIME
    assert guarded_until(job) == 100.0
    job.spared = 200.0
    assert barrier(job, How.STOP, 199.0) is Barrier.REFUSED
    assert guarded_until(job) == 200.0
    fixed = running(stage, stage.job("q", 2, preemptible=False))
    assert [barrier(fixed, how, 999.0) for how in How] == [None, *[Barrier.NOT_PREEMPTIBLE] * 3]
    movable = running(stage, stage.job("q", 2))
    assert [barrier(movable, how, 999.0) for how in How] == [None] * 4


def test_the_queue_may_grant_more_than_the_job_asks_for() -> None:
    stage = Stage({"n": 8})
    stage.queue("q", 8, min_runtime=300.0)
    job = running(stage, stage.job("q", min_runtime=100.0))
    assert barrier(job, How.STOP, 299.0) is Barrier.MIN_RUNTIME
    assert barrier(job, How.STOP, 300.0) is None


def test_what_is_lost_is_the_work_since_the_start_or_the_last_checkpoint() -> None:
    _, plain = one_job()
    _, saves = one_job(checkpoint_every=60.0)
    _, always = one_job(checkpoint_every=0.0)
    assert loss(plain, 130.0)[0] == 130.0 * 2_000_000
    assert loss(saves, 130.0)[0] == 10.0 * 2_000_000
    assert loss(always, 130.0)[0] == 0.0
    assert loss(plain, -5.0)[0] == 0.0
    plain.evictions = 2
    assert loss(plain, 1.0)[1:] == (2, -plain.seq)


def test_the_table_says_why_something_is_forbidden() -> None:
    _, job = one_job(min_runtime=50.0)
    assert barrier(job, How.STOP, 49.0) is Barrier.MIN_RUNTIME
    assert barrier(job, How.SHRINK, 49.0) is None
    assert barrier(job, How.STOP, 60.0) is None
    assert barrier(job, How.STOP, 60.0, cycle=job.given_in) is Barrier.GIVEN_NOW
    job.evictions = 1
    assert barrier(job, How.STOP, 60.0) is None, "an eviction before protects, and forbids nothing"


def test_each_eviction_protects_three_times_as_long() -> None:
    _, job = one_job()
    policy = Policy(protect=100.0)
    assert not protected(job, policy, 0.0)
    for evictions, seconds in ((1, 100.0), (2, 300.0), (3, 900.0)):
        job.evictions = evictions
        assert protected(job, policy, seconds - 1)
        assert not protected(job, policy, seconds)


def test_four_evictions_in_a_day_need_jobs_that_nobody_else_can_replace() -> None:
    job = one_job()[1]
    at = 0.0
    for evictions in (1, 2, 3):
        job.evictions, job.since = evictions, at
        while protected(job, Policy(), at):
            at += 600.0
    assert at > 24 * HOUR


def borrowers(*, count: int = 2) -> Stage:
    stage = Stage({"n": count})
    stage.queue("lent")
    stage.queue("owner", 1)
    return stage


def test_of_two_victims_the_one_with_a_checkpoint_goes() -> None:
    stage = borrowers()
    saved = stage.job("lent", checkpoint_every=60.0)
    stage.now = 600.0
    stage.job("lent")
    stage.now = 661.0
    stage.job("owner")
    assert stage.evicted == [saved]


def test_of_two_victims_the_one_that_holds_less_goes() -> None:
    stage = Stage({"n": 3})
    stage.queue("lent")
    stage.queue("owner", 1)
    small = stage.job("lent", 1, checkpoint_every=1000.0)
    stage.job("lent", 2, checkpoint_every=1000.0)
    stage.now = 500.0
    stage.job("owner")
    assert stage.evicted == [small]


def test_a_protected_job_goes_only_where_nobody_else_will_do() -> None:
    stage = borrowers()
    old = stage.job("lent")
    stage.now = 100.0
    new = stage.job("lent")
    stage.now = 200.0
    owner = stage.job("owner")
    assert stage.evicted == [new]
    stage.now = 300.0
    stage.end(owner)
    assert stage.allocator.jobs[new].evictions == 1
    stage.now = 400.0
    stage.job("owner")
    assert stage.evicted == [new, old]  # it loses more work, but the other one is protected
    stage.queue("second", 1)
    stage.job("second")
    assert stage.evicted == [new, old, new]


def reserved(**more) -> tuple[Stage, str]:
    """Two GPUs of n1 are idle and reserved, n2 is full of borrowers. `more` is about the job with a right to one."""
    stage = Stage({"n1": 4, "n2": 4}, Policy(reserve_after=60.0))
    for name, quota in (("a", 0), ("b", 2), ("c", 4), ("d", 2)):
        stage.queue(name, quota)
    n1, n2 = (Selector(nodes=(name,)) for name in ("n1", "n2"))
    stage.job("d", 2, preemptible=False, movable=False, selector=n1)
    for _ in range(4):
        stage.job("a", movable=False, selector=n2)
    stage.job("c", 4, name="whole", selector=n1)
    stage.wait(61.0)
    assert "whole" not in stage.running()
    return stage, stage.job("b", name="claim", **more)


@pytest.mark.parametrize("more", [{}, {"min_runtime": 50.0}, {"preemptible": False}, {"backfill": False}])
def test_nobody_is_stopped_for_a_job_that_fits_on_idle_reserved_gpus(more) -> None:
    stage, claim = reserved(**more)
    stopped = list(stage.evicted)
    view = stage.allocator.jobs[claim]
    assert view.state == "running"
    assert stopped == []
    assert view.backfill == (not more)


def test_only_jobs_that_can_be_stopped_at_any_time_backfill() -> None:
    for more in ({"min_runtime": 50.0}, {"preemptible": False}, {"backfill": False}):
        job = one_job(**more)[1]
        assert not job.shape.backfill
    assert one_job()[1].shape.backfill


def test_numbers_of_the_rules_are_checked() -> None:
    stage = Stage({"n": 1}, Policy())
    stage.queue("q", 1)
    with pytest.raises(UsageError, match="checkpoint_every"):
        stage.job("q", checkpoint_every=-1.0)
    with pytest.raises(UsageError, match="protect"):
        Stage({"n": 1}, Policy(protect=-1.0))
