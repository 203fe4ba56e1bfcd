"""27: a borrower is suspended for an owner, and goes on: by the driver alone, and through a claim."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

from gpuday.day import Day, Failed, Talk
from gpushare import checkpoint, suspend_check
from integration.node import GIB, MIB, wait_for

SIZE = 4 * GIB
STEPS = ("--on-reclaim", "suspend,term,kill", "--request", "none", "--grace", "20s")


def run(day: Day) -> None:
    day.part("driver", lambda: by_the_driver_alone(day))
    if day.real:
        day.node.env["XDG_CACHE_HOME"] = str(day.directory / "cache")
    day.part("driver, claim", lambda: with_driver(day))
    day.part("watchers", lambda: with_watchers(day))
    day.part("torch, claim", lambda: with_torch(day))


def by_the_driver_alone(day: Day) -> None:
    result = suspend_check.check(checkpoint.DriverCheckpoints(), day.directory / "suspend.json")
    day.answer("what is wrong with the driver's own way", result["problem"], "bare")
    for way, seconds in (("out", result["out"]), ("back", result["back"])):
        day.answer(f"ms {way} for 64 MiB", round(seconds * 1000, 1), "bare")
    day.answer("one that waits for the GPU while it is suspended", of_one_that_waits(day), "bare")


def of_one_that_waits(day: Day) -> str:
    """What becomes of it."""
    line = day.line("driver.watch", MIB)
    pipe = subprocess.PIPE
    talk = Talk(
        "watch", subprocess.Popen(line, env=day.plain(), stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)
    )
    talk.expect("watches")
    driver = checkpoint.DriverCheckpoints()
    checkpoint.suspend(driver, [talk.pid], 5.0)
    time.sleep(0.5)
    if talk.process.poll() is not None:
        return f"ends with {talk.process.returncode}"
    checkpoint.resume(driver, [talk.pid])
    talk.end()
    return "goes on"


def with_driver(day: Day) -> None:
    borrower = day.node.puppet("works", *STEPS, "--limit", 15 * day.unit)
    for _ in range(SIZE // (256 * MIB)):
        borrower.alloc(256 * MIB)
    borrower.do("fill 7")
    claim(day, "driver", "works", lambda: borrower.try_("filled 7"))
    day.answer("driver: its memory is as it was", borrower.try_("filled 7") == ["ok"], "shim")
    day.answer("driver: takes memory again", len(borrower.try_(f"alloc {256 * MIB}")) == 3, "shim")
    day.answer("driver: exit status of the borrower", borrower.end(), "shim")


def with_watchers(day: Day) -> None:
    """Threads that ask all the time how far the GPU is."""
    options = ("--name", "watches", *STEPS, "--limit", 15 * day.unit)
    borrower = day.job("driver.watch", SIZE, options=options)
    borrower.expect("watches")

    def calls() -> Any:
        borrower.tell("calls")
        return borrower.expect("calls")

    claim(day, "watchers", "watches", calls)
    wait_for(lambda: day.node.job("watches").get("state") == "borrowing", "it to go on")
    for _ in range(max(1, round(10 * day.machine.scale))):
        for word, state in (("suspend", "suspended"), ("resume", "borrowing")):
            done = day.node.gpushare(word, "watches")
            if done.returncode:
                raise Failed(done.stderr)
            wait_for(lambda state=state: day.node.job("watches").get("state") == state, state)
        before = calls()
        wait_for(lambda before=before: calls() > before, "its calls to go on")
    for answer, value in borrower.end().items():
        day.answer(f"watchers: {answer}", value, "shim")
    day.answer("watchers: exit status of the borrower", borrower.process.returncode, "shim")


def with_torch(day: Day) -> None:
    day.needs_module("torch")
    options = ("--name", "works-torch", *STEPS, "--limit", 15 * day.unit)
    borrower = day.job("with_torch.works", SIZE, options=options)
    borrower.expect("works")

    def steps() -> Any:
        borrower.tell("steps")
        return borrower.expect("steps")

    claim(day, "torch", "works-torch", steps)
    for answer, value in borrower.end().items():
        day.answer(f"torch: {answer}", value, "shim")
    day.answer("torch: exit status of the borrower", borrower.process.returncode, "shim")


def claim(day: Day, name: str, job: str, goes_on: Callable[[], Any]) -> None:
    """An owner that needs all that the borrower has, for a while."""
    node, owed = day.node, 16 * day.unit
    id = node.job(job)["id"]
    wait_for(lambda: f"a suspender is ready job={id}" in node.log(), "its suspender")
    owner = node.puppet(f"owner-{name}", "--request", owed - 2 * GIB)
    owner.alloc(64 * MIB)
    before = day.used()
    waited = owner.alloc(owed - 3 * GIB)
    found = node.job(job)
    if not found:
        raise Failed(f"the borrower has ended: {node.gpushare('explain', job).stdout[-800:]}")
    day.answer(f"{name}: state of the borrower during the loan's return", found["state"], "shim")
    day.answer(f"{name}: ms of the owner's claim", round(waited, 1), "shim")
    story = node.api("GET", f"/v1/jobs/{id}/story").get("story", [])
    driver = [one["facts"]["driver"] for one in story if one["event"] == "suspended"]
    day.answer(f"{name}: ms of it by the driver", [round(seconds * 1000) for seconds in driver], "shim")
    gone = before + owed - 3 * GIB - day.settled()
    day.answer(f"{name}: GiB that left the GPU", round(gone / GIB, 1), "shim")
    owner.end()
    began = time.monotonic()
    goes_on()
    day.answer(f"{name}: ms until the borrower goes on", round((time.monotonic() - began) * 1000, 1), "shim")
