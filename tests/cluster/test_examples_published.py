"""Worked examples that others have published, with exact numbers: who runs, who waits, who was evicted or moved."""

from __future__ import annotations

import pytest
from allocator_stage import GIB, Stage, gpus

from gpushare.cluster.model import (
    Job,
    JobRestored,
    JobSubmitted,
    Node,
    NodeAdded,
    Place,
    Policy,
    Queue,
    QueueChanged,
    Refuse,
    Start,
    Tasks,
)
from gpushare.cluster.quantity import whole_gpus
from gpushare.errors import UsageError

FIXED = {"preemptible": False, "priority": 100}


# ---- quotas of four teams (NetApp TR-4858) ---------------------------------------------------------------


@pytest.fixture(params=[{"n1": 8, "n2": 8}, {"n1": 16}], ids=["2x8", "1x16"])
def teams(request):
    stage = Stage(request.param)
    for name, quota in (("a", 4), ("b", 2), ("c", 2), ("d", 8)):
        stage.queue(name, quota)
    stage.names = {}
    stage.names["a"] = [stage.job("a", 1, **FIXED), stage.job("a", 1), stage.job("a", 2)]
    stage.names["b"] = [
        stage.job("b", 0.6, **FIXED),
        stage.job("b", 0.4, **FIXED),
        stage.job("b", 1),
        stage.job("b", 2),
    ]
    stage.names["c"] = [
        stage.job("c", 0.5, **FIXED),
        stage.job("c", 0.3, **FIXED),
        stage.job("c", 0.2, **FIXED),
        stage.job("c", 2),
        stage.job("c", 1),
    ]
    stage.names["d"] = [stage.job("d", 4)]
    return stage


def test_all_gpus_are_used_over_quota(teams) -> None:
    assert teams.held("a", "b", "c", "d") == (4, 4, 4, 4)
    assert teams.evicted == []
    assert teams.waiting() == []
    assert len(teams.running()) == 13


def reclaimed(stage):
    stage.names["d"].append(stage.job("d", 2))
    assert stage.evicted == [stage.names["b"][3]]
    assert stage.held("a", "b", "c", "d") == (4, 2, 4, 6)
    stage.names["d"].append(stage.job("d", 2))
    assert stage.evicted == [stage.names["b"][3], stage.names["c"][3]]
    assert stage.held("a", "b", "c", "d") == (4, 2, 2, 8)


def test_a_team_takes_back_its_quota_with_two_evictions(teams) -> None:
    reclaimed(teams)
    assert teams.waiting() == [teams.names["b"][3], teams.names["c"][3]]
    assert teams.moves == 0


@pytest.mark.parametrize("at_once", [False, True])
def test_what_a_team_leaves_is_divided_by_quota(teams, at_once) -> None:
    reclaimed(teams)
    for team in "aabc":
        teams.job(team, 2)
    assert [len(teams.waiting(team)) for team in "abcd"] == [2, 2, 2, 0]
    assert teams.held("a", "b", "c", "d") == (4, 2, 2, 8)
    if at_once:
        teams.end(*teams.names["d"])
    else:
        for name in teams.names["d"]:
            teams.end(name)
    assert teams.held("a", "b", "c", "d") == (8, 4, 4, 0)
    assert [len(teams.waiting(team)) for team in "abcd"] == [0, 1, 1, 0]
    assert len(teams.evicted) == 2


def test_shares_of_what_is_left_follow_the_quotas_not_equality(teams) -> None:
    reclaimed(teams)
    for team in "aabc":
        teams.job(team, 2)
    teams.end(*teams.names["d"])
    shares = teams.allocator.shares()
    assert [shares[team].share for team in "abcd"] == [gpus(8), gpus(4), gpus(4), 0]
    assert shares["a"].words == "8 = 4 of its quota + 4 of the surplus, all that it can use"
    teams.job("a", 2)
    teams.job("b", 2)
    for name, quota in (("a", 4), ("b", 2), ("c", 2), ("d", 8)):
        teams.send(QueueChanged(Queue(name, None, gpus(quota), weight=gpus(1))))
    for team in "abc":
        teams.job(team, 8)
    shares = teams.allocator.shares()
    assert whole_gpus([shares[team].share for team in "abcd"]) == [7, 5, 4, 0]


# ---- greedy, fragmented, blocked (VDK) -------------------------------------------------------------------

FOUR_BY_TEN = {"n1": 10, "n2": 10, "n3": 10, "n4": 10}


@pytest.mark.parametrize("gang", [False, True])
def test_a_greedy_team_gives_back_its_newest_jobs(gang) -> None:
    stage = Stage(FOUR_BY_TEN)
    stage.queue("a", 20)
    stage.queue("b", 20)
    first = [stage.job("a") for _ in range(30)]
    for _ in range(10):
        stage.job("b")
    assert stage.held("a", "b") == (30, 10)
    if gang:
        stage.job("b", count=10)
    else:
        for _ in range(10):
            stage.job("b")
    assert stage.held("a", "b") == (20, 20)
    assert sorted(stage.evicted) == sorted(first[20:])


def test_a_static_quota_is_never_exceeded() -> None:
    stage = Stage(FOUR_BY_TEN)
    stage.queue("a", 20, static=True)
    stage.queue("b", 20, static=True)
    names = [stage.job("a") for _ in range(30)]
    assert stage.held("a") == (20,)
    assert stage.waiting("a") == names[20:]
    reason = stage.why(names[20])
    assert reason.code == "limit"
    assert reason.message == "the limit of a is 20, 20 are in use and 1 more is needed"


def three_gpu_jobs(stage, **more):
    return [stage.job("a", 3, **more) for _ in range(6)]


def test_packing_leaves_room_for_a_large_job_without_moves() -> None:
    stage = Stage(FOUR_BY_TEN)
    stage.queue("a", 40)
    three_gpu_jobs(stage)
    assert sorted(10 - len([free for free in node.free if free]) for node in stage.allocator.nodes.values()) == [
        0,
        0,
        9,
        9,
    ]
    stage.job("a", 8)
    assert stage.waiting() == []
    assert (stage.moves, stage.evicted) == (0, [])


def scattered(**more):
    """Six jobs of 3 GPUs that have been left as 6, 6, 3, 3."""
    stage = Stage(FOUR_BY_TEN)
    stage.queue("a", 40)
    for index, (node, first) in enumerate([("n1", 0), ("n1", 3), ("n2", 0), ("n2", 3), ("n3", 0), ("n4", 0)]):
        job = Job(f"three-{index}", "a", (Tasks(gpus=3),), movable=True, **more)
        stage.send(JobRestored(job, (Place(0, 0, node, tuple(range(first, first + 3)), 0, 0),), since=0.0))
    assert sorted(node.free.count(80 * GIB) for node in stage.allocator.nodes.values()) == [4, 4, 7, 7]
    return stage


def test_one_move_makes_room_for_each_large_job() -> None:
    stage = scattered()
    stage.job("a", 8)
    assert (stage.moves, stage.evicted, stage.waiting()) == (1, [], [])
    stage.job("a", 8)
    assert (stage.moves, stage.evicted, stage.waiting()) == (2, [], [])


def test_what_may_not_move_leaves_a_large_job_waiting_with_the_numbers() -> None:
    stage = scattered(**FIXED)
    large = stage.job("a", 8)
    assert stage.waiting() == [large]
    assert stage.why(large).message == "22 GPUs are free, the largest block is 7, 8 are needed"
    assert "nothing" in stage.allocator.explain(large).reason.message or stage.moves == 0


def test_a_blocked_team_gets_its_quota() -> None:
    stage = Stage(FOUR_BY_TEN)
    stage.queue("a", 20)
    stage.queue("b", 20)
    for _ in range(35):
        stage.job("a")
    for _ in range(5):
        stage.job("b")
    assert stage.held("a", "b") == (35, 5)
    for _ in range(15):
        stage.job("b")
    assert stage.held("a", "b") == (20, 20)
    assert len(stage.evicted) == 15


# ---- projects with priorities ------------------------------------------------------------------------------


def test_lower_priority_pays_first() -> None:
    stage = Stage({"n": 8})
    stage.queue("p1", 2, priority=2)
    stage.queue("p2", 2, priority=1)
    stage.queue("p3", 4, priority=1)
    for _ in range(4):
        stage.job("p1")
        stage.job("p2")
    assert stage.held("p1", "p2", "p3") == (4, 4, 0)
    stage.job("p3")
    stage.job("p3")
    assert stage.held("p1", "p2", "p3") == (4, 2, 2)
    assert all(name.startswith("p2") for name in stage.evicted)
    assert len(stage.evicted) == 2
    stage.job("p3")
    stage.job("p3")
    assert stage.held("p1", "p2", "p3") == (2, 2, 4)
    assert len(stage.evicted) == 4


def test_surplus_goes_to_the_highest_class_alone() -> None:
    stage = Stage({"n": 3})
    stage.queue("h1", 0, priority=2, weight=1)
    stage.queue("h2", 0, priority=2, weight=1)
    stage.queue("l", 0, priority=1, weight=1)
    stage.send([JobSubmitted(Job(f"{queue}-{i}", queue)) for queue in ("l", "h1", "h2") for i in range(5)])
    assert stage.held("h1", "h2", "l") == (2, 1, 0)
    shares = stage.allocator.shares()
    assert [shares[name].share for name in ("h1", "h2", "l")] == [gpus(1.5), gpus(1.5), 0]


def test_a_lower_class_gets_nothing_while_a_higher_one_wants_more() -> None:
    stage = Stage({"n": 10})
    for name in ("h1", "h2", "h3"):
        stage.queue(name, 0, priority=2, weight=1)
    stage.queue("l", 0, priority=1, weight=1)
    for name in ("h1", "h2", "h3", "l"):
        stage.job(name, 1, count=1, most=50)
    shares = stage.allocator.shares()
    assert shares["l"].share == 0
    assert sum(shares[name].share for name in ("h1", "h2", "h3")) == gpus(10)


# ---- the shrink ladder, and retrying ---------------------------------------------------------------------

LADDER = {"amount": 1, "ladder": (0.7, 0.4)}


def test_a_ladder_goes_down_for_others_and_up_again() -> None:
    stage = Stage({"n": 1}, Policy(grow_hold=60))
    stage.queue("q", 1)
    small = stage.job("q", 0.3)
    elastic = stage.job("q", **LADDER)
    assert stage.rung_share(elastic) == 0.7
    other = stage.job("q", 0.2)
    assert stage.rung_share(elastic) == 0.4
    assert stage.waiting() == []
    stage.now += 10
    stage.end(other)
    assert stage.rung_share(elastic) == 0.4, "the hold"
    stage.wait(30)
    assert stage.rung_share(elastic) == 0.4
    stage.wait(30)
    assert stage.rung_share(elastic) == 0.7
    stage.now += 60
    stage.end(small)
    assert stage.rung_share(elastic) == 1.0
    assert stage.evicted == []


def test_two_elastic_users_share_a_gpu_and_a_third_is_refused_until_there_is_room() -> None:
    stage = Stage({"n": 1}, Policy(grow_hold=60, retry_after=3.0))
    stage.queue("q", 1)
    one, two = stage.job("q", **LADDER), stage.job("q", **LADDER)
    assert (stage.rung_share(one), stage.rung_share(two)) == (0.4, 0.4)
    stage.job("q", 0.3, name="third", wait=False)
    (refusal,) = [action for action in stage.actions if isinstance(action, Refuse)]
    assert (refusal.job, refusal.retry_after) == ("third", 3.0)
    assert "third" not in stage.allocator.jobs
    stage.now = 3
    stage.job("q", 0.3, name="third", wait=False)
    assert isinstance(stage.actions[-1], Refuse)
    stage.now = 5
    stage.end(one)
    stage.now = 6
    stage.job("q", 0.3, name="third", wait=False)
    assert any(isinstance(action, Start) and action.job == "third" for action in stage.actions)


def test_who_waits_is_started_at_once() -> None:
    stage = Stage({"n": 1}, Policy(grow_hold=60))
    stage.queue("q", 1)
    one, _ = stage.job("q", **LADDER), stage.job("q", **LADDER)
    third = stage.job("q", 0.3)
    assert stage.waiting() == [third]
    stage.now = 5
    assert [action.job for action in stage.end(one) if isinstance(action, Start)] == [third]


def test_higher_priority_shrinks_last() -> None:
    stage = Stage({"n": 2})
    stage.queue("q", 2)
    high = stage.job("q", priority=90, **LADDER)
    low = stage.job("q", priority=10, **LADDER)
    stage.job("q", 0.3)
    assert (stage.rung_share(high), stage.rung_share(low)) == (1.0, 0.7)


# ---- requests and limits -----------------------------------------------------------------------------------


def test_requests_are_packed_and_limits_are_not() -> None:
    stage = Stage({"n": 1})
    stage.queue("q", 8)
    four = [stage.job("q", 0.25, limit=0.8) for _ in range(4)]
    fifth = stage.job("q", 0.25, limit=0.8)
    assert stage.running() == four
    assert stage.waiting() == [fifth]


def test_limits_come_from_the_job_or_its_queues() -> None:
    stage = Stage({"n": 8})
    stage.queue("d", 8, max_limit=gpus(0.9))
    stage.queue("q", 8, parent="d", default_limit=gpus(0.8))
    stage.queue("plain", 8, parent="d")
    limits = []
    for queue, more in (("q", {}), ("q", {"limit": 0.5}), ("plain", {}), ("plain", {"limit": 0.9})):
        name = stage.job(queue, 0.25, **more)
        limits.append(stage.allocator.limit(name, stage.place(name)) / (80 * GIB))
    assert limits == pytest.approx([0.8, 0.5, 0.25, 0.9])
    name = stage.job("q", memory=16 * GIB)
    assert stage.allocator.limit(name, stage.place(name)) == 64 * GIB


def test_who_borrows_from_whom() -> None:
    stage = Stage({"n": 8})
    for name, quota in (("a", 2), ("b", 2), ("c", 3)):
        stage.queue(name, quota)
    for _ in range(6):
        stage.job("a")
    stage.job("b")
    assert stage.allocator.loans() == [("a", "b", gpus(1)), ("a", "c", gpus(3))]
    stage.job("a")
    assert stage.allocator.loans() == [("a", "b", gpus(1)), ("a", "c", gpus(3)), ("a", None, gpus(1))]


def test_a_limit_below_the_request_is_an_error() -> None:
    stage = Stage({"n": 1})
    stage.queue("q", 8)
    with pytest.raises(UsageError, match="below the request") as caught:
        stage.job("q", 0.5, limit=0.25, name="j")
    assert caught.value.code == "request_over_limit"
    assert "j" not in stage.allocator.jobs


def test_a_share_and_bytes_together_are_an_error() -> None:
    stage = Stage({"n": 1})
    stage.queue("q", 8)
    with pytest.raises(UsageError, match="both a share and bytes") as caught:
        stage.send(JobSubmitted(Job("j", "q", (Tasks(share=gpus(0.5), memory=GIB),))))
    assert caught.value.message.startswith("job j: tasks[0]")


def test_half_of_eight_gpus_twice() -> None:
    stage = Stage({"n": 8})
    stage.queue("q", 16)
    first = stage.job("q", memory=40 * GIB, limit=80 * GIB, devices=8)
    assert stage.held("q") == (4,)
    assert stage.allocator.nodes["n"].free == (40 * GIB,) * 8
    stage.job("q", memory=40 * GIB, limit=80 * GIB, devices=8)
    assert stage.held("q") == (8,)
    third = stage.job("q", memory=40 * GIB, limit=80 * GIB, devices=8)
    assert stage.waiting() == [third]
    stage.end(first)
    assert stage.waiting() == []


def test_bytes_are_charged_by_the_gpu_that_they_run_on() -> None:
    stage = Stage([Node("large", 1, 80 * GIB), Node("small", 1, 40 * GIB)])
    stage.queue("q", 8)
    on_small = stage.job("q", memory=40 * GIB)
    on_large = stage.job("q", memory=40 * GIB)
    assert (stage.place(on_small).node, stage.place(on_small).charge) == ("small", gpus(1))
    assert (stage.place(on_large).node, stage.place(on_large).charge) == ("large", gpus(0.5))


# ---- over quota by weight (Run:ai) -------------------------------------------------------------------------


def test_spare_gpus_by_weight() -> None:
    stage = Stage([])
    stage.send([NodeAdded(Node(f"n{i}", 13)) for i in range(2)])
    stage.queue("p1", 0, weight=2)
    stage.queue("p2", 6, weight=3)
    stage.queue("p3", 0, weight=1)
    for name in ("p1", "p2", "p3"):
        stage.job(name, 1, count=1, most=40)
    shares = stage.allocator.shares()
    assert (shares["p2"].surplus, shares["p2"].share) == (gpus(10), gpus(16))
    assert [shares[name].share for name in ("p1", "p3")] == [6_666_667, 3_333_333]
    assert whole_gpus([shares[name].share for name in ("p1", "p2", "p3")]) == [7, 16, 3]
    assert stage.held("p1", "p2", "p3") == (7, 16, 3)


def test_idle_gpus_go_three_to_one() -> None:
    stage = Stage({"n": 8})
    stage.queue("a", 3)
    stage.queue("b", 1)
    for name in ("a", "b"):
        stage.job(name, 1, count=1, most=40)
    shares = stage.allocator.shares()
    assert (shares["a"].surplus, shares["b"].surplus) == (gpus(3), gpus(1))


def test_quick_start() -> None:
    stage = Stage({"n": 4})
    stage.queue("a", 2)
    stage.queue("b", 2)
    a1, _, _ = stage.job("a", 1), stage.job("a", 2), stage.job("b", 1)
    stage.job("b", 1)
    assert stage.evicted == [a1]
    assert stage.held("a", "b") == (2, 2)
