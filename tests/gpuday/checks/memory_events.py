"""24: UCX's memory hooks, with and without the preload library."""

from __future__ import annotations

from gpuday.day import Day, Skip


def run(day: Day) -> None:
    day.part("UCX", lambda: ask(day))


def ask(day: Day) -> None:
    bare = day.ask("with_ctypes.memory_events")
    if "UCX" in bare:
        raise Skip("UCX's wheel is not installed")
    shim = day.ask("with_ctypes.memory_events", limit="4Gi")
    for side, found in (("bare", bare), ("shim", shim)):
        for name, value in found.items():
            day.answer(name, value, side)
    changed = {name: [value, shim.get(name)] for name, value in bare.items() if value != shim.get(name)}
    day.answer("what UCX sees, changed by the preload library", changed)
