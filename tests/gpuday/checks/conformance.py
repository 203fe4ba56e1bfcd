"""4: the questions of tests/driver to this driver, beside what the software driver answers in the same run."""

from __future__ import annotations

import os
import sys
from typing import Any

from gpuday.day import ROOT, Day

sys.path.append(str(ROOT / "tests" / "driver"))

import compare
import observe

PATIENCE = 40.0
"""Seconds for one probe. One that hangs is killed, and the others are asked."""


def run(day: Day) -> None:
    observe.PATIENCE = PATIENCE
    environment = {} if day.real else {"GPUSHARE_SIM": os.environ["GPUSHARE_SIM"]}
    real = observe.Driver("libcuda.so.1", environment=environment).observe()
    software = compare.observe_software(day.directory)
    found = list(compare.differences(software, real))
    day.answer("questions", len(software.values.keys() | real.values.keys()))
    day.answer("differences", {one.name: [given(one.software), given(one.real)] for one in found})
    day.answer("differences in what the account rests on", [str(one) for one in found if one.relied_on])
    ends = {name: end for name, end in real.values.items() if name.endswith("to its end") and end != "passes"}
    day.answer("probes that did not come to their end", ends)


def given(value: Any) -> Any:
    return None if value is compare.NOT_ASKED else value
