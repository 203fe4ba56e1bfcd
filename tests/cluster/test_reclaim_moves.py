"""Who is stopped and who is only moved when a queue takes back what is its own."""

from __future__ import annotations

import pytest
from allocator_stage import Stage

from gpushare.cluster import widening
from gpushare.cluster.model import Job, JobRestored, JobSubmitted, Move, Place, Policy, Preempt, Start, Stop, Tasks

STAY = Policy(reserve_after=None, consolidate=False)


def stage_of(running: list[tuple[str, str, int, str]], policy: Policy | None = None, **quotas: float) -> Stage:
    """Two nodes of eight; jobs (name, queue, GPUs, node), the oldest first."""
    stage = Stage({"n1": 8, "n2": 8}, policy)
    for name, quota in quotas.items():
        stage.queue(name, quota)
    first = {"n1": 0, "n2": 0}
    for name, queue, size, node in running:
        gpus = tuple(range(first[node], first[node] + size))
        first[node] += size
        place = Place(0, 0, node, gpus, 0, 0)
        stage.send(JobRestored(Job(name, queue, (Tasks(gpus=size),), movable=True), (place,), since=0.0))
    return stage


def moved(stage: Stage) -> list[str]:
    return [action.job for action in stage.actions if isinstance(action, Move)]


def reason(stage: Stage, job: str):
    (found,) = [action.reason for action in stage.actions if isinstance(action, Start) and action.job == job]
    return found


BEYOND = [("old", "a", 4, "n1"), ("older", "a", 4, "n2"), ("newest", "a", 2, "n2")]


def test_the_newest_is_stopped_and_a_job_in_quota_only_moves() -> None:
    stage = stage_of(BEYOND, a=8, b=8)
    stage.job("b", 8, name="b-1")
    assert stage.evicted == ["newest"]
    (other,) = moved(stage)
    assert other in ("old", "older")
    why = reason(stage, "b-1")
    assert why.code == "taken_and_moved"
    assert why.data == {"victims": ("newest",), "moves": 1, "moved": (other,)}
    assert why.message == "room was made by stopping newest and moving 1 running task"
    assert stage.held("a", "b") == (8, 8)


def test_a_job_in_quota_goes_only_where_nothing_else_makes_the_room() -> None:
    stage = stage_of(BEYOND, STAY, a=8, b=8)
    stage.job("b", 8, name="b-1")
    assert stage.evicted == ["old"]
    assert moved(stage) == []
    assert reason(stage, "b-1").code == "taken"


def test_a_queue_keeps_its_quota_rather_than_lose_its_newest() -> None:
    stage = stage_of([("one", "a", 2, "n1"), ("two", "a", 6, "n1"), ("b-1", "b", 8, "n2")], a=6, b=10)
    stage.job("b", 2, name="b-2")
    assert stage.evicted == ["one"]


def test_the_newest_goes_alone_though_it_is_larger_where_older_ones_are_in_quota() -> None:
    stage = stage_of(
        [("one", "a", 2, "n1"), ("two", "a", 2, "n1"), ("big", "a", 4, "n1"), ("b-1", "b", 8, "n2")], a=5, b=11
    )
    stage.job("b", 3, name="b-2")
    assert stage.evicted == ["big"]


def test_who_finds_room_elsewhere_is_moved_and_not_stopped() -> None:
    """A queue without quota lends all it has; two of its jobs stand where the block is needed, one fits elsewhere."""
    running = [("one", "a", 2, "n1"), ("two", "a", 4, "n1"), ("b-1", "b", 6, "n2")]
    stage = stage_of(running, a=0, b=16)
    stage.job("b", 8, name="b-2")
    assert stage.evicted == ["two"]
    assert moved(stage) == ["one"]


def test_place_for_who_must_move_is_made_by_stopping_one_beyond_the_quota() -> None:
    stage = stage_of([("mine", "c", 4, "n1"), ("loan", "a", 4, "n1"), ("loan-2", "a", 4, "n2")], a=0, b=8, c=8)
    fixed = Job("fixed", "c", (Tasks(gpus=4),), preemptible=False)
    stage.send(JobRestored(fixed, (Place(0, 0, "n2", (4, 5, 6, 7), 0, 0),), since=0.0))
    stage.job("b", 8, name="b-1")
    assert stage.running("b") == ["b-1"]
    assert sorted(stage.evicted) == ["loan", "loan-2"]
    assert moved(stage) == ["mine"]
    assert stage.place("mine").node == "n2"


def scattered(nodes: dict[str, int], running: list[tuple[str, str, int, str]], **quotas: float) -> Stage:
    """Jobs (name, queue, GPUs, node), the oldest first; those whose names begin with "fixed" stay where they are."""
    stage = Stage(nodes)
    for name, quota in quotas.items():
        stage.queue(name, quota)
    first = dict.fromkeys(nodes, 0)
    for name, queue, size, node in running:
        place = Place(0, 0, node, tuple(range(first[node], first[node] + size)), 0, 0)
        first[node] += size
        job = Job(name, queue, (Tasks(gpus=size),), preemptible=not name.startswith("fixed"), movable=True)
        stage.send(JobRestored(job, (place,), since=0.0))
    return stage


def test_place_for_who_must_move_is_made_by_moving_others_as_far_as_it_takes() -> None:
    nodes = dict.fromkeys(("n1", "n2", "n3", "n4"), 4)
    running = [("x", "a", 3, "n1"), ("y", "a", 2, "n2"), ("fixed-1", "a", 1, "n2"), ("z", "a", 1, "n3")]
    running += [("fixed-2", "a", 2, "n3"), ("fixed-3", "a", 3, "n4")]
    stage = scattered(nodes, running, a=16)
    stage.job("a", 4, name="block")
    assert [stage.place(name).node for name in ("block", "x", "y", "z")] == ["n1", "n2", "n3", "n4"]


LOANS = [("old", "a", 4, "n1"), ("new", "a", 4, "n1"), ("older", "a", 4, "n2"), ("theirs", "c", 2, "n2")]


def loans() -> Stage:
    """A block of eight is got by stopping both on n1, or one on n2 if the other moves to n3."""
    return scattered({"n1": 8, "n2": 8, "n3": 4}, [*LOANS, ("fixed", "c", 2, "n3")], a=0, b=16, c=4)


def test_one_is_moved_rather_than_a_second_one_stopped() -> None:
    stage = loans()
    stage.job("b", 8, name="b-1")
    assert stage.evicted == ["older"]
    assert moved(stage) == ["theirs"]


def test_when_no_steps_are_left_for_the_exact_search_what_others_have_found_stands(monkeypatch) -> None:
    monkeypatch.setattr(widening, "STEPS", 0)
    stage = loans()
    stage.job("b", 8, name="b-1")
    assert sorted(stage.evicted) == ["new", "old"]


def test_what_is_not_preemptible_does_not_move() -> None:
    stage = stage_of([("newest", "a", 2, "n2")], a=8, b=8)
    for node in ("n1", "n2"):
        place = Place(0, 0, node, (4, 5, 6, 7), 0, 0)
        job = Job(f"fixed-{node}", "a", (Tasks(gpus=4),), preemptible=False)
        stage.send(JobRestored(job, (place,), since=0.0))
    stage.job("b", 8, name="b-1")
    assert stage.waiting() == ["b-1"]
    assert stage.evicted == []


# ---- gangs found running in part ------------------------------------------------------------------------

PART = (Place(0, 0, "n1", (0, 1, 2, 3), 0, 0),)
GANG = Job("gang", "a", (Tasks(2, gpus=4),))


def fresh(**quotas: float) -> Stage:
    return stage_of([], **quotas)


def test_a_part_of_a_gang_is_completed_where_there_is_room() -> None:
    stage = fresh(a=8, b=8)
    actions = stage.send(JobRestored(GANG, PART, since=0.0))
    assert [(type(one), len(one.places)) for one in actions] == [(Start, 1)]
    assert stage.running() == ["gang"]


def test_a_part_of_a_gang_is_completed_by_taking_back_what_is_its_queues() -> None:
    stage = stage_of([("b-1", "b", 8, "n2"), ("b-2", "b", 4, "n1")], a=8, b=8)
    actions = stage.send(JobRestored(GANG, (Place(0, 0, "n1", (4, 5, 6, 7), 0, 0),), since=0.0))
    assert [(type(one), one.job) for one in actions] == [(Preempt, "b-2"), (Start, "gang")]
    assert stage.held("a", "b") == (8, 8)


def test_a_part_of_a_gang_is_completed_in_place_of_lower_priority() -> None:
    stage = fresh(a=8)
    for node, gpus in (("n1", (4, 5, 6, 7)), ("n2", tuple(range(8)))):
        place = Place(0, 0, node, gpus, 0, 0)
        stage.send(
            JobRestored(
                Job(f"low-{node}", "a", (Tasks(gpus=len(gpus)),), priority=10, movable=True), (place,), since=0.0
            )
        )
    stage.send(JobRestored(GANG, PART, since=0.0))
    assert "gang" in stage.running()
    assert stage.evicted == ["low-n1"]


def test_a_part_of_a_gang_that_may_not_take_from_others_is_stopped_and_waits() -> None:
    stage = stage_of([("b-1", "b", 8, "n2"), ("b-2", "b", 4, "n1")], a=4, b=12)
    actions = stage.send(JobRestored(GANG, (Place(0, 0, "n1", (4, 5, 6, 7), 0, 0),), since=0.0))
    assert [(type(one), one.job) for one in actions] == [(Stop, "gang")]
    assert stage.waiting() == ["gang"]
    assert stage.evicted == []


@pytest.mark.parametrize("waiting_first", [True, False])
def test_nothing_of_a_gang_is_started_that_a_job_before_it_stops_again(waiting_first) -> None:
    """All in one turn: higher priority waits for all eight, a part of a gang runs, and free room would complete it."""
    stage = Stage({"n1": 8})
    stage.queue("a", 8)
    first = Job("first", "a", (Tasks(gpus=8),), priority=90)
    part = JobRestored(Job("gang", "a", (Tasks(2, 3, gpus=2),)), (Place(0, 0, "n1", (0, 1), 0, 0),), since=0.0)
    events = [JobSubmitted(first), part]
    actions = stage.send(events if waiting_first else events[::-1])
    assert [(type(one).__name__, one.job) for one in actions] == [("Preempt", "gang"), ("Start", "first")]
    assert stage.evicted == ["gang"]
    assert stage.waiting() == ["gang"]


def test_the_gang_gives_its_own_further_tasks_for_the_part_that_is_missing() -> None:
    stage = Stage({"n1": 4})
    stage.queue("a", 4)
    tasks = (Tasks(1, 4, gpus=1), Tasks(1, 1, gpus=1))
    part = tuple(Place(0, task, "n1", (task,), 0, 0) for task in range(4))
    stage.send(JobRestored(Job("gang", "a", tasks), part, since=0.0))
    assert stage.running() == ["gang"]
    assert [(place.group, place.task) for place in stage.allocator.jobs["gang"].places] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
    ]
