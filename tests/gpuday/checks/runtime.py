"""3: programs on NVIDIA's runtime library, shared and static, under a limit."""

from __future__ import annotations

import subprocess
from functools import partial

from gpuday.day import PROGRAMS, Day, Failed, Skip

LIMIT = "2Gi"


def run(day: Day) -> None:
    for kind in ("shared", "static"):
        day.part(f"nvcc, {kind}", partial(compiled, day, kind))
    day.part("libcudart of Python's wheels", lambda: from_wheels(day))


def compiled(day: Day, kind: str) -> None:
    day.needs_gpu("NVIDIA's runtime library refuses other drivers")
    binary = day.directory / f"runtime-{kind}"
    line = [day.tool("nvcc"), f"--cudart={kind}", "-o", str(binary), str(PROGRAMS / "runtime.cu")]
    done = subprocess.run(line, capture_output=True, text=True, env=day.plain(), check=False)
    if done.returncode != 0:
        raise Failed(f"nvcc: {done.stderr[-800:]}")
    for side, env in (("bare", day.plain()), ("shim", day.preloaded(LIMIT))):
        for name, value in day.answers_of([str(binary)], env).items():
            day.answer(f"{kind} runtime: {name}", value, side)


def from_wheels(day: Day) -> None:
    day.needs_module("nvidia")
    found = day.ask("with_ctypes.runtime", limit=LIMIT)
    if not found["libraries"]:
        raise Skip(f"no libcudart is among the wheels of {day.machine.python}")
    for name, value in found.items():
        day.answer(f"runtime of the wheels: {name}", value, "shim")
