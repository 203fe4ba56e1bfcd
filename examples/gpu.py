"""Take and give back GPU memory: with CuPy where it is installed and a real GPU is there, else with the driver API.

The two examples need no more of CUDA than this; nothing in here or in them knows of gpushare.
"""

from __future__ import annotations

import os
from typing import Protocol

GIB = 2**30


class OutOfMemoryError(Exception):
    """What PyTorch, CuPy and all others raise on CUDA_ERROR_OUT_OF_MEMORY."""


class Gpu(Protocol):
    """Device 0 of this process."""

    def take(self, size: int) -> int:
        """Allocate `size` bytes; the device pointer."""

    def give_back(self, pointer: int) -> None:
        """Free what take() returned."""

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes, as the program is told."""


def open_gpu() -> Gpu:
    if os.environ.get("GPUSHARE_DRIVER") != "sim":  # NVIDIA's runtime library takes no driver but NVIDIA's
        try:
            return CupyGpu()
        except ImportError:
            pass
    try:
        return DriverGpu()
    except ImportError as error:
        raise SystemExit(
            f"this example needs a binding of the driver ({error}): pip install 'cuda-core>=1.0' 'cuda-bindings>=13.0'"
        ) from None


class CupyGpu:
    def __init__(self) -> None:
        import cupy

        self.runtime = cupy.cuda.runtime
        self.runtime.memGetInfo()

    def take(self, size: int) -> int:
        try:
            pointer = int(self.runtime.malloc(size))
        except self.runtime.CUDARuntimeError as error:
            raise OutOfMemoryError(str(error)) from None
        self.runtime.memset(pointer, 1, min(size, GIB))
        return pointer

    def give_back(self, pointer: int) -> None:
        self.runtime.free(pointer)

    def memory(self) -> tuple[int, int]:
        free, total = self.runtime.memGetInfo()
        return int(free), int(total)


class DriverGpu:
    def __init__(self) -> None:
        from cuda.bindings import driver
        from cuda.core import Device

        self.driver = driver
        self.device = Device(0)
        self.device.set_current()

    def take(self, size: int) -> int:
        status, pointer = self.driver.cuMemAlloc(size)
        if status == self.driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise OutOfMemoryError(str(status))
        if status != self.driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(str(status))
        self.driver.cuMemsetD8(pointer, 1, min(size, 2**20))
        return int(pointer)

    def give_back(self, pointer: int) -> None:
        self.driver.cuMemFree(pointer)

    def memory(self) -> tuple[int, int]:
        _, free, total = self.driver.cuMemGetInfo()
        return int(free), int(total)
