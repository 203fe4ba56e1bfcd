"""What the daemon tells its core is of one moment: uses that came and went do not count, nor do processes that end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from daemon_harness import GIB, GPU, InProcess, Program, until
from fixed_gpus import FixedGpus
from shim_client import MIB

from gpushare._layout import lib
from gpushared.gpus.inventory import GpuInfo, Sample

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
LOOK_AGAIN = 0.5

CONTEXT = 300 * MIB


class Driver(FixedGpus):
    """Shows one process; something happens just before it is asked, and just after."""

    def __init__(self) -> None:
        super().__init__([GpuInfo(GPU, 0, "Test GPU", 16 * GIB)])
        self.shown: dict[int, int] = {}
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        self.asked = 0

    def sample(self, uuid: str) -> Sample | None:
        self.before()
        shown = dict(self.shown)
        self.after()
        self.asked += 1
        return Sample(sum(shown.values()), shown)


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def node(make_daemon: Callable[..., InProcess], driver: Driver) -> InProcess:
    return make_daemon(driver, sample_interval=0.05, claim_timeout=60.0)


def submit(daemon: InProcess, request: str, limit: str) -> str:
    body = {"name": "job", "command": ["job"], "request": request, "limit": limit, "gpus": 1, "devices": ["0"]}
    return str(daemon.client.register(body)["id"])


def start(daemon: InProcess, program: Callable[..., Program], job: str, amount: int) -> Program:
    one = program(daemon.shim)
    assert one.call("hello", job, request=amount, limit=amount)["status"] == lib.GS_OK
    assert one.call("attach", GPU)["status"] == lib.GS_OK
    return one


def overhead(daemon: InProcess) -> int:
    (share,) = daemon.call(lambda: list(daemon.shell.core.gpus[GPU].shares.values()))
    return int(share.overhead)


def test_what_came_and_went_while_nvml_was_asked_is_no_overhead(node, driver, program):
    """An allocation is there when the driver is asked, and the word is the same before and after."""
    one = start(node, program, submit(node, "8Gi", "8Gi"), 8 * GIB)
    driver.shown = {one.pid: CONTEXT}
    until(lambda: overhead(node) == CONTEXT)
    one.call("allocate", 4 * GIB)
    one.call("free", 4 * GIB)

    def take() -> None:
        one.call("allocate", 4 * GIB)
        driver.shown = {one.pid: CONTEXT + 4 * GIB}

    def give() -> None:
        driver.shown = {one.pid: CONTEXT}
        one.call("free", 4 * GIB)

    driver.before, driver.after = take, give
    asked = driver.asked
    charged = set()
    until(lambda: charged.add(overhead(node)) or driver.asked >= asked + 10, 20.0)
    driver.before = driver.after = lambda: None
    assert charged == {CONTEXT}


def test_a_process_that_was_stopped_inside_a_call_shows_nothing_of_its_context(node, driver, program):
    """Its word has what the driver is about to give it. Otherwise that much of its context would be lent twice."""
    one = start(node, program, submit(node, "8Gi", "8Gi"), 8 * GIB)
    driver.shown = {one.pid: CONTEXT}
    until(lambda: overhead(node) == CONTEXT)
    one.call("allocate", 4 * GIB)
    os.kill(one.pid, signal.SIGSTOP)
    asked, charged = driver.asked, set()
    until(lambda: charged.add(overhead(node)) or driver.asked >= asked + 30, 20.0)
    assert charged == {CONTEXT}
    os.kill(one.pid, signal.SIGCONT)
    driver.shown = {one.pid: CONTEXT - 100 * MIB + 4 * GIB}
    until(lambda: overhead(node) == CONTEXT - 100 * MIB, 20.0)


def test_a_sibling_that_has_ended_is_no_ground_for_a_refusal(node, driver, program):
    """Whatever the daemon hears of its end, and when."""
    job = submit(node, "6Gi", "6Gi")
    first = start(node, program, job, 6 * GIB)
    second = start(node, program, job, 6 * GIB)
    first.call("allocate", 4 * GIB)
    first.call("disconnect")
    (late,) = (client for client in node.shell.clients if client.process.pid == first.pid)
    until(lambda: node.call(lambda: late.disconnect is None))
    time.sleep(2 * LOOK_AGAIN)
    node.call(late.process.unwatch)  # the kernel reports the end late
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait()
    second.call("send_ask", 4 * GIB)
    shares, asks = node.shell.core.gpus[GPU].shares, node.shell.core.gpus[GPU].asks
    until(lambda: node.call(lambda: [share.ending for share in shares.values()] == [True, False]))
    assert node.call(lambda: len(asks)) == 1
    node.call(lambda: node.shell.processes.gone(late))
    assert second.call("answer")["status"] == lib.GS_OK


def test_words_that_change_while_they_are_read_are_told(node, program):
    job = submit(node, "6Gi", "6Gi")
    first, second = start(node, program, job, 6 * GIB), start(node, program, job, 6 * GIB)
    for one in (first, second):
        one.call("allocate", GIB)
    pages = {client.process.pid: client.id for client in node.shell.clients}
    shell = node.shell
    shell.core.watched = lambda gpu: {pages[first.pid], pages[second.pid]}
    read = shell.credit.asking

    def move(processes, gpu):
        first.call("free", GIB)
        first.call("allocate", GIB)
        return read(processes, gpu)

    try:
        assert node.call(lambda: shell._credit_effects.used_seen(GPU).moving) == frozenset()
        shell.credit.asking = move
        assert node.call(lambda: shell._credit_effects.used_seen(GPU).moving) == {pages[first.pid]}
    finally:
        del shell.credit.asking, shell.core.watched
