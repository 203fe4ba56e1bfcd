"""GPUs that fall ill: who is told, what stops, what goes on, and how they come back."""

from __future__ import annotations

import pytest

from core.tale import spec, start, used
from gpushare.reasons import Code
from gpushared.core import health, health_issues, xid_catalog
from gpushared.core.events import CreditAsked, GpuExamined, JobSubmitted, MemorySampled
from gpushared.core.health_issues import Condition
from gpushared.core.instructions import Denied, Granted, SampleMemory
from gpushared.core.policy import MIB, Policy
from gpushared.core.visibility import OPERATOR
from property.world import Waiting, World, mib

GIB = 1024 * MIB


@pytest.fixture
def world() -> World:
    """One GPU of 16 GiB (15.5 GiB may be promised); a context costs 300 MiB."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    yield world
    world.node.validate()


@pytest.fixture
def two() -> World:
    world = World([16 * GIB] * 2, [mib(300)] * 2, Policy(overhead_guess=mib(300)))
    yield world
    world.node.validate()


def told(world: World, process: int) -> list[str]:
    job = world.programs[process].job
    return [one.kind for one in world.told if one.job == job]


def messages(world: World) -> list[str]:
    return [one.reason.message for one in world.told]


def xid(world: World, number: int, gpu: str = "GPU-0") -> None:
    world.xid(gpu, number)


# ---- what the numbers mean -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68])
def test_an_error_of_a_program_is_in_its_story_and_takes_nothing_away(world: World, number: int) -> None:
    a = start(world, "A", "4Gi", "8Gi")
    xid(world, number)
    assert world.node.gpus["GPU-0"].health.condition is Condition.OK
    assert told(world, a) == []
    last = world.node.story(world.programs[a].job)[-1]
    assert (last.event, last.facts["xid"]) == ("xid", number)
    assert f"Xid {number}, " in last.text
    start(world, "B", "4Gi", "8Gi")


def test_of_two_jobs_on_the_gpu_nobody_can_say_whose_error_it_was(world: World) -> None:
    stories = [world.programs[start(world, name, "4Gi", "8Gi")].job for name in ("A", "B")]
    xid(world, 31)
    assert all("xid" not in [one.event for one in world.node.story(job)] for job in stories)
    assert (
        world.node.records[-1].text == "Xid 31, GPU memory page fault, on GPU 0: an error of a program, not of the GPU"
    )


def test_a_flood_of_errors_does_not_drown_the_story(world: World) -> None:
    a = start(world, "A", "4Gi", "8Gi")
    for _ in range(1000):
        xid(world, 13)
    noted = [record for record in world.node.story(world.programs[a].job) if record.event == "xid"]
    assert [record.facts["count"] for record in noted] == [2**power for power in range(10)]
    assert world.node.gpus["GPU-0"].health.counts == {13: 1000}


@pytest.mark.parametrize(
    ("number", "condition"),
    [(48, 2), (62, 2), (63, 1), (64, 2), (74, 1), (79, 3), (92, 1), (94, 1), (95, 2), (119, 2), (120, 2), (140, 2)],
)
def test_what_hardware_errors_mean(world: World, number: int, condition: int) -> None:
    a = start(world, "A", "4Gi", "8Gi")
    xid(world, number)
    xid(world, number)
    assert world.node.gpus["GPU-0"].health.condition == condition
    assert told(world, a) == [f"gpu_{Condition(condition)}"], "once"
    assert f"Xid {number}, " in messages(world)[0]


def test_an_unknown_xid_is_shown_and_no_more(world: World) -> None:
    xid(world, 999)
    assert world.node.gpus["GPU-0"].health.condition is Condition.DEGRADED
    start(world, "A", "4Gi", "8Gi")


def test_the_table_is_of_one_piece() -> None:
    assert all(number == one.number and one.meaning and one.hint for number, one in xid_catalog.XIDS.items())
    assert [number for number, one in xid_catalog.XIDS.items() if one.condition is Condition.LOST] == [79]
    assert xid_catalog.of_xid(79).cause == health_issues.lost().cause, (
        "the Xid and what NVML says after it are one thing"
    )


# ---- sick ------------------------------------------------------------------------------------------


def test_on_a_sick_gpu_a_job_keeps_its_guarantee_and_borrows_nothing(world: World) -> None:
    a = start(world, "A", "4Gi", "12Gi")
    world.allocate(a, "GPU-0", 1 * GIB)
    xid(world, 95)
    world.allocate(a, "GPU-0", 2 * GIB)
    assert used(world, a) == 3 * GIB
    world.allocate(a, "GPU-0", 4 * GIB)
    (refused,) = world.refusals
    assert refused.reason.code is Code.GPU_UNHEALTHY
    assert refused.reason.message == (
        "cannot allocate 4.0 GiB: GPU 0 is sick: Xid 95, memory error, not contained; nothing is lent on it"
    )
    assert world.node.published("GPU-0")[a].grantable <= GIB


def test_claims_on_a_sick_gpu_are_met_from_borrowers_as_ever(world: World) -> None:
    a = start(world, "A", "1Gi", "15Gi")
    world.allocate(a, "GPU-0", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    xid(world, 48)
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(10.0)
    assert used(world, b) == 7 * GIB
    assert [one.job for one in world.killed]


def test_the_next_job_goes_to_the_other_gpu_and_one_for_both_is_refused(two: World) -> None:
    xid(two, 119)
    a = two.submit(spec("A", "4Gi", "8Gi"))
    assert list(two.node.jobs[a].bounds) == ["GPU-1"]
    two.submit(spec("wide", "4Gi", "8Gi", gpus=2), wait=60.0)
    assert not two.node.state.queue, "it would wait for a GPU that is not coming"
    (record,) = [one for one in two.node.records if one.event == "refused"]
    assert record.text == "asked for 2 GPUs, and 1 of these can be used"


def test_of_two_gpus_the_one_that_is_well_is_taken_first(two: World) -> None:
    two.befall("GPU-0", health_issues.uncorrected(2))
    first = two.submit(spec("first", "8Gi", "8Gi"))
    second = two.submit(spec("second", "6Gi", "6Gi"))
    third = two.submit(spec("third", "6Gi", "6Gi"))
    assert [list(two.node.jobs[job].bounds) for job in (first, second, third)] == [["GPU-1"], ["GPU-1"], ["GPU-0"]]


def test_a_queued_job_does_not_wait_for_a_sick_gpu(two: World) -> None:
    start(two, "A", "12Gi", "12Gi", devices=("GPU-0",))
    start_on_second = two.submit(spec("B", "12Gi", "12Gi", devices=("GPU-1",)))
    pinned = two.submit(spec("pinned", "12Gi", "12Gi", devices=("GPU-0",)), wait=600.0)
    free = two.submit(spec("free", "12Gi", "12Gi"), wait=600.0)
    assert set(two.node.state.queue) == {pinned, free}
    xid(two, 64)
    assert set(two.node.state.queue) == {free}
    two.end(start_on_second)
    assert list(two.node.jobs[free].bounds) == ["GPU-1"], "and it does not stand behind the one that is gone"


def test_a_job_that_opens_a_sick_gpu_by_itself_is_told_why_not(world: World) -> None:
    job = world.submit(spec("A", "4Gi", "8Gi", gpus=0))
    process = world.join(job)
    xid(world, 140)
    world.attach(process, "GPU-0")
    (refused,) = world.refusals
    assert refused.reason.message == "GPU 0 is sick: Xid 140, unrecovered ECC error; nothing new is admitted on it"


def test_a_guarantee_is_not_raised_on_a_sick_gpu(world: World) -> None:
    from gpushare.quantity import Quantity
    from gpushared.core.events import BudgetChanged

    a = start(world, "A", "4Gi", "8Gi")
    xid(world, 48)
    job = world.programs[a].job
    world.send(BudgetChanged(job, request=Quantity.parse("6Gi")))
    assert world.node.jobs[job].bounds["GPU-0"].request == 4 * GIB
    world.send(BudgetChanged(job, request=Quantity.parse("2Gi")))
    assert world.node.jobs[job].bounds["GPU-0"].request == 2 * GIB


# ---- lost ------------------------------------------------------------------------------------------


def test_a_claim_that_waits_for_a_lost_gpu_is_answered_at_once_and_counted(world: World) -> None:
    a = start(world, "A", "1Gi", "15Gi", grace=20.0)
    world.allocate(a, "GPU-0", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    assert world.waiting
    assert [one.job for one in world.terminated] == [world.programs[a].job]
    world.befall("GPU-0", health_issues.lost())
    assert not world.waiting
    assert world.node.counters.violations == {"gpu_lost": 1}
    assert world.refusals[-1].reason.message == "cannot allocate 6.9 GiB: GPU 0 is lost: it has fallen off the bus"
    world.wait(60.0)
    assert not world.killed, "nobody is stopped for memory of a GPU that is gone"
    assert told(world, a) == ["relieved", "gpu_lost"] or told(world, a) == ["gpu_lost", "relieved"]


def test_what_is_asked_of_a_lost_gpu_is_refused_at_once(world: World) -> None:
    a = start(world, "A", "4Gi", "8Gi")
    world.befall("GPU-0", health_issues.removed())
    world.allocate(a, "GPU-0", 1 * GIB)
    assert [one.reason.code for one in world.refusals] == [Code.GPU_UNHEALTHY]
    assert world.node.published("GPU-0")[a].grantable == 0
    world.send(CreditAsked(_ask(world, a), a, "GPU-0", GIB, driver_failed=True))
    assert len(world.refusals) == 2
    assert world.node.counters.violations == {"gpu_lost": 2}


def _ask(world: World, process: int) -> int:
    ask = world.next_id()
    world.waiting[ask] = Waiting(process, "GPU-0", GIB, world.now, attach=False)
    return ask


def test_the_message_says_what_happened_and_what_it_means(world: World) -> None:
    start(world, "A", "4Gi", "8Gi")
    xid(world, 79)
    assert OPERATOR.told(world.told[-1].reason).render() == (
        "GPU 0 is lost: Xid 79, it has fallen off the bus\n"
        "  GPU 0    software GPU, GPU-0\n"
        "  the job  what it had there is gone, and its calls fail; started again it gets another GPU, if there is one\n"
        "hint: restart the machine; if it happens again, have the GPU, its power and its slot looked at"
    )


def test_the_xid_and_the_loss_that_follows_are_one_piece_of_news(world: World) -> None:
    a = start(world, "A", "4Gi", "8Gi")
    xid(world, 79)
    world.befall("GPU-0", health_issues.lost())
    world.befall("GPU-0", health_issues.lost())
    assert told(world, a) == ["gpu_lost"]


def test_worse_is_news(world: World) -> None:
    a = start(world, "A", "4Gi", "8Gi")
    world.befall("GPU-0", health_issues.uncorrected(1))
    world.befall("GPU-0", health_issues.uncorrected(2), health_issues.rows_pending())
    world.befall("GPU-0", health_issues.uncorrected(2), health_issues.rows_failed())
    assert told(world, a) == ["gpu_degraded", "gpu_sick"]


def test_nothing_is_sampled_while_the_gpu_is_lost(world: World) -> None:
    a = start(world, "A", "4Gi", "8Gi")
    world.allocate(a, "GPU-0", GIB)
    world.befall("GPU-0", health_issues.lost())
    world.exit(a, lag=3600.0)
    world.wake = None
    world.wait(5.0)
    assert world.wake is None, "the core polls a GPU that cannot answer"


# ---- well again ------------------------------------------------------------------------------------


def test_a_gpu_that_comes_back_is_used_again(world: World) -> None:
    a = start(world, "A", "4Gi", "8Gi")
    xid(world, 79)
    xid(world, 48)
    world.befall("GPU-0", health_issues.lost())
    world.submit(spec("B", "4Gi", "8Gi"))
    assert len(world.node.jobs) == 1
    world.befall("GPU-0")
    assert world.node.gpus["GPU-0"].health.condition is Condition.OK, "the Xids from before the reset are over"
    assert told(world, a) == ["gpu_lost", "gpu_ok"]
    assert messages(world)[-1] == "GPU 0 is well again"
    start(world, "B", "4Gi", "8Gi")


def test_an_xid_stays_until_the_driver_says_that_the_gpu_has_recovered(world: World) -> None:
    xid(world, 119)
    world.now += 60.0
    world.send(GpuExamined("GPU-0", ()))
    assert world.node.gpus["GPU-0"].health.condition is Condition.SICK, "a driver that says nothing of recovery"
    world.send(GpuExamined("GPU-0", (), recovered=True))
    assert world.node.gpus["GPU-0"].health.condition is Condition.OK
    xid(world, 119)
    world.now += 1.0
    world.send(GpuExamined("GPU-0", (), recovered=True))
    assert world.node.gpus["GPU-0"].health.condition is Condition.SICK, "too soon for the driver to know"


# ---- capacity --------------------------------------------------------------------------------------


def test_a_gpu_that_shrinks_stops_nobody_and_grants_nothing_until_there_is_room(world: World) -> None:
    a = start(world, "A", "8Gi", "8Gi")
    b = start(world, "B", "7Gi", "15Gi")
    world.allocate(a, "GPU-0", 6 * GIB)
    world.allocate(b, "GPU-0", 6 * GIB)
    world.resize("GPU-0", 12 * GIB)
    gpu = world.node.gpus["GPU-0"]
    assert gpu.overpromised == gpu.requested - gpu.capacity > 0
    assert health.condition_of(gpu) is Condition.DEGRADED
    assert health.shortfall(gpu) == gpu.overpromised
    world.wait(2.0)
    assert gpu.excess > 0
    words = [world.programs[process].words["GPU-0"] for process in (a, b)]
    assert all(word.credit == word.used for word in words), "idle credit was taken back"
    world.allocate(a, "GPU-0", GIB)
    world.wait(31.0)
    assert world.node.counters.violations == {"capacity": 1}
    assert not world.terminated
    job = world.programs[b].job
    world.exit(b)
    world.end(job)
    world.wait(2.0)
    assert gpu.overpromised == gpu.excess == 0
    world.allocate(a, "GPU-0", GIB // 2)
    assert not world.waiting


def test_a_gpu_that_grows_lets_in_who_waits(world: World) -> None:
    start(world, "A", "12Gi", "12Gi")
    waiting = world.submit(spec("B", "8Gi", "8Gi"), wait=600.0)
    assert waiting in world.node.state.queue
    world.resize("GPU-0", 24 * GIB)
    assert waiting in world.node.jobs


def test_guarantees_that_cannot_all_be_kept_are_shown_and_noted_once(world: World) -> None:
    start(world, "A", "12Gi", "12Gi")
    world.occupy("GPU-0", 6 * GIB)
    world.wait(3.0)
    gpu = world.node.gpus["GPU-0"]
    (one,) = health.all_of(gpu)
    assert (one.cause, one.condition) == ("guarantees", Condition.DEGRADED)
    assert one.text == (
        "2.5 GiB short of its guarantees: 12.0 GiB requested, 15.5 GiB there less 6.0 GiB used outside gpushare"
    )
    world.occupy("GPU-0", 0)
    assert health.all_of(gpu) == ()
    noted = [record.text for record in world.node.records if record.event == "guarantees"]
    assert [text.partition(": ")[2][:7] for text in noted] == ["2.5 GiB", "all gua"]


def test_a_driver_that_does_not_attribute_memory_makes_a_gpu_degraded(world: World) -> None:
    a = start(world, "A", "4Gi", "8Gi")
    gpu = world.node.gpus["GPU-0"]
    world.send(MemorySampled("GPU-0", mib(300), None, {a: 0}))
    assert [one.cause for one in health.all_of(gpu)] == ["unattributed"]
    world.send(MemorySampled("GPU-0", None, None, {}))
    assert not gpu.health.attributed, "no answer at all says nothing new"
    world.send(world._sample("GPU-0"))
    assert health.all_of(gpu) == ()


def test_a_job_submitted_again_after_a_restart_keeps_its_place_on_a_sick_gpu(world: World) -> None:
    a = start(world, "A", "4Gi", "8Gi")
    world.befall("GPU-0", health_issues.rows_failed())
    world.restart()
    job = world.programs[a].job
    assert "GPU-0" in world.node.jobs[job].bounds
    world.issues["GPU-0"] = ()  # what is admitted again here is no new job
    world.send(JobSubmitted(job, world.jobs[job]))
    assert world.node.jobs[job].open


# ---- back again ------------------------------------------------------------------------------------


def asks_after_a_restart(world: World) -> int:
    """The GPU was lost, a process with 9 GiB of it died, and the daemon was started again: nobody told it of these."""
    a, b = start(world, "A", "8Gi", "15Gi"), start(world, "B", "7Gi", "15Gi")
    world.allocate(a, "GPU-0", 9 * GIB)
    world.befall("GPU-0", health_issues.lost())
    world.exit(a, lag=60.0)
    world.restart()
    return b


def test_a_gpu_that_is_back_grants_nothing_before_nvml_was_asked(world: World) -> None:
    b = asks_after_a_restart(world)
    world.befall("GPU-0")
    world.allocate(b, "GPU-0", 8 * GIB)
    assert used(world, b) < GIB, "the memory of the dead is still there"
    world.allocate(b, "GPU-0", 5 * GIB)
    assert used(world, b) >= 5 * GIB


def test_a_sample_that_was_begun_before_does_not_count(world: World) -> None:
    a = start(world, "A", "8Gi", "15Gi")
    world.befall("GPU-0", health_issues.lost())
    world.now += 1.0
    node, gpu = world.node, world.node.gpus["GPU-0"]
    out = node.handle(GpuExamined("GPU-0", ()), world.now)
    assert SampleMemory("GPU-0") in out
    ask = CreditAsked(900, a, "GPU-0", GIB)
    assert not [one for one in node.handle(ask, world.now) if isinstance(one, Granted | Denied)]
    late = MemorySampled("GPU-0", None, None, {}, begun=world.now - 0.5)
    out = node.handle(late, world.now)
    assert SampleMemory("GPU-0") in out and gpu.free == 0
    assert not [one for one in out if isinstance(one, Granted | Denied)]


def test_a_driver_that_does_not_answer_blocks_nobody(world: World) -> None:
    a = start(world, "A", "8Gi", "15Gi")
    world.befall("GPU-0", health_issues.lost())
    node = world.node
    node.handle(GpuExamined("GPU-0", ()), world.now)
    node.handle(CreditAsked(900, a, "GPU-0", GIB), world.now)
    out = node.handle(MemorySampled("GPU-0", None, None, {}), world.now)
    assert [one.ask for one in out if isinstance(one, Granted)] == [900]
