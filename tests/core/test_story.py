"""The lending story, told to the core alone: who gets what, who must give back, and what each is told."""

from __future__ import annotations

import pytest

from core.tale import spec, start, used
from gpushare.quantity import Quantity
from gpushare.reasons import Code
from gpushared.core.events import BudgetChanged, MemorySampled
from gpushared.core.instructions import JobRefused, Terminate
from gpushared.core.policy import MIB, Policy
from gpushared.core.visibility import OPERATOR
from property.world import World, mib

GIB = 1024 * MIB


@pytest.fixture
def world() -> World:
    """One GPU of 16 GiB; a context costs 300 MiB. The state is checked again when the test is over."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    yield world
    world.node.validate()


def test_a_borrower_gives_back_and_lives_on(world: World) -> None:
    a = start(world, "A", "4Gi", "14Gi")
    world.allocate(a, "GPU-0", 12 * GIB)
    assert used(world, a) == 12 * GIB
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 2 * GIB)
    assert used(world, b) == 2 * GIB
    assert not world.terminated
    world.allocate(b, "GPU-0", 5 * GIB)
    assert world.waiting, "B's call waits"
    assert [one.job for one in world.terminated] == [world.programs[a].job]
    world.wait(2.0)
    world.free(a, "GPU-0", 6 * GIB)
    world.wait(0.1)
    assert used(world, b) == 7 * GIB
    world.wait(30.0)
    assert not world.killed
    assert not world.refusals
    assert world.node.counters.relieved == 1


def test_a_borrower_that_does_nothing_is_killed_and_the_owner_never_sees_out_of_memory(world: World) -> None:
    a = start(world, "A", "4Gi", "14Gi")
    world.allocate(a, "GPU-0", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(4.9)
    assert not world.killed, "its grace is 5 s"
    world.wait(1.0)
    assert len(world.killed) == 1
    assert used(world, b) == 7 * GIB
    assert not world.refusals
    data = OPERATOR.facts(world.killed[0].reason.data)
    assert (data["owner_name"], data["asked"]) == ("B", 7 * GIB - (data["asked"] != 7 * GIB) * 64 * MIB)


def test_admission_names_the_numbers_and_the_holders(world: World) -> None:
    start(world, "A", "4Gi", "14Gi")
    start(world, "B", "8Gi", "8Gi")
    refused = []
    obey = world._obey
    world._obey = lambda instruction: (
        refused.append(instruction) if isinstance(instruction, JobRefused) else None,
        obey(instruction),
    )[1]
    world.submit(spec("C", "6Gi", "6Gi"))
    reason = refused[0].reason
    assert reason.code is Code.NOT_ADMITTED
    text = OPERATOR.told(reason).render()
    assert "no room for a request of 6.0 GiB" in text
    assert "B (alice) 8.0 GiB" in text
    assert "A (alice) 4.0 GiB" in text
    assert "3.5 GiB of 15.5 GiB" in text
    assert "--wait" in text


def test_a_loan_never_evicts_anyone(world: World) -> None:
    a = start(world, "A", "1Gi", "14Gi")
    world.allocate(a, "GPU-0", 10 * GIB)
    b = start(world, "B", "1Gi", "14Gi")
    world.allocate(b, "GPU-0", 8 * GIB)
    assert [one.reason.code for one in world.refusals] == [Code.NOT_FREE]
    assert not world.terminated
    assert "A (alice)" in OPERATOR.told(world.refusals[0].reason).render()


def test_of_two_borrowers_the_one_that_suffices_goes(world: World) -> None:
    small, large = start(world, "small", "1Gi", "15Gi"), start(world, "large", "1Gi", "15Gi")
    world.allocate(small, "GPU-0", 3 * GIB)
    world.allocate(large, "GPU-0", 9 * GIB)
    owner = start(world, "owner", "8Gi", "8Gi")
    world.allocate(owner, "GPU-0", 7 * GIB)
    assert [one.job for one in world.terminated] == [world.programs[large].job]


def test_nobody_is_killed_when_killing_cannot_help(world: World) -> None:
    a = start(world, "A", "4Gi", "6Gi")
    world.allocate(a, "GPU-0", 5 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.occupy("GPU-0", 9 * GIB)
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(31.0)
    assert not world.terminated
    assert [one.reason.code for one in world.refusals] == [Code.CLAIM_TIMED_OUT]
    assert world.node.counters.violations == {"unmanaged": 1}
    assert "used outside gpushare" in OPERATOR.told(world.refusals[0].reason).render()


def test_over_the_limit(world: World) -> None:
    a = start(world, "A", "4Gi", "14Gi")
    world.allocate(a, "GPU-0", 15 * GIB)
    reason = world.refusals[0].reason
    assert reason.code is Code.OVER_LIMIT
    assert "over this job's limit" in reason.message


def test_the_limit_holds_over_several_processes_of_a_job(world: World) -> None:
    job = world.submit(spec("A", "4Gi", "4Gi"))
    first, second = world.join(job), world.join(job)
    for process in (first, second):
        world.attach(process, "GPU-0")
        world.allocate(process, "GPU-0", mib(1600))
    world.wait(1.0)
    world.allocate(second, "GPU-0", mib(600))
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT]
    world.free(first, "GPU-0", mib(1600))
    world.programs[second].words["GPU-0"].used = mib(1600)
    world.allocate(second, "GPU-0", mib(600))
    assert used(world, second) == mib(2200), "what the first gave back is the second's, without its help"


def test_memory_of_the_dead_is_not_granted_before_the_driver_returns_it(world: World) -> None:
    a = start(world, "A", "8Gi", "8Gi")
    world.allocate(a, "GPU-0", 7 * GIB)
    b = start(world, "B", "7Gi", "15Gi")
    world.exit(a, lag=2.0)
    world.allocate(b, "GPU-0", 12 * GIB)
    assert [one.reason.code for one in world.refusals] == [Code.NOT_FREE], "a loan does not wait"
    assert "on its way back" in OPERATOR.told(world.refusals[0].reason).render()
    world.wait(2.5)
    world.programs[b].words["GPU-0"].used = 0
    world.allocate(b, "GPU-0", 12 * GIB)
    assert used(world, b) == 12 * GIB


def test_no_lend_keeps_an_owners_headroom_out_of_the_loans(world: World) -> None:
    start(world, "static", "8Gi", "8Gi", lend=False)
    a = start(world, "A", "1Gi", "15Gi")
    world.allocate(a, "GPU-0", 8 * GIB)
    assert [one.reason.code for one in world.refusals] == [Code.NOT_FREE]
    world.programs[a].words["GPU-0"].used = 0
    world.allocate(a, "GPU-0", 6 * GIB)
    assert used(world, a) == 6 * GIB


def test_a_request_is_changed_by_a_new_admission(world: World) -> None:
    a = start(world, "A", "4Gi", "14Gi")
    start(world, "B", "8Gi", "8Gi")
    job = world.programs[a].job
    world.send(BudgetChanged(job, request=Quantity.parse("8Gi")))
    assert world.node.jobs[job].bounds["GPU-0"].request == 4 * GIB, "refused: the old one stays"
    world.send(BudgetChanged(job, request=Quantity.parse("7Gi")))
    assert world.node.jobs[job].bounds["GPU-0"].request == 7 * GIB


def test_a_lower_limit_takes_nothing_away_but_stops_growth(world: World) -> None:
    a = start(world, "A", "1Gi", "14Gi")
    world.allocate(a, "GPU-0", 10 * GIB)
    world.send(BudgetChanged(world.programs[a].job, limit=Quantity.parse("5Gi")))
    assert used(world, a) == 10 * GIB
    world.free(a, "GPU-0", 3 * GIB)
    world.wait(2.0)
    world.allocate(a, "GPU-0", 1 * GIB)
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT]


def test_overhead_is_learned_and_charged(world: World) -> None:
    world.node.state.overheads.clear()
    a = start(world, "A", "4Gi", "14Gi")
    world.cost["GPU-0"] = mib(420)
    world.programs[a].contexts["GPU-0"] = mib(420)
    world.wait(4.0)
    assert world.node.gpus["GPU-0"].shares[a].overhead == mib(420)
    b = start(world, "B", "4Gi", "14Gi")
    assert world.node.gpus["GPU-0"].shares[b].overhead == mib(420), "the next one is charged what the first cost"


def test_without_attribution_device_totals_serve(world: World) -> None:
    a = start(world, "A", "8Gi", "8Gi")
    world.allocate(a, "GPU-0", 7 * GIB)
    world.exit(a)
    gpu = world.node.gpus["GPU-0"]
    assert gpu.returning_total > 7 * GIB
    world.send(MemorySampled("GPU-0", 7 * GIB, None, {}))
    assert gpu.returning_total > 7 * GIB, "the device still shows it"
    world.send(MemorySampled("GPU-0", 0, None, {}))
    assert gpu.returning_total == 0


@pytest.mark.parametrize("total", [None, 9 * GIB], ids=["no answer", "a total, while others allocate without a pause"])
def test_memory_of_the_dead_counts_as_returned_in_time(world: World, total: int | None) -> None:
    a = start(world, "A", "8Gi", "8Gi")
    b = start(world, "B", "4Gi", "4Gi")
    world.allocate(a, "GPU-0", 7 * GIB)
    world.exit(a)
    gpu = world.node.gpus["GPU-0"]
    died = world.now
    patience = world.node.state.policy.unattributed_after
    for silence in (0.0, patience - 0.1):
        world.now = died + silence
        world.send(MemorySampled("GPU-0", total, None, {}))
        assert gpu.returning_total > 7 * GIB
    world.now = died + patience + 0.1
    world.send(MemorySampled("GPU-0", total, None, {}))
    assert gpu.returning_total == 0
    assert gpu.unmanaged == 0, "such a sample says nothing of that"
    assert b in gpu.shares


def test_without_an_answer_an_empty_gpu_keeps_what_is_known_of_it(world: World) -> None:
    gpu = world.node.gpus["GPU-0"]
    world.send(MemorySampled("GPU-0", 5 * GIB, {1: 5 * GIB}, {}))
    world.send(MemorySampled("GPU-0", None, None, {}))
    assert gpu.unmanaged == 5 * GIB
    assert gpu.health.attributed


def test_equal_pairs_on_two_gpus() -> None:
    world = World([16 * GIB, 16 * GIB], [mib(300)] * 2)
    job = world.submit(spec("wide", "6Gi", "8Gi", gpus=2))
    assert {gpu: bounds.request for gpu, bounds in world.node.jobs[job].bounds.items()} == {
        "GPU-0": 6 * GIB,
        "GPU-1": 6 * GIB,
    }


def test_best_fit_leaves_whole_gpus_for_large_requests() -> None:
    world = World([16 * GIB, 16 * GIB], [mib(300)] * 2)
    first = world.submit(spec("one", "4Gi", "4Gi"))
    second = world.submit(spec("two", "4Gi", "4Gi"))
    large = world.submit(spec("large", "15Gi", "15Gi"))
    assert set(world.node.jobs[first].bounds) == set(world.node.jobs[second].bounds) == {"GPU-0"}
    assert set(world.node.jobs[large].bounds) == {"GPU-1"}


def test_the_queue_is_first_come_first_served_within_a_priority() -> None:
    world = World([16 * GIB], [mib(300)])
    holder = world.submit(spec("holder", "12Gi", "12Gi"))
    large = world.submit(spec("large", "10Gi", "10Gi"), wait=60.0)
    small = world.submit(spec("small", "2Gi", "2Gi"), wait=60.0)
    assert small not in world.node.jobs, "it would starve the large one"
    world.end(holder)
    assert {large, small} <= set(world.node.jobs)


def test_a_queued_job_is_refused_when_its_time_is_over_and_not_at_the_next_sample() -> None:
    world = World([16 * GIB], [mib(300)])
    world.submit(spec("holder", "12Gi", "12Gi"))
    late = world.submit(spec("late", "10Gi", "10Gi"), wait=0.5)
    assert late in world.node.state.queue
    world.wait(0.6)  # the next sample is 0.4 s away
    assert late not in world.node.state.queue
    assert late not in world.jobs, "it was told so"


def test_a_stop_on_the_way_out_is_part_of_the_story(world: World) -> None:
    a = start(world, "A", "4Gi", "14Gi")
    world.allocate(a, "GPU-0", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    events = [record.event for record in world.node.story(world.programs[a].job)]
    assert events[:3] == ["admitted", "joined", "attached"]
    assert "term" in events
    world.wait(6.0)
    assert "claim_met" in [record.event for record in world.node.story(world.programs[b].job)]
    assert isinstance(world.terminated[0], Terminate)


def test_a_first_context_is_not_held_against_its_job_for_long() -> None:
    """A limit of 1 GiB holds a context of 300 MiB and 600 MiB of data, although the guess was 512 MiB."""
    world = World([16 * GIB], [mib(300)])
    a = start(world, "A", "1Gi", "1Gi")
    world.allocate(a, "GPU-0", mib(600))
    assert world.waiting, "not refused for a guess"
    world.wait(0.6)
    assert used(world, a) == mib(600)
    world.allocate(a, "GPU-0", mib(200))
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT]


def test_small_gpus_are_charged_smaller_guesses() -> None:
    world = World([4 * GIB], [mib(100)])
    a = start(world, "A", "1Gi", "1Gi")
    assert world.node.gpus["GPU-0"].shares[a].overhead == 128 * MIB
