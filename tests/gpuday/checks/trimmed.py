"""12: a borrower whose cache is wanted back gives it back and lives on."""

from __future__ import annotations

from gpuday.day import Day
from integration.node import MIB


def run(day: Day) -> None:
    day.part("driver", lambda: with_driver(day))
    for framework in ("torch", "cupy"):
        day.part(framework, lambda framework=framework: with_framework(day, framework))


def with_driver(day: Day) -> None:
    unit = day.unit
    borrower = day.node.puppet("caches", "--request", 2 * unit, "--limit", 14 * unit)
    borrower.do(f"cache {512 * MIB} {11 * unit // (512 * MIB)}")
    claim(day, "driver")
    day.answer("driver: exit status of the borrower", borrower.end())


def with_framework(day: Day, name: str) -> None:
    day.needs_module(name)
    unit = day.unit
    options = ("--name", f"caches-{name}", "--request", 2 * unit, "--limit", 14 * unit)
    borrower = day.job(f"with_{name}.cache", 11 * unit, options=options)
    day.answer(f"{name}: its cache, MiB", borrower.expect("caches"))
    claim(day, name)
    for answer, value in borrower.end().items():
        day.answer(f"{name}: {answer}", value)
    day.answer(f"{name}: exit status of the borrower", borrower.process.returncode)


def claim(day: Day, name: str) -> None:
    unit = day.unit
    owner = day.node.puppet(f"claims-{name}", "--request", 9 * unit)
    owner.alloc(unit)
    day.answer(f"{name}: ms until the claim is met by a trim", round(owner.alloc(6 * unit), 1))
    day.answer(f"{name}: exit status of the owner", owner.end())
