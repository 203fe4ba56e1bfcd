"""14: what is taken for what is asked: blocks, rows, arrays. Bare, and as the account sees it."""

from __future__ import annotations

from gpuday.day import Day

MOST = 8 * 2**30


def run(day: Day) -> None:
    memory = day.nvml.nvmlDeviceGetMemoryInfo(day.nvml.nvmlDeviceGetHandleByIndex(0))
    most = min(MOST, int(memory.free) // 3)
    day.both("driver.granularity", most, limit=str(most + 2 * 2**30))
