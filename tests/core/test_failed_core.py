"""A core that has failed is followed by a fresh one in the same daemon: what that one takes from it."""

from __future__ import annotations

from core.tale import start
from gpushared.core.events import (
    THERE,
    GpuFound,
    HookAnswered,
    ProcessRestored,
    ResumeWanted,
    ShareSeen,
    SuspenderAnswered,
    SuspendWanted,
)
from gpushared.core.instructions import CallHook
from gpushared.core.node import NodeState
from gpushared.core.policy import MIB, Policy
from gpushared.core.sleep import SleepState
from gpushared.core.suspension import SuspendState
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


def test_the_answer_to_a_command_that_the_failed_core_gave_is_taken() -> None:
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    process = start(world, "job", "1Gi", "12Gi", on_reclaim=("suspend", "term", "kill"))
    job = world.programs[process].job
    world.suspender_comes(job, "ok")
    world.send(SuspendWanted(job))
    world.wait(1.0)
    world.send(ResumeWanted(job))
    world.wait(0.1)
    (command,) = world.work
    node = follow(world)
    node.handle(SuspenderAnswered(job, 0, "unknown"), world.now)
    suspension = node.jobs[job].suspension
    assert suspension is not None and suspension.state is SuspendState.RESUMING
    node.handle(SuspenderAnswered(job, command.number, "running"), world.now)
    assert node.jobs[job].suspension is None
    assert node.state.commands >= command.number, "the next command has another number"


def test_a_resume_hook_that_runs_is_not_called_again() -> None:
    """Its runner is connected to the daemon as before."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    process = start(world, "job", "1Gi", "12Gi", on_reclaim=("hook", "term", "kill"))
    owner = start(world, "owner", "8Gi", "8Gi")
    job = world.programs[process].job
    world.hooks.come(job, "ok")
    world.allocate(process, GPU, 10 * GIB)
    world.wait(3.0)
    world.allocate(owner, GPU, 7 * GIB)
    world.wait(3.0)
    world.hooks.takes = 5.0
    world.exit(owner)
    world.wait(1.0)
    (call,) = world.hooks.calls
    assert call.hook == "resume"
    node = follow(world)
    told = node.handle(HookAnswered(job, THERE, wakes=True), world.now)
    assert not any(isinstance(one, CallHook) for one in told)
    sleep = node.jobs[job].sleep
    assert sleep is not None and sleep.state is SleepState.WAKING
    assert node.jobs[job].hook_runner.connected and node.jobs[job].hook_runner.wakes
    node.handle(HookAnswered(job, call.number), world.now)
    assert node.jobs[job].sleep is None


def test_stories_counts_and_costs_go_on() -> None:
    world, job = node_with_a_dead_program()
    told = list(world.node.jobs[job].story)
    node = follow(world)
    assert told and node.jobs[job].story[: len(told)] == told
    assert node.counters.grants == world.node.counters.grants > 0
    assert node.state.overheads == world.node.state.overheads
    assert node.state.records == world.node.state.records
