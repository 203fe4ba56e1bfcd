"""benchmarks/cost.py: what it measures is there, and its floors and bars are reckoned right."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from shim_tree import ROOT

spec = importlib.util.spec_from_file_location("cost", ROOT / "benchmarks" / "cost.py")
assert spec is not None and spec.loader is not None
cost = importlib.util.module_from_spec(spec)
sys.modules["cost"] = cost
spec.loader.exec_module(cost)


def test_every_case_is_measured_with_and_without_the_shim(libraries):
    bare, hooked = cost.run_all([None, libraries.shim], rounds=2000, runs=1)
    assert bare.keys() == hooked.keys()
    assert {name for name, _ in bare} >= {cost.FLOOR, cost.ASYNC, *cost.BARS}
    for name in (cost.FLOOR, cost.ASYNC, "sync pair, 50000 live", "VMM pair"):
        assert [threads for case, threads in bare if case == name] == [1, 2, 4, 8]
    assert hooked["sync pair, 0 live", 1] > bare["sync pair, 0 live", 1] > 0
    assert {row.case for row in cost.compare(bare, hooked)} == {case for case in bare if case[0] != cost.FLOOR}


def test_floors_and_bars():
    names = ("sync pair, 0 live", "async pair", "cuMemGetInfo")
    bare = {("floor", 1): 10.0, **{(name, 1): 5.0 for name in names}, ("floor", 2): 8.0, ("async pair", 2): 5.0}
    bare |= {("sync pair, 0 live", 2): 5.0}
    hooked = {("floor", 1): 12.0, ("sync pair, 0 live", 1): 22.0, ("async pair", 1): 47.5, ("cuMemGetInfo", 1): 11.5}
    hooked |= {("floor", 2): 8.0, ("async pair", 2): 500.0, ("sync pair, 0 live", 2): 15.0}
    rows = {row.case: row for row in cost.compare(bare, hooked)}
    sync, background, info = (rows[name, 1] for name in names)
    assert (sync.added, sync.floors, sync.bar, sync.good) == (17.0, pytest.approx(1.7), 1.7, True)
    assert (background.floors, background.bar, background.good) == (4.25, pytest.approx(4.25), True)
    assert (info.floors, info.good) == (0.65, False)
    assert rows["async pair", 2].bar is None and rows["async pair", 2].good
    text = cost.table(list(rows.values()), [])
    assert text.count("missed") == 1 and "cuMemGetInfo" in next(line for line in text.splitlines() if "missed" in line)
