"""What the day with a GPU asserts, part by part: PyTorch and its allocators, CuPy, JAX, numba, trims, throughput.

A part whose framework is not installed is skipped by its name. GPUSHARE_TEST_PYTHON names the Python that has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuday import table
from integration.node import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

# That NVML does not show our pids excuses answers, but is nothing to be asked for.
NO_QUESTION = "NVML by process"


def parts() -> Iterator[tuple[str, str]]:
    """Check and part. A check without parts is one."""
    for check in table.load():
        named = {answer.part for answer in check.answers if not answer.part.startswith(NO_QUESTION)}
        for part in sorted(named):
            yield check.name, part


def identity(value: str) -> str:
    return value or "all"


@pytest.mark.parametrize(("check", "part"), list(parts()), ids=identity)
def test_the_day(tmp_path: Path, check: str, part: str) -> None:
    line = [sys.executable, "-m", "gpuday", "--out", str(tmp_path), "--check", check, "--limit", "300"]
    line += ["--driver", os.environ.get("GPUSHARE_TEST_GPU", "nvidia"), "--scale", "0.3"]
    line += ["--only", part] if part else []
    line += ["--python", os.environ.get("GPUSHARE_TEST_PYTHON", sys.executable)]
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}:{ROOT / 'tests'}"}
    done = subprocess.run(line, env=env, capture_output=True, text=True)
    record = tmp_path / "gpu-day.jsonl"
    assert record.exists(), done.stderr
    result = json.loads(record.read_text())
    if result["state"] == "skipped":
        pytest.skip(f"{part}: {result['skipped'].get(part, 'nothing to ask')}")
    assert result["state"] == "passed", done.stdout
