"""NVIDIA's own runtime library over the software driver: every function that we hook, it finds at us."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import wheels

LIMIT = {"GPUSHARE_LIMIT": "4Gi"}
ALWAYS = {
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch_v2",
    "cuMemGetInfo_v2",
    "cuArrayCreate_v2",
    "cuArray3DCreate_v2",
    "cuMipmappedArrayCreate",
    "cuDevicePrimaryCtxRetain",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuMemFreeAsync",
    "cuMemFreeAsync_ptsz",
    "cuMemPoolCreate",
    "cuMemPoolTrimTo",
    "cuGraphLaunch",
    "cuGraphLaunch_ptsz",
    "cuStreamSynchronize",
    "cuStreamSynchronize_ptsz",
}
"""What each runtime library from 11.7 on looks up."""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cudart")


def look(host, library: Path) -> None:
    driver = host.libraries.driver_dir / "libcuda.so.1"
    command = [sys.executable, "-m", "cudart_look", library, driver, host.libraries.shim]
    child = host.run(command, GPUSHARE_SIM=host.environment()["GPUSHARE_SIM"] + ",driver_version=13050", **LIMIT)
    assert child.code == 0, child.err
    assert child.said["bare"] == []
    assert set(child.said["hooked"]) >= ALWAYS and len(child.said["hooked"]) > 50
    assert child.said["entry"] in (None, "cuMemAlloc_v2")
    assert "than its library" not in child.err and "copy of the driver" not in child.err


def test_the_shared_runtime_library(host, scratch):
    for library in wheels.need("nvidia_cuda_runtime*", "libcudart.so.*", scratch):
        look(host, library)


def test_the_static_runtime_library(host, scratch, compile_c):
    """Linked into a library, as NCCL, cuBLAS and PyTorch's extensions have it."""
    for number, archive in enumerate(wheels.need("nvidia_cuda_runtime*", "libcudart_static.a", scratch)):
        flags = ("-shared", "-fPIC", str(archive), "-lrt")
        look(host, compile_c("static_cudart.c", *flags, target=f"libstatic_cudart{number}.so"))
