"""An exact solver beside the searches: on small clusters it says what the best answer is."""

from __future__ import annotations

import os
from random import Random

import pytest
from allocator_stage import Stage

from gpushare.cluster.model import Preempt

cp_model = pytest.importorskip("ortools.sat.python.cp_model")

CASES = range(max(20, int(os.environ.get("GPUSHARE_TEST_EVENTS", "6000")) // 150))


def solve(model):
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    return solver if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None


def cluster(random: Random) -> tuple[Stage, dict[str, int]]:
    nodes = {f"n{i}": random.choice([2, 4, 8]) for i in range(random.randint(1, 3))}
    return Stage(nodes), nodes


def blocks(stage: Stage) -> dict[str, int]:
    """Wholly free GPUs of each node."""
    return {name: sum(left == 80 * 2**30 for left in view.free) for name, view in stage.allocator.nodes.items()}


@pytest.mark.parametrize("seed", CASES)
def test_a_gang_is_placed_if_and_only_if_it_can_be(seed) -> None:
    random = Random(seed)
    stage, nodes = cluster(random)
    stage.queue("q", 100)
    for _ in range(random.randint(0, 6)):
        stage.job("q", random.choice([0.3, 0.5, 1, 1, 2]), preemptible=False)
    size, count = random.randint(1, min(4, max(nodes.values()))), random.randint(1, 4)
    model = cp_model.CpModel()
    on = {name: model.new_int_var(0, count, name) for name in blocks(stage)}
    for name, free in blocks(stage).items():
        model.add(on[name] * size <= free)
    model.add(sum(on.values()) == count)
    gang = stage.job("q", size, count=count)
    assert (gang in stage.running()) == (solve(model) is not None)


@pytest.mark.parametrize("seed", CASES)
def test_reclaim_takes_the_fewest(seed) -> None:
    """Whole-GPU victims of two borrowing queues, one job of one task: no smaller set would do, anywhere."""
    random = Random(seed)
    stage, nodes = cluster(random)
    total = sum(nodes.values())
    stage.queue("mine", total)
    stage.queue("a", 0)
    stage.queue("b", 0)
    for _ in range(20):
        stage.job(random.choice("ab"), random.choice([1, 1, 2, 2]))
    free = blocks(stage)
    held = {n: (v.places[0].node, v.charge // 10**6) for n, v in stage.allocator.jobs.items() if v.places}
    need = random.choice([size for size in (1, 2, 3, 4) if size <= max(nodes.values())])
    model = cp_model.CpModel()
    gone = {name: model.new_bool_var(name) for name in held}
    at = {node: model.new_bool_var(f"at-{node}") for node in nodes}
    model.add_exactly_one(at.values())
    for node in nodes:
        freed = sum(size * gone[name] for name, (where, size) in held.items() if where == node)
        model.add(free[node] + freed >= need).only_enforce_if(at[node])
    model.minimize(sum(gone.values()))
    fewest = round(solve(model).objective_value)
    stage.moves, stage.evicted = 0, []
    job = stage.job("mine", need)
    assert job in stage.running()
    victims = [action for action in stage.actions if isinstance(action, Preempt)]
    if stage.moves:
        assert not victims
    else:
        assert len(victims) == fewest


@pytest.mark.parametrize("seed", CASES)
def test_consolidation_moves_the_fewest(seed) -> None:
    """Jobs of one and two GPUs scattered over a few nodes; one job wants a block. Moves can be solved exactly."""
    random = Random(seed)
    stage, nodes = cluster(random)
    stage.queue("q", 100)
    names = [stage.job("q", random.choice([1, 1, 2])) for _ in range(16)]
    running = [name for name in names if name in stage.running()]
    stage.end(*[name for name in names if name not in running], *random.sample(running, len(running) // 2))
    free = blocks(stage)
    held = {n: (v.places[0].node, v.charge // 10**6) for n, v in stage.allocator.jobs.items() if v.places}
    need = max(nodes.values())
    model = cp_model.CpModel()
    to = {(name, node): model.new_bool_var(f"{name}-{node}") for name in held for node in nodes}
    at = {node: model.new_bool_var(f"at-{node}") for node in nodes}
    model.add_exactly_one(at.values())
    for name in held:
        model.add_exactly_one(to[name, node] for node in nodes)
    for node, size in nodes.items():
        model.add(sum(held[name][1] * to[name, node] for name in held) + need * at[node] <= size)
    model.minimize(sum(1 - to[name, where] for name, (where, _) in held.items()))
    best = solve(model)
    assert free
    stage.moves = 0
    job = stage.job("q", need)
    if best is None:
        assert stage.moves == 0
        assert job in stage.waiting()
    else:
        assert job in stage.running()
        assert stage.moves == round(best.objective_value)
