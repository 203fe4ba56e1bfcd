"""GPU time: two programs on a GPU, one of which computes half of the time, and what is said of them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.node import Node

COMPUTES = """
import ctypes, os, sys, time
wrapper = os.getppid()
cuda, one = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64
context, module, kernel = one(), one(), one()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), b".version 8.0\\n.visible .entry add() {}\\0") == 0
assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"add") == 0
while os.getppid() == wrapper:
    for _ in range(int(sys.argv[1])):
        # Software kernels compute for 10 ns a thread: 50 ms.
        assert cuda.cuLaunchKernel(kernel, 5000, 1, 1, 1000, 1, 1, 0, None, None, None) == 0
    time.sleep(0.1)
"""


@pytest.fixture
def node(tmp_path: Path, puppets: Path) -> Iterator[Node]:
    with Node(tmp_path, puppets, sim="gpus=1,memory=16Gi") as one:
        one.start_daemon_of_user()
        yield one


def test_gpu_time_is_that_of_the_job_that_computes(node: Node) -> None:
    for name, kernels in (("busy", 1), ("idle", 0)):
        node.run("--name", name, "--request", "2Gi", sys.executable, "-c", COMPUTES, kernels)
    deadline = time.monotonic() + 60
    while not {"busy", "idle"} <= {job["name"] for job in node.api("GET", "/v1/jobs")["jobs"] if job["processes"]}:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    before, began = on_gpu(node, "busy")["gpu_time"], time.monotonic()
    time.sleep(5)
    busy, idle, passed = on_gpu(node, "busy"), on_gpu(node, "idle"), time.monotonic() - began
    assert 0.2 < (busy["gpu_time"] - before) / passed < 0.7, "about half of the time"
    assert 0.1 < busy["computing"] < 0.9
    assert idle["gpu_time"] == 0.0 and idle["computing"] == 0.0

    text = node.metrics()
    found = {name: float(value) for name, value in re.findall(r'gpu_seconds_total\{.*?name="(\w+)".*?\} (\S+)', text)}
    assert found["busy"] > 0.5 and found["idle"] == 0.0
    wide = node.gpushare("ps", "-o", "wide").stdout
    assert "GPU TIME" in wide and re.search(r"\bbusy\b", wide)
    top = node.gpushare("top", "-1").stdout
    assert "GPU%" in top and re.search(r"busy .*\b\d+%", top), top


def on_gpu(node: Node, name: str) -> dict[str, float]:
    return node.job(name)["gpus"][0]
