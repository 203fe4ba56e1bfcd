"""No job waits where there is room for it, or where moving one other job makes room: looked at after every event."""

from __future__ import annotations

import os
from random import Random

import pytest
from allocator_stage import Stage

SEEDS = range(int(os.environ.get("GPUSHARE_TEST_EVENTS", "6000")) // 200)
GPUS = 4


def free_gpus(stage: Stage) -> dict[str, int]:
    free = {"n1": GPUS, "n2": GPUS, "n3": GPUS}
    for name in stage.running():
        free[stage.place(name).node] -= len(stage.place(name).gpus)
    return free


def one_move_makes_room(stage: Stage, need: int) -> bool:
    free = free_gpus(stage)
    for name in stage.running():
        place = stage.place(name)
        size = len(place.gpus)
        if free[place.node] + size >= need and any(free[other] >= size for other in free if other != place.node):
            return True
    return False


@pytest.mark.parametrize("seed", SEEDS)
def test_no_job_waits_where_one_move_makes_room(seed) -> None:
    """Jobs end as well as come: whoever waits must be thought of when others leave room, not only on arrival."""
    random = Random(seed)
    stage = Stage(dict.fromkeys(("n1", "n2", "n3"), GPUS))
    stage.queue("q", None)
    for _ in range(30):
        running = stage.running()
        if running and random.random() < 0.45:
            stage.end(random.choice(running))
        else:
            stage.job("q", random.choice([1, 1, 2, 2, 3, 4]))
        for name in stage.waiting():
            (tasks,) = stage.allocator.jobs[name].job.tasks
            assert max(free_gpus(stage).values()) < tasks.gpus, f"{name} fits"
            assert not one_move_makes_room(stage, tasks.gpus), f"{name} waits, and one move would do"
