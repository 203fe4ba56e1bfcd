"""19: JAX with and without its preallocation."""

from __future__ import annotations

from gpuday.day import Day

LIMIT = "4Gi"


def run(day: Day) -> None:
    day.part("jax, preallocating", lambda: ask(day, "preallocating", "true"))
    day.part("jax, as it needs", lambda: ask(day, "as it needs", "false"))


def ask(day: Day, name: str, preallocate: str) -> None:
    day.needs_module("jax")
    day.needs_module("jax_cuda12_plugin", "jax_cuda13_plugin")
    found = day.ask("with_jax.out_of_memory", limit=LIMIT, XLA_PYTHON_CLIENT_PREALLOCATE=preallocate)
    for question, value in found.items():
        day.answer(f"jax, {name}: {question}", value, "shim")
