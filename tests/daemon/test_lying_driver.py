"""A driver whose figures cannot be true: nobody is stopped or refused for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from daemon_harness import GIB, GPU, GPU2, InProcess, Program, until
from fixed_gpus import FixedGpus

from gpushare._layout import lib
from gpushared.gpus.inventory import GpuInfo, Inventory, Sample

TOTAL = 16 * GIB
STRANGER = 4_000_000
"""A pid of no process."""
LIES = {
    "more than there is": lambda pid: Sample(TOTAL + 2**20, {pid: GIB}),
    "negative": lambda pid: Sample(-1, {pid: GIB}),
    "2^64 - 1": lambda pid: Sample(2**64 - 1, {}),
    "a process with more than there is": lambda pid: Sample(3 * GIB, {pid: 3 * GIB, STRANGER: 2**40}),
    "a process with a negative size": lambda pid: Sample(3 * GIB, {pid: 3 * GIB, STRANGER: -(2**40)}),
    "our process with 2^64 - 1": lambda pid: Sample(3 * GIB, {pid: 2**64 - 1}),
}


def told(sample: Sample | None) -> Sample | None:
    gpus = Inventory(FixedGpus([GpuInfo(GPU, 0, "Test GPU", TOTAL - GIB, GIB)], {GPU: sample}))
    gpus.note(gpus.driver.list())
    found = gpus.sample(GPU)
    assert gpus.samples.get(GPU) is found
    assert gpus.failures == (found is None)
    return found


def test_what_cannot_be_true_is_told_once_with_its_figures_and_what_was_known_is_forgotten(caplog):
    driver = FixedGpus([GpuInfo(GPU, 0, "Test GPU", TOTAL)], {GPU: Sample(GIB, {7: GIB})})
    gpus = Inventory(driver)
    gpus.note(driver.list())
    assert gpus.sample(GPU) is gpus.samples[GPU] is not None
    driver.samples[GPU] = Sample(2 * TOTAL, {})
    for _ in range(3):
        assert gpus.sample(GPU) is None
    assert gpus.samples == {} and gpus.failures == 3
    (record,) = caplog.records
    assert record.getMessage() == "the driver's figures cannot be true" and record.levelname == "ERROR"
    assert record.facts["gpu"] == GPU and f"used={2 * TOTAL}" in record.facts["figures"]


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_cannot_be_true_is_no_answer(lie: Callable[[int], Sample]) -> None:
    assert told(lie(7)) is None


@pytest.mark.parametrize(
    "sample",
    [
        Sample(0, {}),
        Sample(TOTAL - GIB, {7: TOTAL - GIB}),
        Sample(TOTAL, {7: TOTAL}),
        Sample(3 * GIB, {7: 2 * GIB, 8: 2 * GIB}),
        Sample(3 * GIB, {7: 3 * GIB, 8: GIB}),
        Sample(3 * GIB, None),
    ],
    ids=["nothing", "all", "with what the driver keeps", "shared by two", "one has just allocated", "unattributed"],
)
def test_what_may_be_true_is_believed(sample: Sample) -> None:
    assert told(sample) == sample


def test_a_gpu_that_nobody_has_described_is_believed() -> None:
    gpus = Inventory(FixedGpus([], {GPU: Sample(TOTAL, {})}))
    assert gpus.sample(GPU) == Sample(TOTAL, {})


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_owner_gets_its_request_and_a_borrower_lives(
    make_daemon: Callable[..., InProcess], program: Callable[..., Program], lie: Callable[[int], Sample]
) -> None:
    gpus = FixedGpus([GpuInfo(GPU, 0, "Test GPU", TOTAL), GpuInfo(GPU2, 1, "Test GPU", TOTAL)])
    daemon = make_daemon(gpus, sample_interval=0.03)
    borrower = program(daemon.shim)
    borrower.call("hello", request=0, limit=6 * GIB, grace_ms=100)
    borrower.call("attach", GPU)
    assert borrower.call("allocate", 3 * GIB)["status"] == lib.GS_OK
    gpus.samples[GPU] = Sample(3 * GIB, {borrower.pid: 3 * GIB})
    time.sleep(0.2)
    gpus.samples[GPU] = lie(borrower.pid)
    until(lambda: daemon.shell.gpus.failures > 3)
    with daemon.connect() as owner:
        owner.hello(request=8 * GIB, limit=8 * GIB)
        assert owner.attach(GPU).status == lib.GS_OK
        answer: Any = owner.allocate(7 * GIB)
        assert answer is None or answer.status == lib.GS_OK, answer
    time.sleep(0.5)
    assert borrower.process.poll() is None
    assert daemon.client.status()["gpus"][0]["unmanaged"] == 0
    assert daemon.shell.core.counters.violations == {}


def test_attribution_that_comes_and_goes(
    make_daemon: Callable[..., InProcess], program: Callable[..., Program]
) -> None:
    """With the total as it is: now by process, now not, now for nobody."""
    gpus = FixedGpus([GpuInfo(GPU, 0, "Test GPU", TOTAL), GpuInfo(GPU2, 1, "Test GPU", TOTAL)])
    daemon = make_daemon(gpus, sample_interval=0.02)
    borrower = program(daemon.shim)
    borrower.call("hello", request=0, limit=6 * GIB, grace_ms=100)
    borrower.call("attach", GPU)
    assert borrower.call("allocate", 3 * GIB)["status"] == lib.GS_OK
    with daemon.connect() as owner:
        owner.hello(request=8 * GIB, limit=8 * GIB)
        assert owner.attach(GPU).status == lib.GS_OK
        assert owner.allocate(2 * GIB) is None or owner.word()[0] == 2 * GIB
        me, it, total = os.getpid(), borrower.pid, 6 * GIB
        lists: list[dict[int, int] | None] = [
            {me: 2 * GIB + 512 * 2**20, it: 3 * GIB + 512 * 2**20},
            None,
            {me: 2 * GIB + 512 * 2**20},
            {},
        ]
        refused = []
        for number in range(60):
            gpus.samples[GPU] = Sample(total, lists[number % len(lists)])
            time.sleep(0.03)
            answer = owner.allocate(5 * GIB)
            if answer is not None and answer.status != lib.GS_OK:
                refused.append(answer.text)
                break
            owner.free(5 * GIB)
        assert refused == []
    assert borrower.process.poll() is None
    assert daemon.shell.core.counters.violations == {}
