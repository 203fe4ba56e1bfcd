"""The driver's functions that take a process's memory from its GPUs and put it back: cuCheckpointProcess*.

They act on another process of the same user, and need a driver of CUDA 12.8 or later (R570). This module may block as
long as the driver does: the caller must be a process that can be ended.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["Checkpoints", "DriverCheckpoints", "DriverError", "Result", "resume", "settle", "suspend", "whereabouts"]

LIBRARY = "libcuda.so.1"
STATES = ("running", "locked", "suspended", "failed")
"""By the driver's number."""
ARGUMENT_BYTES = 64
LEAST_LOCK_MS = 100
NAMES = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    100: "CUDA_ERROR_NO_DEVICE",
    304: "CUDA_ERROR_OPERATING_SYSTEM",
    401: "CUDA_ERROR_ILLEGAL_STATE",
    600: "CUDA_ERROR_NOT_READY",
    800: "CUDA_ERROR_NOT_PERMITTED",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    999: "CUDA_ERROR_UNKNOWN",
}


class DriverError(Exception):
    """A function of the driver has failed, or is not there."""


class Checkpoints(Protocol):
    """What the driver does with one process. Each raises DriverError."""

    def state(self, pid: int) -> str: ...
    def lock(self, pid: int, milliseconds: int) -> None: ...
    def checkpoint(self, pid: int) -> None: ...
    def restore(self, pid: int) -> None: ...
    def unlock(self, pid: int) -> None: ...


class DriverCheckpoints:
    """The driver of this machine. Raises DriverError if it cannot do it."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._driver = ctypes.CDLL(library)
            self._functions = {
                name: getattr(self._driver, f"cuCheckpointProcess{name}")
                for name in ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")
            }
        except OSError as error:
            raise DriverError(f"the driver cannot be loaded: {error}") from None
        except AttributeError:
            raise DriverError("this driver cannot suspend processes: that needs CUDA 12.8, driver 570") from None
        self._check("cuInit", self._driver.cuInit(0))

    def state(self, pid: int) -> str:
        found = ctypes.c_int()
        self._call("GetState", pid, ctypes.byref(found))
        return STATES[found.value] if 0 <= found.value < len(STATES) else "failed"

    def lock(self, pid: int, milliseconds: int) -> None:
        arguments = milliseconds.to_bytes(4, "little") + bytes(ARGUMENT_BYTES - 4)
        self._call("Lock", pid, ctypes.create_string_buffer(arguments, ARGUMENT_BYTES))

    def checkpoint(self, pid: int) -> None:
        self._call("Checkpoint", pid, None)

    def restore(self, pid: int) -> None:
        self._call("Restore", pid, None)

    def unlock(self, pid: int) -> None:
        self._call("Unlock", pid, None)

    def version(self) -> int:
        """As the driver numbers it: 13000 is CUDA 13.0."""
        found = ctypes.c_int()
        self._check("cuDriverGetVersion", self._driver.cuDriverGetVersion(ctypes.byref(found)))
        return found.value

    def _call(self, name: str, pid: int, argument: object) -> None:
        self._check(f"cuCheckpointProcess{name}", self._functions[name](ctypes.c_int(pid), argument))

    def _check(self, name: str, code: int) -> None:
        if code:
            raise DriverError(f"{name}: {NAMES.get(code, f'error {code}')}")


@dataclass(frozen=True, slots=True)
class Result:
    """Of an attempt: where the processes are now, and why they are not where they should be."""

    where: str
    problem: str = ""


def whereabouts(driver: Checkpoints, pids: Sequence[int]) -> str:
    """running | suspended, if that goes for all of these processes that live; else failed. Locked ones are unlocked:
    nobody else has locked them for good."""
    found = set()
    for pid in pids:
        try:
            state = driver.state(pid)
            if state == "locked":
                driver.unlock(pid)
                state = "running"
        except DriverError:
            if not _lives(pid):
                continue
            state = "failed"
        found.add(state)
    return "running" if not found else found.pop() if len(found) == 1 else "failed"


def settle(driver: Checkpoints, pids: Sequence[int]) -> str:
    """The same, after somebody was killed who moved them. If only some are away, these come back before any runs: the
    memory of a job is given to nobody while a step is under way."""
    states = {}
    for pid in pids:
        with contextlib.suppress(DriverError):
            states[pid] = driver.state(pid)
    if "suspended" in states.values() and {"running", "locked"} & set(states.values()):
        for pid in [pid for pid, state in states.items() if state == "suspended"]:
            _try(driver.restore, pid)
    return whereabouts(driver, pids)


def suspend(driver: Checkpoints, pids: Sequence[int], within: float) -> Result:
    """All of the processes, or none: they are locked together before the first memory goes. `within`: seconds."""
    try:
        for pid in pids:
            driver.lock(pid, max(LEAST_LOCK_MS, int(within * 500 / max(1, len(pids)))))
        for pid in pids:
            driver.checkpoint(pid)
    except DriverError as error:
        _bring_back(driver, pids)
        return Result(whereabouts(driver, pids), str(error))
    return Result(whereabouts(driver, pids))


def resume(driver: Checkpoints, pids: Sequence[int]) -> Result:
    """All of the processes: none runs before the memory of all is back. If one fails, all are suspended again."""
    restored: list[int] = []
    try:
        for pid in pids:
            if driver.state(pid) == "suspended":
                driver.restore(pid)
                restored.append(pid)
    except DriverError as error:
        for pid in restored:
            _try(driver.checkpoint, pid)
        return Result(whereabouts(driver, pids), str(error))
    for pid in pids:
        _try(driver.unlock, pid)
    return Result(whereabouts(driver, pids))


def _bring_back(driver: Checkpoints, pids: Sequence[int]) -> None:
    """Whatever can be: its memory has not been given to anybody yet."""
    for pid in pids:
        try:
            if driver.state(pid) == "suspended":
                driver.restore(pid)
            if driver.state(pid) == "locked":
                driver.unlock(pid)
        except DriverError:
            continue


def _try(step: Callable[[int], None], pid: int) -> None:
    with contextlib.suppress(DriverError):
        step(pid)


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
