"""8: virtual memory that grows to the limit: PyTorch's expandable segments."""

from __future__ import annotations

from gpuday.checks.out_of_memory import with_driver, with_torch
from gpuday.day import Day


def run(day: Day) -> None:
    day.part("driver", lambda: with_driver(day, "virtual"))
    day.part("torch", lambda: with_torch(day, "expandable"))
