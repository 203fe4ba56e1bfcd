"""Credit that was granted within a request is its claimant's until it has taken it, or has had the time to."""

from __future__ import annotations

import pytest

from core.tale import siblings, spec, start, used
from gpushare.quantity import Quantity
from gpushare.reasons import Code
from gpushared.core.events import AskCancelled, BudgetChanged, CreditAsked, Unmet, UsedSeen
from gpushared.core.instructions import Granted, Revoke
from gpushared.core.policy import MIB, Policy
from property.world import Waiting, World

GIB = 1024 * MIB
GPU = "GPU-0"


@pytest.fixture
def world() -> World:
    """16 GiB, of which 15.5 can be given away; contexts cost nothing, credit comes without a chunk."""
    world = World([16 * GIB], [0], Policy(chunk=0, overhead_guess=0))
    world.note_limit = lambda limit: None  # type: ignore[method-assign]
    return world


def slow(world: World, name: str, request: str, limit: str, **more: object) -> int:
    process = start(world, name, request, limit, **more)
    world.programs[process].slow = True
    return process


def credit(world: World, process: int) -> int:
    return world.programs[process].words[GPU].credit


def borrower(world: World, size: int) -> int:
    """One that ignores SIGTERM; it has 2 s."""
    process = start(world, "train", "none", "14Gi", grace=2.0)
    world.allocate(process, GPU, size)
    return process


def test_a_claim_leaves_another_owner_what_it_was_just_granted(world: World) -> None:
    """The attack: owners whose claims took each other's credit in turn, while a borrower kept the rest."""
    train = borrower(world, 11 * GIB)
    a, b = slow(world, "a", "3Gi", "3Gi"), slow(world, "b", "3Gi", "3Gi")
    world.allocate(a, GPU, 3 * GIB)
    world.allocate(b, GPU, 3 * GIB)
    assert credit(world, a) == 3 * GIB and used(world, a) == 0, "granted, and not taken yet"
    assert [one.job for one in world.terminated] == [world.programs[train].job], "b's comes from who borrows"
    world.wait(5.0)
    assert used(world, a) == used(world, b) == 3 * GIB
    assert not world.repeated and not world.refusals


def test_what_was_taken_and_freed_again_is_idle(world: World) -> None:
    """Then nobody is stopped for it."""
    borrower(world, 11 * GIB)
    a, b = slow(world, "a", "3Gi", "3Gi"), slow(world, "b", "3Gi", "3Gi")
    world.allocate(a, GPU, 3 * GIB)
    world._take_up()
    world.free(a, GPU, 3 * GIB)
    world.allocate(b, GPU, 3 * GIB)
    world.wait(5.0)
    assert used(world, b) == 3 * GIB and not world.terminated


@pytest.mark.parametrize(("stopped_for", "kept"), [(0.5, True), (1.5, False)])
def test_a_program_that_is_stopped_keeps_it_for_a_second(world: World, stopped_for: float, kept: bool) -> None:
    borrower(world, 11 * GIB)
    a = slow(world, "a", "3Gi", "3Gi")
    b = start(world, "b", "3Gi", "3Gi")
    world.allocate(a, GPU, 3 * GIB)
    world.pause(a, True)
    world.wait(stopped_for)
    world.allocate(b, GPU, 3 * GIB)
    assert (credit(world, a) == 3 * GIB) is kept
    assert bool(world.terminated) is kept
    world.pause(a, False)
    world.wait(8.0)
    assert used(world, a) == used(world, b) == 3 * GIB, "and gets it back in the end"
    assert bool(world.repeated) is not kept


def test_a_claim_that_its_own_program_can_meet_now_waits_no_longer(world: World) -> None:
    """Another thread frees what the call needs, to the byte, and the GPU has nothing else to give."""
    borrower(world, 11 * GIB)
    owner = start(world, "owner", "8Gi", "8Gi")
    free = world.node.gpus[GPU].free
    world.allocate(owner, GPU, free)
    world.allocate(owner, GPU, GIB)
    assert used(world, owner) == free, "it waits for the borrower"
    world.free(owner, GPU, GIB)
    world.wait(0.5)
    assert used(world, owner) == free
    assert not world.waiting


def test_loans_do_not_take_each_others_credit_in_turn(world: World) -> None:
    a, b = slow(world, "a", "none", "max"), slow(world, "b", "none", "max")
    world.allocate(a, GPU, 9 * GIB)
    world.allocate(b, GPU, 9 * GIB)
    assert [one.reason.code for one in world.refusals] == [Code.NOT_FREE]
    world.wait(1.0)
    assert used(world, a) == 9 * GIB and not world.repeated


def test_a_claim_takes_a_loan_that_was_granted_and_not_taken(world: World) -> None:
    """Only what is within a request is held against a claim."""
    a, b = slow(world, "a", "none", "max"), start(world, "b", "8Gi", "8Gi")
    world.allocate(a, GPU, 12 * GIB)
    world.allocate(b, GPU, 8 * GIB)
    assert used(world, b) == 8 * GIB and not world.terminated
    world.wait(1.0)
    assert [one.reason.code for one in world.refusals] == [Code.NOT_FREE], "a asks again, and it is not free"


def test_of_a_grant_beyond_the_request_the_part_within_it_is_held(world: World) -> None:
    a, b = slow(world, "a", "3Gi", "max"), start(world, "b", "12Gi", "12Gi")
    world.allocate(a, GPU, 10 * GIB)
    world.allocate(b, GPU, 12 * GIB)
    assert used(world, b) == 12 * GIB
    assert 3 * GIB <= credit(world, a) < 4 * GIB


def test_processes_of_one_job_hold_together_no_more_than_its_request(world: World) -> None:
    job = world.submit(spec("many", "4Gi", "max"))
    workers = []
    for _ in range(4):
        process = world.join(job)
        world.attach(process, GPU)
        world.programs[process].slow = True
        workers.append(process)
    for process in workers:
        world.allocate(process, GPU, 3 * GIB)
    assert sum(credit(world, process) for process in workers) == 12 * GIB, "all of it fits"
    owner = start(world, "owner", "11Gi", "11Gi")
    world.allocate(owner, GPU, 11 * GIB)
    assert used(world, owner) == 11 * GIB and not world.terminated
    held = sum(credit(world, process) for process in workers)
    assert 4 * GIB <= held < 5 * GIB


def test_what_the_same_process_is_about_to_take_counts_once(world: World) -> None:
    """Two threads ask for 2.5 GiB each within a request of 6: the second's is a claim from the beginning."""
    train = borrower(world, 11 * GIB)
    owner = slow(world, "owner", "6Gi", "6Gi")
    size = 2560 * MIB
    world.allocate(owner, GPU, size)
    assert credit(world, owner) == size and used(world, owner) == 0
    ask = world.next_id()
    world.waiting[ask] = Waiting(owner, GPU, size, world.now, attach=False)
    world.send(CreditAsked(ask, owner, GPU, size, allocation=size))
    assert [one.job for one in world.terminated] == [world.programs[train].job]


def test_at_the_limit_what_is_about_to_be_taken_and_what_the_dead_held_are_waited_for_together(world: World) -> None:
    """Neither by itself would make room for the third process's call. Both together may."""
    job = world.submit(spec("three", "1Gi", "10Gi"))
    dead, slow_one, third = (world.join(job) for _ in range(3))
    for process in (dead, slow_one, third):
        world.attach(process, GPU)
    world.allocate(dead, GPU, 4 * GIB)
    world.wait(1.0)
    world.programs[slow_one].slow = True
    world.allocate(slow_one, GPU, 4 * GIB)
    world.exit(dead, lag=3.0)
    world.allocate(third, GPU, 9 * GIB)
    assert not world.refusals and len(world.waiting) == 1
    world.wait(0.5)
    assert used(world, slow_one) == 4 * GIB
    world.wait(5.0)
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT], "now it is known"


def test_several_processes_that_lend_nothing_keep_their_request_together(world: World) -> None:
    """Three have 1 GiB of idle credit each and a request of 2: others get 1 GiB of it, not 1 GiB of each."""
    job = world.submit(spec("keeper", "2Gi", "4Gi", lend=False))
    keepers = [world.join(job) for _ in range(3)]
    for process in keepers:
        world.attach(process, GPU)
        world.allocate(process, GPU, GIB)
        world.free(process, GPU, GIB)
    assert [credit(world, process) for process in keepers] == [GIB] * 3
    taker = start(world, "taker", "none", "max")
    free = world.node.gpus[GPU].free
    assert world.node.published(GPU)[taker].grantable == free + GIB, "its programs are told the same"
    world.allocate(taker, GPU, free + 3 * GIB)
    assert used(world, taker) == 0 and [one.reason.code for one in world.refusals] == [Code.NOT_FREE]
    world.allocate(taker, GPU, free + GIB)
    assert used(world, taker) == free + GIB
    assert sum(credit(world, process) for process in keepers) == 2 * GIB


def test_no_idle_credit_is_taken_for_a_loan_that_does_not_fit_all_the_same(world: World) -> None:
    """What is free is kept for an owner that lends nothing. Some idle credit of another job does not change that."""
    taker, bystander = start(world, "taker", "none", "max"), start(world, "bystander", "none", "max")
    world.allocate(taker, GPU, 9 * GIB)
    world.allocate(bystander, GPU, 3 * MIB)
    world.free(bystander, GPU, 3 * MIB)
    start(world, "keeper", "8Gi", "8Gi", lend=False)
    assert world.node.gpus[GPU].free < 8 * GIB
    world.allocate(taker, GPU, MIB)
    assert [one.reason.code for one in world.refusals] == [Code.NOT_FREE]
    assert credit(world, bystander) == 3 * MIB


def test_what_a_sibling_is_about_to_take_counts(world: World) -> None:
    """Two processes ask for 3 GiB each within a request of 4: the second's is a loan, and stops nobody."""
    borrower(world, 11 * GIB)
    first, second = siblings(world, "two", "4Gi", "8Gi")
    for process in (first, second):
        world.programs[process].slow = True
    world.allocate(first, GPU, 3 * GIB)
    world.allocate(second, GPU, 3 * GIB)
    assert not world.terminated and len(world.waiting) == 1, "it waits a moment: the first may take less"
    world.wait(0.1)
    assert used(world, first) == 3 * GIB and not world.terminated
    assert [one.reason.code for one in world.refusals] == [Code.NOT_FREE]


def test_no_ask_waits_longer_than_a_hold_for_its_siblings(world: World) -> None:
    """A sibling that is stopped between answer and call must not keep the job from its own request."""
    job = world.submit(spec("two", "4Gi", "4Gi"))
    first, second = world.join(job), world.join(job)
    for process in (first, second):
        world.attach(process, GPU)
        world.programs[process].slow = True
    world.allocate(first, GPU, 3 * GIB)
    world.pause(first, True)
    world.allocate(second, GPU, 3 * GIB)
    assert credit(world, first) == 3 * GIB
    world.wait(1.2)
    assert used(world, second) == 3 * GIB, "the job has room for one of them"
    world.pause(first, False)
    world.wait(0.1)
    assert [(one.process, one.reason.code) for one in world.refusals] == [(first, Code.OVER_LIMIT)]


def test_an_allocation_that_asks_again_keeps_its_place_and_its_deadline(world: World) -> None:
    borrower(world, 14 * GIB)
    a, b = start(world, "a", "3Gi", "3Gi"), start(world, "b", "3Gi", "3Gi")
    first = world.allocate(b, GPU, 2 * GIB)
    assert first in world.waiting
    world.wait(1.0)
    ask = world.next_id()
    world.waiting[ask] = type(world.waiting[first])(a, GPU, 2 * GIB, world.now - 1.5, attach=False)
    world.send(CreditAsked(ask, a, GPU, 2 * GIB, waited=1.5))
    mine, other = world.node.state.asks[ask], world.node.state.asks[first]
    assert mine.order < other.order, "it began to wait earlier"
    assert mine.deadline == pytest.approx(world.now - 1.5 + world.policy.claim_timeout)
    world.send(AskCancelled(ask))
    del world.waiting[ask]


def test_who_asks_is_seen_before_credit_is_taken(world: World) -> None:
    """A library that does not say that it is asking has nothing held, as before."""
    borrower(world, 11 * GIB)
    a, b = slow(world, "a", "3Gi", "3Gi"), start(world, "b", "3Gi", "3Gi")
    world.allocate(a, GPU, 3 * GIB)
    used_seen = world._used_seen
    world._used_seen = lambda gpu: UsedSeen(gpu, used_seen(gpu).used)  # type: ignore[method-assign]
    world._check_held = lambda one, gpu: None  # type: ignore[method-assign]
    world.allocate(b, GPU, 3 * GIB)
    assert credit(world, a) < 3 * GIB and used(world, b) == 3 * GIB and not world.terminated


def test_an_ask_of_the_driver_holds_nothing(world: World) -> None:
    a = start(world, "a", "3Gi", "3Gi")
    out = world.node.handle(CreditAsked(99, a, GPU, GIB, driver_failed=True), world.now)
    for _ in range(3):
        for one in out:
            answer = world._obey(one) if not isinstance(one, Granted | Revoke) else None
            if answer is not None:
                out = world.node.handle(answer, world.now)
                break
    assert not world.node.gpus[GPU].holds


def fill(world: World, process: int) -> None:
    """Take all that is free."""
    world.send(world._used_seen(GPU))
    world.allocate(process, GPU, world.node.published(GPU, [process])[process].grantable)


# ---- what a guess may not refuse --------------------------------------------------------------------


def test_a_guess_of_a_context_does_not_refuse_what_fits_the_request() -> None:
    """Held 2,544 + 112 MiB and a context of 300 within 3,072 MiB: the guess of 512 said no in the first second."""
    world = World([16 * GIB], [300 * MIB], Policy())
    other = start(world, "other", "none", "max")
    job = start(world, "job", "3Gi", "8Gi")
    world.allocate(job, GPU, 2544 * MIB)
    fill(world, other)
    world.allocate(job, GPU, 112 * MIB)
    assert not world.refusals, "what the context costs is not known yet"
    world.wait(3.0)
    assert used(world, job) == 2656 * MIB and not world.refusals


def test_nor_what_the_last_context_on_this_type_of_gpu_cost() -> None:
    world = World([16 * GIB], [900 * MIB], Policy())
    start(world, "heavy", "none", "2Gi")
    world.wait(3.0)
    assert world.node.state.overheads["software GPU"] == 900 * MIB
    world.cost[GPU] = 300 * MIB
    other, job = start(world, "other", "none", "max"), start(world, "job", "3Gi", "8Gi")
    world.allocate(job, GPU, 2 * GIB)
    fill(world, other)
    world.ever_tight = True
    world.allocate(job, GPU, 600 * MIB)
    assert not world.refusals
    world.wait(3.0)
    assert used(world, job) == 2 * GIB + 600 * MIB


def test_a_first_context_is_not_refused_for_its_guess() -> None:
    """300 MiB fit into a request of 400; a guess of 512 must not keep the owner out."""
    world = World([16 * GIB], [0], Policy())
    borrowing = start(world, "other", "none", "max", grace=0.5)
    world.wait(3.0)
    world.node.state.overheads.clear()
    fill(world, borrowing)
    world.cost[GPU] = 300 * MIB
    world.ever_tight = True
    owner = world.submit(spec("owner", "400Mi", "2Gi"))
    process = world.join(owner)
    world.attach(process, GPU)
    world.wait(5.0)
    assert not world.refusals and GPU in world.programs[process].contexts


def test_a_measured_context_refuses_at_once() -> None:
    """It waits for a measurement only where one is to come."""
    world = World([16 * GIB], [300 * MIB], Policy())
    other, job = start(world, "other", "none", "max"), start(world, "job", "1Gi", "8Gi")
    world.wait(3.0)
    fill(world, other)
    world.allocate(job, GPU, 900 * MIB)
    assert [one.reason.code for one in world.refusals] == [Code.NOT_FREE]


def test_calls_that_no_daemon_answered_are_counted(world: World) -> None:
    a = start(world, "a", "3Gi", "3Gi")
    world.send(Unmet(a, GPU, 2))
    assert world.node.counters.violations["no_daemon"] == 2
    world.send(Unmet(a + 100, GPU, 1))
    assert world.node.counters.violations["no_daemon"] == 2, "of a process that is gone nothing is known"
    (told,) = [one.text for one in world.node.story(world.programs[a].job) if one.event == "unmet"]
    assert told == "2 allocations on GPU 0 failed within the request: no daemon answered in time"


# ---- threads, processes and budgets that change meanwhile -------------------------------------------


def test_what_another_thread_frees_answers_the_ask(world: World) -> None:
    """Nobody has to give back what the process itself has idle by now."""
    process = start(world, "train", "none", "14Gi", grace=20.0)
    world.allocate(process, GPU, 13 * GIB + 512 * MIB)
    owner = start(world, "owner", "3Gi", "3Gi")
    world.allocate(owner, GPU, 2 * GIB)
    world.allocate(owner, GPU, GIB)
    assert len(world.waiting) == 1 and len(world.terminated) == 1
    world.free(owner, GPU, GIB)
    world.wait(0.05)
    assert not world.waiting and used(world, owner) == 2 * GIB
    assert [one.kind for one in world.told] == ["relieved"]


def test_credit_that_other_threads_have_used_is_asked_for_as_well(world: World) -> None:
    """Another thread took the idle credit after the ask was made: the answer covers the whole allocation."""
    owner = start(world, "owner", "8Gi", "8Gi")
    world.allocate(owner, GPU, 4 * GIB)
    world.free(owner, GPU, 4 * GIB)
    other = start(world, "train", "none", "14Gi", grace=1.0)
    fill(world, other)
    world.send(world._used_seen(GPU))
    word = world.programs[owner].words[GPU]
    idle = word.credit - word.used
    ask = world.next_id()
    world.waiting[ask] = Waiting(owner, GPU, 6 * GIB, world.now, attach=False)
    word.used += idle
    world.send(CreditAsked(ask, owner, GPU, 6 * GIB - idle, allocation=6 * GIB))
    world.wait(3.0)
    assert used(world, owner) == idle + 6 * GIB


def test_at_the_limit_a_sibling_that_was_killed_just_now_is_waited_for(world: World) -> None:
    """Its end is told a moment after the ask of the next process."""
    first, second = siblings(world, "two", "4Gi", "4Gi")
    world.allocate(first, GPU, 3 * GIB)
    world.die(first, lasting=8.0)
    world.allocate(second, GPU, 3 * GIB)
    world.wait(7.0)
    assert world.waiting and not world.refusals
    world.wait(2.0)
    assert used(world, second) == 3 * GIB and not world.refusals


def test_at_the_limit_a_sibling_that_lives_is_not_waited_for(world: World) -> None:
    first, second = siblings(world, "two", "4Gi", "4Gi")
    world.allocate(first, GPU, 3 * GIB)
    world.allocate(second, GPU, 3 * GIB)
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT]


def test_nor_one_that_could_not_make_up_for_what_is_missing(world: World) -> None:
    """What the dying process has is less than what the ask has too much."""
    first, second = siblings(world, "two", "none", "4Gi")
    world.allocate(first, GPU, GIB)
    world.die(first, lasting=8.0)
    world.allocate(second, GPU, 5 * GIB)
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT]


def test_above_the_request_a_sibling_that_is_in_its_exit_is_waited_for(world: World) -> None:
    """Then the ask is a claim, and a borrower gives back for it."""
    first, second = siblings(world, "two", "4Gi", "8Gi")
    world.allocate(first, GPU, 3 * GIB)
    world.allocate(second, GPU, GIB // 2)
    world.die(first, lasting=2.0)
    fill(world, start(world, "other", "none", "max", grace=1.0))
    world.allocate(second, GPU, 3 * GIB)
    assert world.waiting and not world.refusals
    world.wait(8.0)
    assert used(world, second) == 3 * GIB + GIB // 2 and not world.refusals


def test_a_sibling_that_does_not_end_is_not_waited_for_longer_than_a_claim_waits(world: World) -> None:
    first, second = siblings(world, "two", "4Gi", "4Gi")
    world.allocate(first, GPU, 3 * GIB)
    world.die(first, lasting=100.0)
    world.allocate(second, GPU, 3 * GIB)
    world.wait(world.policy.claim_timeout - 0.1)
    assert world.waiting and not world.refusals
    world.wait(0.2)
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT]


def test_alone_it_is_refused_at_once(world: World) -> None:
    process = start(world, "one", "4Gi", "4Gi")
    world.allocate(process, GPU, 3 * GIB)
    world.allocate(process, GPU, 3 * GIB)
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT]


def test_a_lowered_limit_takes_what_is_idle_by_then_at_once(world: World) -> None:
    process = start(world, "job", "none", "12Gi")
    world.allocate(process, GPU, 10 * GIB)
    world.free(process, GPU, 9 * GIB)
    world.send(BudgetChanged(world.programs[process].job, limit=Quantity.parse("4Gi")))
    assert credit(world, process) == 4 * GIB


def test_what_a_job_above_its_lowered_limit_frees_is_taken_soon(world: World) -> None:
    process = start(world, "job", "none", "12Gi")
    world.allocate(process, GPU, 10 * GIB)
    world.send(BudgetChanged(world.programs[process].job, limit=Quantity.parse("4Gi")))
    assert credit(world, process) == 10 * GIB
    world.wait(0.35)
    world.free(process, GPU, 9 * GIB)
    world.wait(0.15)
    assert credit(world, process) == 4 * GIB
    before = world.events
    world.wait(0.9)
    assert world.events - before < 12, "then nobody looks any more"


def test_nobody_is_stopped_for_a_loan_that_only_an_unmeasured_context_makes() -> None:
    """4 GiB of its own and a context charged 512 MiB, which costs 200 and fits."""
    world = World([16 * GIB], [200 * MIB], Policy(chunk=0))
    other = start(world, "borrower", "none", "max", grace=1.0)
    innocent = start(world, "innocent", "4Gi", "8Gi")
    owner = start(world, "owner", "2Gi", "2Gi")
    world.allocate(innocent, GPU, 4 * GIB - 300 * MIB)
    fill(world, other)
    world.ever_tight = True
    assert world.loan(world.programs[innocent].job, GPU) > 0
    world.allocate(owner, GPU, GIB)
    world.wait(4.0)
    stopped = {world.node.jobs[one.job].spec.name for one in world.terminated if one.job in world.node.jobs}
    assert "innocent" not in stopped and innocent in world.programs
    assert used(world, owner) == GIB


def test_calls_of_one_process_that_are_answered_together_both_have_their_room() -> None:
    """What the first is given beyond its need is not counted against the second: both are within the same limit."""
    world = World([16 * GIB], [0], Policy(overhead_guess=0))
    rest = world.node.gpus[GPU].capacity - 1 * GIB
    owner = start(world, "a", "1Gi", "1Gi")
    train, other = start(world, "t", "none", "max"), start(world, "o", "2Gi", "2Gi")
    world.programs[train].stubborn = True
    world.allocate(other, GPU, 1 * GIB)
    world.allocate(train, GPU, rest - 880 * MIB)
    world.allocate(owner, GPU, 880 * MIB)
    world.allocate(other, GPU, 1 * GIB)
    for size in (44 * MIB, 90 * MIB):
        world.allocate(owner, GPU, size)
    assert world.node.gpus[GPU].free == 0 and len(world.waiting) == 3
    world.free(train, GPU, 200 * MIB)
    world.wait(0.5)
    assert len(world.waiting) == 3, "the first of them needs more"
    world.free(other, GPU, 1 * GIB)
    world.wait(0.5)
    assert used(world, owner) == 1014 * MIB and not world.refusals


def test_of_what_a_call_was_granted_no_more_is_kept_than_is_left_of_it(world: World) -> None:
    """Another thread of its process has taken most of that credit: its next call is judged by what is there."""
    a = slow(world, "a", "5Gi", "5Gi")
    world.allocate(a, GPU, 3 * GIB)
    world.programs[a].slow = False
    world.programs[a].words[GPU].used = 2 * GIB
    start(world, "train", "none", "max")
    world.node.gpus[GPU].unmanaged = world.node.gpus[GPU].free  # nothing is free, so the words are read
    world.allocate(a, GPU, 2 * GIB)
    [waiting] = world.node.state.asks.values()
    assert waiting.size == 1 * GIB, "all that is left of the credit is its own by now"


def test_what_was_given_back_in_this_turn_is_not_taken_once_more() -> None:
    """Over its limit, it closes its context. What is left is below the limit, and it lends nothing."""
    world = World([16 * GIB], [300 * MIB], Policy(overhead_guess=300 * MIB))
    process = start(world, "A", "2Gi", "6Gi", lend=False)
    world.allocate(process, GPU, 3 * GIB)
    job = world.node.jobs[world.programs[process].job]
    world.send(BudgetChanged(job.id, limit=Quantity.parse(f"{3 * GIB + 200 * MIB}")))
    assert job.excess == {GPU: 100 * MIB}
    world.free(process, GPU, 1 * GIB)
    world.detach(process, GPU)
    assert credit(world, process) == 3 * GIB and not job.excess


def test_a_context_that_was_never_asked_for_is_no_longer_charged_when_it_is_closed() -> None:
    """It was opened while no daemon was there. NVML has shown it."""
    world = World([16 * GIB], [300 * MIB], Policy(overhead_guess=300 * MIB))
    process = start(world, "A", "2Gi", "2Gi")
    world.allocate(process, GPU, 64 * MIB)
    world.free(process, GPU, 64 * MIB)
    world.detach(process, GPU)
    world.wait(5.0)
    world.programs[process].contexts[GPU] = 300 * MIB
    world.wait(5.0)
    share = world.node.processes[process].shares[GPU]
    assert not share.attached and share.overhead == 300 * MIB
    world.detach(process, GPU)
    assert share.overhead == 0


def test_a_context_that_its_process_has_closed_without_a_word_refuses_nothing() -> None:
    """Its connection was lost with the daemon before, and it has not needed this one yet."""
    world = World([16 * GIB], [300 * MIB], Policy(overhead_guess=300 * MIB))
    first, second = siblings(world, "job", "4Gi", "4Gi")
    world.wait(5.0)
    shares = world.node.gpus[GPU].shares
    assert all(share.measured and share.overhead == 300 * MIB for share in shares.values())
    del world.programs[second].contexts[GPU]
    world.allocate(first, GPU, 4 * GIB - 350 * MIB)
    assert not world.refusals and used(world, first) == 4 * GIB - 350 * MIB
    world.allocate(first, GPU, 100 * MIB)
    assert [one.reason.code for one in world.refusals] == [Code.OVER_LIMIT]
