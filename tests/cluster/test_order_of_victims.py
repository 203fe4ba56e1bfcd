"""A queue's line of victims is read when its turn comes. The order is the one of all lines sorted by their ranks."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from allocator_stage import Stage

from gpushare.cluster.jobs import JobState
from gpushare.cluster.lines import Order
from gpushare.cluster.model import Job, JobEnded, JobSubmitted, Policy, Preempt, Tasks


@pytest.mark.parametrize("seed", range(8))
def test_it_is_what_sorting_all_of_them_gives(seed, monkeypatch) -> None:
    lazily = Order.jobs
    lengths: list[int] = []

    def checked(order: Order, among=None) -> Iterator[JobState]:
        if not order.lines and among is None:
            everybody = Order(order.turn, order.stage, order.heads, order.price)
            before = order.turn.again
            everybody.end()
            order.turn.again = before
            found = [job for _, _, line in everybody.lines.values() for job in line.jobs if everybody.rank(job)]
            found.sort(key=everybody.rank)
            assert list(lazily(Order(order.turn, order.stage, order.heads, order.price))) == found
            lengths.append(len(found))
        return lazily(order, among)

    monkeypatch.setattr(Order, "jobs", checked)
    assert played(seed), "nobody was stopped"
    assert max(lengths) > 10


def played(seed: int) -> int:
    """Owners come back to a cluster full of borrowers of several priorities and sizes; some of these end."""
    random = Random(seed)
    stage = Stage({f"n{index}": 8 for index in range(10)}, Policy(patience=random.choice([0, 600])))
    for index in range(8):
        stage.queue(f"q{index}", 10, priority=random.choice([0, 0, 1]))
    for index in range(100):
        size, priority, queue = random.choice([1, 1, 2, 4]), random.choice([0, 0, 5]), f"q{random.randrange(5)}"
        stage.now += random.choice([0, 1, 5000])
        stage.send(JobSubmitted(Job(f"j{index}", queue, (Tasks(gpus=size),), priority)))
    stopped = 0
    for index in range(25):
        stage.now += random.choice([1, 100])
        queue, size = f"q{random.randrange(8)}", random.choice([1, 2, 4, 8])
        actions = stage.send(JobSubmitted(Job(f"owner-{index}", queue, (Tasks(gpus=size),), random.choice([0, 5, 9]))))
        stopped += sum(isinstance(action, Preempt) for action in actions)
        if random.random() < 0.5:
            stage.send(JobEnded(random.choice(stage.running())))
    return stopped
