"""A context costs more than it was charged at first. What its job then has above its request is a loan like any other,
also of a job that chose to borrow nothing (limit = request): such jobs are the last to be stopped."""

from __future__ import annotations

import pytest

from core.tale import start, told, used
from gpushared.core.policy import MIB, Policy
from property.world import World

GIB = 1024 * MIB
GPU = "GPU-0"


@pytest.fixture
def world() -> World:
    """16 GiB; a context is guessed at 256 MiB and costs 2 GiB."""
    made = World([16 * GIB], [2 * GIB], Policy(chunk=0, overhead_guess=256 * MIB))
    made.ever_tight = True
    return made


def content(world: World, **more: object) -> int:
    """A job that borrows nothing by its own will. With its context it comes to 1.75 GiB above its request."""
    process = start(world, "content", "6Gi", "6Gi", **more)
    world.allocate(process, GPU, 6 * GIB - 256 * MIB)
    return process


def claim_it(world: World, process: int, size: int = 7 * GIB) -> int:
    """An owner allocates so much within its request; 7 GiB beside its context are all of it."""
    world.wait(3.0)
    assert world.loan(world.programs[process].job, GPU) == 2 * GIB - 256 * MIB
    owner = start(world, "owner", "9Gi", "9Gi")
    world.allocate(owner, GPU, size)
    return owner


def test_what_a_context_costs_above_the_request_can_be_claimed(world: World) -> None:
    process = content(world)
    owner = claim_it(world, process)
    world.wait(12.0)
    assert used(world, owner) == 7 * GIB and not world.node.counters.violations
    assert told(world, owner)[-1] == "claim_met"


def test_its_caches_are_enough(world: World) -> None:
    process = content(world)
    one = world.programs[process]
    one.listens, one.caches[GPU] = True, 3 * GIB
    owner = claim_it(world, process)
    world.wait(1.0)
    assert used(world, owner) == 7 * GIB
    assert not world.terminated and "trim" in told(world, process)


def test_who_gives_its_loan_back_on_sigterm_goes_on(world: World) -> None:
    process = content(world)
    owner = claim_it(world, process)
    assert [one.job for one in world.terminated] == [world.programs[process].job]
    world.free(process, GPU, 2 * GIB)
    world.wait(12.0)
    assert used(world, owner) == 7 * GIB and not world.killed
    assert world.usage(world.programs[process].job, GPU) <= 6 * GIB


def test_who_borrows_on_purpose_is_stopped_before_it_at_any_priority(world: World) -> None:
    process = content(world, priority=-9)
    borrower = start(world, "borrower", "none", "max", priority=100)
    world.allocate(borrower, GPU, 3 * GIB)
    purposeful = world.programs[borrower].job
    owner = claim_it(world, process, 4 * GIB)
    world.wait(12.0)
    assert used(world, owner) == 4 * GIB
    assert [one.job for one in world.terminated] == [purposeful]
