"""A core that has failed is followed by a fresh one in the same daemon: what that one takes from it."""

from __future__ import annotations

from core.tale import start
from gpushared.core.events import GpuFound, ProcessRestored, ShareSeen
from gpushared.core.node import NodeState
from gpushared.core.policy import MIB, Policy
from property.world import World, mib

GIB = 1024 * MIB
GPU = "GPU-0"


def follow(world: World) -> NodeState:
    """The next core, made as the daemon makes it."""
    earlier, node = world.node, NodeState(world.policy)
    node.handle(GpuFound(GPU, 0, "software GPU", world.total[GPU]), world.now)
    node.inherit(earlier)
    for event in (*earlier.reservations_to_restore(world.now), *earlier.jobs_to_restore(world.now)):
        node.handle(event, world.now)
    for one in world.programs.values():
        shares = tuple(ShareSeen(gpu, word.used, word.credit, world.cost[gpu]) for gpu, word in one.words.items())
        node.handle(ProcessRestored(one.id, one.job, one.pid, shares, "python"), world.now)
    node.inherit_jobs(earlier)
    node.validate()
    return node


def node_with_a_dead_program() -> tuple[World, str]:
    """The driver has not freed the memory of one of the job's two programs yet."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    first = start(world, "job", "8Gi", "12Gi")
    world.allocate(first, GPU, 5 * GIB)
    job = world.programs[first].job
    second = world.join(job)
    world.attach(second, GPU)
    world.wait(3.0)
    world.exit(first, lag=3.0)
    return world, job


def test_memory_that_the_driver_has_not_freed_yet_is_not_given_away() -> None:
    world, _ = node_with_a_dead_program()
    free = world.node.gpus[GPU].free
    assert world.node.gpus[GPU].returning_total >= 5 * GIB
    node = follow(world)
    assert node.gpus[GPU].returning == world.node.gpus[GPU].returning
    assert node.gpus[GPU].free == free


def test_that_of_a_job_that_is_over_is_left_to_nvml() -> None:
    """Nobody would wait for it any more: a sample shows it as unmanaged."""
    world, job = node_with_a_dead_program()
    for process in list(world.programs):
        world.exit(process, lag=3.0)
    world.end(job)
    assert job not in follow(world).jobs


def test_stories_counts_and_costs_go_on() -> None:
    world, job = node_with_a_dead_program()
    told = list(world.node.jobs[job].story)
    node = follow(world)
    assert told and node.jobs[job].story[: len(told)] == told
    assert node.counters.grants == world.node.counters.grants > 0
    assert node.state.overheads == world.node.state.overheads
    assert node.state.records == world.node.state.records
