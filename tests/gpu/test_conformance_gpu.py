"""The software driver against this machine's real one: what differs is printed, what the shim relies on must not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "driver"))

import compare
import observe

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def test_nothing_that_the_account_rests_on_differs(tmp_path: Path) -> None:
    real = observe.Driver(os.environ.get(observe.DRIVER, "libcuda.so.1")).observe()
    real.save(Path(os.environ.get("GPUSHARE_TEST_RECORD", tmp_path / "answers.json")))
    found = list(compare.differences(compare.observe_software(tmp_path), real))
    print(real.title(), *found, f"{len(real.values)} answers, {len(found)} differences", sep="\n")
    broken = {name: end for name, end in real.values.items() if name.endswith("to its end") and end != "passes"}
    assert broken == {}, "every probe comes to its end"
    assert [str(one) for one in found if one.relied_on] == []
