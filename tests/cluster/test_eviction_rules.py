"""What may be done to a running job, and which of several jobs is stopped."""

from __future__ import annotations

import pytest
from allocator_stage import Stage

from gpushare.cluster.model import Job, JobEnded, JobRestored, Place, Policy, Selector, Tasks
from gpushare.cluster.rules import Barrier, How, barrier, guarded_until, price
from gpushare.cluster.snapshot import restore, take
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
    assert [barrier(fixed, how, 999.0) for how in How] == [None, *[Barrier.NOT_PREEMPTIBLE] * (len(How) - 1)]
    movable = running(stage, stage.job("q", 2))
    assert [barrier(movable, how, 999.0) for how in How] == [None] * len(How)


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
    policy = Policy()
    assert price(plain, policy, 130.0)[0] == 130.0 * 2_000_000
    assert price(saves, policy, 130.0)[0] == 10.0 * 2_000_000
    assert price(always, policy, 130.0)[0] == 0.0
    assert price(plain, policy, -5.0)[0] == 0.0
    plain.evictions = 2
    assert price(plain, policy, 1.0)[1:] == (2, -plain.seq)


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
    each = job.charge
    for evictions, seconds in ((0, 0.0), (1, 100.0), (2, 300.0), (3, 900.0)):
        job.evictions = evictions
        assert price(job, policy, 0.0)[0] == 2 * seconds * each, "a second of it counts as two of work"
        assert price(job, policy, seconds + 1)[0] == (seconds + 1) * each, "it is over"


def test_three_evictions_count_for_more_than_a_day_of_work() -> None:
    """So a fourth within a day needs jobs that nobody else can replace."""
    job, other = one_job()[1], one_job()[1]
    job.evictions, job.since, other.since = 3, 24 * HOUR, 0.0
    assert price(job, Policy(), 24 * HOUR) > price(other, Policy(), 24 * HOUR)


def test_after_three_evictions_within_a_day_all_others_go_first() -> None:
    _, job = one_job()
    job.evictions, job.disturbed = 3, (0.0, 5 * HOUR, 6 * HOUR)
    job.since = 7 * HOUR
    longest = 10_000 * HOUR * job.charge
    assert price(job, Policy(), 23 * HOUR)[0] > longest
    assert price(job, Policy(), 24 * HOUR)[0] < longest, "the first was a day ago"
    assert price(job, Policy(protect=0.0), 23 * HOUR)[0] < longest
    job.disturbed = job.disturbed[:2]
    assert price(job, Policy(), 23 * HOUR)[0] < longest


def test_the_moments_of_the_last_three_evictions_are_kept_and_restored() -> None:
    stage = Stage({"n": 1})
    stage.queue("lent")
    stage.queue("owner", 1)
    lent = stage.job("lent")
    for moment in (10.0, 20.0, 30.0, 40.0):
        stage.now = moment
        stage.send(JobEnded(stage.job("owner")))
    assert running(stage, lent).disturbed == (20.0, 30.0, 40.0)
    again = restore(Policy(reserve_after=None), take(stage.allocator))
    assert again._state.jobs[lent].disturbed == (20.0, 30.0, 40.0)
    assert again.dump() == stage.allocator.dump()


def test_a_claim_stops_a_gang_where_the_cheaper_job_is_within_its_quota() -> None:
    """The small job alone would cost less, but then its queue would lose what its quota gives it: that answer does not
    hold. The gang is larger than the quota."""
    stage = Stage({str(number): 8 for number in range(6)})
    for queue, quota in (("lent", 10), ("owner", 8), ("rest", 30)):
        stage.queue(queue, quota)

    def runs(name: str, queue: str, each: int, *at: tuple[int, int]) -> None:
        """On these nodes, from these GPUs on."""
        places = [Place(0, n, str(node), tuple(range(first, first + each)), 0, 0) for n, (node, first) in enumerate(at)]
        job = Job(name, queue, (Tasks(len(at), gpus=each),), checkpoint_every=1800.0, movable=True)
        stage.send(JobRestored(job, tuple(places), stage.now))

    runs("gang", "lent", 8, *((node, 0) for node in range(1, 5)))
    stage.now = 3480.0
    runs("small", "lent", 4, (5, 0))
    for node, first, each in ((0, 0, 1), (0, 1, 2), (0, 3, 2), (0, 5, 3), (5, 4, 1), (5, 5, 2), (5, 7, 1)):
        runs(f"rest-{node}-{first}", "rest", each, (node, first))
    stage.now = 8400.0
    claim = stage.job("owner")
    assert stage.allocator.jobs[claim].places
    assert (set(stage.evicted), stage.moves) == ({"gang"}, 0)


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


def test_many_jobs_that_have_just_begun_go_before_one_that_has_run_for_days() -> None:
    stage = Stage({"old": 4, "new": 4})
    stage.queue("lent")
    stage.queue("owner", 8)
    long = stage.job("lent", 4, name="long")
    stage.now = 2 * 24 * HOUR
    young = [stage.job("lent") for _ in range(4)]
    stage.now += 600.0
    stage.job("owner", 4)
    assert sorted(stage.evicted) == young
    stage.job("owner", 4)
    assert stage.evicted[4:] == [long], "it goes when nothing else is enough"


def test_of_jobs_that_have_run_for_an_hour_at_most_the_fewest_go() -> None:
    stage = Stage({"old": 4, "new": 4})
    stage.queue("lent")
    stage.queue("owner", 8)
    one = stage.job("lent", 4, name="one")
    stage.now = 800.0
    for _ in range(4):
        stage.job("lent")
    stage.now = 900.0
    stage.job("owner", 4)
    assert stage.evicted == [one]


def test_a_job_of_low_priority_goes_first_whatever_it_loses() -> None:
    stage = Stage({"n": 2})
    stage.queue("lent")
    stage.queue("owner", 1)
    low = stage.job("lent", priority=10)
    stage.now = 100 * HOUR
    stage.job("lent", priority=50)
    stage.job("owner")
    assert stage.evicted == [low]


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


def test_a_claim_within_quota_stops_who_has_just_begun_on_reserved_nodes() -> None:
    """Rather than a job elsewhere that would lose days."""
    stage = Stage({"n1": 4, "n2": 4}, Policy(reserve_after=60.0))
    for name, quota in (("a", 0), ("b", 2), ("c", 4), ("d", 2)):
        stage.queue(name, quota)
    n1, n2 = (Selector(nodes=(name,)) for name in ("n1", "n2"))
    stage.job("d", 2, preemptible=False, movable=False, selector=n1)
    old = [stage.job("a", movable=False, selector=n2) for _ in range(4)]
    stage.now = 48 * HOUR
    stage.job("c", 4, name="whole", selector=n1)
    stage.wait(61.0)
    young = [stage.job("a", movable=False) for _ in range(2)]
    assert all(stage.allocator.jobs[name].backfill for name in young)
    stage.wait(600.0)
    claim = stage.job("b", movable=False)
    assert stage.evicted == [young[1]] and set(old) <= set(stage.running())
    assert claim in stage.running() and not stage.allocator.jobs[claim].backfill
    stage.job("c", 1, name="small")  # the reservation is made again, and keeps nobody from what is his
    assert "whole" not in stage.running()


def lent(patience: float, **more) -> tuple[Stage, list[str]]:
    """Four GPUs, all lent to `a`; `b` has a quota of one and a share of two."""
    stage = Stage({"n": 4}, Policy(reserve_after=None, patience=patience))
    stage.queue("a", 1)
    stage.queue("b", 1)
    return stage, [stage.job("a", **more) for _ in range(4)]


def test_with_patience_a_share_is_waited_for_and_a_quota_is_not() -> None:
    stage, jobs = lent(4 * HOUR)
    stage.now = 2 * HOUR
    stage.job("b")
    assert stage.evicted == jobs[3:], "its quota: at once"
    second = stage.job("b")
    assert len(stage.evicted) == 1 and second in stage.waiting()
    (line,) = [one for one in stage.allocator.explain(second).who if "it may take" in one]
    assert line.endswith("those above theirs; for 4h more only jobs that lose at most an hour of work"), line
    assert stage.allocator.next_wake == 6 * HOUR
    stage.wait(4 * HOUR - 1)
    assert second in stage.waiting()
    stage.wait(1)
    assert second in stage.running() and len(stage.evicted) == 2


@pytest.mark.parametrize(("every", "after", "stops"), [(None, 3600, True), (None, 3601, False), (3600, 9e5, True)])
def test_with_patience_a_share_costs_at_most_an_hour_of_work(every, after, stops) -> None:
    stage, _ = lent(100 * HOUR, checkpoint_every=every)
    stage.now = float(after)
    stage.job("b")
    second = stage.job("b")
    assert (second in stage.running()) == stops
    if not stops:
        stage.end("a-1")
        third = stage.job("a")
        fourth = stage.job("b")
        assert second in stage.running() and fourth in stage.waiting(), "what is free goes to the lowest share first"
        assert third in stage.waiting()


def test_with_patience_hours_count_for_each_gpu_of_use() -> None:
    """A job of four GPUs that has worked for 20 minutes costs the taker of one GPU 80 minutes."""
    for minutes, stops in ((15, True), (20, False)):
        stage = Stage({"n": 4}, Policy(reserve_after=None, patience=100 * HOUR))
        stage.queue("a")
        stage.queue("b", weight=1)
        stage.job("a", 4)
        stage.now = minutes * 60.0
        stage.job("b")
        assert bool(stage.evicted) == stops


def test_with_patience_nobody_is_stopped_twice_for_a_share() -> None:
    stage, jobs = lent(100 * HOUR)
    owner = stage.job("b")
    assert stage.evicted == jobs[3:]
    stage.now = 3 * HOUR
    stage.end(owner)
    stage.now += 1.0
    assert set(jobs) <= set(stage.running())
    stage.job("b")
    assert stage.evicted[1:] == [jobs[2]], "its quota"
    assert stage.job("b") in stage.waiting(), "the only young job was stopped before"


@pytest.mark.parametrize("passed", [0, 2, 4])
def test_a_gang_gets_no_nodes_reserved_beside_older_jobs_that_hold_its_share(passed: int) -> None:
    """Started above it, it would soon be stopped. Jobs of its own queue that came past it do not count."""
    stage = Stage({"n1": 4, "n2": 4}, Policy(reserve_after=60.0))
    stage.queue("a", 4)
    stage.queue("b", 4)
    stage.job("b", 4, movable=False)
    old = [stage.job("a", movable=False) for _ in range(4)]
    stage.now = 1.0
    stage.job("a", 4, name="gang", movable=False)
    for number in range(passed):
        stage.now += 1.0
        stage.job("a", movable=False)
        stage.end(old[number])
    stage.wait(100.0)
    assert len(stage.running("a")) == 4 and "gang" in stage.waiting()
    assert (stage.allocator.dump()["reserved"][0] is None) == (passed < 4)


def test_patience_is_counted_from_the_beginning_of_the_wait_by_the_next_allocator_too() -> None:
    stage, _ = lent(HOUR)
    stage.job("b")
    second = stage.job("b")
    stage.now = HOUR / 2
    stage.allocator = restore(stage.allocator.policy, take(stage.allocator))
    assert stage.allocator.next_wake == HOUR
    stage.wait(HOUR / 2)
    assert second in stage.running()


def test_who_is_evicted_waits_for_its_share_from_then_on() -> None:
    stage, jobs = lent(HOUR)
    stage.now = 2 * HOUR
    stage.job("b")
    stage.job("b")
    stage.wait(HOUR)
    assert stage.held("a", "b") == (2, 2)
    stage.end(*stage.running("b"))
    assert set(jobs) <= set(stage.running()), "what is free is anybody's at once"


def test_without_patience_a_share_is_taken_at_once() -> None:
    stage, _ = lent(0.0)
    stage.job("b")
    stage.job("b")
    assert stage.held("a", "b") == (2, 2)


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
    with pytest.raises(UsageError, match="patience"):
        Stage({"n": 1}, Policy(patience=-1.0))
