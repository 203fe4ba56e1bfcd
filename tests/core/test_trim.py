"""The rung that hurts nobody: caches come back before anybody is stopped, and nobody waits for those who cannot."""

from __future__ import annotations

import pytest

from core.tale import job_of, spec, start, used
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core.events import Checkpointed, MemorySampled, TrimSeen
from gpushared.core.policy import MIB, Policy
from property.world import World, mib

GIB = 1024 * MIB


@pytest.fixture
def world() -> World:
    """One GPU of 16 GiB; a context costs 300 MiB."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    yield world
    world.node.validate()


def borrow(world: World, name: str, size: int, *, cached: int, dawdle: float = 0.01, **more: object) -> int:
    """A job that listens and has borrowed `size`, of which its allocator only keeps `cached`."""
    process = start(world, name, "1Gi", "15Gi", **more)
    world.allocate(process, "GPU-0", size)
    assert used(world, process) == size
    one = world.programs[process]
    one.listens, one.caches["GPU-0"], one.dawdle = True, cached, dawdle
    return process


def told(world: World, process: int) -> list[str]:
    return [record.event for record in world.node.story(world.programs[process].job)]


def test_a_cache_that_covers_it_is_all_that_is_taken(world: World) -> None:
    a = borrow(world, "A", 12 * GIB, cached=6 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(0.05)
    assert used(world, b) == 7 * GIB
    assert used(world, a) == 6 * GIB
    assert not world.terminated
    assert not world.refusals
    assert [(step, waits.count) for step, waits in world.node.counters.claim_waits.items()] == [("trim", 1)]
    assert told(world, a)[-2:] == ["trim", "trimmed"]
    met = world.node.story(world.programs[b].job)[-1]
    assert met.event == "claim_met"
    assert met.facts["rung"] == "trim"


def test_nobody_is_asked_for_what_the_driver_has_already_returned(world: World) -> None:
    """The last sample is older than the memory's return: NVML is asked again before any borrower is."""
    a = borrow(world, "A", 5 * GIB, cached=5 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    over = start(world, "over", "none", "8Gi")
    world.allocate(over, "GPU-0", 7 * GIB)
    world.wait(1.0)
    world.exit(over, lag=0.01)
    world.now += 0.2
    assert world.node.gpus["GPU-0"].returning_total > 7 * GIB, "as far as the daemon knows"
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(0.05)
    assert used(world, b) == 7 * GIB
    assert used(world, a) == 5 * GIB
    assert world.trim_count == 0


def test_what_a_trim_gives_counts_and_only_the_rest_is_asked_for(world: World) -> None:
    large = borrow(world, "large", 7 * GIB, cached=4 * GIB)
    small = borrow(world, "small", 5 * GIB, cached=0, priority=-1)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(0.1)
    # Of the large one's loan 2.3 GiB are left after its trim: enough for the rest, but it is not the lowest.
    assert [one.job for one in world.terminated] == [world.programs[small].job]
    assert "trimmed" in told(world, large)
    assert "trimmed" in told(world, small), "all were asked before anybody was stopped"


def test_those_who_do_not_listen_are_not_waited_for(world: World) -> None:
    a = borrow(world, "A", 12 * GIB, cached=12 * GIB)
    world.programs[a].listens = False
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    assert [one.job for one in world.terminated] == [world.programs[a].job]
    assert "trim" not in told(world, a)


@pytest.mark.parametrize(
    ("last_rung", "trimmed", "asked"),
    [("revoke", False, False), ("trim", True, False), ("term", True, True)],
)
def test_no_further_than_the_last_rung_of_the_node(last_rung: str, trimmed: bool, asked: bool) -> None:
    """Not even for a job that wants to be killed without notice."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300), last_step=last_rung))
    world.ever_protected = True  # the settings stand in the way of claims
    a = borrow(world, "A", 12 * GIB, cached=0, on_reclaim=("trim", "kill"))
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(40.0)
    assert ("trim" in told(world, a)) == trimmed
    assert bool(world.terminated) == asked
    assert not world.node.counters.kills
    assert used(world, a) == 12 * GIB
    assert world.node.counters.violations == {"policy": 1}
    world.node.validate()


def test_who_has_not_begun_after_half_of_the_time_is_not_waited_for(world: World) -> None:
    a = borrow(world, "A", 12 * GIB, cached=12 * GIB, dawdle=60.0)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(0.9)
    assert not world.terminated
    world.wait(0.2)
    assert [one.job for one in world.terminated] == [world.programs[a].job]
    assert "no answer to the trim" in world.node.story(world.programs[a].job)[-2].text


def test_an_answer_in_the_second_half_of_the_time_is_one(world: World) -> None:
    a = borrow(world, "A", 12 * GIB, cached=0, dawdle=1.5)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(0.3)
    world.programs[a].trim = TrimSeen(begun=True, done=False)
    world.wait(1.1)
    assert "trimmed" not in told(world, a), "it is waited for"
    world.wait(0.7)
    (said,) = [str(one.text) for one in job_of(world, a).story if one.event == "trimmed"]
    assert said.startswith("trimming gave 0 B of GPU 0 back in ")


def test_a_job_in_its_protected_start_is_trimmed_and_not_stopped(world: World) -> None:
    a = borrow(world, "A", 12 * GIB, cached=12 * GIB, min_run_time=3600.0)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(1.0)
    assert used(world, b) == 7 * GIB
    assert not world.terminated
    assert "trimmed" in told(world, a)


def test_a_trim_that_brings_nothing_is_not_repeated_for_the_same_claim(world: World) -> None:
    a = borrow(world, "A", 12 * GIB, cached=0, min_run_time=3600.0)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(31.0)
    assert told(world, a).count("trim") == 1
    assert world.node.counters.violations == {"protected": 1}


def test_a_new_claim_asks_again(world: World) -> None:
    a = borrow(world, "A", 14 * GIB, cached=3 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 2 * GIB)
    world.wait(0.5)
    assert used(world, b) == 2 * GIB
    world.programs[a].caches["GPU-0"] = 3 * GIB
    world.allocate(b, "GPU-0", 2 * GIB)
    world.wait(0.5)
    assert used(world, b) == 4 * GIB
    assert not world.terminated
    assert world.node.counters.claim_waits[ReclaimStep.TRIM].count == 2


def test_a_job_may_leave_out_the_gentle_rungs(world: World) -> None:
    a = borrow(world, "A", 12 * GIB, cached=12 * GIB, on_reclaim=("kill",))
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    assert [one.job for one in world.killed] == [world.programs[a].job]
    assert not world.terminated
    world.wait(1.0)
    assert used(world, b) == 7 * GIB


def test_a_job_on_two_gpus_is_trimmed_on_the_one_that_is_claimed() -> None:
    world = World([16 * GIB, 16 * GIB], [mib(300)] * 2)
    job = world.submit(spec("wide", "1Gi", "15Gi", gpus=2))
    a = world.join(job)
    for gpu in ("GPU-0", "GPU-1"):
        world.attach(a, gpu)
        world.allocate(a, gpu, 12 * GIB)
    one = world.programs[a]
    one.listens, one.dawdle = True, 0.01
    one.caches = {"GPU-0": 12 * GIB, "GPU-1": 12 * GIB}
    owner = world.submit(spec("owner", "8Gi", "8Gi"))
    (gpu,) = world.node.jobs[owner].bounds
    b = world.join(owner)
    world.attach(b, gpu)
    world.allocate(b, gpu, 7 * GIB)
    world.wait(1.0)
    other = "GPU-1" if gpu == "GPU-0" else "GPU-0"
    assert one.words[gpu].used == 0
    assert one.words[other].used == 12 * GIB


def test_the_idle_go_before_the_busy_and_the_saved_before_the_unsaved(world: World) -> None:
    busy, idle = (borrow(world, name, 5 * GIB, cached=0, on_reclaim=("term", "kill")) for name in ("busy", "idle"))
    pid = world.programs[busy].pid
    for _ in range(130):
        world.now += 1.0
        sample = world._sample("GPU-0")
        world.send(MemorySampled(sample.gpu, sample.used, sample.by_pid, sample.steady, busy=frozenset({pid})))
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 6 * GIB)
    assert [one.job for one in world.terminated] == [world.programs[idle].job]


def test_a_checkpoint_makes_a_job_the_cheaper_victim(world: World) -> None:
    first, second = (borrow(world, name, 5 * GIB, cached=0, on_reclaim=("term", "kill")) for name in ("one", "two"))
    world.wait(50.0)
    world.send(Checkpointed(world.programs[first].job))
    world.wait(1.0)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 6 * GIB)
    assert [one.job for one in world.terminated] == [world.programs[first].job]
    assert second in world.programs
