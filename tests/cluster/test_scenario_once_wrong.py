"""Decisions that the allocator once got wrong: each stays as a scenario or a short story."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpushare.cluster import scenario
from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import (
    Job,
    JobEnded,
    JobSubmitted,
    Move,
    Node,
    NodeAdded,
    NodeLost,
    Policy,
    Preempt,
    Queue,
    QueueAdded,
    Selector,
    Tasks,
)
from gpushare.cluster.quantity import gpus
from gpushare.cluster.simulation import Simulation
from gpushare.cluster.spec_parser import Submission
from gpushare.errors import UsageError

FOLDER = Path(__file__).resolve().parent / "scenarios"

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_scenario(name: str) -> None:
    read = scenario.read(FOLDER / f"{name}.yaml")
    assert any(step.then is not None for step in read.steps), "a scenario that checks nothing"
    _, failures = scenario.run(read)
    assert not failures, "\n".join(map(str, failures))


def test_a_job_that_needs_no_task_is_refused_or_kept_in_order() -> None:
    allocator = Allocator()
    allocator.handle([QueueAdded(Queue("a", quota=gpus(1))), QueueAdded(Queue("b", quota=gpus(2)))], 0)
    try:
        allocator.handle(JobSubmitted(Job("e", "a", (Tasks(0, 2),))), 1)
    except UsageError as error:
        assert error.message.startswith("job e")
        assert error.hint
        assert not allocator.jobs
        return
    allocator.validate()
    for event in (NodeAdded(Node("n", 2)), NodeLost("n"), NodeAdded(Node("n", 2))):
        allocator.handle(event, 2)
        allocator.validate()
    assert allocator.jobs["e"].state == "running"
    assert len(allocator.jobs["e"].places) == 2


HOUR = 3600.0


def whole_gpu(name: str, queue: str, at: float = 0.0, duration: float | None = None) -> Submission:
    return Submission(Job(name, queue, (Tasks(),)), at, duration)


def borrowed(borrowers: int) -> Simulation:
    """One node full of jobs that borrow; the queue `owner` has its quota of one GPU unused."""
    run = Simulation(Policy(), check=True)
    run.hand(NodeAdded(Node("n", borrowers)), QueueAdded(Queue("lent")), QueueAdded(Queue("owner", quota=gpus(1))))
    run.submit([whole_gpu(f"lent-{n}", "lent", at=60.0 * n) for n in range(borrowers)])
    return run


def test_claims_that_come_again_do_not_always_stop_the_same_job() -> None:
    """Eight claims of half an hour in a day, four borrowers: none of these is stopped more than three times."""
    run = borrowed(4)
    run.submit([whole_gpu(f"claim-{n}", "owner", at=3 * HOUR * n + HOUR, duration=HOUR / 2) for n in range(8)])
    run.advance(24 * HOUR)
    evicted = Counter(action.job for _, action in run.actions if isinstance(action, Preempt))
    assert sum(evicted.values()) == 8, "each claim is met by one eviction"
    assert max(evicted.values()) <= 3, evicted


def test_the_job_that_loses_the_least_work_is_stopped() -> None:
    """Three borrowers have worked for a day; the fourth, the one that came first, has started again an hour ago."""
    run = borrowed(3)
    run.hand(NodeAdded(Node("m", 1)))
    run.submit([Submission(Job("first", "lent", selector=Selector(nodes=("m",))), 0.0, None)])
    run.advance(24 * HOUR)
    run.hand(NodeLost("m"))
    run.hand(NodeAdded(Node("m", 1)))
    run.advance(25 * HOUR)
    run.submit([whole_gpu("claim", "owner")])
    run.advance(26 * HOUR)
    assert [action.job for _, action in run.actions if isinstance(action, Preempt)] == ["first"]


def test_a_job_that_cannot_be_moved_without_loss_is_not_moved_for_a_borrower() -> None:
    """Two jobs have run for a day, and did not say that they can be moved. The newcomer has no right to their room."""
    run = Simulation(Policy(), check=True)
    run.hand(*(NodeAdded(Node(f"n{n}", 2)) for n in range(2)), QueueAdded(Queue("a")))
    run.submit([whole_gpu(f"fill-{n}", "a") for n in range(4)])
    run.advance(1.0)
    one_of_each_node = {view.places[0].node: name for name, view in run.allocator.jobs.items()}
    run.hand(*map(JobEnded, one_of_each_node.values()))
    run.advance(24 * HOUR)
    run.submit([Submission(Job("wide", "a", (Tasks(gpus=2),)), 0.0, None)])
    run.advance(25 * HOUR)
    assert run.allocator.jobs["wide"].state == "pending"
    assert not [action for _, action in run.actions if isinstance(action, Move)]
