"""13: what a context costs, bare and with libraries, beside the guess that is charged before it is measured."""

from __future__ import annotations

import time

from gpuday.day import Day

MIB = 2**20


def run(day: Day) -> None:
    day.part("driver", lambda: bare(day))
    day.part("torch", lambda: with_torch(day))


def bare(day: Day) -> None:
    empty = day.settled()
    total = int(day.nvml.nvmlDeviceGetMemoryInfo(day.nvml.nvmlDeviceGetHandleByIndex(0)).total)
    first = day.holder()
    one = day.settled() - empty
    second = day.holder()
    two = day.settled() - empty
    first.end()
    second.end()
    guess = min(640 * MIB, total // 32)
    day.answer("MiB of a context", one // MIB)
    day.answer("MiB of a second process's context", (two - one) // MIB)
    day.answer("MiB that are guessed before it is measured", guess // MIB)
    day.answer("a context, as a part of the guess", round(max(one, two - one) / guess, 2))
    time.sleep(0.2)
    day.answer("MiB left when both are gone", abs(day.settled() - empty) // MIB)
    for name, value in day.ask("driver.contexts").items():
        day.answer(name, value)


def with_torch(day: Day) -> None:
    day.needs_module("torch")
    for name, value in day.ask("with_torch.overhead").items():
        day.answer(f"torch: {name}", value)
