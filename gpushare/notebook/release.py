"""Give back memory that this process keeps on a GPU and does not use, on the calling thread.

The library asks for the same before a job is told to stop (trim_hook.py). This is the second and last time: memory that
the program has freed since then can still go back, and its callbacks are called again.
"""

from __future__ import annotations

import contextlib
import ctypes
import uuid
from collections.abc import Callable, Iterator

from gpushare import pressure_hooks, trim_hook
from gpushare.presence import is_initialised, loaded_driver

__all__ = ["release"]

RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: our calls do not break a graph that another thread captures."""


def release(gpu: str, wanted: Callable[[], int], seconds: float, reason: str) -> list[str]:
    """Empty the frameworks' caches on the GPU of this UUID, then call the callbacks of gpushare.on_pressure.

    Ends as soon as `wanted` returns 0 bytes. Does nothing if this process does not use the GPU. Returns problems as
    texts, and raises no exception of the program.
    """
    driver = loaded_driver()
    index = None if driver is None or not is_initialised(driver) else _number(driver, gpu)
    if driver is None or index is None:
        return []
    problems: list[str] = []
    with _primary_context(driver, index) as current:
        if current:
            trim_hook.empty_caches(wanted, problems)
        return problems + pressure_hooks.run_hooks(wanted, gpu, index, seconds, reason, last=True)


def _number(driver: ctypes.CDLL, gpu: str) -> int | None:
    """The GPU's number as CUDA counts in this process."""
    count, name = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    driver.cuDeviceGetCount(ctypes.byref(count))
    for index in range(count.value):
        device = ctypes.c_int()
        found = driver.cuDeviceGet(ctypes.byref(device), index) == 0 and driver.cuDeviceGetUuid(name, device) == 0
        if found and gpu.lower().endswith(str(uuid.UUID(bytes=bytes(name)))):
            return index
    return None


@contextlib.contextmanager
def _primary_context(driver: ctypes.CDLL, index: int) -> Iterator[bool]:
    """Make the GPU's primary context current on this thread if it is open; do not open one. Frameworks free in it."""
    device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    context, mode = ctypes.c_void_p(), ctypes.c_int(RELAXED)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
    if not active.value or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) != 0:
        yield False
        return
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    driver.cuCtxPushCurrent_v2(context)
    try:
        yield True
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        driver.cuDevicePrimaryCtxRelease_v2(device)
