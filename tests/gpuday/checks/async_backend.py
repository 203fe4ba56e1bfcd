"""9: stream-ordered memory that grows to the limit: PyTorch's backend cudaMallocAsync."""

from __future__ import annotations

from gpuday.checks.out_of_memory import with_driver, with_torch
from gpuday.day import Day


def run(day: Day) -> None:
    day.part("driver", lambda: with_driver(day, "pooled"))
    day.part("torch", lambda: with_torch(day, "async"))
