"""Reclaim once the steps of the exact search are spent: what the cheap searches find, beside what is best."""

from __future__ import annotations

import pytest
from allocator_stage import Stage
from test_oracle_reclaim import KINDS, case, played

from gpushare.cluster import widening

CASES = 150
MOST = {"blocks": (4, 3), "gangs": (4, 32), "parts": (2, 2)}
"""Of the cases: how many jobs are not started, and how many tasks more are moved or stopped in all. Measured."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_cheap_searches_alone_find_nearly_as_good_victims(kind, monkeypatch) -> None:
    unstarted = more = compared = 0
    for seed in range(CASES):
        one = case(kind, seed)
        best = played(one)
        if best in (None, (0, 0)):
            continue
        compared += 1
        with monkeypatch.context() as patched:
            patched.setattr(widening, "STEPS", 0)
            found = played(one)
        if found is None:
            unstarted += 1
        else:
            more += max(0, found[0] - best[0]) + max(0, found[1] - best[1])
    assert compared > CASES // 3
    assert unstarted <= MOST[kind][0]
    assert more <= MOST[kind][1]


@pytest.mark.parametrize("steps", [0, widening.STEPS])
@pytest.mark.parametrize(("need", "victims"), [(1, ["one"]), (2, ["two"]), (3, ["four"]), (4, ["four"])])
def test_where_only_a_limit_is_in_the_way_the_smallest_that_is_enough_goes(monkeypatch, steps, need, victims) -> None:
    """There are free GPUs. The limit is that of the parent of both queues."""
    monkeypatch.setattr(widening, "STEPS", steps)
    stage = Stage({"n1": 8, "n2": 8})
    stage.queue("parent", 7, limit=7)
    stage.queue("mine", 4, parent="parent")
    stage.queue("theirs", 3, parent="parent")
    for name, size in (("four", 4), ("two", 2), ("one", 1)):
        stage.job("theirs", size, name=name)
    stage.job("mine", need, name="job")
    assert stage.evicted == victims
    assert "job" in stage.running()
