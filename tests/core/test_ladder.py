"""The ladder of a reclaim, step by step: who is asked next while others are still about to give back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from core.tale import spec, start, used
from gpushare.quantity import Quantity
from gpushared.core.events import BudgetChanged, TrimSeen
from gpushared.core.policy import MIB, Policy
from property.world import World, mib

GIB = 1024 * MIB
NO_TRIM = ("term", "kill")


@pytest.fixture
def world() -> Iterator[World]:
    """One GPU of 16 GiB; a context costs 300 MiB."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    yield world
    world.node.validate()


def borrow(world: World, name: str, size: int, **more: object) -> int:
    """A job that has borrowed all that it uses; it listens if it may be asked to trim."""
    process = start(world, name, "none", "max", **more)
    world.allocate(process, "GPU-0", size)
    assert used(world, process) == size
    one = world.programs[process]
    one.listens, one.dawdle = "on_reclaim" not in more, 60.0
    return process


def job(world: World, process: int) -> str:
    return world.programs[process].job


def told(world: World, process: int) -> list[str]:
    return [record.event for record in world.node.story(job(world, process)) if record.event != "started"]


def fresh(world: World) -> None:
    world.send(world._sample("GPU-0"))


def test_caches_that_cannot_cover_it_are_asked_for_all_the_same(world: World) -> None:
    """Nobody knows before how much of a loan is cache."""
    mute = borrow(world, "mute", 6 * GIB, on_reclaim=NO_TRIM)
    cache = borrow(world, "cache", 5 * GIB)
    owner = start(world, "owner", "13Gi", "13Gi")
    fresh(world)
    world.allocate(owner, "GPU-0", 12 * GIB)
    assert told(world, cache)[-1] == "trim"
    assert not world.terminated, "not before the caches have been given"
    world.wait(1.5)
    assert {one.job for one in world.terminated} == {job(world, mute), job(world, cache)}


def test_nobody_is_stopped_in_the_moment_in_which_a_cache_is_asked_for(world: World) -> None:
    """Not even where a sample has just been taken, so that nothing has to be waited for."""
    cache = borrow(world, "cache", 7 * GIB)
    borrow(world, "mute", 5 * GIB, on_reclaim=NO_TRIM)
    owner = start(world, "owner", "8Gi", "8Gi")
    fresh(world)
    world.allocate(owner, "GPU-0", 7 * GIB)
    assert told(world, cache)[-1] == "trim"
    assert not world.terminated


def test_no_more_caches_are_asked_for_than_may_be_needed(world: World) -> None:
    """A claim of exactly what one loan is: the other program goes on undisturbed."""
    first, second = (borrow(world, name, 6 * GIB) for name in ("first", "second"))
    owner = start(world, "owner", "12Gi", "12Gi")
    fresh(world)
    free = world.node.gpus["GPU-0"].capacity - sum(world.usage(one, "GPU-0") for one in world.node.jobs)
    loan = world.loan(job(world, first), "GPU-0")
    assert loan == world.loan(job(world, second), "GPU-0")
    world.allocate(owner, "GPU-0", free + loan)
    world.wait(0.5)
    asked = [told(world, one).count("trim") for one in (first, second)]
    assert sorted(asked) == [0, 1]
    assert world.waiting, "it was asked for, and has not been given"


def test_who_was_told_is_killed_in_time_though_others_are_still_trimming(world: World) -> None:
    """A second claim comes while the first one's victim is in its grace, and what was told is not enough any more."""
    victim = borrow(world, "victim", 5 * GIB, on_reclaim=NO_TRIM, grace=3.0, priority=-1)
    cache = borrow(world, "cache", 6 * GIB)
    world.programs[cache].listens = False
    first, second = start(world, "first", "6Gi", "6Gi"), start(world, "second", "6Gi", "6Gi")
    fresh(world)
    world.allocate(first, "GPU-0", 5 * GIB)
    stopped = job(world, victim)
    assert [one.job for one in world.terminated] == [stopped]
    world.wait(2.0)
    one = world.programs[cache]
    one.listens = True
    fresh(world)
    world.allocate(second, "GPU-0", 5 * GIB)
    assert told(world, cache)[-1] == "trim"
    one.trim = TrimSeen(begun=True, done=False)
    world.wait(1.2)
    assert [one.job for one in world.killed] == [stopped]
    assert told(world, cache)[-1] == "trim", "it has not given anything yet"


def test_what_a_job_holds_on_its_other_gpus_is_lost_too() -> None:
    """It goes as a whole: of two equal loans the one whose job holds less elsewhere is taken."""
    world = World([16 * GIB, 16 * GIB], [mib(300)] * 2, Policy(overhead_guess=mib(300)))
    narrow = start(world, "narrow", "none", "max", devices=("GPU-0",), on_reclaim=NO_TRIM)
    world.allocate(narrow, "GPU-0", 5 * GIB)
    world.wait(60.0)
    wide = world.submit(spec("wide", "none", "max", gpus=2, on_reclaim=NO_TRIM))
    both = world.join(wide)
    for gpu, size in (("GPU-0", 5 * GIB), ("GPU-1", 12 * GIB)):
        world.attach(both, gpu)
        world.allocate(both, gpu, size)
    world.wait(120.0)  # 5 GiB for 180 s against 5 GiB for 120 s; with the other GPU 17 GiB
    owner = start(world, "owner", "8Gi", "8Gi", devices=("GPU-0",))
    fresh(world)
    world.allocate(owner, "GPU-0", 7 * GIB)
    assert [one.job for one in world.terminated] == [job(world, narrow)]


def test_who_has_allocated_just_what_a_lowered_limit_allows_is_not_above_it(world: World) -> None:
    """It goes by its priority, as all others do."""
    high = borrow(world, "high", 5 * GIB, on_reclaim=NO_TRIM, priority=100)
    low = borrow(world, "low", 5 * GIB, on_reclaim=NO_TRIM)
    world.send(BudgetChanged(job(world, high), limit=Quantity.parse("5Gi")))
    owner = start(world, "owner", "8Gi", "8Gi")
    fresh(world)
    world.allocate(owner, "GPU-0", 7 * GIB)
    assert [one.job for one in world.terminated] == [job(world, low)]


@pytest.mark.parametrize("sampled", [True, False])
def test_who_allocates_and_frees_is_not_idle_though_its_gpu_computes_nothing(world: World, sampled: bool) -> None:
    """A program may read its data in for minutes."""
    sample = world._sample
    world._sample = lambda gpu: replace(sample(gpu), busy=frozenset())  # type: ignore[method-assign]
    reads = borrow(world, "reads", 5 * GIB, on_reclaim=NO_TRIM)
    idle = borrow(world, "idle", 5 * GIB + mib(64), on_reclaim=NO_TRIM)
    owner = start(world, "owner", "8Gi", "8Gi")
    world.wait(200.0)
    world.free(reads, "GPU-0", mib(100))
    if sampled:  # the sampler may see it first
        fresh(world)
    world.allocate(owner, "GPU-0", 7 * GIB)
    assert [one.job for one in world.terminated] == [job(world, idle)]


def test_what_a_job_keeps_for_itself_is_missing_too(world: World) -> None:
    """It lends nothing of its request, so a claim must be met from loans although enough seems to be unused."""
    start(world, "keeper", "6Gi", "6Gi", lend=False)
    loan = borrow(world, "loan", 8 * GIB, on_reclaim=NO_TRIM)
    owner = start(world, "owner", "6Gi", "6Gi")
    fresh(world)
    world.allocate(owner, "GPU-0", 5 * GIB)
    assert [one.job for one in world.terminated] == [job(world, loan)]
    world.wait(6.0)
    assert used(world, owner) == 5 * GIB


def test_for_a_claim_of_its_own_job_what_a_job_keeps_is_not_missing_twice(world: World) -> None:
    keeper = start(world, "keeper", "6Gi", "6Gi", lend=False)
    first, second = (borrow(world, name, 4 * GIB, on_reclaim=NO_TRIM) for name in ("first", "second"))
    assert {job(world, first), job(world, second)} <= world.node.jobs.keys()
    world.occupy("GPU-0", 5 * GIB)
    world.allocate(keeper, "GPU-0", 5 * GIB)
    assert len(world.terminated) == 1, "4 GiB are missing, and not more"
