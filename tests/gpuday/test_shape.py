"""The tests that need a GPU, run on the software driver: they find what they start, and skip frameworks by name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = "test_the_day and (families or async-backend or numba) or gives_back_lives_on"


def test_the_tests_of_a_gpu_work_on_the_software_driver():
    env = os.environ | {"GPUSHARE_TEST_GPU": "sim", "PYTEST_ADDOPTS": ""}
    line = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/gpu", "-k", CHOSEN]
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) == 3, done.stdout
    for part in ("torch", "numba"):
        assert f"{part}: needs a real GPU: it runs kernels" in done.stdout
