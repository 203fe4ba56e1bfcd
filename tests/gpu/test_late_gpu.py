"""gpushare.enable() on a real GPU: the same programs as on the software driver, past NVIDIA's own libraries."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from integration.node import Node
from notebook.test_enable import BINDINGS, ENABLE, NUMBA, NVML, REFUSED

pytestmark = pytest.mark.gpu

# Under its limit of 2 GiB; the context takes a part of it.
CUPY = """
import cupy
assert cupy.cuda.runtime.memGetInfo()[1] == 2 * 2**30, cupy.cuda.runtime.memGetInfo()
held = cupy.ones(2**26, dtype=cupy.float32)
assert float(held.sum()) == 2**26
try:
    cupy.ones(2**30, dtype=cupy.float32)
except cupy.cuda.memory.OutOfMemoryError:
    pass
else:
    raise AssertionError("4 GiB under a limit of 2")
"""


def run(node: Node, program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], env=node.env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "program",
    [f"import numba\n{ENABLE}{NUMBA}", f"{ENABLE}{BINDINGS}{NVML}assert memory.total == 2 * 2**30, memory"],
    ids=["numba", "cuda.bindings and NVML"],
)
def test_clients_keep_to_the_budget(gpu_node: Node, program: str) -> None:
    run(gpu_node, program)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")
@pytest.mark.parametrize("program", [f"import cupy\n{ENABLE}{CUPY}", f"{ENABLE}{CUPY}"], ids=["before", "after"])
def test_cupy_keeps_to_the_budget(gpu_node: Node, program: str) -> None:
    run(gpu_node, program)


def test_too_late_is_said(gpu_node: Node) -> None:
    assert "CUDA runs in this process" in run(
        gpu_node, f"from cuda.bindings import driver; driver.cuInit(0)\n{REFUSED}"
    )
    assert "though not started" in run(gpu_node, f"from numba import cuda\n{REFUSED}")
