"""Whose numbers the driver's processes have is found by looking for programs of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from daemon_harness import GIB, GPU, InProcess, Program, until
from fixed_gpus import FixedGpus

from gpushare._layout import lib
from gpushared.gpus.inventory import GpuInfo, Inventory, Sample
from gpushared.gpus.pid_names import PidNames

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
MISSES = 3

OURS, THEIRS = 4_000_000, 4_000_001


def judged(names: PidNames, *looks: tuple[int, dict[int, int], dict[int, int]]) -> list[bool]:
    return [names.are_ours(GPU, *look) for look in looks]


@pytest.mark.parametrize("believed", [True, False])
def test_nothing_is_decided_without_a_program_that_holds_memory(believed: bool) -> None:
    names = PidNames(believed)
    looks = [(GIB, {THEIRS: GIB}, {}), (GIB, {}, {OURS: 0}), (GIB, {}, {})] * MISSES
    assert judged(names, *looks) == [believed] * len(looks)


def test_a_program_of_ours_that_is_named_settles_it() -> None:
    names = PidNames(False)
    first, second = (2 * GIB, {THEIRS: GIB, OURS: GIB - 1}, {OURS: GIB}), (2 * GIB, {OURS: GIB}, {OURS: GIB})
    assert judged(names, first) == [False], "less than it holds may be another process of that number"
    assert judged(names, second, first) == [True, True]


def test_so_many_samples_without_any_of_ours_settle_it_too() -> None:
    names = PidNames(True)
    missing = (2 * GIB, {THEIRS: 2 * GIB}, {OURS: GIB, OURS + 2: GIB})
    assert judged(names, *[missing] * MISSES) == [True] * (MISSES - 1) + [False]
    assert judged(names, (2 * GIB, {OURS: GIB + 1}, {OURS: GIB})) == [True], "and may turn out wrong"


@pytest.mark.parametrize(
    "between",
    [
        (2 * GIB, {OURS: GIB}, {OURS: GIB}),
        (2 * GIB, {OURS: 1}, {OURS: GIB}),
    ],
    ids=["found", "found with less than it is charged"],
)
def test_only_samples_in_a_row_count(between: tuple[int, dict[int, int], dict[int, int]]) -> None:
    missing = (2 * GIB, {}, {OURS: 2 * GIB})
    looks = [*[missing] * (MISSES - 1), between, *[missing] * (MISSES - 1)]
    assert all(judged(PidNames(True), *looks))


def test_a_sample_that_is_older_than_the_memory_says_nothing() -> None:
    older = (GIB - 1, {}, {OURS: GIB})
    assert all(judged(PidNames(True), *[older] * (2 * MISSES)))


def test_gpus_are_counted_apart() -> None:
    names, missing = PidNames(True), (GIB, {}, {OURS: GIB})
    assert all(names.are_ours(gpu, *missing) for gpu in ("a", "b") for _ in range(MISSES - 1))
    assert not names.are_ours("a", *missing)


def test_what_is_shown_of_a_sample_follows() -> None:
    gpus = Inventory(
        FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB, 0)], {GPU: Sample(GIB, {THEIRS: GIB}, frozenset())})
    )
    gpus.note(gpus.driver.list())
    for look in range(MISSES):
        sample = gpus.sample(GPU)
        assert sample is not None
        named = gpus.named(GPU, sample, {OURS: GIB})
        assert gpus.samples[GPU] == named
        assert (named == sample) == (look < MISSES - 1)
    assert named == Sample(GIB, None, None)


def test_a_driver_that_says_nothing_by_number_is_not_judged() -> None:
    gpus = Inventory(FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB, 0)]))
    sample = Sample(GIB, None)
    for _ in range(2 * MISSES):
        assert gpus.named(GPU, sample, {OURS: GIB}) is sample


@pytest.mark.parametrize("shown", [{THEIRS: 5 * GIB, THEIRS + 1: 3 * GIB}, {}], ids=["by other numbers", "by none"])
def test_what_a_program_holds_is_not_a_strangers_too(
    make_daemon: Callable[..., InProcess], program: Callable[..., Program], shown: dict[int, int]
) -> None:
    gpus = FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB)])
    daemon = make_daemon(gpus, sample_interval=0.02)
    one = program(daemon.shim)
    one.call("hello", request=6 * GIB, limit=6 * GIB)
    one.call("attach", GPU)
    assert one.call("allocate", 3 * GIB)["status"] == lib.GS_OK

    def gpu() -> dict[str, Any]:
        return daemon.client.status()["gpus"][0]

    gpus.samples[GPU] = Sample(8 * GIB, shown)
    until(lambda: gpus.samples and not daemon.shell.core.gpus[GPU].health.attributed)
    until(lambda: sum(gpu()[key] for key in ("unmanaged", "usage")) == 8 * GIB)
    assert daemon.shell.gpus.samples[GPU].by_pid is None
    gpus.samples[GPU] = Sample(8 * GIB, {one.pid: 3 * GIB + 2**28, THEIRS: 4 * GIB})
    until(lambda: daemon.shell.core.gpus[GPU].health.attributed)
