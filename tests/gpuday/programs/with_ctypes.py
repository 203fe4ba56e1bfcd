"""Libraries of others that are opened directly: NVIDIA's runtime from a wheel, UCX's memory hooks. Standard library."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

from say import main

MIB = 2**20
ALLOCATED, FREED = 1 << 20, 1 << 21  # UCM_EVENT_MEM_TYPE_ALLOC and _FREE


def files(*patterns):
    places = {Path(place) for place in sys.path if place}
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
    """Whether UCX's hooks are told of what the driver API allocates and frees."""
    found = files("libucx/lib/libucm.so.0")
    if not found:
        yield "UCX", "not installed"
        return
    folder = Path(found[0]).parent
    ctypes.CDLL(str(folder / "libucs.so.0"), mode=ctypes.RTLD_GLOBAL)
    ucm, driver = ctypes.CDLL(found[0], mode=ctypes.RTLD_GLOBAL), ctypes.CDLL("libcuda.so.1")
    context, one, events = c_void_p(), c_uint64(), []
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(byref(context), 0)
    driver.cuCtxSetCurrent(context)
    ctypes.CDLL(str(folder / "ucx" / "libucm_cuda.so.0"), mode=ctypes.RTLD_GLOBAL)
    heard = ctypes.CFUNCTYPE(None, ctypes.c_uint, c_void_p, c_void_p)(lambda kind, _, __: events.append(kind))
    yield "code of setting the handler", ucm.ucm_set_event_handler(ALLOCATED | FREED, 1, heard, None)
    calls = {
        "cuMemAlloc_v2": lambda: driver.cuMemAlloc_v2(byref(one), c_size_t(3 * MIB)),
        "cuMemAllocPitch_v2": lambda: driver.cuMemAllocPitch_v2(
            byref(one), byref(c_size_t()), c_size_t(4 * MIB), c_size_t(2), c_uint(4)
        ),
        "cuMemAllocManaged": lambda: driver.cuMemAllocManaged(byref(one), c_size_t(MIB), c_uint(1)),
    }
    for name, call in calls.items():
        events.clear()
        code = call()
        seen = events.count(ALLOCATED)
        code = code or driver.cuMemFree_v2(one)
        yield f"{name}: code, times that UCX is told of it, and of its free", [code, seen, events.count(FREED)]


main(globals())
