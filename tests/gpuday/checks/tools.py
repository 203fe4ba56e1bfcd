"""23: profilers and debuggers around a program under the preload library."""

from __future__ import annotations

import subprocess
from functools import partial

from gpuday.day import Day
from integration.node import ROOT

ORDERS = "open 0\nalloc 268435456\nfree all\nalloc 8589934592\nquit\n"
TOOLS = {
    # Without that option ncu sets the GPU's clocks.
    "ncu": ("ncu", "--clock-control", "none", "--target-processes", "all"),
    "compute-sanitizer": ("compute-sanitizer", "--tool", "memcheck"),
    "cuda-gdb": ("cuda-gdb", "-batch", "-ex", "run < {orders}", "--args"),
    "nsys": ("nsys", "profile", "--output", "{directory}/profile", "--force-overwrite", "true"),
}


def run(day: Day) -> None:
    day.part("no tool", lambda: under(day, "no tool", ()))
    for name, words in TOOLS.items():
        day.part(name, partial(under, day, name, words))
    day.part("torch's profiler", lambda: profiler(day))


def under(day: Day, name: str, words: tuple[str, ...]) -> None:
    """The program's answers must be the same: the second allocation is above the limit."""
    if words:
        day.needs_gpu("these tools look into NVIDIA's driver")
        day.tool(words[0])
    orders = day.directory / "orders"
    orders.write_text(ORDERS)
    line = [word.format(orders=orders, directory=day.directory) for word in words]
    env = day.preloaded("4Gi") | {"PYTHONPATH": str(ROOT)}
    with orders.open() as stdin:
        done = subprocess.run(
            [*line, str(day.compiled("puppet-dlopen"))],
            env=env,
            stdin=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
    said = [" ".join(text.split()[:2 if text.startswith("error") else 1]) for text in done.stdout.splitlines()
            if text.split() and text.split()[0] in ("ok", "error")]  # fmt: skip
    day.answer(f"{name}: exit status", done.returncode, "shim")
    day.answer(f"{name}: the program's answers", said, "shim")


def profiler(day: Day) -> None:
    day.needs_module("torch")
    for question, value in day.ask("with_torch.profiled", limit="4Gi").items():
        day.answer(f"torch's profiler: {question}", value, "shim")
