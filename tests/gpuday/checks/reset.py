"""16: what a reset of the primary context gives back, and that the account agrees."""

from __future__ import annotations

from gpuday.day import Day


def run(day: Day) -> None:
    day.both("driver.reset", limit="4Gi")
