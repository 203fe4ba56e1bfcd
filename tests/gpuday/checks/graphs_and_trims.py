"""10: graphs are captured again and again while an owner's claims trim the same program's caches."""

from __future__ import annotations

import time

from gpuday.day import Day

CLAIMS = 5


def run(day: Day) -> None:
    day.part("driver", lambda: with_program(day, "driver.capture_loop", "driver"))
    day.part("torch", lambda: with_torch(day))


def with_torch(day: Day) -> None:
    day.needs_module("torch")
    with_program(day, "with_torch.capture_loop", "torch")


def with_program(day: Day, program: str, name: str) -> None:
    unit = day.unit
    options = ("--name", f"captures-{name}", "--request", 2 * unit, "--limit", 14 * unit, "--grace", "20s")
    seconds = max(3.0, 8.0 * day.machine.scale)
    borrower = day.job(program, seconds, 10 * unit, options=options)
    day.answer(f"{name}: its cache, MiB", borrower.expect("caches"), "shim")
    owner = day.node.puppet(f"owner-{name}", "--request", 10 * unit)
    waits = []
    for _ in range(CLAIMS):
        waits.append(owner.alloc(unit))
        time.sleep(seconds / CLAIMS / 2)
    waits.append(owner.alloc(3 * unit))
    for answer, value in borrower.end().items():
        day.answer(f"{name}: {answer}", value, "shim")
    owner.end()
    day.answer(f"{name}: worst wait of a claim, ms", round(max(waits), 1), "shim")
