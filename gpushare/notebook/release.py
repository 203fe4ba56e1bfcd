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
    if driver is None:
        return []
    problems: list[str] = []
    with _apart_from_captures(driver):
        index = _number(driver, gpu) if is_initialised(driver) else None
        if index is None:
            return []
        with _primary_context(driver, index) as current:
            if current:
                trim_hook.empty_caches(wanted, problems)
            return problems + pressure_hooks.run_hooks(wanted, gpu, index, seconds, reason, last=True)


@contextlib.contextmanager
def _apart_from_captures(driver: ctypes.CDLL) -> Iterator[None]:
    """Which calls spoil a capture of another thread is NVIDIA's to say, so none of ours comes before or after."""
    mode = ctypes.c_int(RELAXED)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def _number(driver: ctypes.CDLL, gpu: str) -> int | None:
    """The GPU's number as CUDA counts in this process."""
    count, name = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    driver.cuDeviceGetCount(ctypes.byref(count))
    for index in range(count.value):
        device = ctypes.c_int()
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetUuid(name, device)
        if gpu.lower().endswith(str(uuid.UUID(bytes=bytes(name)))):
            return index
    return None


@contextlib.contextmanager
def _primary_context(driver: ctypes.CDLL, index: int) -> Iterator[bool]:
    """Make the GPU's primary context current on this thread if it is open; do not open one. Frameworks free in it."""
    device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    context = ctypes.c_void_p()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
    if not active.value or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) != 0:
        yield False
        return
    driver.cuCtxPushCurrent_v2(context)
    try:
        yield True
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        driver.cuDevicePrimaryCtxRelease_v2(device)
