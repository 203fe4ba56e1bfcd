"""The lending story on a real GPU, in sixteenths of whatever its size is; with CuPy where it is installed."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from integration.node import MIB, Node, Puppet, wait_for

pytestmark = pytest.mark.gpu


def unit(node: Node) -> int:
    """A sixteenth of what one job may have."""
    probe = node.puppet("probe", "--limit", "max")
    total = int(probe.do("info")[1])
    assert probe.end() == 0
    return total // 16 // (2 * MIB) * (2 * MIB)


def fill(program: Puppet, count: int, size: int) -> None:
    for _ in range(count):
        program.alloc(size)


def test_a_borrower_is_killed_and_the_owner_never_sees_out_of_memory(gpu_node: Node) -> None:
    size = unit(gpu_node)
    a = gpu_node.puppet("A", "--request", 4 * size, "--limit", 14 * size, "--grace", "1s")
    a.do("term ignore")
    fill(a, 12, size)
    b = gpu_node.puppet("B", "--request", 8 * size)
    b.alloc(size)
    assert gpu_node.job("A")["state"] == "borrowing"
    waited = b.alloc(5.5 * size)
    print(f"claim of 5.5/16 of the GPU met after {waited:.0f} ms, of which 1000 were grace")
    assert a.wait() == 137
    assert b.end() == 0


def test_a_borrower_that_gives_back_lives_on(gpu_node: Node) -> None:
    size = unit(gpu_node)
    a = gpu_node.puppet("A", "--request", 4 * size, "--limit", 14 * size)
    fill(a, 12, size)
    a.do("term free 7")
    b = gpu_node.puppet("B", "--request", 8 * size)
    b.alloc(size)
    print(f"claim met after {b.alloc(5.5 * size):.0f} ms by freeing on SIGTERM")
    assert a.end() == 0
    assert b.end() == 0


def test_accounts_agree_with_nvml(gpu_node: Node) -> None:
    """Accounted + overhead is what NVML shows for the process, once the context has settled."""
    a = gpu_node.puppet("A", "--limit", "50%")
    fill(a, 4, 256 * MIB)
    wait_for(lambda: gpu_node.gpu()["unmanaged"] < 64 * MIB, "the sample")
    gpu = gpu_node.job("A")["gpus"][0]
    print(f"context and modules: {gpu['overhead'] / MIB:.0f} MiB")
    assert gpu["accounted"] == 4 * 256 * MIB
    assert a.end() == 0


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="CuPy is not installed")
def test_cupy_gets_its_usual_out_of_memory_at_the_limit(gpu_node: Node) -> None:
    program = """
import cupy
free, total = cupy.cuda.runtime.memGetInfo()
assert total == 4 * 2**30, total
held = cupy.ones(2**30 // 4, dtype=cupy.float32)
assert float(held.sum()) == 2**28
try:
    more = cupy.ones(2**30, dtype=cupy.float32)
except cupy.cuda.memory.OutOfMemoryError:
    print("CuPy is content")
"""
    done = gpu_node.gpushare("run", "--limit", "4Gi", sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert "CuPy is content" in done.stdout
