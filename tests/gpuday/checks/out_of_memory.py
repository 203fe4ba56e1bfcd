"""7: the refusal at the limit: it is the framework's usual one, and the program goes on."""

from __future__ import annotations

from gpuday.day import Day

LIMIT = "4Gi"


def run(day: Day) -> None:
    day.part("driver", lambda: with_driver(day))
    day.part("torch", lambda: with_torch(day, "default"))


def with_driver(day: Day, family: str = "linear") -> None:
    for name, value in day.ask("driver.out_of_memory", family, limit=LIMIT).items():
        day.answer(f"driver, {family}: {name}", value, "shim")


def with_torch(day: Day, allocator: str) -> None:
    """The allocator by its name in with_torch.SETTINGS."""
    day.needs_module("torch")
    settings = {"default": "", "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}[allocator]
    environment = {"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {}
    for name, value in day.ask("with_torch.out_of_memory", limit=LIMIT, **environment).items():
        day.answer(f"torch, {allocator}: {name}", value, "shim")
