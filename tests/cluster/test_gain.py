"""What a reclaim changes for siblings: guarantees first, without the jobs that are larger than their queue's quota."""

from __future__ import annotations

import pytest

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.candidates import Unit
from gpushare.cluster.model import Job, JobSubmitted, Node, NodeAdded, Policy, Queue, QueueAdded, Tasks
from gpushare.cluster.proof import _can_return, gain, oversized
from gpushare.cluster.quantity import MICRO


@pytest.fixture
def one() -> Allocator:
    """`a` has a quota of 2 GPUs and holds a gang of 3 beside a job of 1; of `b` a gang of 4 and a job of 1 wait."""
    made = Allocator(Policy())
    queues = [QueueAdded(Queue(name, quota=2 * MICRO)) for name in ("a", "b")]
    made.handle([NodeAdded(Node("n", 4, 80 * 2**30)), *queues], 0.0)
    for job in (
        Job("gang", "a", (Tasks(least=3),), preemptible=True),
        Job("small", "a"),
        Job("wide", "b", (Tasks(least=4),), min_runtime=0.0),
    ):
        made.handle(JobSubmitted(job), 1.0)
    assert sorted(made.holding) == ["gang", "small"]
    return made


def gained(one: Allocator, name: str, queues: tuple[str, ...], charge: int, taken=()) -> tuple[int, int]:
    state = one._state
    chosen = [state.queues[queue] for queue in queues]
    before = {
        queue: queue.allocated + sum(unit.charge for unit in taken if unit.job.queue is queue) for queue in chosen
    }
    return gain(before, chosen, state.jobs[name], charge, taken)


def test_what_is_larger_than_the_quota_is_counted_apart(one: Allocator) -> None:
    a = one._state.queues["a"]
    assert oversized(a, 2 * MICRO) == 3 * MICRO and a.allocated == 4 * MICRO


def test_a_queue_in_which_nothing_changes_gains_nothing(one: Allocator) -> None:
    assert gained(one, "wide", ("a",), MICRO) == (0, 0)


def test_a_job_within_its_quota_fills_the_guarantee_and_one_that_is_larger_does_not(one: Allocator) -> None:
    state = one._state
    job = state.jobs["wide"]
    assert job.cls.charge == 4 * MICRO
    assert gained(one, "wide", ("b",), 4 * MICRO)[0] == 0, "it borrows as a whole"
    assert gained(one, "small", ("a",), MICRO)[0] == MICRO, "1 of 2 is filled by the job that is small"
    assert gained(one, "small", ("a",), 3 * MICRO)[0] == MICRO, "no more than the quota"


def unit(one: Allocator, name: str) -> Unit:
    """As if all of it had been lifted already."""
    job = one._state.jobs[name]
    taken = Unit(job, job.ordered, "n", 0)
    for place in taken.places:
        one._state.vacate(job, place)
        one._state.pay(job, -place.charge)
    return taken


@pytest.mark.parametrize(("name", "lost"), [("gang", 0), ("small", -MICRO)])
def test_whoever_loses_a_large_job_loses_no_guarantee(one: Allocator, name: str, lost: int) -> None:
    taken = [unit(one, name)]
    assert gained(one, "wide", ("a",), MICRO, taken)[0] == lost


@pytest.mark.parametrize(("lab", "team", "back"), [(4, 2, True), (1, 2, False), (4, 1, False)])
def test_a_victim_can_return_where_all_queues_above_it_have_room_in_their_quotas(
    lab: int, team: int, back: bool
) -> None:
    made = Allocator(Policy())
    queues = [Queue("lab", quota=lab * MICRO), Queue("team", "lab", quota=team * MICRO)]
    made.handle([NodeAdded(Node("n", 4, 80 * 2**30)), *map(QueueAdded, queues)], 0.0)
    made.handle(JobSubmitted(Job("x", "team", (Tasks(gpus=2),))), 1.0)
    assert _can_return(unit(made, "x")) is back


def test_a_queue_without_a_quota_is_guaranteed_all_that_it_holds() -> None:
    made = Allocator(Policy())
    made.handle([NodeAdded(Node("n", 4, 80 * 2**30)), QueueAdded(Queue("a", quota=None))], 0.0)
    made.handle(JobSubmitted(Job("x", "a")), 1.0)
    assert gained(made, "x", ("a",), 3 * MICRO)[0] == 3 * MICRO
