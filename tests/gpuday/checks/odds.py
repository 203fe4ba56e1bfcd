"""25: ONNX Runtime, the heap of device code, a fork after cuInit, exit statuses."""

from __future__ import annotations

import subprocess
from functools import partial

from gpuday.day import Day, Skip

HEAP = 2**30


def run(day: Day) -> None:
    day.part("ONNX Runtime", partial(onnx, day))
    day.part("heap", lambda: day.both("driver.heap", HEAP, limit="4Gi"))
    day.part("fork", lambda: day.both("driver.forked", limit="4Gi"))
    day.part("exit statuses", partial(exit_statuses, day))


def exit_statuses(day: Day) -> None:
    for script, expected in (("exit 7", 7), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)):
        done = day.node.run("--limit", "1Gi", "sh", "-c", script)
        done.communicate(timeout=30)
        day.answer(f"`{script}` ends with {expected}", done.returncode == expected, "shim")
    again = subprocess.run(["true"], env=day.preloaded("1Gi"), capture_output=True, check=False)
    day.answer("a program without CUDA says nothing", [again.returncode, again.stdout + again.stderr == b""], "shim")


def onnx(day: Day) -> None:
    day.needs_module("onnxruntime")
    day.needs_module("onnx")
    found = day.ask("with_onnxruntime.runs", limit="4Gi")
    if "runs on" not in found:
        raise Skip(f"this ONNX Runtime cannot use a GPU: {found['providers']}")
    for question, value in found.items():
        day.answer(f"ONNX Runtime: {question}", value, "shim")
