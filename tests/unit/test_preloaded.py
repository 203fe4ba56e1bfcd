"""gpushare.enable() where the library is preloaded already: it is enough with a budget, and too late without one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpushare.paths import library

SAYS = """
import gpushare
from gpushare.errors import GpushareError
try:
    print(gpushare.enable().how)
except GpushareError as error:
    print(error.code)
"""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "too_late"),
        ({"GPUSHARE_LIMIT": "2Gi"}, "preloaded"),
        ({"GPUSHARE_REQUEST": "1Gi"}, "preloaded"),
        ({"GPUSHARE_REQUEST": "1Gi", "GPUSHARE_LIMIT": "2Gi"}, "preloaded"),
    ],
)
def test_a_limit_or_a_request_alone_is_a_budget(settings, expected) -> None:
    if not library().exists():
        pytest.skip(f"{library()} is not built")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUSHARE_")}
    environ = {**kept, "LD_PRELOAD": str(library()), **settings}
    done = subprocess.run([sys.executable, "-c", SAYS], env=environ, capture_output=True, text=True)
    assert done.stdout == f"{expected}\n", done.stderr
