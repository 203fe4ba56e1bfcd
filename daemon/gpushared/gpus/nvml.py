"""NVML, through NVIDIA's nvidia-ml-py: for real GPUs, and for the software driver, which has the same library.

Every call can fail at any time (a GPU falls off the bus, a MIG instance is destroyed). A failure costs a sample and
never ends the daemon. Handles are looked up by UUID and dropped when a call with them fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml as nv

from gpushare.errors import GpushareError
from gpushare.paths import software_driver_dir
from gpushared.gpus import nvml_health
from gpushared.gpus.inventory import Examination, Fault, GpuInfo, Sample
from gpushared.system.logs import Sparingly, facts, log

SIM_SAYS = "gpushare software driver: "


class NvmlError(GpushareError):
    """The driver's management library cannot be used at all."""

    code = "no_driver"


class Nvml:
    """The driver's management interface."""

    def __init__(self, kind: str) -> None:
        """kind: nvidia or sim."""
        self.kind = kind
        self._handles: dict[str, Any] = {}
        self._whole: dict[str, str] = {}
        """GPU or MIG instance -> its physical GPU, by UUID."""
        self._lock = threading.RLock()
        """Held during every call except those that wait for events, and while the library is opened again."""
        self._faults = nvml_health.Faults(lambda: dict(self._whole))
        self._busy_until: dict[str, int] = {}
        """By GPU: the time (NVML's, microseconds) of the last utilisation that was read."""
        self._sparingly = Sparingly()
        complaints: list[str] = []
        try:
            if kind == "sim":
                with _heard(complaints):
                    _load_software_driver(software_driver_dir() / "libnvidia-ml.so.1")
                    nv.nvmlInit()
            else:
                nv.nvmlInit()
        except nv.NVMLError as error:
            if complaints:
                raise NvmlError(
                    f"the software driver does not start: {complaints[-1].removeprefix(SIM_SAYS)}",
                    hint="correct the variable GPUSHARE_SIM, or unset it",
                ) from None
            raise NvmlError(
                f"the NVIDIA driver does not answer: {error}",
                hint="`gpushare doctor` looks closer; --driver sim works without a GPU",
            ) from None

    def list(self) -> list[GpuInfo]:
        with self._lock:
            return [*self._found()]

    def _found(self) -> Iterator[GpuInfo]:
        try:
            count = nv.nvmlDeviceGetCount()
        except nv.NVMLError as error:
            self._complain("", error)
            return
        for index in range(count):
            try:
                yield from self._describe(index)
            except nv.NVMLError as error:
                self._complain(f"#{index}", error)

    def sample(self, uuid: str) -> Sample | None:
        with self._lock:
            try:
                handle = self._handle(uuid)
                used, _, _ = _memory(handle)
                by_pid, computing = self._by_pid(handle), self._utilisation(uuid, handle)
                if computing is None:
                    return Sample(used, by_pid)
                busy = frozenset(pid for pid, (cores, memory) in computing.items() if cores or memory)
                return Sample(used, by_pid, busy, {pid: cores / 100 for pid, (cores, _) in computing.items()})
            except nv.NVMLError as error:
                self._handles.pop(uuid, None)
                self._complain(uuid, error)
                return None

    def examine(self, uuid: str) -> Examination | None:
        with self._lock:
            try:
                _memory(nv.nvmlDeviceGetHandleByUUID(uuid))
                return nvml_health.examine(nv.nvmlDeviceGetHandleByUUID(self._whole.get(uuid, uuid)))
            except nv.NVMLError as error:
                self._handles.pop(uuid, None)
                issue = nvml_health.of_error(error)
                if issue is None:
                    self._complain(uuid, error)
                return Examination((issue,)) if issue is not None else None

    def wait_for_fault(self, timeout: float) -> Fault | None:
        return self._faults.wait(timeout)

    def reopen(self) -> None:
        """NVML looks for GPUs when it is initialised, and only then."""
        with self._faults.paused(), self._lock:
            self._handles.clear()
            with contextlib.suppress(nv.NVMLError):
                nv.nvmlShutdown()
            try:
                nv.nvmlInit()
            except nv.NVMLError as error:
                self._complain("", error)

    def close(self) -> None:
        """A thread that is still in the library keeps it open: the end of the process closes it as well."""
        if self._faults.stop() and self._lock.acquire(blocking=False):
            with contextlib.suppress(nv.NVMLError):
                nv.nvmlShutdown()

    def _describe(self, index: int) -> Iterator[GpuInfo]:
        handle = nv.nvmlDeviceGetHandleByIndex(index)
        parts = list(_mig_instances(handle))
        for part in parts or [handle]:
            uuid = _text(nv.nvmlDeviceGetUUID(part))
            _, total, reserved = _memory(part)
            self._handles[uuid] = part
            self._whole[uuid] = _text(nv.nvmlDeviceGetUUID(handle))
            yield GpuInfo(uuid, index, _text(nv.nvmlDeviceGetName(part)), total, reserved)

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = nv.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _by_pid(self, handle: Any) -> dict[int, int] | None:
        """None if the driver does not attribute memory: MIG and vGPU of some drivers, WSL. pid_names.py finds out
        whether the pids are those of this namespace."""
        found: dict[int, int] = {}
        for ask in _PROCESS_LISTS:
            try:
                processes = ask(handle)
            except (nv.NVMLError_NotSupported, nv.NVMLError_FunctionNotFound):
                continue
            for process in processes:
                if process.usedGpuMemory is None:
                    return None
                # One process may be in several lists, each time with the same figure.
                found[process.pid] = max(found.get(process.pid, 0), process.usedGpuMemory)
        return found

    def _utilisation(self, uuid: str, handle: Any) -> dict[int, tuple[int, int]] | None:
        """By process, for how much of the time since the last call it used the cores and the memory, in per cent.

        The driver's "not found" means that none did."""
        # The system's clock may have been set back: then nothing would be newer for as long.
        since = min(self._busy_until.get(uuid, 0), time.time_ns() // 1000)
        self._busy_until[uuid] = since
        try:
            samples = nv.nvmlDeviceGetProcessUtilization(handle, since)
        except nv.NVMLError_NotFound:
            return {}
        except nv.NVMLError:
            return None
        if samples:
            self._busy_until[uuid] = max(one.timeStamp for one in samples)
        # Of several samples of a process the last one counts. The driver is not believed where it says more than all.
        in_order = sorted(samples, key=lambda one: one.timeStamp)
        return {one.pid: (min(100, one.smUtil), min(100, one.memUtil)) for one in in_order}

    def _complain(self, gpu: str, error: Exception) -> None:
        if self._sparingly.allow((gpu, str(error))) is not None:
            log.warning("the driver does not answer", extra=facts(gpu=gpu or "all", error=str(error)))


_PROCESS_LISTS: tuple[Callable[[Any], Any], ...] = (
    nv.nvmlDeviceGetComputeRunningProcesses,
    nv.nvmlDeviceGetGraphicsRunningProcesses,
    nv.nvmlDeviceGetMPSComputeRunningProcesses,
)


def _memory(handle: Any) -> tuple[int, int, int]:
    """used (by programs), total, reserved (by the driver); only version 2 tells the last from the first."""
    try:
        memory = nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2)
    except (nv.NVMLError_NotSupported, nv.NVMLError_FunctionNotFound, nv.NVMLError_ArgumentVersionMismatch):
        memory = nv.nvmlDeviceGetMemoryInfo(handle)
        return memory.used, memory.total, 0
    return memory.used, memory.total, memory.reserved


def _mig_instances(handle: Any) -> Iterator[Any]:
    try:
        current, _ = nv.nvmlDeviceGetMigMode(handle)
        if current != nv.NVML_DEVICE_MIG_ENABLE:
            return
        most = nv.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nv.NVMLError:
        return  # not a GPU that can be divided
    for index in range(most):
        try:
            yield nv.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nv.NVMLError_NotFound:
            continue


@contextlib.contextmanager
def _heard(lines: list[str]) -> Iterator[None]:
    """Takes what the software driver writes to standard error: it says there what is wrong with its settings."""
    sys.stderr.flush()
    kept, said = os.dup(2), os.memfd_create("stderr")
    os.dup2(said, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        text = os.pread(said, 65536, 0)
        os.write(2, text)
        os.close(kept)
        os.close(said)
        lines += text.decode(errors="replace").split("\n")[:-1]


def _load_software_driver(path: Path) -> None:
    """pynvml opens "libnvidia-ml.so.1" by name; the loader gives it a library of that SONAME if one is loaded."""
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise NvmlError(f"cannot load the software driver: {error}", hint="build it with `make build`") from None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
