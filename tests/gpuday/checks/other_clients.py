"""20: CuPy, numba, cuda.core and a Triton kernel at a limit."""

from __future__ import annotations

from functools import partial

from gpuday.day import Day

LIMIT = "4Gi"
CLIENTS = {"cupy": "cupy", "numba": "numba.cuda", "cuda.core": "cuda.core", "triton": "triton"}


def run(day: Day) -> None:
    for name, module in CLIENTS.items():
        day.part(name, partial(ask, day, name, module))


def ask(day: Day, name: str, module: str) -> None:
    day.needs_module(module, kernels=name != "cuda.core")
    for question, value in day.ask(f"with_{name.replace('.', '_')}.out_of_memory", limit=LIMIT).items():
        day.answer(f"{name}: {question}", value, "shim")
