"""15: by how much pools grow and when they let go, and an allocation near the limit."""

from __future__ import annotations

from gpuday.day import Day


def run(day: Day) -> None:
    for program in ("driver.pools", "driver.graph_pools"):
        for name, value in day.ask(program).items():
            day.answer(name, value, "bare")
    for name, value in day.ask("driver.near_the_limit", limit="2Gi").items():
        day.answer(name, value, "shim")
