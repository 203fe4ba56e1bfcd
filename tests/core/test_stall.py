"""Stall time: how long claims have waited, as Linux' pressure stall information tells it."""

from __future__ import annotations

import math
from random import Random

import pytest

from core.tale import start, used
from gpushared.core.policy import MIB, Policy
from gpushared.core.pressure import WINDOWS, PressureClock
from property.world import World, mib

GIB = 1024 * MIB


@pytest.fixture
def world() -> World:
    """One GPU of 16 GiB; a context costs 300 MiB."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    yield world
    world.node.validate()


def share(spans: list[tuple[float, float]], now: float, window: float) -> float:
    """The weight of the times in which the clock ran, each moment weighed by its age."""
    return sum(math.exp(-(now - end) / window) - math.exp(-(now - begin) / window) for begin, end in spans)


def test_each_average_weighs_the_time_by_its_age() -> None:
    """However often the clock is read or told what it knows."""
    random = Random(1)
    for _ in range(100):
        clock, now, running = PressureClock(), 1000.0, False
        spans: list[tuple[float, float]] = []
        for _ in range(random.randint(1, 30)):
            elapsed = random.choice([0.0, 0.3, 2.0, 40.0])
            if running:
                spans.append((now, now + elapsed))
            now += elapsed
            for _ in range(random.randint(0, 2)):
                told = clock.read(now)
                assert told["total"] == pytest.approx(sum(end - begin for begin, end in spans))
                for window in WINDOWS:
                    assert told[f"avg{window:.0f}"] == pytest.approx(share(spans, now, window), abs=1e-9)
            running = random.random() < 0.5
            clock.note(now, running)


def test_a_clock_that_was_never_told_anything_has_seen_nothing() -> None:
    assert PressureClock().read(5000.0) == {"avg10": 0.0, "avg60": 0.0, "avg300": 0.0, "total": 0.0}


def totals(world: World) -> tuple[float, float]:
    told = world.node.pressure("GPU-0", world.now)
    return told["some"]["total"], told["full"]["total"]


def test_a_claim_stalls_its_job_and_not_the_borrower(world: World) -> None:
    a = start(world, "A", "1Gi", "15Gi", grace=3.0)
    world.allocate(a, "GPU-0", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.wait(10.0)
    assert totals(world) == (0.0, 0.0)
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(2.0)
    assert totals(world) == pytest.approx((2.0, 0.0))
    world.wait(10.0)
    assert used(world, b) == 7 * GIB
    waited = totals(world)
    assert waited == pytest.approx((3.1, 0.0), abs=0.2)
    world.wait(10.0)
    assert totals(world) == waited


def test_where_all_jobs_of_a_gpu_wait_the_whole_gpu_is_stalled(world: World) -> None:
    b, c = start(world, "B", "8Gi", "8Gi"), start(world, "C", "1Gi", "1Gi")
    world.occupy("GPU-0", 14 * GIB)
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(4.0)
    assert totals(world) == pytest.approx((4.0, 0.0))
    world.exit(c)
    world.wait(3.0)
    assert totals(world) == pytest.approx((7.0, 3.0))
    world.occupy("GPU-0", 0)
    world.wait(5.0)
    assert used(world, b) == 7 * GIB
    waited = totals(world)
    assert 7.0 <= waited[0] < 8.5
    assert waited[1] == pytest.approx(waited[0] - 4.0)
