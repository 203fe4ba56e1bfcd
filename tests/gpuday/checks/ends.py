"""22: from SIGKILL to memory back, without us; and how long claims wait by each rung."""

from __future__ import annotations

import os
import signal
import statistics
import time

from gpuday.day import Day
from integration.node import MIB, wait_for

PATIENCE = 20.0


def run(day: Day) -> None:
    day.part("kill", lambda: day.answer("ms from SIGKILL until NVML shows the memory no more", killed(day), "bare"))
    day.part("claims", lambda: claims(day))


def claims(day: Day) -> None:
    floor, waits = [], []
    for number in range(3):
        floor.append(claim(day, f"floor{number}", lend=False))
        waits.append(claim(day, f"claim{number}", lend=True))
    day.answer("ms of an owner's allocation, nothing lent", round(statistics.median(floor), 2), "shim")
    day.answer("ms of an owner's claim, by SIGKILL at once", round(statistics.median(waits), 2), "shim")


def killed(day: Day) -> float:
    times = []
    for _ in range(max(1, round(3 * day.machine.scale))):
        empty = day.settled()
        holder = day.holder(1024 * MIB)
        began = time.monotonic()
        os.kill(holder.pid, signal.SIGKILL)
        while day.used() > empty + 64 * MIB and time.monotonic() - began < PATIENCE:
            time.sleep(0.001)
        times.append((time.monotonic() - began) * 1000)
        holder.process.wait()
    return round(statistics.median(times), 1)


def claim(day: Day, name: str, *, lend: bool) -> float:
    """Milliseconds."""
    node, unit = day.node, day.unit
    wait_for(lambda: node.gpu()["returning"] == 0 and node.gpu()["unmanaged"] < 64 * MIB, "an empty GPU", PATIENCE)
    borrower = None
    if lend:
        borrower = node.puppet(f"b-{name}", "--request", unit, "--limit", 15 * unit, "--on-reclaim", "kill")
        for _ in range(12):
            borrower.alloc(unit)
    owner = node.puppet(f"o-{name}", "--request", 8 * unit)
    owner.alloc(64 * MIB)
    waited = owner.alloc(6 * unit)
    owner.end()
    if borrower is not None:
        borrower.wait()
    return waited
