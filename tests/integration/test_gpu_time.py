"""GPU time: two programs on a GPU, one of which computes half of the time, and what is said of them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.node import Node

COMPUTES = str(Path(__file__).with_name("computes.py"))


@pytest.fixture
def node(tmp_path: Path, puppets: Path) -> Iterator[Node]:
    with Node(tmp_path, puppets, sim="gpus=1,memory=16Gi") as one:
        one.start_daemon_of_user()
        yield one


def test_gpu_time_is_that_of_the_job_that_computes(node: Node) -> None:
    for name, kernels in (("busy", 1), ("idle", 0)):
        node.run("--name", name, "--request", "2Gi", sys.executable, COMPUTES, kernels)
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
