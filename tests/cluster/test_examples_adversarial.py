"""Cases that other schedulers got wrong, from their users' reports."""

from __future__ import annotations

from allocator_stage import GIB, Stage

from gpushare.cluster.model import Policy, Start, Wait

FIXED = {"preemptible": False, "priority": 100}


def test_a_tenth_and_two_tenths_fit_three_tenths() -> None:
    stage = Stage({"n": 1})
    stage.queue("q", 0.3)
    stage.job("q", 0.1, **FIXED)
    stage.job("q", 0.2, **FIXED)
    assert stage.waiting() == []


def test_sixteen_halves_at_once_are_two_on_each_gpu() -> None:
    stage = Stage({"n": 8})
    stage.queue("q", 8)
    stage.job("q", 0.5, count=16)
    assert stage.per_gpu() == {("n", gpu): 2 for gpu in range(8)}


def test_eighty_small_shares_on_sixteen_gpus() -> None:
    stage = Stage({"n1": 8, "n2": 8})
    stage.queue("q", 16)
    for _ in range(80):
        stage.job("q", 0.18)
    assert stage.waiting() == []
    assert set(stage.per_gpu().values()) == {5}


def test_several_devices_are_all_charged() -> None:
    stage = Stage({"n": 8})
    stage.queue("q", 1)
    name = stage.job("q", memory=48 * GIB, devices=2, **FIXED)
    assert stage.waiting() == [name]
    assert stage.why(name).message == "the quota of q is 1, non-preemptible jobs hold 0 and need 1.2 more"


def test_no_cycle_between_a_queue_that_wants_its_quota_and_a_large_job() -> None:
    stage = Stage({"n": 5})
    stage.queue("q1", 3)
    stage.queue("q2", 5)
    large = stage.job("q1", 4)
    stage.job("q2", 1)
    stage.job("q2", 4)
    assert stage.evicted == [large]
    assert stage.held("q1", "q2") == (0, 5)
    for _ in range(20):
        stage.wait(1000)
    assert stage.evicted == [large]
    assert stage.waiting() == [large]


def test_freed_quota_is_not_taken_by_others_while_victims_end_one_by_one() -> None:
    for order in ((0, 1), (1, 0)):
        stage = Stage({"n1": 1, "n2": 1}, Policy(endings="reported", reserve_after=None))
        stage.queue("a", 0)
        stage.queue("b", 2)
        victims = [stage.job("a"), stage.job("a")]
        gang = stage.job("b", 1, count=2)
        assert sorted(stage.evicted) == sorted(victims)
        assert stage.allocator.jobs[gang].state == "starting"
        stage.job("a")
        assert not [action for action in stage.actions if isinstance(action, Start)]
        assert not [a for a in stage.stopped(victims[order[0]]) if isinstance(a, Start)]
        assert [a.job for a in stage.stopped(victims[order[1]]) if isinstance(a, Start)] == [gang]
        assert stage.evicted == stage.evicted[:2]
        assert stage.held("a", "b") == (0, 2)


def test_a_large_job_starts_behind_a_stream_of_small_ones() -> None:
    stage = Stage({"n": 8}, Policy(reserve_after=60.0))
    stage.queue("q", 8)
    running = [stage.job("q") for _ in range(8)]
    large = stage.job("q", 8)
    for _ in range(60):
        stage.now += 10
        stage.job("q", backfill=False)
        running = [name for name in stage.running() if name != large]
        if running and stage.now % 20 == 0:
            stage.end(running[0])
        if large in stage.running():
            break
    assert large in stage.running()
    assert stage.evicted == []


def test_a_gang_is_never_started_in_part() -> None:
    stage = Stage({"n": 2})
    stage.queue("q", 3)
    gang = stage.job("q", 1, count=3)
    assert stage.allocator.jobs[gang].places == ()
    assert isinstance(stage.actions[-1], Wait)
