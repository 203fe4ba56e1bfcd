"""A driver that does not say which program uses how much, as in another PID namespace: the total is all there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from core.tale import start, used
from gpushared.core.policy import MIB, Policy
from property.world import World, mib

GIB = 1024 * MIB
GPU = "GPU-0"


def node(cost: int) -> World:
    world = World([16 * GIB], [cost], Policy(overhead_guess=mib(300)))
    sample = world._sample
    world._sample = lambda gpu: replace(sample(gpu), by_pid=None)  # type: ignore[method-assign]
    return world


@pytest.fixture
def world() -> Iterator[World]:
    """One GPU of 16 GiB, of which 15.5 can be given away; a context costs 200 MiB and is guessed to cost 300."""
    world = node(mib(200))
    yield world
    world.node.validate()


def returning(world: World) -> int:
    return world.node.gpus[GPU].returning_total


def test_what_is_beyond_the_account_is_somebody_elses(world: World) -> None:
    one = start(world, "one", "4Gi", "max")
    world.allocate(one, GPU, 4 * GIB)
    world.occupy(GPU, 5 * GIB)
    world.wait(3.0)
    assert world.node.gpus[GPU].unmanaged == 5 * GIB - mib(100), "less what the guess is too large"
    assert world.node.gpus[GPU].usage == 4 * GIB + mib(300), "a guess is all there will be"
    world.occupy(GPU, 0)
    world.wait(1.0)
    assert world.node.gpus[GPU].unmanaged == 0
    world.allocate(one, GPU, 11 * GIB)
    assert used(world, one) == 15 * GIB


def test_memory_of_the_dead_is_back_when_no_more_than_the_living_use_is_in_use(world: World) -> None:
    one, other = start(world, "one", "4Gi", "4Gi"), start(world, "other", "none", "max")
    world.allocate(other, GPU, 8 * GIB)
    world.exit(other, lag=1.5)
    assert returning(world) == 8 * GIB + mib(300)
    world.wait(1.0)
    assert returning(world) == 8 * GIB + mib(300), "the driver still shows it"
    world.wait(1.1)
    assert returning(world) == 0
    assert world.node.gpus[GPU].unmanaged == 0
    assert used(world, one) == 0


def test_after_a_while_it_counts_as_memory_of_somebody_else(world: World) -> None:
    """It may be that the dead have left nothing, and others have begun to use as much."""
    start(world, "one", "4Gi", "4Gi")
    other = start(world, "other", "none", "max")
    world.allocate(other, GPU, 8 * GIB)
    world.exit(other, lag=60.0)
    world.wait(1.9)
    assert returning(world) == 8 * GIB + mib(300)
    assert world.node.gpus[GPU].unmanaged == 0
    world.wait(1.2)
    assert returning(world) == 0
    assert world.node.gpus[GPU].unmanaged == 8 * GIB + mib(100)


def test_the_dead_are_back_when_the_total_is_what_it_was_without_them() -> None:
    """A program outside was there before, and stays."""
    world = node(mib(300))
    start(world, "one", "4Gi", "4Gi")
    world.occupy(GPU, 3 * GIB)
    other = start(world, "other", "none", "max")
    world.allocate(other, GPU, 4 * GIB)
    world.wait(2.0)
    assert world.node.gpus[GPU].unmanaged == 3 * GIB
    world.exit(other, lag=0.5)
    world.wait(1.1)
    assert returning(world) == 0
    assert world.node.gpus[GPU].unmanaged == 3 * GIB
