"""Crash truth: programs and daemons are killed at random moments, and the sums still match.

`GPUSHARE_TEST_KILLS` and `GPUSHARE_TEST_RESTARTS` set the number of rounds (make crash: 1,000 and 100).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from integration.node import GIB, MIB, Node, Puppet, gone, wait_for

KILLS = int(os.environ.get("GPUSHARE_TEST_KILLS", "200"))
RESTARTS = int(os.environ.get("GPUSHARE_TEST_RESTARTS", "8"))
CONTEXT = 300 * MIB


@pytest.mark.timeout(600)
def test_programs_killed_at_random_leak_nothing_and_stall_nobody(node: Node, puppets: Path) -> None:
    dice = random.Random(1)
    survivor = node.puppet("survivor", "--request", "2Gi", "--limit", "3Gi")
    env = node.job_env("crash", "--request", "10Gi", "--limit", "12Gi")
    running: list[subprocess.Popen[bytes]] = []
    worst = 0.0
    for _ in range(KILLS):
        pipe = subprocess.PIPE
        program = subprocess.Popen([puppets / "puppet-dlopen"], env=env, stdin=pipe, stdout=pipe, stderr=pipe)
        assert program.stdin is not None
        program.stdin.write(f"open 0\nchurn 600000 {GIB}\n".encode())
        program.stdin.flush()
        running.append(program)
        worst = max(worst, float(survivor.do(f"churn {dice.randrange(4)} {512 * MIB}")[2]))
        if len(running) > 4:
            _kill(running.pop(dice.randrange(len(running))))
    gpu = node.gpu()
    assert gpu["usage"] + gpu["unmanaged"] + gpu["returning"] <= gpu["capacity"]
    while running:
        _kill(running.pop())
    survivor.do("free all")
    wait_for(lambda: node.gpu()["usage"] <= 2 * CONTEXT and not node.gpu()["returning"], "all memory to come back")
    wait_for(lambda: node.gpu()["unmanaged"] == 0, "NVML to agree")
    wait_for(lambda: len(list((node.runtime / "pages").iterdir())) == 1, "the pages of the dead to be gone")
    print(f"{KILLS} programs killed; the survivor's worst call took {worst:.1f} ms")
    assert worst < 2000, "a survivor stalled"
    survivor.alloc(2.5 * GIB)
    assert survivor.end() == 0


def _kill(program: subprocess.Popen[bytes]) -> None:
    program.send_signal(signal.SIGKILL)
    program.communicate()


@pytest.mark.timeout(900)
def test_a_daemon_killed_under_load_disturbs_nobody(node: Node) -> None:
    dice = random.Random(2)
    limits = {"A": 4 * GIB, "B": 5 * GIB, "C": 6 * GIB}
    jobs = [node.puppet(name, "--request", "2Gi", "--limit", str(limit)) for name, limit in limits.items()]
    pids = {job.name: job.pid() for job in jobs}
    for round in range(RESTARTS):
        lasting = dice.randrange(50, 1200)
        for job in jobs:
            job.send(f"churn {lasting} {GIB}")
        time.sleep(dice.random() * lasting / 1000)
        old = node.daemon_pid()
        os.kill(old, signal.SIGKILL)
        wait_for(lambda old=old: gone(old), "the daemon to be gone")
        for job in jobs:
            answer = job.answer()
            assert answer[0] == "ok", f"round {round}: {job.name} was disturbed"
        wait_for(lambda: bool(node.api("GET", "/v1/version")), "a new daemon")
        assert {job.name: job.pid() for job in jobs} == pids
        _check_rebuilt(node, jobs, limits)
    for job in jobs:
        job.do("free all")
        assert job.end() == 0


def _check_rebuilt(node: Node, jobs: list[Puppet], limits: dict[str, int]) -> None:
    """The new daemon knows every job and every byte, and no limit is exceeded."""
    wait_for(lambda: len(node.api("GET", "/v1/jobs").get("jobs", [])) == len(jobs), "all jobs to be known again")
    for job in jobs:
        free, total = map(int, job.do("info"))
        assert total == limits[job.name]
        found = node.job(job.name)
        usage = found["gpus"][0]["usage"]
        assert usage <= limits[job.name]
        assert [process["pid"] for process in found["processes"]] == [job.pid()]
        assert free <= limits[job.name] - usage
    wait_for(lambda: node.gpu()["unmanaged"] == 0, "nothing of ours to count as unmanaged")


def test_a_daemon_that_gets_no_processor_for_a_while_still_guarantees(node: Node) -> None:
    """On a busy machine a daemon may not answer for seconds. A program that did not wait would run without it."""
    pid = node.start_daemon()
    os.kill(pid, signal.SIGSTOP)
    started = node.run("--name", "patient", "--request", "4Gi", "--limit", "8Gi", "true")
    time.sleep(3.5)
    os.kill(pid, signal.SIGCONT)
    assert started.wait(30) == 0
    assert started.stderr is not None
    assert "not guaranteed" not in started.stderr.read()


def test_a_job_that_queues_keeps_its_place_when_the_daemon_is_killed(node: Node) -> None:
    node.start_daemon()
    holder = node.puppet("holder", "--request", "12Gi", "--limit", "12Gi")
    places = []
    for name in ("first", "second"):
        words = ("--name", name, "--request", "8Gi", "--limit", "8Gi", "--wait", "60s", "echo", "started")
        places.append(node.run(*words))
        wait_for(lambda name=name: node.job(name)["state"] == "queued", f"{name} to queue")
    wait_for(lambda: '"queued": {' in (node.runtime / "state.json").read_text(), "their places to be written down")
    before = [node.job(name)["id"] for name in ("first", "second")]
    node.kill_daemon()
    wait_for(lambda: node.job("second")["state"] == "queued", "another daemon")
    assert [node.job(name)["id"] for name in ("first", "second")] == before
    assert holder.end() == 0
    for place in places:
        assert place.communicate(timeout=30)[0] == "started\n"
