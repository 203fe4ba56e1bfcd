"""2,000 jobs on a node: what it costs is in proportion, or does not grow at all."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from daemon_harness import Subprocess

MIB = 2**20
FEW, MANY = 200, int(os.environ.get("GPUSHARE_TEST_JOBS", "2000"))
JOB = {"command": ["sleep"], "request": "1Mi", "limit": "2Mi", "gpus": 1}


def resident(node: Subprocess) -> int:
    """Bytes."""
    assert node.process is not None
    return int(Path(f"/proc/{node.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(node: Subprocess) -> int:
    assert node.process is not None
    return len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))


def quickest(function, times: int = 7) -> float:
    """Seconds. The least of several: this machine does other things as well."""
    took = []
    for number in range(times):
        started = time.perf_counter()
        function(number)
        took.append(time.perf_counter() - started)
    return min(took)


def measure(node: Subprocess, count: int) -> dict[str, float]:
    """With so many jobs: submit, list, look at one, stop one."""
    sleeping = []

    def submit(number: int) -> None:
        node.client.register(JOB | {"name": f"timed-{count}-{number}"})

    def stop(number: int) -> None:
        node.client.stop(f"timed-{count}-{number}", now=True)

    submitting = quickest(submit)
    for number in range(7):
        sleeping.append(subprocess.Popen(["sleep", "60"]))
        node.client.set_main(f"timed-{count}-{number}", sleeping[-1].pid)
    found = {
        "submit": submitting,
        "list": quickest(lambda _: node.client.jobs(), 3),
        "one": quickest(lambda _: node.client.job(f"timed-{count}-0")),
        "stop": quickest(stop),
        "resident": resident(node),
        "descriptors": descriptors(node),
    }
    assert all(one.wait(10) == -9 for one in sleeping)
    return found


@pytest.mark.timeout(240)
def test_two_thousand_jobs(node):
    node.start()
    empty = resident(node)
    for number in range(FEW):
        node.client.register(JOB | {"name": f"job{number}"})
    few = measure(node, FEW)
    for number in range(FEW, MANY):
        node.client.register(JOB | {"name": f"job{number}"})
    many = measure(node, MANY)
    assert len(node.client.jobs()) >= MANY
    for what in ("submit", "one", "list", "stop"):
        print(
            f"{what}: {few[what] * 1000:.1f} ms with {FEW} jobs, {many[what] * 1000:.1f} ms with {MANY}: "
            f"{many[what] / few[what]:.1f} times"
        )
    grown = (many["resident"] - few["resident"]) / (MANY - FEW)
    print(
        f"memory: {empty / MIB:.0f}, {few['resident'] / MIB:.0f}, {many['resident'] / MIB:.0f} MiB, "
        f"{grown / 1024:.1f} KiB a job; descriptors: {few['descriptors']:.0f}, {many['descriptors']:.0f}"
    )
    more = MANY / FEW
    for what in ("submit", "one", "stop"):
        assert many[what] < 0.1 + more * few[what], what
    assert many["list"] < 2 * more * few["list"], "in proportion to the jobs"
    assert grown < 32 * 1024
    assert many["descriptors"] - few["descriptors"] <= 2 * (MANY - FEW) + 50
