"""Of many victims the first few are looked at first. What is found among them is what a look at all of them finds."""

from __future__ import annotations

from random import Random

import pytest
from allocator_stage import Stage

from gpushare.cluster import holders, victims
from gpushare.cluster.model import Job, JobEnded, JobSubmitted, Policy, Preempt, Tasks


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
def test_the_first_victims_say_what_all_of_them_do(seed, monkeypatch) -> None:
    monkeypatch.setattr(holders, "FIRST", ())
    expected, stopped = played(seed)
    assert stopped
    for first, dearer in (((1, 2, 4, 8, 16), 0), ((1, 4, 16, 64), 2), ((5,), 9)):
        monkeypatch.setattr(holders, "FIRST", first)
        monkeypatch.setattr(victims, "DEARER", dearer)
        assert played(seed)[0] == expected
