"""Whether the driver of this machine can suspend a program: tried with a small one of our own, once per driver.

The program allocates and fills; it is suspended and resumed; then it compares. While it is suspended it makes a call,
which the driver must hold until it is resumed. (Calls that wait for the GPU are held by the preload library:
shim/preload/gate.h.) The result is kept by the driver's version, for suspenders
(suspender.py) and for `gpushare doctor`.

    python -m gpushare.suspend_check        does it, and writes the result as JSON
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from gpushare import checkpoint

__all__ = ["Checked", "check", "kept", "result_file"]

AMOUNT = 64 << 20
PATIENCE = 60.0
"""Seconds."""
PATTERN = bytes(range(256)) * 16


class Checked(TypedDict):
    driver: int
    """Its version, as it numbers itself."""
    good: bool
    problem: str
    bytes: int
    out: float
    """Seconds to host memory."""
    back: float


def result_file(environ: Mapping[str, str]) -> Path:
    """Of this user, for all drivers."""
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "/nonexistent")) / ".cache")
    return Path(base) / "gpushare" / "suspend.json"


def kept(file: Path, driver: int) -> Checked | None:
    """The result for this version of the driver, if there is one."""
    one = _results(file).get(str(driver))
    if not isinstance(one, dict) or not one.keys() >= Checked.__annotations__.keys() or one["driver"] != driver:
        return None
    return cast(Checked, one)


def _results(file: Path) -> dict[str, Any]:
    """By the driver's version. Nothing where the file cannot be read, or is not what it should be."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check(driver: checkpoint.DriverCheckpoints, file: Path) -> Checked:
    """Do it, and keep the result. Takes some seconds."""
    result = _try(driver)
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = file.with_name(f".{file.name}.{os.getpid()}")
        fresh.write_text(json.dumps({**_results(file), str(result["driver"]): result}))
        fresh.replace(file)
    return result


def _try(driver: checkpoint.DriverCheckpoints) -> Checked:
    result = Checked(driver=driver.version(), good=False, problem="", bytes=AMOUNT, out=0.0, back=0.0)
    program = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpushare.suspend_check", "program"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
    )
    watchdog = threading.Timer(PATIENCE, program.kill)
    watchdog.start()
    try:
        result["problem"] = _suspend_and_resume(driver, program, result)
        result["good"] = not result["problem"]
    except (OSError, checkpoint.DriverError) as error:
        result["problem"] = str(error)
    finally:
        watchdog.cancel()
        program.kill()
        program.communicate()
    return result


def _suspend_and_resume(driver: checkpoint.DriverCheckpoints, program: subprocess.Popen[str], result: Checked) -> str:
    """What is wrong; empty if nothing is."""
    assert program.stdin is not None and program.stdout is not None
    if program.stdout.readline() != "filled\n":
        return "the program of the check did not start"
    began = time.monotonic()
    out = checkpoint.suspend(driver, [program.pid], PATIENCE / 2)
    result["out"] = time.monotonic() - began
    if out.where != "suspended":
        return out.problem or f"the program is {out.where}"
    program.stdin.write("compare\n")
    time.sleep(0.2)
    if program.poll() is not None:
        return "the program died when it made a call while it was suspended"
    if select.select([program.stdout], [], [], 0)[0]:
        return "a call of the program was not held while it was suspended"
    began = time.monotonic()
    back = checkpoint.resume(driver, [program.pid])
    result["back"] = time.monotonic() - began
    if back.where != "running":
        return back.problem or f"the program is {back.where}"
    said = program.stdout.readline()
    return "" if said == "same\n" else "the program's memory has changed"


def _program() -> None:
    """In a process of its own: fills memory, and compares it when it is told to."""
    driver = ctypes.CDLL(checkpoint.LIBRARY)
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    steps: tuple[Callable[[], int], ...] = (
        lambda: driver.cuInit(0),
        lambda: driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        lambda: driver.cuCtxSetCurrent(context),
        lambda: driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(AMOUNT)),
    )
    places = range(0, AMOUNT, AMOUNT // 64)
    if any(step() for step in steps):
        return
    for place in places:
        driver.cuMemcpyHtoD_v2(ctypes.c_uint64(address.value + place), PATTERN, ctypes.c_size_t(len(PATTERN)))
    print("filled", flush=True)
    sys.stdin.readline()
    found = ctypes.create_string_buffer(len(PATTERN))
    for place in places:
        source, size = ctypes.c_uint64(address.value + place), ctypes.c_size_t(len(PATTERN))
        if driver.cuMemcpyDtoH_v2(found, source, size) or found.raw != PATTERN:
            print("changed", flush=True)
            return
    print("same", flush=True)


def main() -> None:
    if sys.argv[1:] == ["program"]:
        _program()
        return
    try:
        result = check(checkpoint.DriverCheckpoints(), result_file(os.environ))
    except checkpoint.DriverError as error:
        sys.exit(str(error))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
