"""Tests that need a real NVIDIA GPU; without one they skip and say so. `pytest tests/gpu` runs only these.

GPUSHARE_TEST_GPU=sim runs them on the software driver: that shows whether the tests themselves work.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.conftest import SIM, puppets  # noqa: F401  (a fixture)
from integration.node import Node

DRIVER = os.environ.get("GPUSHARE_TEST_GPU", "nvidia")


def why_not() -> str | None:
    if not Path("/dev/nvidiactl").exists():
        return "no NVIDIA driver is loaded (/dev/nvidiactl is missing)"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"libcuda.so.1 cannot be opened: {error}"
    code = driver.cuInit(0)
    return None if code == 0 else f"cuInit answers {code}"


@pytest.fixture(scope="session", autouse=True)
def _a_real_gpu(tmp_path_factory: pytest.TempPathFactory) -> None:
    if DRIVER == "sim":
        directory = tmp_path_factory.mktemp("driver")
        os.environ |= {"GPUSHARE_TEST_DRIVER": str(SIM / "libcuda.so.1"), "GPUSHARE_SIM": f"pool={directory}/pool"}
    reason = None if DRIVER == "sim" else why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def gpu_node(tmp_path: Path, puppets: Path) -> Iterator[Node]:  # noqa: F811  (the fixture)
    with Node(tmp_path, puppets, driver=DRIVER) as one:
        if DRIVER == "sim":
            one.env["LD_LIBRARY_PATH"] = str(SIM)  # where a real driver is found by itself
        yield one
