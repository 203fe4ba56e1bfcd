"""The queue for admission, when it is long."""

from __future__ import annotations

import itertools

import pytest

from core.tale import spec
from gpushare.reasons import Code, Reason
from gpushared.core import admission, blockers, wait_report
from gpushared.core.events import JobEnded, JobSubmitted, ReservationEnded, TimePassed
from gpushared.core.instructions import JobAdmitted
from gpushared.core.policy import MIB
from gpushared.core.visibility import OPERATOR
from property.world import World, mib

GIB = 1024 * MIB
GPUS = ("GPU-0", "GPU-1")


@pytest.fixture
def world() -> World:
    world = World([16 * GIB, 16 * GIB], [mib(300)] * 2)
    yield world
    world.node.validate()


@pytest.mark.parametrize("gpus", [1, 2, 3])
@pytest.mark.parametrize("devices", [None, ("GPU-0",), ("GPU-1",), ("GPU-1", "GPU-0"), ("GPU-0", "gone"), ("gone",)])
@pytest.mark.parametrize("closed", [(), ("GPU-0",), ("GPU-1",), GPUS])
@pytest.mark.parametrize("reservation", ["", "gone"])
def test_a_job_that_is_blocked_has_no_place_and_waits(world, gpus, devices, closed, reservation):
    """What is said in short is never more than what place() says at length."""
    wanted = spec("b", "1Gi", "1Gi", gpus=gpus, devices=devices, reservation=reservation)
    state = world.node.state
    if admission.is_blocked(state, wanted, set(closed)):
        found = admission.place(state, wanted, set(closed))
        assert isinstance(found, Reason) and found.code is Code.NOT_ADMITTED
        assert not reservation
    elif not reservation and closed and devices in (None, ("GPU-1", "GPU-0")) and gpus <= len(GPUS):
        assert len(set(GPUS) - set(closed)) >= gpus
    elif devices == ("GPU-0",) and gpus == 1 and not reservation:
        assert "GPU-0" not in closed


def queue(world: World, count: int, *, devices: tuple[str, ...] | None = None, wait: float = 100.0) -> list[str]:
    ids = [f"{number:016x}" for number in range(1000, 1000 + count)]
    for number, id in enumerate(ids):
        wanted = spec(f"queued{number}", f"{12 * 1024 + number}Mi", "15Gi", devices=devices)
        world.node.handle(JobSubmitted(id, wanted, wait), world.now)
    return ids


def test_a_job_is_told_its_gpus_when_it_is_admitted_at_once_or_later(world):
    def admitted(event) -> list[tuple[str, tuple[str, ...]]]:
        told = world.node.handle(event, world.now)
        return [(one.job, one.gpus) for one in told if isinstance(one, JobAdmitted)]

    wanted = spec("a", "12Gi", "15Gi", devices=("GPU-1",))
    assert admitted(JobSubmitted("a" * 16, wanted, 100.0)) == [("a" * 16, ("GPU-1",))]
    assert admitted(JobSubmitted("b" * 16, wanted, 100.0)) == []
    assert admitted(JobEnded("a" * 16)) == [("b" * 16, ("GPU-1",))]


def test_they_come_in_their_order_and_the_first_that_fits_not_is_not_overtaken(world):
    first, second = world.submit(spec("a", "15Gi", "15Gi")), world.submit(spec("b", "15Gi", "15Gi"))
    ids = queue(world, 5)
    assert list(world.node.state.queue) == ids
    world.end(first)
    assert ids[0] in world.node.jobs and list(world.node.state.queue) == ids[1:]
    world.end(second)
    assert ids[1] in world.node.jobs and list(world.node.state.queue) == ids[2:]


def test_those_behind_are_refused_when_their_patience_is_over(world):
    world.submit(spec("a", "15Gi", "15Gi", devices=("GPU-0",)))
    queue(world, 3, devices=("GPU-0",), wait=50.0)
    late = queue(world, 4, devices=("GPU-0",), wait=5.0)[3]
    assert late in world.node.state.queue
    world.node.handle(TimePassed(), world.now + 6.0)
    assert late not in world.node.state.queue


def test_one_whose_reservation_is_gone_is_refused_though_others_are_ahead(world):
    world.submit(spec("a", "15Gi", "15Gi", devices=("GPU-0",)))
    queue(world, 2, devices=("GPU-0",))
    reservation = world.reserve(spec("kept", "15Gi", "max", devices=("GPU-1",)), None)
    inside = spec("inside", "15500Mi", "max", devices=("GPU-0",), reservation=reservation)
    world.node.handle(JobSubmitted("00000000000000ff", inside, 100.0), world.now)
    assert "00000000000000ff" in world.node.state.queue
    world.send(ReservationEnded(reservation))
    assert "00000000000000ff" not in world.node.state.queue


def test_what_is_told_of_a_long_queue_is_bounded(world):
    for gpu in GPUS:
        for number in range(12):
            world.submit(spec(f"holder{number}", "1Gi", "1Gi", devices=(gpu,)))
    queue(world, 30)
    found = wait_report.all_of(world.node.state, world.now)
    assert len(found) == 30 and [one.reason.data["ahead"] for one in found] == list(range(30))
    last = dict(OPERATOR.told(found[-1].reason).facts)["ahead"]
    assert last.count(", ") == blockers.NAMED and last.endswith(", 21 more")
    assert "more" not in dict(OPERATOR.told(found[blockers.NAMED].reason).facts)["ahead"]
    refusal = admission.place(world.node.state, spec("c", "15Gi", "15Gi"))
    assert isinstance(refusal, Reason)
    for gpu in GPUS:
        assert len(refusal.data[gpu]["requests"]) == blockers.NAMED


def test_each_of_leaves_out_who_is_not_wanted_or_has_gone(world):
    first = world.submit(spec("a", "15Gi", "15Gi"))
    world.submit(spec("b", "15Gi", "15Gi"))
    ids = queue(world, 4)
    seen = wait_report.each_of(world.node.state, world.now, lambda one: one.spec.name != "queued1")
    assert next(seen).job == ids[0]
    world.end(first)  # the first gets in, and nobody else
    assert ids[0] in world.node.jobs
    assert [one.job for one in seen] == ids[2:]
    assert list(itertools.islice(wait_report.each_of(world.node.state, world.now, lambda _: False), 1)) == []
