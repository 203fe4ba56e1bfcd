"""The loop is killed before and after each thing that it does, and a new one goes on: the end is always the same."""

from __future__ import annotations

import pytest
from engine_stage import POLICY, Disk, Stage

from gpushare.cluster.engines.loop import Loop
from gpushare.cluster.engines.memory import Memory
from gpushare.cluster.model import Queue, QueueAdded
from gpushare.cluster.quantity import gpus
from gpushare.cluster.store import Store


def story(kill_at: int | None = None) -> Stage:
    """A borrower is evicted for the owner, another shrinks, and all end."""
    stage = Stage({"n1": 2, "n2": 1}, [("owner", 2), ("borrower", 0)])
    stage.points.count = 0
    stage.points.kill_at = kill_at
    stage.submit("gang", "borrower", 6.0, least=2)
    stage.submit("soft", "borrower", 5.0, ladder=(gpus(0.5),))
    stage.go(4)
    stage.submit("mine", "owner", 3.0, least=2)
    stage.finish(200)
    return stage


def outcome(stage: Stage) -> dict[str, int]:
    return {uid: job.runs for uid, job in stage.engine.jobs.items()}


@pytest.mark.timeout(0)
def test_a_crash_at_any_point_loses_and_doubles_nothing() -> None:
    plain = story()
    points = plain.points.count
    assert outcome(plain) == {"gang": 4, "soft": 1, "mine": 2}, "the gang's two tasks ran twice"
    assert plain.engine.evicted == 2
    assert points > 60
    for point in range(1, points + 1):
        stage = story(point)
        assert stage.crashes == 1, f"point {point}"
        assert outcome(stage) == outcome(plain), f"point {point}"
        assert (stage.engine.evicted, stage.engine.guarded) == (2, 0), f"point {point}"


def test_a_new_loop_without_a_ledger_leaves_what_runs_alone() -> None:
    stage = Stage({"n1": 2, "n2": 2}, [("a", 4)])
    for index, tasks in enumerate([{"least": 2}, {"share": gpus(0.5)}, {"least": 1, "most": 2}]):
        stage.submit(f"j{index}", "a", 30.0, **tasks)
    stage.submit("waits", "a", 5.0, least=4)
    stage.go(6)
    before = stage.running()
    assert set(before) == {"j0", "j1", "j2"}
    places = {uid: view.places for uid, view in stage.allocator.jobs.items()}
    stage.disk = Disk()
    stage.disk.append([QueueAdded(queue) for queue in stage.queues], 0.0)
    stage.loop = stage.new_loop("another")
    stage.engine.tick(20.0)
    stage.go(3)
    assert {uid: view.places for uid, view in stage.allocator.jobs.items()} == places
    stage.finish()
    assert outcome(stage) == {"j0": 2, "j1": 1, "j2": 1, "waits": 4}
    assert stage.engine.evicted == 0


def test_a_ledger_that_is_behind_is_corrected_job_by_job() -> None:
    """Another loop has started a later attempt meanwhile: that is what runs."""
    stage = Stage({"n1": 1}, [("a", 1)])
    stage.submit("j", "a", 30.0)
    stage.go(4)
    old = [*stage.disk.rows]
    stage.engine.jobs["j"].tasks.clear()  # it is gone, and is started again
    stage.go(4)
    assert stage.allocator.jobs["j"].attempt == 2
    stage.disk.rows = old
    stage.disk.open()
    stage.loop = stage.new_loop("another")
    assert stage.allocator.jobs["j"].attempt == 1
    stage.engine.tick(20.0)
    stage.go(1)
    assert (stage.allocator.jobs["j"].attempt, stage.engine.jobs["j"].runs) == (2, 2)
    stage.finish()
    assert stage.engine.jobs["j"].runs == 2


def test_it_runs_on_the_store(tmp_path) -> None:
    path = tmp_path / "c.db"
    engine = Memory()
    with Store.create(path, POLICY) as store:
        stage = Stage({"n1": 2}, [(Queue("a", quota=gpus(2)), 0)], engine=engine, disk=store)
        stage.submit("j", "a", 60.0, least=2)
        loop = Loop(store, engine, lambda: engine.now)
        left = iter([False] * 4 + [True])
        loop.run(lambda: next(left))
        assert stage.running()
    with Store.open(path) as again:
        assert again.allocator.jobs["j"].seen == ((0, 0), (0, 1))
        loop = Loop(again, engine, lambda: engine.now)
        left = iter([False] * 9 + [True])
        loop.run(lambda: next(left))
        assert not again.allocator.jobs
    assert engine.jobs["j"].ended
