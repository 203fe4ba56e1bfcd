"""29: jobs that ask for turns in computing have the part of the GPU's time that they ask for."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from gpuday.day import Day, Talk

SPAN = 0.005
"""Seconds of a kernel."""
ON = "[compute]\nturns = true\n[daemon]\nidle_exit = 3600\n"
FIRST = 1.0
"""Seconds until a job has what it will have."""
EXCLUSIVE = 3.0


class Job:
    def __init__(self, day: Day, name: str, blocks: int, *options: object) -> None:
        self.name = name
        self.talk = day.job("driver.compute", blocks, options=("--name", name, "--request", "1Gi", *options))
        self.talk.expect("computes")

    def done(self) -> int:
        return self.ask()[0]

    def ask(self) -> tuple[int, float]:
        """Kernels, and milliseconds of the longest launch."""
        self.talk.tell("done")
        kernels, longest = self.talk.expect("done")
        return int(kernels), float(longest)


def run(day: Day) -> None:
    if not day.real:
        day.machine = replace(day.machine, settings=f"{day.machine.settings},kernels=clocked")
    pid = day.node.start_daemon(ON)
    day.node.env["GPUSHARE_SOCKET"] = str(day.node.runtime / "api.sock")
    seconds = max(4.0, 10.0 * day.machine.scale)
    calibrating = day.job("driver.calibrate", SPAN, options=("--name", "calibrates", "--request", "1Gi"))
    blocks = calibrating.expect("blocks")
    end(calibrating)
    first = Job(day, "first", blocks)
    alone = measure([first], seconds / 2)[0]
    day.answer("kernels a second of one job that is alone", round(alone, 1), "shim")
    second = Job(day, "second", blocks)
    of_both(day, "nobody asks", [first, second], seconds, alone)
    end(first.talk, second.talk)

    most, rest = Job(day, "most", blocks, "--compute", "0.75"), Job(day, "rest", blocks, "--compute", "0.25")
    busy, began = processor_time(pid), time.monotonic()
    of_both(day, "0.75 and 0.25", [most, rest], seconds, alone)
    spent = (processor_time(pid) - busy) / (time.monotonic() - began)
    day.answer("cores that the daemon uses during turns", round(spent, 3), "shim")
    day.answer("longest launch of the job with 0.25, ms", rest.ask()[1], "shim")
    end(rest.talk)
    day.answer("alone again, of what it did alone", round(measure([most], seconds / 2)[0] / alone, 3), "shim")

    end(most.talk)

    other, keeper = Job(day, "other", blocks), Job(day, "keeper", blocks, "--exclusive", f"{EXCLUSIVE:g}s")
    day.answer("kernels of others while one is alone", during(day, keeper, other), "shim")
    end(keeper.talk, other.talk)


def of_both(day: Day, name: str, jobs: list[Job], seconds: float, alone: float) -> None:
    time.sleep(FIRST)
    rates = measure(jobs, seconds)
    day.answer(f"{name}: part of the first job", round(rates[0] / sum(rates), 3), "shim")
    day.answer(f"{name}: kernels of both, of those of one that is alone", round(sum(rates) / alone, 3), "shim")


def measure(jobs: list[Job], seconds: float) -> list[float]:
    """Kernels a second of each."""
    began, before = time.monotonic(), [job.done() for job in jobs]
    time.sleep(seconds)
    after, taken = [job.done() for job in jobs], time.monotonic() - began
    return [(now - then) / taken for now, then in zip(after, before, strict=True)]


def during(day: Day, keeper: Job, other: Job) -> int:
    """Kernels of the other job within a second of the keeper's turn, which has just begun. -1: there was none."""
    until, before = time.monotonic() + 10 * EXCLUSIVE, "holds"
    while time.monotonic() < until:
        now = turn(day, keeper)
        if now == "holds" != before:
            time.sleep(0.2)
            done = other.done()
            time.sleep(1.0)
            return other.done() - done
        before = now
        time.sleep(0.05)
    return -1


def turn(day: Day, job: Job) -> str:
    return str(day.node.job(job.name)["gpus"][0]["turn"])


def processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def end(*talks: Talk) -> None:
    for talk in talks:
        talk.end()
