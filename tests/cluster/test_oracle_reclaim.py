"""Reclaim with moves beside an exact solver: how many are stopped and moved, and how many would have had to be.

The rules are the allocator's own: moves alone if they suffice; else jobs that are not in quota go and others move; else
older ones go too, while their queue is above its quota before the last. Of each the solver finds the fewest tasks that
are stopped or moved. The search is bounded, so it is not always as good: by how much is said here, and held.
"""

from __future__ import annotations

import os
from random import Random
from typing import NamedTuple

import pytest
from allocator_stage import Stage

from gpushare.cluster.model import Job, JobRestored, JobSubmitted, Place, Tasks

cp_model = pytest.importorskip("ortools.sat.python.cp_model")

CASES = max(150, int(os.environ.get("GPUSHARE_TEST_EVENTS", "6000")) // 40)


class Running(NamedTuple):
    name: str
    queue: str
    size: int
    node: str
    fixed: bool


class Case(NamedTuple):
    nodes: dict[str, int]
    quotas: dict[str, int]
    jobs: list[Running]
    """The oldest first."""
    need: int


def case(seed: int) -> Case:
    """Jobs of one to four GPUs where chance has put them, of queues of which some hold more than their quota."""
    random = Random(seed)
    nodes = {f"n{index}": random.choice([4, 8]) for index in range(random.randint(2, 4))}
    total = sum(nodes.values())
    a, b = random.randint(0, total // 3), random.randint(0, total // 3)
    quotas = {"a": a, "b": b, "mine": total - a - b}
    left = dict(nodes)
    jobs = []
    for index in range(random.randint(2, 3 * len(nodes))):
        size = random.choice([1, 1, 2, 2, 3, 4])
        open_nodes = [name for name in nodes if left[name] >= size]
        if open_nodes:
            node = random.choice(open_nodes)
            left[node] -= size
            fixed = random.random() < 0.1
            jobs.append(Running(f"j{index}", random.choice("ab"), size, node, fixed))
    return Case(nodes, quotas, jobs, random.randint(2, min(max(nodes.values()), quotas["mine"])))


def played(case: Case) -> tuple[int, int] | None:
    """What ours does: how many tasks it disturbs in all, and how many of these it stops. None: the job waits."""
    stage = Stage(case.nodes)
    for name, quota in case.quotas.items():
        stage.queue(name, quota)
    first = dict.fromkeys(case.nodes, 0)
    restored = []
    for job in case.jobs:
        gpus = tuple(range(first[job.node], first[job.node] + job.size))
        first[job.node] += job.size
        one = Job(job.name, job.queue, (Tasks(gpus=job.size),), preemptible=not job.fixed)
        restored.append(JobRestored(one, (Place(0, 0, job.node, gpus, 0, 0),), since=0.0))
    stage.send(restored)
    stage.evicted, stage.moves = [], 0
    stage.send(JobSubmitted(Job("big", "mine", (Tasks(gpus=case.need),))))
    if stage.waiting("mine"):
        return None
    return stage.moves + len(stage.evicted), len(stage.evicted)


def late(case: Case, queue: str) -> set[str]:
    """Jobs in quota: the newer ones alone would bring the queue down to it."""
    over = held(case, queue) - case.quotas[queue]
    found = set()
    for job in reversed(case.jobs):
        if job.queue == queue and not job.fixed:
            if over <= 0:
                found.add(job.name)
            over -= job.size
    return found


def held(case: Case, queue: str) -> int:
    return sum(job.size for job in case.jobs if job.queue == queue)


def fewest(case: Case, tier: str) -> tuple[int, int] | None:
    """The fewest tasks disturbed, and of these stopped: by `moves` alone, `strict`ly, or with `any` victims."""
    model = cp_model.CpModel()
    to = {(job.name, node): model.new_bool_var("") for job in case.jobs for node in case.nodes}
    gone = {job.name: model.new_bool_var("") for job in case.jobs}
    at = {node: model.new_bool_var("") for node in case.nodes}
    model.add_exactly_one(at.values())
    for job in case.jobs:
        model.add(sum(to[job.name, node] for node in case.nodes) + gone[job.name] == 1)
        if job.fixed:
            model.add(to[job.name, job.node] == 1)
        if tier == "moves":
            model.add(gone[job.name] == 0)
    for node, size in case.nodes.items():
        model.add(sum(job.size * to[job.name, node] for job in case.jobs) + case.need * at[node] <= size)
    dips = []
    for queue in "ab":
        jobs = [job for job in case.jobs if job.queue == queue]
        over = held(case, queue) - case.quotas[queue]
        taken = sum(job.size * gone[job.name] for job in jobs)
        last = {job.name: model.new_bool_var("") for job in jobs}
        some = model.new_bool_var("")
        for job in jobs:
            model.add_implication(last[job.name], gone[job.name])
            model.add_implication(gone[job.name], some)
        model.add(sum(last.values()) == some)
        # Before the last of them the queue is above its quota.
        model.add(taken - sum(job.size * last[job.name] for job in jobs) < over).only_enforce_if(some)
        dip = model.new_int_var(0, 100, "")
        model.add_max_equality(dip, [0, taken - max(0, over)])
        dips.append(dip)
        if tier == "strict":
            below = model.new_bool_var("")
            model.add(dip == 0).only_enforce_if(below.negated())
            for name in late(case, queue):
                model.add_implication(below, gone[name].negated())
    model.add(case.need > sum(dips))  # what queues have within their quotas rises in all
    stopped = sum(gone.values())
    model.minimize(100 * sum(1 - to[job.name, job.node] for job in case.jobs) + stopped)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    if solver.solve(model) != cp_model.OPTIMAL:
        return None
    return divmod(round(solver.objective_value), 100)


def compare(seed: int) -> tuple[str, tuple[int, int] | None, tuple[int, int] | None] | None:
    """Which way is the mildest that exists, what ours does, and what the solver does. None: there is room."""
    one = case(seed)
    ours = played(one)
    if ours == (0, 0):
        return None
    for tier in ("moves", "strict", "any"):
        best = fewest(one, tier)
        if best is not None:
            return (f"both {tier}" if ours else f"missed {tier}"), ours, best
    return ("neither" if ours is None else "only ours"), ours, None


@pytest.fixture(scope="module")
def compared() -> list[tuple[str, tuple[int, int] | None, tuple[int, int] | None]]:
    return [found for found in map(compare, range(CASES)) if found is not None]


def test_nothing_is_done_that_the_rules_forbid(compared) -> None:
    assert [found for found in compared if found[0] == "only ours"] == []


def test_what_can_be_started_is_nearly_always_started(compared) -> None:
    """Of 1032 jobs for which there is a way, one waits."""
    possible = [kind for kind, _, _ in compared if kind != "neither"]
    missed = sum(kind.startswith("missed") for kind in possible)
    print(f"{len(possible)} can be started, {missed} are not")
    assert len(possible) > CASES // 4
    assert missed <= 1 + len(possible) // 200


def test_moves_alone_are_found_where_they_suffice(compared) -> None:
    """Of 309 such cases somebody was stopped in 11, and in one a task more than need be was moved."""
    ours = [(ours, best) for kind, ours, best in compared if kind == "both moves"]
    stopped = sum(one[1] > 0 for one, _ in ours)
    more = [one[0] - best[0] for one, best in ours if one[0] > best[0]]
    print(f"{len(ours)} cases, {stopped} with victims, {len(more)} with more moves, worst {max(more, default=0)}")
    assert stopped <= 2 + len(ours) // 15
    assert len(more) <= 2 + len(ours) // 50
    assert max(more, default=0) <= 2


def test_the_fewest_are_stopped_and_moved_nearly_always(compared) -> None:
    """Of 668 cases it is more than the fewest in 28: by one in 18, two in 9, three in one; 20 have more victims."""
    ours = [(ours, best) for kind, ours, best in compared if kind in ("both strict", "both any")]
    more = [one[0] - best[0] for one, best in ours if one[0] > best[0]]
    stopped = [one[1] - best[1] for one, best in ours if one[1] > best[1]]
    print(f"{len(ours)} cases, {len(more)} with more, worst {max(more, default=0)}; {len(stopped)} with more victims")
    assert len(more) <= 3 + len(ours) // 15
    assert len(stopped) <= 3 + len(ours) // 20
    assert max(more, default=0) <= 4
    assert max(stopped, default=0) <= 3
