"""Whatever goes wrong between the loop and an engine: no job is lost, none runs twice, and all of it ends well.

For some time commands are lost, late, doubled and refused, starts fail, tasks vanish, nodes do not answer, and the loop
is killed, now and then together with its ledger. The engine judges each second (Overlap). Then nothing goes wrong any
more, and what runs must become what was decided: all jobs end.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from engine_stage import Disk, Stage

from gpushare.cluster.engines.memory import Faults, Memory
from gpushare.cluster.model import Node, Queue, QueueAdded
from gpushare.cluster.quantity import gpus

SEEDS = int(os.environ.get("GPUSHARE_TEST_SEEDS", "3"))
SEED = int(os.environ.get("GPUSHARE_TEST_SEED", "1"))
GIB = 2**30
STORMY = 150
"""Seconds in which things go wrong."""
WEATHER = {
    "commands": Faults(lost=0.15, late=0.15, doubled=0.15, blind=0.05),
    "starts": Faults(refused=0.1, half_done=0.2, failed=0.1, vanish=0.005),
    "stops": Faults(stop_refused=0.3, stubborn=0.3, lost=0.1),
    "nodes": Faults(node_trouble=0.02, foreign=0.05, vanish=0.003),
    "everything": Faults(0.1, 0.1, 0.1, 0.05, 0.1, 0.05, 0.2, 0.2, 0.05, 0.003, 0.01, 0.03),
}


def cluster(seed: int, faults: Faults) -> Stage:
    random = Random(seed)
    nodes = [Node(f"n{index}", random.choice([1, 2, 4]), 80 * GIB) for index in range(random.randint(2, 3))]
    queues = [Queue("a", quota=gpus(3)), Queue("b", quota=0), Queue("c", quota=gpus(1), priority=1)]
    return Stage(nodes, [(queue, 0) for queue in queues], engine=Memory(seed, faults))


def submit(stage: Stage, random: Random, serial: int) -> None:
    least = random.choice([1, 1, 2])
    tasks = random.choice(
        [
            {"least": least},
            {"least": least, "most": least + 2},
            {"share": gpus(0.5), "ladder": (gpus(0.25),)},
            {"memory": 30 * GIB},
        ]
    )
    stage.submit(f"j{serial}", random.choice("aabbc"), random.uniform(5.0, 40.0), **tasks)


def storm(stage: Stage, random: Random) -> None:
    for second in range(STORMY):
        if random.random() < 0.15:
            submit(stage, random, second)
        if random.random() < 0.02 and stage.engine.jobs:
            stage.engine.cancel(random.choice(sorted(stage.engine.jobs)))
        if random.random() < 0.04:
            stage.points.kill_at = stage.points.count + random.randint(1, 12)
        if random.random() < 0.01:
            stage.disk = Disk()
            stage.disk.append([QueueAdded(queue) for queue in stage.queues], stage.engine.now)
            stage.loop = stage.new_loop("another")
        stage.round()
        stage.engine.tick()


@pytest.mark.parametrize("weather", WEATHER)
@pytest.mark.timeout(0)
def test_whatever_goes_wrong_all_jobs_end_and_none_runs_twice(weather) -> None:
    crashes = evicted = 0
    for seed in range(SEED * 10_000, SEED * 10_000 + SEEDS):
        random = Random(seed)
        stage = cluster(seed, WEATHER[weather])
        try:
            storm(stage, random)
            stage.engine.faults = Faults()
            stage.finish()
        except Exception as error:
            raise AssertionError(f"seed {seed} at {stage.engine.now:g} s") from error
        crashes += stage.crashes
        evicted += stage.engine.evicted
        if not WEATHER[weather].late:
            assert stage.engine.guarded == 0, f"seed {seed}: the engine had to refuse what would have broken something"
        assert not any(view.foreign for view in stage.allocator.nodes.values())
        assert all(view.alive and not view.unknown for view in stage.allocator.nodes.values())
    assert crashes
    assert evicted
