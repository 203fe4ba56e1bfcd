"""On which GPU a job is admitted, and what it keeps of its place when the daemon comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.tale import spec, start, used
from gpushare.reasons import Reason
from gpushared.core.events import Event
from gpushared.core.instructions import Instruction, JobRefused
from gpushared.core.policy import MIB, Policy
from gpushared.core.visibility import OPERATOR
from property.world import World, mib

GIB = 1024 * MIB


@pytest.fixture
def world() -> Iterator[World]:
    """Two GPUs of 16 GiB; a context costs 300 MiB."""
    world = World([16 * GIB, 16 * GIB], [mib(300)] * 2, Policy(overhead_guess=mib(300)))
    yield world
    world.node.validate()


def where(world: World, name: str, request: str, limit: str) -> str:
    (gpu,) = world.node.jobs[world.submit(spec(name, request, limit))].bounds
    return gpu


def test_a_guarantee_goes_where_least_is_left_over(world: World) -> None:
    """So that a large one still finds a GPU."""
    assert where(world, "first", "8Gi", "8Gi") == "GPU-0"
    assert where(world, "second", "4Gi", "4Gi") == "GPU-0"
    assert where(world, "large", "14Gi", "14Gi") == "GPU-1"
    assert where(world, "last", "1Gi", "1Gi") == "GPU-1", "0.5 GiB are left there, 2.5 on the other"


def test_who_is_promised_nothing_goes_where_most_is_free(world: World) -> None:
    busy = start(world, "busy", "8Gi", "8Gi")
    world.allocate(busy, "GPU-0", 7 * GIB)
    assert where(world, "guest", "none", "max") == "GPU-1"
    world.occupy("GPU-1", 12 * GIB)
    assert where(world, "other", "none", "max") == "GPU-0"


def test_a_job_within_a_reservation_keeps_its_request_when_the_daemon_comes_back() -> None:
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    kept = world.reserve(spec("kept", "12Gi", "12Gi"))
    assert kept is not None
    inside = start(world, "inside", "10Gi", "10Gi", reservation=kept)
    job = world.programs[inside].job
    start(world, "beside", "3Gi", "3Gi")
    world.restart()
    assert world.node.jobs[job].bounds["GPU-0"].request == 10 * GIB
    world.allocate(inside, "GPU-0", 9 * GIB)
    assert used(world, inside) == 9 * GIB


def test_nobody_is_stopped_for_a_program_that_has_ended() -> None:
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    loan = start(world, "loan", "none", "max", min_run_time=2.0)
    world.allocate(loan, "GPU-0", 13 * GIB)
    owner = start(world, "owner", "8Gi", "8Gi")
    world.allocate(owner, "GPU-0", 7 * GIB)
    assert world.waiting and not world.terminated, "it is protected for two seconds"
    world.exit(owner)
    world.wait(5.0)
    assert not world.terminated
    assert not world.node.state.asks
    assert not any(world.node.counters.violations.values())


def test_a_reservation_that_its_jobs_fill_is_not_named_to_those_who_find_no_room() -> None:
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    refused: list[Reason] = []
    obey = world._obey

    def listen(instruction: Instruction) -> Event | None:
        if isinstance(instruction, JobRefused):
            refused.append(instruction.reason)
        return obey(instruction)

    world._obey = listen  # type: ignore[method-assign]
    kept = world.reserve(spec("kept", "12Gi", "12Gi"))
    assert kept is not None
    start(world, "half", "6Gi", "6Gi", reservation=kept)
    world.submit(spec("late", "4Gi", "4Gi"))
    assert "reserved as kept (alice) 6.0 GiB" in OPERATOR.told(refused[-1]).render()
    start(world, "rest", "6Gi", "6Gi", reservation=kept)
    world.submit(spec("late", "4Gi", "4Gi"))
    assert "kept (alice)" not in OPERATOR.told(refused[-1]).render()
