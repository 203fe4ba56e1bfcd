"""Code that comes onto the GPU late costs more than its context was charged: an owner's claim gets it back, also from a
job that chose to borrow nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from integration.node import MIB, Node, wait_for

LOADS = """
import ctypes, sys
cuda, one = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64
context, module, held = one(), one(), one()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(held), ctypes.c_size_t(940 << 20)) == 0
print("full", flush=True)
sys.stdin.readline()
assert cuda.cuModuleLoadData(ctypes.byref(module), b".version 8.0\\n.visible .entry add() {}\\0") == 0
sys.stdin.readline()
"""


def test_an_owner_gets_back_what_code_has_taken_above_the_request_of_another(tmp_path: Path, puppets: Path) -> None:
    with Node(tmp_path, puppets, sim="memory=4Gi,context=76Mi,modules=lazy") as node:
        full = node.run("--name", "full", "--limit", "1Gi", "--", sys.executable, "-c", LOADS)
        assert full.stdin is not None and full.stdout is not None
        assert full.stdout.readline() == "full\n"
        owner = node.puppet("owner", "--limit", "2816Mi")
        owner.alloc(512 * MIB)
        assert node.job("full")["state"] == "running", "both are within their requests"
        full.stdin.write("\n")
        full.stdin.flush()
        wait_for(lambda: node.job("full")["gpus"][0]["loan"] > 0, "the driver to show the code")
        owner.alloc((2816 - 76 - 512) * MIB)
        assert full.wait(30) == 137
