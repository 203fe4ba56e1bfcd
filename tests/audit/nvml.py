"""NVML of the software driver, in the auditor's own process."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pynvml

import gpushare

SIM = Path(gpushare.__file__).parent / "sim"


class Nvml:
    def __init__(self) -> None:
        # Loaded by its path first, so that pynvml's own search by name finds this one.
        ctypes.CDLL(str(SIM / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
        pynvml.nvmlInit()
        self.gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]

    def used(self) -> list[int]:
        return [int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used) for gpu in self.gpus]

    def processes(self, gpu: int) -> dict[int, int]:
        """Bytes by pid."""
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(self.gpus[gpu])
        return {process.pid: int(process.usedGpuMemory or 0) for process in found}
