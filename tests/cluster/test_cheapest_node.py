"""Nodes to clear are looked at by bounds of what they cost. What is found so is what a look at all of them finds."""

from __future__ import annotations

from random import Random

import pytest
from allocator_stage import Stage

from gpushare.cluster.clearing import Cost
from gpushare.cluster.holders import Holders
from gpushare.cluster.model import Job, JobEnded, JobSubmitted, Policy, Preempt, Tasks
from gpushare.cluster.order import ENDLESS


def played(seed: int) -> tuple[list[object], int]:
    """Owners of whole nodes come back to a cluster full of small borrowers, of whom some end now and then."""
    random = Random(seed)
    stage = Stage(
        {f"n{index}": 8 for index in range(30)}, Policy(reserve_after=None, consolidate=random.random() < 0.5)
    )
    for index in range(10):
        stage.queue(f"q{index}", 24)
    sizes = random.choice([(1,), (1, 1, 2), (1, 2, 4), (1, 1, 1, 1, 2, 2, 4), (3, 5), (0.5, 1, 2)])
    jobs = []
    for index in range(400):
        size = random.choice(sizes)
        tasks = (Tasks(gpus=int(size)) if size >= 1 else Tasks(share=500_000),)
        fixed = random.random() < 0.1
        runtime = 100.0 if random.random() < 0.1 else 0.0
        queue = f"q{random.randrange(5)}"
        jobs.append(
            JobSubmitted(Job(f"j{index}", queue, tasks, preemptible=not fixed, min_runtime=runtime, movable=True))
        )
    stage.send(jobs)
    actions: list[object] = []
    for index in range(30):
        stage.now += 1
        queue, size = f"q{random.randrange(5, 10)}", random.choice([2, 4, 8, 8])
        actions += stage.send(JobSubmitted(Job(f"owner-{index}", queue, (Tasks(gpus=size),))))
        if random.random() < 0.5:
            actions += stage.send(JobEnded(random.choice(stage.running())))
    return actions, sum(isinstance(action, Preempt) for action in actions)


@pytest.mark.parametrize("seed", range(12))
def test_bounds_change_nothing(seed, monkeypatch) -> None:
    found, stopped = played(seed)
    assert stopped
    nothing_is_known = Cost(0, -ENDLESS, ())
    monkeypatch.setattr(
        Holders,
        "could_clear",
        lambda holders, need: {node.number: nothing_is_known for node in holders.state.space.among(holders.mask)},
    )
    monkeypatch.setattr(Holders, "could_suffice", lambda holders, wants: True)
    assert played(seed)[0] == found
