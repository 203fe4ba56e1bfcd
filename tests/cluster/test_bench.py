"""The benchmark runs, and decides what the other schedulers decide on the same workloads.

Its bars are for `make bench-cluster`: other tests run beside this one.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from gpushare.cluster import moves
from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import Job, JobEnded, JobSubmitted, Node, NodeAdded, Policy, Queue, QueueAdded, Tasks
from gpushare.cluster.quantity import gpus
from gpushare.errors import GpushareError

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "cluster.py"


def load() -> ModuleType:
    """By its path: `cluster` is also the name of this directory."""
    spec = importlib.util.spec_from_file_location("benchmark_of_cluster", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


cluster = load()
shapes, mixed = cluster.shapes, cluster.mixed


def counts(shape):
    allocator, waiting = cluster.prepare(shape)
    actions = allocator.handle(waiting, cluster.NOW)
    allocator.validate()
    return cluster.Counts.of(actions, allocator)


def test_pending_jobs_start() -> None:
    found = counts(shapes.pending(10, 50))
    assert (found.started, found.evicted, found.moved, found.waiting) == (50, 0, 0, 0)


def test_a_gang_reclaims_as_much_as_it_needs() -> None:
    found = counts(shapes.large_reclaim(10))
    assert (found.started, found.evicted, found.moved) == (5, 40, 0)


def test_every_job_of_the_owner_displaces_one() -> None:
    found = counts(shapes.many_single(5))
    assert (found.started, found.evicted, found.moved, found.waiting) == (40, 40, 0, 40)


def test_the_gang_that_cannot_be_takes_nothing_and_is_told_why() -> None:
    found = counts(shapes.unschedulable(20))
    assert (found.started, found.evicted, found.moved, found.waiting) == (0, 0, 0, 1)
    assert found.reasons


def test_mixed_jobs_start_without_a_move() -> None:
    found = counts(shapes.mixed(10, 40))
    assert (found.started, found.evicted, found.moved) == (20, 0, 0)


def test_whole_nodes_are_made_by_moving() -> None:
    found = counts(shapes.fragmented(8))
    assert (found.started, found.evicted) == (2, 0)
    assert found.moved <= 4


def test_workloads_in_simulated_time_all_end() -> None:
    timed = cluster.kueue(cohorts=2, queues=5)
    assert timed.jobs == 2 * 5 * 50
    assert timed.ideal <= timed.makespan <= 1.3 * timed.ideal
    assert timed.of_wanted >= 0.9


def test_a_single_event(capsys) -> None:
    measured = cluster.one_decision(lambda: shapes.huge(800, 800, 10), 1, lambda _: [])
    assert 0 < measured.warm <= measured.p99
    row = cluster.ROWS[0]
    assert "W1" in cluster.line(row, measured, 0.026)


def test_bars_are_counted_in_yardsticks() -> None:
    row = cluster.Row("W0", "-", None, 2.0, lambda _: measured, warm_bar=0.5, p99_bar=1.0)
    measured = cluster.Measured(cold=0.2, warm=0.05, p99=0.1, found="")
    assert cluster.good(row, measured, 0.1)
    assert "MISSED" not in cluster.line(row, measured, 0.1)
    for slower in ({"cold": 0.21}, {"warm": 0.06}, {"p99": 0.11}, {"wrong": ["not decided"]}):
        assert not cluster.good(row, replace(measured, **slower), 0.1)
        assert "MISSED" in cluster.line(row, replace(measured, **slower), 0.1)
    assert not cluster.good(row, measured, 0.09)
    assert cluster.yardstick() > 0


def test_mixed_jobs_are_what_they_are_said_to_be() -> None:
    events = list(mixed.jobs(5000))
    tasks = [event.job.tasks[0] for event in events]
    whole = sum(one.share is None and one.memory is None for one in tasks) / 5000
    assert whole == pytest.approx(0.48, abs=0.03)
    assert sum(one.share is not None for one in tasks) / 5000 == pytest.approx(0.32, abs=0.03)
    assert sum(one.memory is not None for one in tasks) / 5000 == pytest.approx(0.2, abs=0.03)
    assert len({event.job.queue for event in events}) == 40
    assert [event.job for event in mixed.jobs(50)] == [event.job for event in events[:50]]


def test_a_mixed_cluster_is_filled_one_by_one(monkeypatch) -> None:
    monkeypatch.setattr(cluster, "WARM_EVENTS", 20)
    measured, allocator = cluster.filled(nodes=10, count=60)
    assert not measured.wrong
    assert 0 < measured.warm <= measured.p99
    assert sum(name.startswith("late-") for name in allocator.jobs) == 10
    assert measured.found.split()[2] == "80"
    monkeypatch.setattr(cluster, "PATIENCE", 0.0)
    assert len(cluster.filled(nodes=10, count=60)[0].wrong) == 2


def test_jobs_with_ladders_all_run_at_once() -> None:
    measured = cluster.laddered(nodes=4, count=64)
    assert not measured.wrong
    assert measured.found == "64 run, on rungs [2]"
    assert cluster.laddered(nodes=4, count=70).wrong


def test_the_slowest_of_seven_explanations() -> None:
    measured = cluster.explained(gpus=80, jobs=160, queues=10)
    assert measured.found.startswith("7 of ")
    assert measured.cold >= measured.warm > 0


def test_the_curve(tmp_path, capsys, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(cluster, "CURVE", (80, 160))
    cluster.curve(tmp_path / "c.svg")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:4]] == ["80", "160"]
    assert "GPUs (and pending jobs)" in (tmp_path / "c.svg").read_text()


@pytest.mark.parametrize(("seconds", "text"), [(5e-6, "5 us"), (0.0123, "12.3 ms"), (3, "3.00 s"), (None, "-")])
def test_times(seconds: float | None, text: str) -> None:
    assert cluster.shown(seconds) == text


def test_moving_looks_only_at_nodes_that_can_be_the_cheapest(monkeypatch) -> None:
    """Forty full nodes, and two on which one GPU is missing for the job: one of these it is."""
    allocator = Allocator(Policy())
    allocator.handle([NodeAdded(Node(f"n{n}", 2)) for n in range(42)] + [QueueAdded(Queue("q", quota=gpus(84)))], 0.0)
    allocator.handle([JobSubmitted(Job(f"j{n}", "q", movable=True)) for n in range(84)], 1.0)
    looked = []
    clear = moves.clear
    monkeypatch.setattr(moves, "clear", lambda node, *rest: looked.append(node.spec.name) or clear(node, *rest))
    allocator.handle([JobEnded("j40"), JobEnded("j60")], 2.0)
    actions = allocator.handle(JobSubmitted(Job("wide", "q", (Tasks(gpus=2),))), 3.0)
    assert [type(action).__name__ for action in actions] == ["Move", "Start"]
    assert looked == ["n20", "n30"]


@pytest.mark.parametrize("shape", [shapes.large_reclaim(16), shapes.many_single(10), shapes.fragmented(10)])
def test_a_decision_leaves_nothing_to_the_collector(shape) -> None:
    """That is why the allocator may pause it: what a turn has no more use for goes without it."""
    allocator, waiting = cluster.prepare(shape)
    gc.collect()
    gc.disable()
    try:
        allocator.handle(waiting, cluster.NOW)
        list(cluster.single_events(allocator, shape))
        assert not gc.isenabled(), "it was off before"
        assert gc.collect() == 0
    finally:
        gc.enable()
    with pytest.raises(GpushareError):
        allocator.handle(JobEnded("nobody"), cluster.NOW)
    assert gc.isenabled(), "and on again after an error"


def test_an_event_among_jobs_of_which_no_two_are_alike_begins_few_searches(monkeypatch) -> None:
    """What is in vain for a small part of a GPU is not tried for each larger one."""
    searches = 0
    run = moves.Moving.run

    def counted(self):
        nonlocal searches
        searches += 1
        return run(self)

    monkeypatch.setattr(moves.Moving, "run", counted)
    allocator = Allocator(Policy(reserve_after=None))
    allocator.handle([NodeAdded(Node(f"n{n}", 8)) for n in range(5)], 0)
    allocator.handle(QueueAdded(Queue("q", None, gpus(40))), 0)
    parts = [(n * 37) % 99 + 1 for n in range(300)]
    jobs = [Job(f"j{n}", "q", (Tasks(share=gpus(part / 100)),)) for n, part in enumerate(parts)]
    allocator.handle([JobSubmitted(job) for job in jobs], 1)
    waiting = {view.job.tasks for view in allocator.jobs.values() if not view.places}
    assert len(waiting) > 30
    running = [name for name, view in allocator.jobs.items() if view.places]
    searches = 0
    for count in range(20):
        allocator.handle(JobEnded(running[count * 5]), 2 + count)
    assert searches < 20 * 4
