"""When things happen, and in which order: how long trims may take, how often NVML is asked, whose idle credit goes."""

from __future__ import annotations

import pytest

from core.tale import spec, start, used
from gpushare.quantity import Quantity
from gpushare.reasons import Code
from gpushared.core.events import (
    AskCancelled,
    AttachAsked,
    BudgetChanged,
    Checkpointed,
    CreditAsked,
    Detached,
    GpuExamined,
    JobEnded,
    JobWithdrawn,
    ProcessGone,
    ProcessJoined,
    ProcessRestored,
    ReservationEnded,
    Revoked,
    ShareSeen,
    XidSeen,
)
from gpushared.core.instructions import Denied, Instruction
from gpushared.core.policy import MIB, Policy
from property.world import Waiting, World, mib

GIB = 1024 * MIB


@pytest.fixture
def world() -> World:
    """One GPU of 16 GiB; a context costs 300 MiB. The state is checked again when the test is over."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    yield world
    world.node.validate()


def heard(world: World, kind: type[Instruction]) -> list[Instruction]:
    """All instructions of this kind that the core gives from now on."""
    found: list[Instruction] = []
    obey = world._obey

    def listen(instruction: Instruction):
        if isinstance(instruction, kind):
            found.append(instruction)
        return obey(instruction)

    world._obey = listen
    return found


def test_new_borrowers_do_not_make_a_claim_wait_longer_for_trims(world: World) -> None:
    """Each job that becomes a borrower could be asked for its caches, and none of them answers."""
    borrowers = []
    for name in ("A", "B", "C", "D"):
        process = start(world, name, "2Gi", "6Gi")
        world.programs[process].listens, world.programs[process].dawdle = True, 1000.0
        world.allocate(process, "GPU-0", mib(1600))
        borrowers.append(process)
    owner = start(world, "owner", "5Gi", "5Gi")
    world.allocate(borrowers[0], "GPU-0", 3 * GIB)
    world.occupy("GPU-0", mib(3000))
    world.allocate(owner, "GPU-0", mib(4700))
    assert world.trim_count == 1
    for process in borrowers[1:]:
        world.wait(0.8)
        world.send(BudgetChanged(world.programs[process].job, request=Quantity.parse("1Gi")))
    world.wait(0.8)
    assert world.trim_count == 3, "the last one comes when the time is over"
    assert world.terminated, "after 3.2 s, with 2 s for trims"


def test_memory_that_comes_back_in_two_parts_is_counted_in_both(world: World) -> None:
    """A program closes its context, opens another, and exits, faster than the driver returns anything."""
    a = start(world, "A", "8Gi", "8Gi")
    b = start(world, "B", "1Gi", "15Gi")
    world.allocate(a, "GPU-0", 1 * GIB)
    gpu = world.node.gpus["GPU-0"]
    pid = world.programs[a].pid
    first = world.usage(world.programs[a].job, "GPU-0")
    world.teardown.append((world.now + 3.0, pid, "GPU-0", first))
    world.detach(a, "GPU-0")
    before = gpu.returning_total
    assert before > 0
    world.attach(a, "GPU-0")
    world.allocate(a, "GPU-0", 1 * GIB)
    world.exit(a, lag=3.0)
    assert gpu.returning_total == before + 1 * GIB + mib(300)
    world.allocate(b, "GPU-0", gpu.free + mib(200))
    assert [one.reason.code for one in world.refusals] == [Code.NOT_FREE], "not before the driver has returned it"
    world.wait(3.1)
    assert gpu.returning_total == 0, "NVML is asked again and again, so it is known at once"


def test_two_processes_of_a_job_get_what_its_limit_holds_when_both_wait(world: World) -> None:
    """The chunk that the first one gets beyond its need is taken back for the second, which is not refused."""
    borrower = start(world, "borrower", "1Gi", "15Gi")
    job = world.submit(spec("pair", "3620Mi", "3620Mi"))
    first, second = world.join(job), world.join(job)
    for process in (first, second):
        world.attach(process, "GPU-0")
    world.wait(5.0)
    world.allocate(borrower, "GPU-0", 14 * GIB)
    for process in (first, second):
        world.allocate(process, "GPU-0", mib(1500))
    assert len(world.waiting) == 2
    world.free(borrower, "GPU-0", 14 * GIB)
    world.wait(1.0)
    assert not world.refusals
    assert (used(world, first), used(world, second)) == (mib(1500), mib(1500))


def test_what_a_context_grows_by_later_is_not_expected_of_the_next_one(world: World) -> None:
    """A program that loads modules for an hour costs more than a context does."""
    world.node.state.overheads.clear()
    a = start(world, "A", "4Gi", "14Gi")
    world.wait(10.0)
    world.programs[a].contexts["GPU-0"] = mib(700)
    world.wait(10.0)
    gpu = world.node.gpus["GPU-0"]
    assert gpu.shares[a].overhead == mib(700), "it is charged to the program itself"
    b = start(world, "B", "4Gi", "14Gi")
    assert gpu.shares[b].overhead == mib(300)


def test_the_largest_idle_credit_goes_first(world: World) -> None:
    """So that few programs have to come back and ask."""
    small, large = start(world, "small", "1Gi", "7Gi"), start(world, "large", "1Gi", "7Gi")
    for process, idle in ((small, 1 * GIB), (large, 4 * GIB)):
        world.allocate(process, "GPU-0", 6 * GIB)
        world.free(process, "GPU-0", idle)
    before = world.programs[small].words["GPU-0"].credit
    owner = start(world, "owner", "5Gi", "5Gi")
    world.allocate(owner, "GPU-0", 4 * GIB)
    assert used(world, owner) == 4 * GIB
    assert world.programs[small].words["GPU-0"].credit == before


def test_idle_credit_within_the_request_of_a_job_that_lends_nothing_stays(world: World) -> None:
    """It has the most idle credit, and only what is above its request is taken; the rest comes from the other."""
    keeper = start(world, "keeper", "6Gi", "12Gi", lend=False)
    other = start(world, "other", "1Gi", "6Gi")
    for process, amount in ((keeper, 9 * GIB), (other, 4 * GIB)):
        world.allocate(process, "GPU-0", amount)
        world.free(process, "GPU-0", amount)
    owner = start(world, "owner", "8Gi", "8Gi")
    world.allocate(owner, "GPU-0", 6 * GIB)
    assert used(world, owner) == 6 * GIB
    assert world.programs[keeper].words["GPU-0"].credit + mib(300) >= 6 * GIB


def test_nvml_is_asked_ever_less_often_for_memory_that_does_not_come_back(world: World) -> None:
    """While somebody waits: after a quarter of the time that the oldest has taken so far, whoever dies meanwhile."""
    old, new = start(world, "old", "6Gi", "6Gi"), start(world, "new", "1Gi", "1Gi")
    world.allocate(old, "GPU-0", 5 * GIB)
    world.wait(3.0)
    world.end(world.programs[old].job)
    world.exit(old, lag=20.0)
    a = start(world, "A", "12Gi", "12Gi")
    world.allocate(a, "GPU-0", 11 * GIB)
    assert world.waiting
    world.wait(0.5)
    world.exit(new, lag=20.0)
    samples = []
    sample = world._sample
    world._sample = lambda gpu: (samples.append(world.now), sample(gpu))[1]
    world.wait(0.065)
    assert 2 <= len(samples) <= 5, "a poll takes 20 ms"


def test_what_the_driver_could_not_allocate_is_no_broken_guarantee_above_the_request(world: World) -> None:
    a = start(world, "A", "2Gi", "14Gi")
    denied = heard(world, Denied)
    for held, words, violations in ((1 * GIB, "within it: its guarantee is not kept", 1), (4 * GIB, "above it", 1)):
        world.allocate(a, "GPU-0", held)
        world.wait(1.0)
        ask = world.next_id()
        world.waiting[ask] = Waiting(a, "GPU-0", 0, world.now, attach=False)
        world._check_denial = lambda answer, asked: None
        world.send(CreditAsked(ask, a, "GPU-0", 0, driver_failed=True, again=True, allocation=mib(10)))
        reason = denied[-1].reason
        assert reason.code is Code.DRIVER_FAILED
        assert dict(reason.facts)["request"] == words
        assert world.node.counters.violations["driver"] == violations


STALE = [
    JobEnded("0" * 16),
    JobWithdrawn("0" * 16),
    ProcessJoined(99, "0" * 16, 99, "x"),
    ProcessRestored(99, "0" * 16, 99, (ShareSeen("GPU-0", 0, 0, 0),), "x"),
    ProcessGone(99, {}),
    AttachAsked(7, 99, "GPU-0"),
    AttachAsked(7, 2, "GPU-9"),
    CreditAsked(7, 99, "GPU-0", 512),
    CreditAsked(7, 2, "GPU-9", 512),
    AskCancelled(7),
    Detached(99, "GPU-0", 0),
    Detached(2, "GPU-9", 0),
    Revoked(99, "GPU-0", 0, 0),
    BudgetChanged("0" * 16, request=Quantity.parse("1Gi")),
    Checkpointed("0" * 16),
    ReservationEnded("0" * 16),
    GpuExamined("GPU-9", ()),
    XidSeen("GPU-9", 79),
]


@pytest.mark.parametrize("event", STALE, ids=lambda event: type(event).__name__)
def test_events_about_what_is_gone_are_answered_or_change_nothing(world: World, event) -> None:
    """A process may send its last words while its end is on the way; messages cross."""
    a = start(world, "A", "2Gi", "14Gi")
    world.allocate(a, "GPU-0", 1 * GIB)
    usage = world.usage(world.programs[a].job, "GPU-0")
    said = world.node.handle(event, world.now)
    world.node.validate()
    if isinstance(event, AttachAsked | CreditAsked):
        assert [one.reason.code for one in said if isinstance(one, Denied)] == [Code.NO_SUCH_GPU]
    assert [*world.node.jobs] == [world.programs[a].job]
    assert world.usage(world.programs[a].job, "GPU-0") == usage


def test_a_process_that_says_hello_twice_is_one(world: World) -> None:
    a = start(world, "A", "2Gi", "14Gi")
    world.allocate(a, "GPU-0", 1 * GIB)
    job = world.programs[a].job
    world.wait(1.0)
    world.send(ProcessJoined(a, job, world.programs[a].pid, "python"))
    assert world.node.gpus["GPU-0"].shares[a] is world.node.processes[a].shares["GPU-0"]
    assert world.node.state.usage(world.node.jobs[job], "GPU-0") == 1 * GIB + mib(300)


def test_a_job_that_leaves_the_queue_is_struck_out_of_the_notes(world: World) -> None:
    """Else a later daemon would keep a place for it."""
    start(world, "A", "12Gi", "12Gi")
    job = world.submit(spec("B", "8Gi", "8Gi"), wait=60.0)
    assert job in world.node.state.queue
    world.send(JobWithdrawn(job))
    assert job not in world.node.state.queue
