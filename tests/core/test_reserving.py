"""Reservations: memory that is there when the next job starts, lent until then."""

from __future__ import annotations

import pytest

from core.tale import spec, start, used
from gpushare.job_spec import JobSpec
from gpushare.quantity import Quantity
from gpushared.core import persistence
from gpushared.core.events import BudgetChanged, GpuFound, ReservationEnded
from gpushared.core.instructions import JobRefused
from gpushared.core.node import NodeState
from gpushared.core.policy import MIB, Policy
from property.world import World, mib

GIB = 1024 * MIB


@pytest.fixture
def world() -> World:
    """One GPU of 16 GiB; a context costs 300 MiB."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    yield world
    world.node.validate()


def reserve(world: World, name: str, request: str, lasting: float | None = None) -> str | None:
    return world.reserve(spec(name, request, "max"), lasting)


def test_nobody_else_is_promised_what_is_reserved(world: World) -> None:
    assert reserve(world, "mine", "8Gi")
    assert world.submit(spec("other", "8Gi", "8Gi")) not in world.node.jobs
    assert world.submit(spec("small", "7Gi", "7Gi")) in world.node.jobs
    assert reserve(world, "more", "1Gi") is None


def test_it_is_lent_until_a_job_starts_in_it(world: World) -> None:
    reservation = reserve(world, "mine", "8Gi")
    a = start(world, "A", "1Gi", "15Gi")
    world.allocate(a, "GPU-0", 13 * GIB)
    assert used(world, a) == 13 * GIB
    b = start(world, "B", "8Gi", "8Gi", reservation=reservation)
    world.allocate(b, "GPU-0", 7 * GIB)
    assert world.terminated, "asked back by a claim like any other"
    world.wait(6.0)
    assert used(world, b) == 7 * GIB


def test_it_outlives_the_jobs_in_it_and_holds_several(world: World) -> None:
    reservation = reserve(world, "mine", "8Gi")
    first = world.submit(spec("one", "5Gi", "5Gi", reservation=reservation))
    second = world.submit(spec("two", "3Gi", "3Gi", reservation=reservation))
    state = world.node.state
    assert state.reserved("GPU-0") == 0
    assert world.submit(spec("other", "8Gi", "8Gi")) not in world.node.jobs
    world.end(first)
    assert state.reserved("GPU-0") == 5 * GIB
    world.end(second)
    assert state.reserved("GPU-0") == 8 * GIB
    assert world.submit(spec("third", "10Gi", "10Gi", reservation=reservation)) in world.node.jobs, "the rest is free"


def test_a_job_finds_its_gpu_by_the_reservation() -> None:
    world = World([16 * GIB, 16 * GIB], [mib(300)] * 2)
    world.submit(spec("filler", "10Gi", "10Gi"))
    reservation = reserve(world, "mine", "8Gi")
    world.submit(spec("more", "5Gi", "5Gi"))
    job = world.submit(spec("late", "8Gi", "8Gi", reservation=reservation))
    assert set(world.node.jobs[job].bounds) == {"GPU-1"}
    world.node.validate()


def test_its_time_ends(world: World) -> None:
    reserve(world, "mine", "8Gi", lasting=10.0)
    waiting = world.submit(spec("other", "10Gi", "10Gi"), wait=60.0)
    world.wait(9.0)
    assert waiting not in world.node.jobs
    world.wait(2.0)
    assert waiting in world.node.jobs


def test_released_it_leaves_the_jobs_in_it_alone(world: World) -> None:
    reservation = reserve(world, "mine", "8Gi")
    job = world.submit(spec("one", "5Gi", "5Gi", reservation=reservation))
    world.send(ReservationEnded(reservation))
    assert world.node.jobs[job].bounds["GPU-0"].request == 5 * GIB
    assert world.submit(spec("other", "10Gi", "10Gi")) in world.node.jobs


def test_it_is_its_users_alone(world: World) -> None:
    reservation = reserve(world, "mine", "8Gi")
    theirs = JobSpec("x", 2000, "bob", ("x",), Quantity.parse("1Gi"), Quantity.parse("1Gi"), reservation=reservation)
    refused = []
    obey = world._obey
    world._obey = lambda one: (refused.append(one) if isinstance(one, JobRefused) else None, obey(one))[1]
    world.submit(theirs)
    assert refused[0].reason.message.startswith("no reservation")


def test_a_request_in_it_can_be_raised_up_to_it(world: World) -> None:
    reservation = reserve(world, "mine", "8Gi")
    world.submit(spec("rest", "7Gi", "7Gi"))
    job = world.submit(spec("one", "5Gi", "15Gi", reservation=reservation))
    world.send(BudgetChanged(job, request=Quantity.parse("8Gi")))
    assert world.node.jobs[job].bounds["GPU-0"].request == 8 * GIB
    world.send(BudgetChanged(job, request=Quantity.parse("9Gi")))
    assert world.node.jobs[job].bounds["GPU-0"].request == 8 * GIB


def test_it_survives_the_daemon(world: World) -> None:
    reservation = reserve(world, "mine", "8Gi", lasting=100.0)
    world.submit(spec("one", "5Gi", "5Gi", reservation=reservation))
    written = world.node.notes()
    fresh = NodeState(world.policy)
    fresh.handle(GpuFound("GPU-0", 0, "software GPU", 16 * GIB), 5.0)
    for event in [*persistence.restore_reservations(written, 30.0), *persistence.restore(written, 0.0)]:
        fresh.handle(event, 5.0)
    fresh.validate()
    assert fresh.state.reserved("GPU-0") == 3 * GIB
    assert fresh.state.reservations[reservation].until == pytest.approx(75.0)


def test_who_waits_for_one_gpu_does_not_hold_up_the_other() -> None:
    world = World([16 * GIB, 16 * GIB], [mib(300)] * 2)
    world.submit(spec("holder", "12Gi", "12Gi", devices=("GPU-1",)))
    wants_1 = world.submit(spec("picky", "10Gi", "10Gi", devices=("GPU-1",)), wait=60.0)
    assert wants_1 not in world.node.jobs
    assert world.submit(spec("easy", "10Gi", "10Gi")) in world.node.jobs, "GPU 0 is nobody's wish"
    assert world.submit(spec("small", "2Gi", "2Gi", devices=("GPU-1",))) not in world.node.jobs
    world.node.validate()


def test_a_job_over_its_lowered_limit_is_the_first_to_give_back(world: World) -> None:
    low = start(world, "low", "1Gi", "15Gi", priority=-5)
    world.allocate(low, "GPU-0", 5 * GIB)
    high = start(world, "high", "1Gi", "15Gi", priority=5)
    world.allocate(high, "GPU-0", 7 * GIB)
    world.send(BudgetChanged(world.programs[high].job, limit=Quantity.parse("1Gi")))
    world.wait(3.0)
    assert not world.terminated, "a lower limit alone stops nobody"
    owner = start(world, "owner", "8Gi", "8Gi")
    world.allocate(owner, "GPU-0", 5 * GIB)
    assert [one.job for one in world.terminated] == [world.programs[high].job]
