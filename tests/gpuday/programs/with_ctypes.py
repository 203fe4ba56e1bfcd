"""Libraries of others that are opened directly: NVIDIA's runtime from a wheel, UCX's memory hooks. Standard library."""

from __future__ import annotations

import ctypes
import importlib.util
import sysconfig
from ctypes import byref, c_size_t, c_uint64, c_void_p
from pathlib import Path

from say import main

MIB = 2**20
ALLOCATED, FREED = 1 << 20, 1 << 21  # UCM_EVENT_MEM_TYPE_ALLOC and _FREE


def files(*patterns):
    places = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return sorted({str(file) for place in places for pattern in patterns for file in place.glob(pattern)})


def runtime():
    """cudaMalloc by the libcudart that wheels bring."""
    found = files("nvidia/cuda_runtime/lib/libcudart.so.*", "nvidia/cu*/lib/libcudart.so.*")
    yield "libraries", [Path(name).name for name in found]
    for name in found:
        library, one = ctypes.CDLL(name), c_void_p()
        free, total = c_size_t(), c_size_t()
        first = library.cudaMalloc(byref(one), c_size_t(256 * MIB))
        above = library.cudaMalloc(byref(c_void_p()), c_size_t(4096 * MIB))
        library.cudaMemGetInfo(byref(free), byref(total))
        yield "codes within and above the limit", [first, above]
        yield "total, MiB", total.value // MIB


def memory_events():
    """Whether UCX's hooks are told of an allocation by the driver API."""
    if importlib.util.find_spec("libucx") is None and not files("libucx/lib/libucm.so*"):
        yield "UCX", "not installed"
        return
    (name, *_) = files("libucx/lib/libucm.so*")
    for module in files("libucx/lib/ucx/libucm_cuda.so*")[:1]:
        ctypes.CDLL(module, mode=ctypes.RTLD_GLOBAL)
    ucm, seen = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL), []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, c_void_p, c_void_p)(lambda event, _, __: seen.append(event))
    yield "code of setting the handler", ucm.ucm_set_event_handler(ALLOCATED | FREED, 0, callback, None)
    driver, context, one = ctypes.CDLL("libcuda.so.1"), c_void_p(), c_uint64()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(byref(context), 0)
    driver.cuCtxSetCurrent(context)
    for call in ("cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemAllocManaged", "cuMemAllocAsync"):
        before = len(seen)
        if call == "cuMemAlloc_v2":
            driver.cuMemAlloc_v2(byref(one), c_size_t(MIB))
        elif call == "cuMemAllocPitch_v2":
            driver.cuMemAllocPitch_v2(byref(one), byref(c_size_t()), c_size_t(1024), c_size_t(1024), 4)
        elif call == "cuMemAllocManaged":
            driver.cuMemAllocManaged(byref(one), c_size_t(MIB), 1)
        else:
            driver.cuMemAllocAsync(byref(one), c_size_t(MIB), None)
        yield f"UCX sees {call}", len(seen) > before


main(globals())
