"""28: owners come and go while borrowers take all that they get: trimmed, suspended and stopped. Nobody is refused."""

from __future__ import annotations

import random
import re
import statistics
import threading
import time

from gpuday.day import Day
from integration.node import MIB, Puppet, wait_for

KINDS = {
    "caches": ("trim,kill", "500ms"),
    "suspends": ("suspend,kill", "500ms"),
    "all": ("trim,suspend,term,kill", "500ms"),
    "dies": ("kill", "0s"),
}
"""Of borrowers: their reclaim steps, and their grace."""
CLAIMS = r'^gpushare_claim_wait_seconds_count\{step="(\w+)"\} ([0-9.]+)$'
OWNERS = 2
LAST = 60.0
"""Seconds within which all of them end."""


class Play:
    """What happens, in threads: one for each owner and each borrower."""

    def __init__(self, day: Day) -> None:
        self.day, self.unit = day, day.unit
        self.ends = threading.Event()
        self.refused: list[str] = []
        self.waits: list[float] = []
        self.codes: set[int] = set()
        self.wrong: list[str] = []
        self.serial = 0
        self.lock = threading.Lock()

    def puppet(self, name: str, *options: object) -> Puppet:
        with self.lock:
            self.serial += 1
            serial = self.serial
        return Puppet(name, self.day.node.run("--name", f"{name}-{serial}", *options, self.program))

    @property
    def program(self) -> object:
        return self.day.node.puppets / "puppet-dlopen"

    def owner(self, place: int) -> None:
        """Its request covers its context and what it takes: none of that may fail."""
        dice = random.Random(place)
        while not self.ends.is_set():
            parts = dice.randint(4, 12)
            size = self.unit // 2
            one = self.puppet(f"owner{place}", "--request", parts * size + self.unit)
            try:
                for order in ("open 0", *[f"alloc {size}"] * parts):
                    answer = one.try_(order)
                    if answer[0] != "ok":
                        self.refused.append(f"owner {place}: {order}: {' '.join(answer)}")
                    elif len(answer) == 3:
                        self.waits.append(float(answer[2]))
            except AssertionError as error:
                self.refused.append(str(error)[-300:])
            self.ends.wait(dice.uniform(0.2, 1.5))
            one.end()
            self.ends.wait(dice.uniform(0.2, 1.0))

    def borrower(self, kind: str) -> None:
        dice, (steps, grace) = random.Random(kind), KINDS[kind]
        while not self.ends.is_set():
            one = self.puppet(
                kind, "--request", "none", "--limit", 15 * self.unit, "--on-reclaim", steps, "--grace", grace
            )
            try:
                self.borrow(one, kind, dice)
                code = one.end()
            except (AssertionError, BrokenPipeError):
                code = one.wait()
            self.codes.add(code)

    def borrow(self, one: Puppet, kind: str, dice: random.Random) -> None:
        """Takes and frees until it is stopped, or all is over. Its memory stays as it is."""
        if one.try_("open 0")[0] != "ok":
            time.sleep(0.5)
            return
        held = 0
        while not self.ends.is_set():
            if kind == "caches" and dice.random() < 0.3:
                one.try_(f"cache {256 * MIB} {dice.randint(1, 4 * self.unit // (256 * MIB))}")
            elif held < 6 and one.try_(f"alloc {self.unit}")[0] == "ok":
                held += 1
                one.do("fill 7")
            elif held:
                if one.try_("filled 7") != ["ok"]:
                    self.wrong.append(one.name)
                held -= one.try_("free last")[0] == "ok"
            time.sleep(dice.uniform(0.01, 0.1))


def run(day: Day) -> None:
    seconds = max(5.0, 30.0 * day.machine.scale)
    play = Play(day)
    empty = day.settled()
    threads = [threading.Thread(target=play.owner, args=(place,), daemon=True) for place in range(OWNERS)]
    threads += [threading.Thread(target=play.borrower, args=(kind,), daemon=True) for kind in KINDS]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    play.ends.set()
    until = time.monotonic() + LAST
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    hang = sum(thread.is_alive() for thread in threads)
    day.answer("allocations of owners within their requests that failed", play.refused, "shim")
    day.answer("memory of borrowers that has changed", play.wrong, "shim")
    day.answer("programs that hang", hang, "shim")
    day.answer("ends of borrowers", sorted(play.codes), "shim")
    day.answer("allocations of owners", len(play.waits), "shim")
    if len(play.waits) > 1:
        day.answer("median wait of an owner, ms", round(statistics.median(play.waits), 2), "shim")
        day.answer("99 % of the waits, ms", round(statistics.quantiles(play.waits, n=100)[98], 1), "shim")
        day.answer("worst wait of an owner, ms", round(max(play.waits), 1), "shim")
    met = re.findall(CLAIMS, day.node.metrics(), re.MULTILINE)
    day.answer(
        "claims met, by their last step", {step: int(float(count)) for step, count in met if float(count)}, "shim"
    )
    wait_for(lambda: not day.node.gpu()["returning"], "memory to be back")
    day.answer("MiB left at the end", (day.settled() - empty) // MIB, "shim")
