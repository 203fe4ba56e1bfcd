"""What a notebook gives back when its job is told to stop: on which GPU, in which context, and beside a graph capture.

Each scene is a function that runs in a process of its own on the software driver, because a process starts CUDA once.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from ctypes import byref, c_int, c_uint64, c_void_p
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import gpushare
from gpushare.notebook.release import release
from gpushare.pressure_hooks import Pressure
from integration.node import MIB, ROOT

GLOBAL = 0
NON_BLOCKING = 1
ABSENT = "GPU-00000000-0000-0000-0000-000000000000"
RAN = "the scene ran to its end"


class Cuda:
    """The driver of this process, with a GPU's primary context where a scene opens it."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)

    def __call__(self, name: str, *arguments: object) -> None:
        result = getattr(self.driver, name)(*arguments)
        assert result == 0, (name, result)

    def uuid(self, index: int) -> str:
        name = (ctypes.c_ubyte * 16)()
        self("cuDeviceGetUuid", name, index)
        text = bytes(name).hex()
        return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def open(self, index: int) -> c_void_p:
        context = c_void_p()
        self("cuDevicePrimaryCtxRetain", byref(context), index)
        return context

    def close(self, index: int) -> None:
        self("cuDevicePrimaryCtxRelease_v2", index)

    def is_open(self, index: int) -> bool:
        flags, active = c_int(), c_int()
        self("cuDevicePrimaryCtxGetState", index, byref(flags), byref(active))
        return bool(active.value)

    def current(self) -> int | None:
        context = c_void_p()
        self("cuCtxGetCurrent", byref(context))
        return context.value

    def mode(self) -> int:
        """Of captures, on this thread. It is GLOBAL afterwards."""
        mode = c_int(GLOBAL)
        self("cuThreadExchangeStreamCaptureMode", byref(mode))
        return mode.value


class Program:
    """A framework with a cache and a callback, and how much is wanted."""

    def __init__(self, wanted: int = 100) -> None:
        self.wanted, self.cached, self.in_callback = wanted, 60, 40
        self.contexts: set[int | None] = set()
        """Current when the cache was emptied or the callback called."""
        self.asked: list[Pressure] = []
        self.current: Callable[[], int | None] = lambda: None
        torch = ModuleType("torch")
        torch.__dict__["cuda"] = SimpleNamespace(is_initialized=lambda: True, empty_cache=self._empty)
        sys.modules["torch"] = torch
        gpushare.on_pressure(self._give)

    def _empty(self) -> None:
        self.contexts.add(self.current())
        self.wanted -= self.cached
        self.cached = 0

    def _give(self, pressure: Pressure) -> None:
        self.contexts.add(self.current())
        self.asked.append(pressure)
        self.wanted -= self.in_callback
        self.in_callback = 0

    def release(self, gpu: str) -> list[str]:
        return release(gpu, lambda: max(0, self.wanted), 5.0, "why")


def without_cuda() -> None:
    program = Program()
    assert program.release(ABSENT) == [], "no driver"
    driver = ctypes.CDLL("libcuda.so.1")
    assert program.release(ABSENT) == [], "a driver that has not been started"
    assert driver.cuInit(0) == 0
    assert program.release(ABSENT) == [], "a GPU that is not one of this process's"
    assert program.wanted == 100


def on_the_second_gpu() -> None:
    cuda, program = Cuda(), Program()
    program.current = cuda.current
    context = cuda.open(1)
    assert program.release(cuda.uuid(1)) == []
    assert program.wanted == 0
    assert program.contexts == {context.value}
    (asked,) = program.asked
    assert (asked.gpu, asked.index, asked.wanted, asked.reason, asked.last) == (cuda.uuid(1), 1, 40, "why", True)
    assert 4.0 < asked.seconds <= 5.0
    assert cuda.current() is None, "as it was before"
    assert cuda.is_open(1) and not cuda.is_open(0)
    cuda.close(1)
    assert not cuda.is_open(1), "only the program held it"


def only_what_is_wanted() -> None:
    cuda, program = Cuda(), Program(wanted=60)
    cuda.open(0)
    assert program.release(cuda.uuid(0).upper().replace("GPU", "MIG-GPU")) == []
    assert program.wanted == 0 and program.asked == [], "the cache was enough"


def without_a_context() -> None:
    cuda, program = Cuda(), Program()
    assert program.release(cuda.uuid(0)) == []
    assert program.cached == 60, "a cache would open the context, to have something to empty"
    assert program.in_callback == 0
    assert not cuda.is_open(0)


def with_a_context_of_the_programs_own() -> None:
    cuda, program = Cuda(), Program()
    program.current = cuda.current
    own = c_void_p()
    cuda("cuCtxCreate_v2", byref(own), 0, 0)
    context = cuda.open(0)
    assert program.release(cuda.uuid(0)) == []
    assert program.contexts == {context.value} != {own.value}
    assert cuda.current() == own.value


def beside_a_capture() -> None:
    """Another thread captures a graph, in the mode in which no thread may free memory."""
    cuda, program = Cuda(), Program()
    cuda("cuCtxSetCurrent", cuda.open(0))
    address, stream, graph = c_uint64(), c_void_p(), c_void_p()
    cuda("cuMemAlloc_v2", byref(address), MIB)
    cuda("cuStreamCreate", byref(stream), NON_BLOCKING)
    modes, problems = [], ["it did not end"]

    @gpushare.on_pressure
    def free(pressure: Pressure) -> None:
        cuda("cuMemFree_v2", address)

    def give() -> None:
        program.in_callback = 0  # so that the second callback is asked, too
        problems[:] = program.release(uuid)
        modes.append(cuda.mode())

    uuid = cuda.uuid(0)
    cuda("cuStreamBeginCapture_v2", stream, GLOBAL)
    thread = threading.Thread(target=give)
    thread.start()
    thread.join()
    assert problems == []
    assert modes == [GLOBAL], "the thread's own mode is back"
    cuda("cuStreamEndCapture", stream, byref(graph))
    assert graph.value, "the capture was not spoilt"


@pytest.mark.parametrize("captures", ["listed", "strict"])
@pytest.mark.parametrize(
    "scene",
    [
        without_cuda,
        on_the_second_gpu,
        only_what_is_wanted,
        without_a_context,
        with_a_context_of_the_programs_own,
        beside_a_capture,
    ],
    ids=lambda scene: scene.__name__,
)
def test_what_is_given_back(tmp_path: Path, scene: Callable[[], None], captures: str) -> None:
    """`strict`: of the calls that may spoil a capture, NVIDIA leaves open which do."""
    program = f"from notebook.test_release import {scene.__name__}; {scene.__name__}(); print({RAN!r})"
    env = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSHARE_", "CUDA_", "LD_"))}
    env |= {
        "LD_LIBRARY_PATH": str(ROOT / "gpushare" / "sim"),
        "GPUSHARE_SIM": f"gpus=2,memory=16Gi,captures={captures},pool={tmp_path}/pool",
        "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}:{ROOT / 'daemon'}",
    }
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{RAN}\n"), done.stderr
