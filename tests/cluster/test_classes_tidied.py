"""Classes whose jobs have all gone are forgotten, with all that was about them, and nothing else is."""

from __future__ import annotations

import pytest

from gpushare.cluster import state as states
from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import Job, JobEnded, JobSubmitted, Node, NodeAdded, Policy, Queue, QueueAdded, Start, Tasks
from gpushare.cluster.quantity import MICRO, gpus

FEW = 8


@pytest.fixture
def one(monkeypatch) -> Allocator:
    monkeypatch.setattr(states, "FEW_CLASSES", FEW)
    monkeypatch.setattr("gpushare.cluster.classes.FEW_CLASSES", FEW)
    made = Allocator(Policy())
    made.handle([NodeAdded(Node("n1", 4, 80 * 2**30)), QueueAdded(Queue("q", quota=4 * MICRO))], 0.0)
    return made


def parts(number: int) -> tuple[Tasks, ...]:
    """Of two GPUs, and of a size that no other job has."""
    return (Tasks(gpus=2, share=gpus(0.5) + number),)


def test_what_comes_and_goes_leaves_nothing_behind(one: Allocator) -> None:
    for name in ("stays", "stays too"):
        one.handle(JobSubmitted(Job(name, "q", (Tasks(gpus=2, share=gpus(0.25)),), priority=len(name))), 1.0)
    for number in range(5 * FEW):
        started = one.handle(JobSubmitted(Job(f"j{number}", "q", parts(number), priority=number)), 2.0 + number)
        assert any(isinstance(action, Start) for action in started)
        one.validate()
        one.handle(JobEnded(f"j{number}"), 2.5 + number)
        one.validate()
    state = one._state
    assert len(state.classes) < 2 * FEW and len(state.shapes) < 2 * FEW
    assert set(one.jobs) == {"stays", "stays too"}


def test_a_class_that_waits_is_kept_and_starts_when_there_is_room(one: Allocator) -> None:
    one.handle(JobSubmitted(Job("all", "q", (Tasks(gpus=4),))), 1.0)
    for number in range(3 * FEW):
        one.handle(JobSubmitted(Job(f"j{number}", "q", parts(number), priority=40 - number)), 2.0 + number)
    one.validate()
    assert all(view.state == "pending" for name, view in one.jobs.items() if name != "all")
    started = one.handle(JobEnded("all"), 100.0)
    one.validate()
    assert [action.job for action in started if isinstance(action, Start)][:2] == ["j0", "j1"]
