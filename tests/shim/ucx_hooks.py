"""Run with the shim preloaded: UCX's memory hooks beside ours. The arguments: the folder of UCX's libraries.

Says each hook that UCX cannot move, then the sizes of the events that it sent and the results of the calls.
"""

from __future__ import annotations

import ctypes
import sys

from cuda_client import Cuda, GiB, MiB, Nvml, byref, c_size_t, c_uint, c_ulonglong, c_void_p, say

ALLOCATED, FREED = 1 << 20, 1 << 21
PATCH = 5  # bytes: a near jump

folder, hooks = sys.argv[1], sys.argv[2:]
ctypes.CDLL(f"{folder}/libucs.so.0", ctypes.RTLD_GLOBAL)
ucm = ctypes.CDLL(f"{folder}/libucm.so.0", ctypes.RTLD_GLOBAL)
cuda, nvml = Cuda().start(), Nvml()
shim = ctypes.CDLL("libgpushare.so")


def can_move(name: str) -> bool:
    code, context = ctypes.create_string_buffer(256), (c_void_p * 8)()
    made, taken = c_size_t(), c_size_t()
    at = ctypes.cast(shim[name], c_void_p)
    sizes = (c_size_t(PATCH), c_size_t(len(code)))
    return ucm.ucm_bistro_relocate_code(code, at, *sizes, byref(made), byref(taken), name.encode(), context) == 0


say([name for name in hooks if not can_move(name)])

events: list[list[int]] = []


@ctypes.CFUNCTYPE(None, ctypes.c_uint, ctypes.POINTER(c_ulonglong), c_void_p)
def heard(kind: int, event: ctypes._Pointer, _: int) -> None:
    events.append([kind, event[1] // MiB])


ctypes.CDLL(f"{folder}/ucx/libucm_cuda.so.0", ctypes.RTLD_GLOBAL)
status = ucm.ucm_set_event_handler(ALLOCATED | FREED, 1, heard, None)
calls = []
pointer, pitch = c_ulonglong(), c_size_t()
calls.append(cuda.cuMemAlloc_v2(byref(pointer), c_size_t(3 * MiB)))
calls.append(cuda.free(pointer))
calls.append(cuda.cuMemAllocPitch_v2(byref(pointer), byref(pitch), c_size_t(4 * MiB), c_size_t(2), c_uint(4)))
calls.append(cuda.free(pointer))
calls.append(cuda.cuMemAllocManaged(byref(pointer), c_size_t(5 * MiB), c_uint(1)))
calls.append(cuda.free(pointer))
calls.append(cuda.alloc(5 * GiB)[0])
say([status, calls, events, cuda.used()])
