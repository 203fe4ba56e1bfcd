"""21: what an inference engine's start relies on: free memory that does not grow, and memory that sleeps and wakes."""

from __future__ import annotations

from gpuday.day import Day
from integration.node import wait_for


def run(day: Day) -> None:
    unit = day.unit
    seconds = max(1.0, 5.0 * day.machine.scale)
    neighbour = day.node.puppet("neighbour", "--limit", 8 * unit)
    for _ in range(4):
        neighbour.alloc(unit)
    # The first context on a type of GPU is charged by a guess; the guess goes once it has been measured.
    wait_for(lambda: "a context costs" in day.node.log(), "the cost of a context to be known")
    options = ("--name", "engine", "--request", 6 * unit, "--visible", "request")
    engine = day.job("driver.steady_free", seconds, options=options)
    day.answer("total that the engine sees, in sixteenths", round(engine.expect("ready") * 2**20 / unit, 2), "shim")
    neighbour.do("free all")
    neighbour.do(f"churn {int(seconds * 500)} {unit}")
    day.answer("MiB by which free memory grew", engine.expect("MiB by which free memory grew"), "shim")
    engine.end()
    neighbour.end()
    day.both("driver.sleep_and_wake", 512 * 2**20, limit="4Gi")
