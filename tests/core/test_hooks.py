"""Hooks: whose is called, what follows from what it gives, and how its memory comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.tale import job_of, siblings, start, told, used
from gpushare.quantity import format_bytes
from gpushared.core import planner, reclaim, wait_report
from gpushared.core.events import HookAnswered, SuspendWanted
from gpushared.core.policy import MIB, Policy
from gpushared.core.sleep import SleepState
from gpushared.core.transaction import Transaction
from gpushared.core.visibility import OPERATOR
from property.world import World, mib

GIB = 1024 * MIB
HOOKED = ("trim", "hook", "term", "kill")


def node(**more: object) -> World:
    return World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300), **more))  # type: ignore[arg-type]


@pytest.fixture
def world() -> World:
    one = node()
    yield one
    one.node.validate()


def server(world: World, name: str, size: int, *modes: str, wakes: bool = True, **more: object) -> int:
    """A job with a hook that has borrowed `size`."""
    process = start(world, name, "1Gi", "15Gi", on_reclaim=more.pop("steps", HOOKED), **more)
    world.allocate(process, "GPU-0", size)
    world.hooks.come(world.programs[process].job, *modes, "ok", wakes=wakes)
    world.wait(3.0)
    return process


def state_of(world: World, process: int) -> str:
    sleep = job_of(world, process).sleep
    return "awake" if sleep is None else sleep.state


def owner(world: World, wants: int = 7 * GIB) -> int:
    process = start(world, "B", "8Gi", "8Gi")
    world.allocate(process, "GPU-0", wants)
    return process


def test_an_owner_has_its_memory_in_the_moment_in_which_the_hook_has_ended(world: World) -> None:
    a = server(world, "A", 12 * GIB, "silent")
    b = owner(world)
    sleep = job_of(world, a).sleep
    assert sleep is not None and used(world, b) < GIB
    world.free(a, "GPU-0", 12 * GIB)
    world.send(HookAnswered(job_of(world, a).id, sleep.number, seconds=0.1))
    assert used(world, b) == 7 * GIB, "it does not wait for the next look"


def test_it_gives_back_and_gets_it_again_when_there_is_room(world: World) -> None:
    a = server(world, "A", 12 * GIB)
    b = owner(world)
    assert state_of(world, a) == SleepState.ASKED
    world.wait(1.0)
    assert used(world, b) == 7 * GIB and used(world, a) == 0
    assert world.node.counters.hook_bytes == 12 * GIB
    world.wait(60.0)
    assert state_of(world, a) == SleepState.ASLEEP, "there is no room yet"
    world.exit(b, lag=0.1)
    world.wait(3.0)
    assert state_of(world, a) == "awake" and used(world, a) == 12 * GIB
    assert not world.terminated and not world.killed
    assert [one for one in told(world, a) if one in ("hook", "hook_gave", "awake")] == ["hook", "hook_gave", "awake"]


def test_its_own_unused_credit_is_not_taken_to_make_room_for_itself(world: World) -> None:
    """That makes no room: it would be taken and counted as lacking again, without end."""
    a = server(world, "A", 12 * GIB)
    b = owner(world)
    world.wait(1.0)
    world.free(b, "GPU-0", 3 * GIB)
    world.allocate(a, "GPU-0", 3 * GIB)
    world.free(a, "GPU-0", 3 * GIB)
    credit = world.programs[a].words["GPU-0"].credit
    assert state_of(world, a) == SleepState.ASLEEP and credit >= 3 * GIB
    world.wait(5.0)
    assert state_of(world, a) == SleepState.ASLEEP and world.programs[a].words["GPU-0"].credit == credit
    world.free(b, "GPU-0", 2 * GIB)
    world.wait(3.0)
    assert state_of(world, a) == "awake" and used(world, a) == 12 * GIB


def test_unused_credit_of_its_own_counts_as_room(world: World) -> None:
    """What is free of its request stays with its processes."""
    a = start(world, "A", "4Gi", "14Gi", on_reclaim=HOOKED)
    world.allocate(a, "GPU-0", 12 * GIB)
    world.hooks.come(job_of(world, a).id, "ok")
    world.wait(3.0)
    b = owner(world)
    world.wait(1.0)
    world.exit(b)
    world.wait(3.0)
    assert state_of(world, a) == "awake" and used(world, a) == 12 * GIB


def test_a_program_that_wakes_takes_unused_credit_of_another_of_its_job(world: World) -> None:
    """All that the job had is kept for it, wherever the credit for it is."""
    a, b = siblings(world, "A", "1Gi", "max", on_reclaim=HOOKED)
    world.hooks.come(job_of(world, a).id, "ok")
    world.allocate(a, "GPU-0", 14 * GIB)
    world.allocate(b, "GPU-0", GIB // 2)
    world.wait(3.0)
    c = owner(world)
    world.wait(3.0)
    assert state_of(world, a) == SleepState.ASLEEP
    world.free(c, "GPU-0", 7 * GIB)
    world.hooks.takes = 2.0
    world.wait(1.2)
    assert state_of(world, a) == SleepState.WAKING
    world.allocate(b, "GPU-0", mib(300))
    world.free(b, "GPU-0", mib(300))
    world.allocate(a, "GPU-0", mib(14.5 * 1024))
    assert used(world, a) == mib(14.5 * 1024) and not world.refusals


def test_the_claim_is_counted_for_its_step(world: World) -> None:
    server(world, "A", 12 * GIB)
    b = owner(world)
    world.wait(1.0)
    met = [record for record in job_of(world, b).story if record.event == "claim_met"]
    assert [record.facts["rung"] for record in met] == ["hook"]


@pytest.mark.parametrize("how", ["lies", "fails", "hangs", "silent", "late"])
def test_one_that_gives_nothing_costs_its_step_only(world: World, how: str) -> None:
    a = server(world, "A", 12 * GIB, how, grace=0.0)
    b = owner(world)
    world.wait(29.0)
    assert used(world, b) == 7 * GIB, "the owner has its memory in time"
    assert a not in world.programs


def test_what_it_gives_counts_whatever_it_says(world: World) -> None:
    a = server(world, "A", 12 * GIB, "gives and fails")
    b = owner(world)
    world.wait(2.0)
    assert used(world, b) == 7 * GIB and state_of(world, a) == SleepState.ASLEEP
    assert "hook_failed" not in told(world, a)


def test_one_that_gives_too_little_is_followed_by_the_next_step(world: World) -> None:
    a = server(world, "A", 14 * GIB, "part", grace=0.0)
    b = owner(world, 8 * GIB - mib(300))
    world.wait(4.0)
    assert used(world, b) == 8 * GIB - mib(300) and a not in world.programs
    assert world.node.counters.hooks == 1


def test_it_is_called_for_the_least_harm(world: World) -> None:
    low = server(world, "low", 5 * GIB)
    high = server(world, "high", 5 * GIB, priority=1)
    owner(world, 5 * GIB)
    assert state_of(world, low) == SleepState.ASKED and state_of(world, high) == "awake"


def test_it_comes_before_suspending_and_may_be_followed_by_it() -> None:
    world = node()
    a = server(world, "A", 12 * GIB, "lies", steps=("trim", "hook", "suspend", "term", "kill"))
    world.suspender_comes(job_of(world, a).id, "ok")
    b = owner(world)
    assert state_of(world, a) == SleepState.ASKED and job_of(world, a).suspension is None
    world.wait(3.0)
    assert job_of(world, a).suspension is not None and used(world, b) == 7 * GIB
    world.exit(b)
    world.wait(10.0)
    assert job_of(world, a).suspension is None and state_of(world, a) == "awake"


def test_one_that_is_asleep_and_suspended_is_explained() -> None:
    world = node()
    a = server(world, "A", 12 * GIB, steps=("trim", "hook", "suspend", "term", "kill"))
    world.suspender_comes(job_of(world, a).id, "ok")
    owner(world)
    world.wait(2.0)
    assert state_of(world, a) == SleepState.ASLEEP
    world.send(SuspendWanted(job_of(world, a).id))
    world.wait(2.0)
    assert job_of(world, a).suspension is not None and state_of(world, a) == SleepState.ASLEEP
    texts = [OPERATOR.told(one.reason).render() for one in wait_report.all_of(world.node.state, world.now)]
    assert any("it is suspended, too" in text for text in texts), texts


def test_of_equals_one_that_is_asleep_is_stopped_last(world: World) -> None:
    """It is idle because it has given back what it could."""
    a = server(world, "A", 12 * GIB)
    owner(world)
    world.wait(90.0)
    assert state_of(world, a) == SleepState.ASLEEP
    asleep = reclaim.borrower(Transaction(world.node.state, world.now), world.node.gpus["GPU-0"], job_of(world, a))
    asleep = replace(asleep, loan=GIB)
    busy = planner.Borrower("f" * 16, 8 * GIB, 8 * GIB, 0, 3600.0, idle=0.0)
    assert planner.plan(GIB // 2, [asleep, busy]) == (busy,)
    assert planner.plan(GIB // 2, [replace(asleep, priority=-1), busy])[0].priority == -1, "a lower class comes first"


def test_each_relief_is_followed_by_a_resume_also_one_that_failed(world: World) -> None:
    """The program may have done half of it, or do it later."""
    a = server(world, "A", 12 * GIB, "fails")
    b = owner(world, 4 * GIB)
    world.wait(1.0)
    assert told(world, a)[-2:] == ["hook_failed", "term"]
    world.exit(b)
    world.wait(3.0)
    assert state_of(world, a) == "awake" and told(world, a)[-1] == "awake"


def test_without_a_resume_hook_nothing_is_kept_for_it(world: World) -> None:
    a = server(world, "A", 12 * GIB, wakes=False)
    b = owner(world)
    world.wait(2.0)
    assert state_of(world, a) == "awake" and used(world, a) == 0
    world.exit(b)
    world.allocate(a, "GPU-0", 5 * GIB)
    assert used(world, a) == 5 * GIB


def test_what_it_had_is_kept_while_its_resume_hook_runs(world: World) -> None:
    world.hooks.takes = 2.0
    a, c = server(world, "A", 12 * GIB), start(world, "C", "none", "15Gi")
    b = owner(world)
    world.wait(3.0)
    world.free(b, "GPU-0", 7 * GIB)
    world.wait(1.2)
    assert state_of(world, a) == SleepState.WAKING
    world.allocate(c, "GPU-0", 4 * GIB)
    assert world.refusals, "nobody borrows what is kept for it"
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(3.0)
    assert used(world, a) == 12 * GIB, "not even an owner gets it meanwhile"
    world.wait(20.0)
    assert used(world, b) == 7 * GIB, "the owner's claim is met after that, in its time"
    assert not world.terminated


def test_a_job_that_wakes_is_granted_the_same_by_the_short_way(world: World) -> None:
    """The world compares the two ways. Memory outside gpushare leaves less than is kept for all."""
    world.hooks.takes = 2.0
    a = server(world, "A", 12 * GIB)
    start(world, "N", "2Gi", "2Gi", lend=False)
    b = start(world, "B", "6Gi", "6Gi")
    world.allocate(b, "GPU-0", 5 * GIB)
    world.wait(3.0)
    world.exit(b, lag=0.1)
    world.wait(1.5)
    assert state_of(world, a) == SleepState.WAKING
    kept = world.node.state.unlent("GPU-0", job_of(world, a))
    world.occupy("GPU-0", world.node.gpus["GPU-0"].free - kept - mib(32))
    world.programs[a].words["GPU-0"].used = world.programs[a].words["GPU-0"].credit
    world.allocate(a, "GPU-0", MIB)
    assert not world.refusals


@pytest.mark.parametrize("waits", [True, False])
def test_nobody_is_stopped_for_what_one_whose_resume_hook_runs_gives_later(waits: bool) -> None:
    """If there is time for it after the hook."""
    world = node() if waits else node(claim_timeout=12.0)
    a = server(world, "A", 8 * GIB)
    b = owner(world)
    world.wait(1.0)
    u = start(world, "U", "none", "15Gi")
    world.allocate(u, "GPU-0", 2 * GIB)
    world.wait(10.0)
    world.hooks.takes = 2.0
    world.free(b, "GPU-0", 7 * GIB)
    world.wait(0.5)
    assert state_of(world, a) == SleepState.WAKING
    world.allocate(a, "GPU-0", 8 * GIB)
    world.allocate(b, "GPU-0", 5 * GIB)
    world.wait(6.0)
    stopped = [one.job for one in world.terminated]
    assert stopped == ([] if waits else [world.programs[u].job] if u in world.programs else stopped), stopped
    assert bool(stopped) is not waits
    world.wait(16.0)
    assert used(world, b) == 5 * GIB


@pytest.mark.parametrize("how", ["fails", "hangs", "silent"])
def test_a_resume_hook_that_fails_is_called_again(world: World, how: str) -> None:
    a = server(world, "A", 12 * GIB, "ok", how)
    b = owner(world)
    world.wait(1.0)
    world.exit(b)
    world.wait(30.0)
    assert state_of(world, a) == "awake" and used(world, a) == 12 * GIB
    assert told(world, a).count("not_awake") == 1


def test_a_resume_hook_that_goes_on_failing_is_called_less_and_less_often(world: World) -> None:
    a = server(world, "A", 12 * GIB, "ok", *["fails"] * 9)
    b = owner(world)
    world.wait(1.0)
    world.exit(b)
    world.wait(400.0)
    texts = [one.text for one in job_of(world, a).story if one.event == "not_awake"]
    pauses = [text.split(" again in ")[1].split(":")[0] for text in texts]
    assert pauses == ["1 s", "2 s", "4 s", "8 s", "16 s", "32 s", "1m", "1m", "1m"]
    assert state_of(world, a) == "awake"


def test_what_is_kept_is_free_for_others_after_the_hook_has_ended(world: World) -> None:
    a, c = server(world, "A", 12 * GIB, "ok", "lies"), start(world, "C", "none", "15Gi")
    b = owner(world)
    world.wait(1.0)
    world.free(b, "GPU-0", 7 * GIB)
    world.wait(0.3)
    assert state_of(world, a) == SleepState.WAKING
    world.programs[a].stopped = True  # its hook says that all is well, and it takes nothing
    world.wait(4.0)
    assert state_of(world, a) == "awake"
    world.allocate(c, "GPU-0", 10 * GIB)
    assert used(world, c) == 10 * GIB


def test_of_those_who_wait_the_highest_priority_comes_first_suspended_or_asleep(world: World) -> None:
    low = server(world, "low", 5 * GIB)
    high = start(world, "high", "1Gi", "15Gi", on_reclaim=("suspend", "term", "kill"), priority=1)
    world.allocate(high, "GPU-0", 5 * GIB)
    world.suspender_comes(job_of(world, high).id, "ok")
    world.wait(3.0)
    b = start(world, "B", "13Gi", "13Gi")
    world.allocate(b, "GPU-0", 12 * GIB)
    world.wait(5.0)
    assert state_of(world, low) == SleepState.ASLEEP and job_of(world, high).suspension is not None
    world.free(b, "GPU-0", 4 * GIB)
    world.wait(3.0)
    assert state_of(world, low) == SleepState.ASLEEP, "it would fit, and the other is before it"
    world.free(b, "GPU-0", 3 * GIB)
    world.wait(3.0)
    assert job_of(world, high).suspension is None


@pytest.mark.parametrize("when", [0.1, 1.0])
def test_a_restart_forgets_no_call(world: World, when: float) -> None:
    """The runner goes on, and comes to the next daemon when it has ended what it runs."""
    a = server(world, "A", 12 * GIB)
    b = owner(world)
    world.wait(when)
    world.restart()
    world.wait(4.0)
    assert used(world, b) == 7 * GIB and state_of(world, a) == SleepState.ASLEEP
    world.exit(b, lag=0.1)
    world.wait(4.0)
    assert state_of(world, a) == "awake" and used(world, a) == 12 * GIB


@pytest.mark.parametrize("restarts", [1, 3])
def test_a_restart_while_a_long_hook_runs_stops_nobody(world: World, restarts: int) -> None:
    """Its runner comes when the hook has ended: later than a new daemon waits for a runner to come."""
    world.hooks.takes = 12.0
    a = server(world, "A", 12 * GIB)
    b = owner(world)
    for _ in range(restarts):
        world.wait(1.0)
        world.restart()
        assert state_of(world, a) == SleepState.ASKED
    world.wait(12.0)
    assert used(world, b) == 7 * GIB and state_of(world, a) == SleepState.ASLEEP and not world.terminated
    (gave,) = [one for one in job_of(world, a).story if one.event == "hook_gave"]
    assert "failed" not in str(OPERATOR.words(gave.text)) and gave.facts["seconds"] >= 12.0
    world.hooks.takes = 0.5
    world.exit(b, lag=0.1)
    world.wait(4.0)
    assert state_of(world, a) == "awake" and used(world, a) == 12 * GIB


def test_a_hook_that_was_never_called_is_called_by_the_next_daemon(world: World) -> None:
    """The daemon ends between its notes and the command. The hook has not failed."""
    a = server(world, "A", 12 * GIB)
    b = owner(world)
    world.wait(0.1)
    assert state_of(world, a) == SleepState.ASKED
    world.hooks.calls.clear()
    world.restart()
    world.wait(5.0)
    assert used(world, b) == 7 * GIB and state_of(world, a) == SleepState.ASLEEP and not world.terminated
    assert not world.node.counters.hook_failures


@pytest.mark.parametrize("restarts", [1, 2])
def test_what_is_kept_for_a_resume_hook_that_runs_stays_kept_after_a_restart(world: World, restarts: int) -> None:
    world.hooks.takes = 2.0
    a, c = server(world, "A", 12 * GIB), start(world, "C", "none", "15Gi")
    b = owner(world)
    world.wait(3.0)
    world.exit(b, lag=0.1)
    world.wait(1.2)
    assert state_of(world, a) == SleepState.WAKING
    for _ in range(restarts):
        world.restart()
    assert state_of(world, a) == SleepState.WAKING
    world.allocate(c, "GPU-0", 6 * GIB)
    assert world.refusals
    world.wait(30.0)
    assert state_of(world, a) == "awake" and used(world, a) == 12 * GIB


def test_a_runner_that_ends_is_followed_by_another(world: World) -> None:
    a = server(world, "A", 12 * GIB)
    b = owner(world)
    job = job_of(world, a).id
    world.wait(1.0)
    world.hooks.go(job)
    world.exit(b)
    world.wait(3.0)
    assert state_of(world, a) == SleepState.ASLEEP
    world.hooks.come(job, "ok")
    world.wait(3.0)
    assert state_of(world, a) == "awake"


def test_one_that_ends_in_the_middle_of_a_call_is_not_waited_for(world: World) -> None:
    a = server(world, "A", 12 * GIB, "ok", grace=0.0)
    b = owner(world)
    job = job_of(world, a).id
    world.hooks.go(job)
    world.hooks.come(job, "ok")
    world.wait(3.0)
    assert used(world, b) == 7 * GIB and a not in world.programs


def test_where_the_settings_go_no_further_no_hook_is_called() -> None:
    world = node(last_step="trim")
    a = server(world, "A", 12 * GIB)
    owner(world)
    world.wait(5.0)
    assert state_of(world, a) == "awake"


def test_it_waits_for_the_runner_of_a_job_that_has_just_started(world: World) -> None:
    a = start(world, "A", "1Gi", "15Gi", on_reclaim=HOOKED, grace=0.0)
    world.allocate(a, "GPU-0", 12 * GIB)
    b = owner(world)
    world.wait(4.0)
    assert not world.terminated
    world.wait(2.0)
    assert a not in world.programs and used(world, b) == 7 * GIB


# ---- what explain says ------------------------------------------------------------------------------------


def explained(world: World, process: int) -> str:
    """What is said of the job that waits for its memory."""
    found = wait_report.all_of(world.node.state, world.now)
    return "\n".join(OPERATOR.told(one.reason).render() for one in found if one.job == job_of(world, process).id)


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_program_frees_by_itself_is_not_said_to_be_given_by_its_hook(world: World, restarts: bool) -> None:
    a = server(world, "A", 6 * GIB, "lies")
    c = server(world, "C", 4 * GIB)
    first = start(world, "first", "6Gi", "6Gi")
    world.allocate(first, "GPU-0", 6 * GIB - mib(300))
    world.wait(1.5)
    second = start(world, "second", "5Gi", "5Gi")
    world.allocate(second, "GPU-0", 4 * GIB)
    world.wait(0.7)
    world.exit(second)
    world.free(a, "GPU-0", GIB)
    if restarts:
        world.restart()
    world.wait(0.5)
    assert state_of(world, a) == state_of(world, c) == SleepState.ASLEEP
    said = explained(world, a)
    assert "gave nothing back; since then the job has freed 1.0 GiB of GPU 0" in said and "has given" not in said
    assert "has given 4.0 GiB of GPU 0 back" in explained(world, c)


def test_what_it_frees_beyond_what_its_hook_gave_is_not_added(world: World) -> None:
    a = server(world, "A", 12 * GIB, "part")
    b = owner(world, 5 * GIB)
    world.wait(1.0)
    assert used(world, b) == 5 * GIB and used(world, a) == 9 * GIB
    world.free(a, "GPU-0", GIB)
    assert "has given 3.0 GiB of GPU 0 back" in explained(world, a)


def test_free_is_what_nobody_uses(world: World) -> None:
    """Programs keep credit that they do not use: it is taken back for the job that wakes."""
    a = server(world, "A", 12 * GIB)
    b = owner(world)
    world.wait(1.0)
    world.free(b, "GPU-0", 3 * GIB)
    gpu = world.node.gpus["GPU-0"]
    assert gpu.free < GIB and gpu.idle > 3 * GIB
    world.send(world._used_seen("GPU-0"))
    free = gpu.capacity - gpu.usage
    said = explained(world, a)
    assert f"free  {format_bytes(free)}" in said
    assert f"when {format_bytes(12 * GIB - free)} more of GPU 0 are free" in said
