"""A GPU's health by NVML, without root: questions that can be asked at any time, and reports of the driver.

Asked: uncorrected ECC errors since the driver was loaded, rows to be remapped (Ampere and later) or pages to be retired
(before), and the recovery that the driver recommends (R570 and later). A question that a GPU or driver cannot answer is
no issue. Reported: Xids, and a few events that are a reason to ask; a driver that reports nothing is asked as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pynvml as nv

from gpushared.core import health_issues
from gpushared.core.health_issues import HealthIssue
from gpushared.gpus.inventory import Examination, Fault
from gpushared.system.logs import facts, log

GPU_NOT_FOUND = 28  # NVML_ERROR_GPU_NOT_FOUND
_BY_ERROR: Mapping[int, Callable[[], HealthIssue]] = {
    nv.NVML_ERROR_GPU_IS_LOST: health_issues.lost,
    nv.NVML_ERROR_NOT_FOUND: health_issues.removed,
    GPU_NOT_FOUND: health_issues.removed,
    nv.NVML_ERROR_RESET_REQUIRED: health_issues.reset_required,
}

RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_RECOVERIES = {
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
"""NVML_GPU_RECOVERY_ACTION_*; 0 is none."""

XID = 0x8  # nvmlEventTypeXidCriticalError
EVENTS = XID | 0x2 | 0x400 | 0x800 | 0x2000 | 0x4000 | 0x8000
"""With Xids: double-bit ECC errors, retirements of DRAM and failed ones, fatal poison, "GPU unavailable", and a changed
recovery action. Corrected errors are not waited for: a GPU may have thousands, and each would wake the daemon."""


def of_error(error: nv.NVMLError) -> HealthIssue | None:
    """The issue that a failed call shows; None: none."""
    issue = _BY_ERROR.get(error.value)
    return issue() if issue is not None else None


def examine(handle: Any) -> Examination:
    """Ask everything. Raises the errors that of_error knows."""
    found: list[HealthIssue] = []
    count = _ask(nv.nvmlDeviceGetTotalEccErrors, handle, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nv.NVML_VOLATILE_ECC)
    if count:
        found.append(health_issues.uncorrected(count))
    rows = _ask(nv.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        _, _, pending, failed = rows
        if failed:
            found.append(health_issues.rows_failed())
        if pending:
            found.append(health_issues.rows_pending())
    if _ask(nv.nvmlDeviceGetRetiredPagesPendingStatus, handle) == nv.NVML_FEATURE_ENABLED:
        found.append(health_issues.pages_pending())
    action = _recovery_action(handle)
    if action in _RECOVERIES:
        found.append(health_issues.recovery(_RECOVERIES[action]))
    return Examination(tuple(found), recovered=action == 0)


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """None if this GPU, this driver or this user gets no answer."""
    try:
        return question(*arguments)
    except nv.NVMLError as error:
        if error.value in _BY_ERROR and error.value != nv.NVML_ERROR_NOT_FOUND:
            raise
        return None


def _recovery_action(handle: Any) -> int | None:
    values = _ask(nv.nvmlDeviceGetFieldValues, handle, [RECOVERY_ACTION])
    if not values or values[0].nvmlReturn != nv.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


class Faults:
    """Waits for reports of the driver. One thread waits; another may make it pause."""

    def __init__(self, whole: Callable[[], Mapping[str, str]]) -> None:
        """`whole` returns the physical GPU of each GPU and MIG instance, by UUID."""
        self._whole = whole
        self._lock = threading.Lock()
        self._pause_wanted = threading.Event()
        """The waiting thread has the lock nearly all the time, and a lock is not fair: this asks it to release it."""
        self._set: Any = None
        self._watched: dict[int, str] = {}
        """Physical GPUs by the address of their handles, which is how an event names them."""
        self._lost: set[str] = set()
        self._failed = False
        """The last wait ended with an error: the next one must not follow at once."""

    def wait(self, timeout: float) -> Fault | None:
        """The report within `timeout` seconds, if there is one. If there is nothing to wait for, sleep as long."""
        while self._pause_wanted.is_set():
            time.sleep(0.001)
        if not self._failed:
            with self._lock:
                if self._set is None or set(self._watched.values()) != set(self._whole().values()) - self._lost:
                    self._register()
                if self._watched:
                    return self._wait(timeout)
        self._failed = False
        time.sleep(timeout)
        return None

    def stop(self) -> bool:
        """End the wait. False: the waiting thread cannot be interrupted."""
        return self._lock.acquire(blocking=False)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No thread waits meanwhile; afterwards all GPUs are listened to."""
        self._pause_wanted.set()
        with self._lock:
            self._pause_wanted.clear()
            self._forget()
            self._lost.clear()
            self._failed = False
            yield
            self._register()

    def _wait(self, timeout: float) -> Fault | None:
        try:
            event = nv.nvmlEventSetWait_v2(self._set, int(timeout * 1000))
        except nv.NVMLError_Timeout:
            return None
        except nv.NVMLError as error:
            # It does not say which GPU. The examination finds out, and the lost one is not waited for any more. Reports
            # of the others are kept from now on, although no thread waits for a moment.
            self._register()
            self._failed = True
            return Fault(tuple(self._whole())) if error.value == nv.NVML_ERROR_GPU_IS_LOST else None
        return Fault(self._named(event.device), int(event.eventData) if event.eventType == XID else None)

    def _named(self, device: Any) -> tuple[str, ...]:
        """A GPU or all its MIG instances: an error of the hardware concerns them all."""
        physical = self._watched.get(_address(device))
        return tuple(uuid for uuid, whole in self._whole().items() if whole == physical)

    def _register(self) -> None:
        self._forget()
        try:
            self._set = nv.nvmlEventSetCreate()
        except nv.NVMLError as error:
            log.debug("the driver reports no events", extra=facts(error=str(error)))
            return
        for physical in dict.fromkeys(self._whole().values()):
            try:
                handle = nv.nvmlDeviceGetHandleByUUID(physical)
                nv.nvmlDeviceRegisterEvents(handle, nv.nvmlDeviceGetSupportedEventTypes(handle) & EVENTS, self._set)
            except nv.NVMLError as error:
                self._lost.add(physical)  # or it cannot report anything
                log.debug("the driver reports no events", extra=facts(gpu=physical, error=str(error)))
            else:
                self._watched[_address(handle)] = physical

    def _forget(self) -> None:
        self._watched.clear()
        if self._set is not None:
            with contextlib.suppress(nv.NVMLError):
                nv.nvmlEventSetFree(self._set)
            self._set = None


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
