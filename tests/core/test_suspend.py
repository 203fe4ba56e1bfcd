"""Suspending instead of stopping: who is chosen, what is told, and how each step comes to its end."""

from __future__ import annotations

import pytest

from core.tale import job_of, start, told, used
from gpushare.reasons import Code
from gpushared.core import suspend
from gpushared.core.events import ResumeWanted, SuspenderAnswered, SuspendWanted
from gpushared.core.instructions import OpenGate, Persist, Suspend, SuspendNoted, SuspendRefused
from gpushared.core.policy import MIB, Policy
from gpushared.core.suspension import SuspendState
from gpushared.core.visibility import OPERATOR
from property.world import World, mib

GIB = 1024 * MIB
SOFTLY = ("suspend", "term", "kill")


def node(**more: object) -> World:
    return World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300), **more))  # type: ignore[arg-type]


@pytest.fixture
def world() -> World:
    one = node()
    yield one
    one.node.validate()


def borrow(world: World, name: str, size: int, *modes: str, **more: object) -> int:
    """A job that may be suspended and has borrowed `size`."""
    process = start(world, name, "1Gi", "15Gi", on_reclaim=SOFTLY, **more)
    world.allocate(process, "GPU-0", size)
    world.suspender_comes(world.programs[process].job, *modes, "ok")
    world.wait(3.0)
    return process


def state_of(world: World, process: int) -> str:
    suspension = job_of(world, process).suspension
    return "running" if suspension is None else suspension.state


def answer(world: World, event: object) -> object:
    found = [one for one in world.node.handle(event, world.now) if isinstance(one, SuspendNoted | SuspendRefused)]
    return found[0]


def test_it_gives_all_back_and_goes_on_when_there_is_room(world: World) -> None:
    a = borrow(world, "A", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    assert state_of(world, a) == SuspendState.SUSPENDING
    world.wait(1.0)
    assert used(world, b) == 7 * GIB and world.programs[a].away
    assert world.usage(job_of(world, a).id, "GPU-0") == 0
    world.wait(60.0)
    assert state_of(world, a) == SuspendState.SUSPENDED, "there is no room yet"
    world.exit(b, lag=0.1)
    world.wait(3.0)
    assert state_of(world, a) == "running" and not world.programs[a].away
    assert used(world, a) == 12 * GIB
    assert not world.terminated and not world.killed
    assert [one for one in told(world, a) if "s" in one[:3]][-3:] == ["suspend", "suspended", "resumed"]
    met = [record for record in job_of(world, b).story] if world.programs.get(b) else world.node.records
    assert any(record.facts.get("rung") == "suspend" for record in met if record.event == "claim_met")


def test_its_request_is_kept_for_it(world: World) -> None:
    """Nobody borrows what is free of it, so it waits for its loan only."""
    borrow(world, "A", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(1.0)
    c = start(world, "C", "none", "15Gi")
    free = world.node.published("GPU-0", [c])[c].grantable
    world.allocate(c, "GPU-0", free + GIB // 2)
    world.wait(1.0)
    assert world.refusals and used(world, c) <= free
    owned = world.node.state.usage(job_of(world, b), "GPU-0") + world.node.state.usage(job_of(world, c), "GPU-0")
    assert owned <= world.node.gpus["GPU-0"].capacity - GIB


@pytest.mark.parametrize("last", ["revoke", "trim"])
def test_where_the_settings_go_no_further_nobody_is_suspended(last: str) -> None:
    world = node(last_step=last)
    a = borrow(world, "A", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(5.0)
    assert state_of(world, a) == "running"


def test_one_who_cannot_is_stopped_and_told_why(world: World) -> None:
    a = borrow(world, "A", 12 * GIB, grace=0.0)
    world.programs[a].pinned = "managed memory"
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(1.0)
    assert a not in world.programs and not world.suspends


@pytest.mark.parametrize("steps", [SOFTLY, ("suspend", "kill")])
def test_one_that_is_stopped_is_told_why_it_was_not_suspended(world: World, steps: tuple[str, ...]) -> None:
    """Also one that wants no SIGTERM."""
    a = start(world, "A", "1Gi", "15Gi", on_reclaim=steps, grace=0.0)
    world.allocate(a, "GPU-0", 12 * GIB)
    world.programs[a].pinned = "it has managed memory"
    world.suspender_comes(world.programs[a].job, "ok")
    world.wait(3.0)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(1.0)
    assert ("not suspended", "it has managed memory") in world.killed[0].reason.facts


def test_it_goes_on_soon_after_another_has_freed_memory(world: World) -> None:
    """Nobody tells the daemon of a free: it looks at the words often while a job waits."""
    a = borrow(world, "A", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(10.3)
    world.free(b, "GPU-0", 7 * GIB)
    world.wait(0.2)
    assert state_of(world, a) == SuspendState.RESUMING


def test_one_whom_the_driver_refuses_runs_on_and_is_stopped_next(world: World) -> None:
    a = borrow(world, "A", 12 * GIB, "refused")
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(1.0)
    assert "not_suspended" in told(world, a)
    assert [one.job for one in world.terminated] == [job_of(world, a).id], "the next step follows at once"
    assert [one.kind for one in world.told][-1] == "not_suspended"


def test_the_next_suspender_is_asked_if_one_was_ended_before_the_memory_was_away(world: World) -> None:
    a = borrow(world, "A", 12 * GIB, "refused")
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    assert state_of(world, a) == SuspendState.SUSPENDING
    world.suspender_goes(job_of(world, a).id)
    world.suspender_comes(job_of(world, a).id, "ok")
    world.wait(2.0)
    assert used(world, b) == 7 * GIB and world.programs[a].away
    assert not world.terminated and "not_suspended" not in told(world, a)


def test_a_suspender_that_has_just_gone_is_waited_for(world: World) -> None:
    """The wrapper starts another, which takes a moment."""
    a, b = borrow(world, "A", 12 * GIB), start(world, "B", "8Gi", "8Gi")
    job = job_of(world, a).id
    world.wait(10.0)
    world.suspender_goes(job)
    world.wait(0.1)
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(0.5)
    assert not world.terminated and state_of(world, a) == "running"
    world.suspender_comes(job, "ok")
    world.wait(2.0)
    assert used(world, b) == 7 * GIB and world.programs[a].away
    assert not world.terminated and "not_suspended" not in told(world, a)


def test_one_that_goes_while_the_claim_waits_is_waited_for_too(world: World) -> None:
    a, b = borrow(world, "A", 12 * GIB, "refused"), start(world, "B", "8Gi", "8Gi")
    job = job_of(world, a).id
    world.wait(10.0)
    job_of(world, a).resumed_at = world.now  # it is left alone for a moment, so the claim waits
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(1.0)
    world.suspender_goes(job)
    world.wait(4.5)
    assert not world.terminated
    world.suspender_comes(job, "ok")
    world.wait(2.0)
    assert used(world, b) == 7 * GIB and not world.terminated


def test_one_that_goes_again_and_again_protects_no_loan(world: World) -> None:
    """Once in a minute, for 5 s, its job is left alone."""
    a, b = borrow(world, "A", 12 * GIB), start(world, "B", "8Gi", "8Gi")
    job = job_of(world, a).id
    world.wait(10.0)
    world.suspender_goes(job)
    world.wait(2.0)
    world.suspender_comes(job, "ok")
    world.wait(10.0)
    world.suspender_goes(job)
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(0.1)
    assert [one.job for one in world.terminated] == [job]


def test_one_that_does_not_come_again_costs_a_claim_a_few_seconds() -> None:
    world = node(claim_timeout=12.0)
    a, b = borrow(world, "A", 12 * GIB), start(world, "B", "8Gi", "8Gi")
    world.wait(10.0)
    world.suspender_goes(job_of(world, a).id)
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(4.9)
    assert not world.terminated
    world.wait(7.0)
    assert used(world, b) == 7 * GIB and world.terminated and not world.refusals


def test_it_is_not_waited_for_longer_than_the_claim_can_wait() -> None:
    world = node(claim_timeout=6.0)
    a, b = borrow(world, "A", 12 * GIB, grace=2.0), start(world, "B", "8Gi", "8Gi")
    world.wait(10.0)
    world.suspender_goes(job_of(world, a).id)
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(6.0)
    assert used(world, b) == 7 * GIB and not world.refusals
    (told_to_end,) = world.terminated
    assert told_to_end.grace == pytest.approx(2.0, abs=0.1), "it keeps its whole grace"


def test_the_next_daemon_knows_the_command_that_was_given_again(world: World) -> None:
    """Else it would wait for an answer to the first, which nobody gives."""
    a = borrow(world, "A", 12 * GIB, "refused")
    world.send(SuspendWanted(job_of(world, a).id))
    suspension = job_of(world, a).suspension
    assert suspension is not None and suspension.number
    first = suspension.number
    done = world.node.handle(SuspenderAnswered(job_of(world, a).id, 0, "running"), world.now)
    (command,) = [one for one in done if isinstance(one, Suspend)]
    assert command.number == suspension.number > first
    assert any(isinstance(one, Persist) for one in done)


def test_suspenders_that_end_again_and_again_do_not_keep_a_claim_waiting(world: World) -> None:
    a = borrow(world, "A", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    for _ in range(60):
        if world.terminated or not world.suspenders:
            break
        world.suspenders[job_of(world, a).id] = ["refused"]
        world.suspender_goes(job_of(world, a).id)
        world.suspender_comes(job_of(world, a).id, "refused")
        world.wait(0.05)
    world.wait(28.0)
    assert used(world, b) == 7 * GIB and not world.refusals


@pytest.mark.parametrize("mode", ["silent", "failed"])
def test_one_that_nobody_can_bring_back_ends(world: World, mode: str) -> None:
    a = borrow(world, "A", 12 * GIB, mode, grace=1.0)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(29.9)
    assert a not in world.programs and used(world, b) == 7 * GIB and not world.refusals
    assert world.terminated and world.killed


def test_a_suspender_that_is_only_slow_is_waited_for_as_long_as_the_claim_can_be_met(world: World) -> None:
    a = borrow(world, "A", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.suspender_takes = 20.0
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(22.0)
    assert used(world, b) == 7 * GIB and state_of(world, a) == SuspendState.SUSPENDED
    assert not world.terminated


def test_where_no_claim_waits_a_slow_suspender_has_more_time(world: World) -> None:
    a = borrow(world, "A", 4 * GIB)
    world.suspender_takes = 25.0
    world.send(SuspendWanted(job_of(world, a).id))
    world.wait(26.0)
    assert state_of(world, a) == SuspendState.SUSPENDED
    world.send(ResumeWanted(job_of(world, a).id))
    world.wait(27.0)
    assert state_of(world, a) == "running" and used(world, a) == 4 * GIB
    assert not world.terminated


def test_a_claim_ends_the_patience_with_one_that_never_answers(world: World) -> None:
    a = borrow(world, "A", 12 * GIB, "ok", "silent", grace=1.0)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(2.0)
    world.exit(b)
    world.wait(2.0)
    assert state_of(world, a) == SuspendState.RESUMING
    c = start(world, "C", "6Gi", "6Gi")
    world.allocate(c, "GPU-0", 5 * GIB)
    world.wait(29.9)
    assert used(world, c) == 5 * GIB and not world.refusals and a not in world.programs


def test_a_job_that_resumes_just_now_cannot_be_suspended(world: World) -> None:
    a = borrow(world, "A", 4 * GIB)
    job = job_of(world, a).id
    world.send(SuspendWanted(job))
    world.wait(1.0)
    world.suspender_takes = 5.0
    world.send(ResumeWanted(job))
    world.wait(1.0)
    assert state_of(world, a) == SuspendState.RESUMING
    found = answer(world, SuspendWanted(job))
    assert isinstance(found, SuspendRefused) and "it resumes just now" in found.reason.message
    world.wait(10.0)
    assert state_of(world, a) == "running"


def test_it_is_tried_again_when_it_could_not_resume(world: World) -> None:
    a = borrow(world, "A", 12 * GIB, "ok", "refused", "refused")
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(1.0)
    world.exit(b)
    world.wait(10.0)
    assert state_of(world, a) == "running"
    assert told(world, a).count("not_resumed") == 2


def test_a_higher_priority_resumes_first_and_nobody_overtakes(world: World) -> None:
    low = borrow(world, "low", 4 * GIB)
    high = borrow(world, "high", 5 * GIB, priority=1)
    b = start(world, "B", "13Gi", "13Gi")
    world.allocate(b, "GPU-0", 12 * GIB)
    world.wait(3.0)
    assert {state_of(world, low), state_of(world, high)} == {SuspendState.SUSPENDED}
    world.free(b, "GPU-0", 5 * GIB)
    world.wait(3.0)
    assert state_of(world, low) == SuspendState.SUSPENDED, "it would fit, and the other is before it"
    world.free(b, "GPU-0", 2 * GIB)
    world.wait(3.0)
    assert state_of(world, high) == "running"


def test_no_more_host_memory_than_the_limit() -> None:
    world = node(suspend_memory=6 * GIB)
    large = borrow(world, "large", 9 * GIB, grace=0.0)
    small = borrow(world, "small", 4 * GIB, grace=0.0)
    b = start(world, "B", "13Gi", "13Gi")
    world.allocate(b, "GPU-0", 12 * GIB)
    world.wait(3.0)
    assert large not in world.programs, "there is no room for it in host memory"
    assert state_of(world, small) == SuspendState.SUSPENDED
    world.node.validate()


def test_after_it_has_resumed_it_is_left_alone_for_a_while(world: World) -> None:
    a = borrow(world, "A", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(1.0)
    world.free(b, "GPU-0", 7 * GIB)
    world.wait(1.5)
    assert state_of(world, a) == "running"
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(2.0)
    assert state_of(world, a) == "running", "not again at once"
    world.wait(5.0)
    assert state_of(world, a) == SuspendState.SUSPENDED and used(world, b) == 7 * GIB
    assert not world.terminated


def beside(world: World, **more: object) -> tuple[int, int]:
    """A job that resumes just now, and one that can only be stopped; either loan is enough for claim()."""
    a = borrow(world, "A", 5 * GIB, **more)
    c = start(world, "C", "1Gi", "15Gi")
    world.allocate(c, "GPU-0", 5 * GIB)
    job = job_of(world, a).id
    world.send(SuspendWanted(job))
    world.wait(1.0)
    world.send(ResumeWanted(job))
    world.wait(1.0)
    assert state_of(world, a) == "running"
    return a, c


def begin_to_resume(world: World, process: int) -> None:
    """It is suspended, and resumes just now, which takes 2 s."""
    world.send(SuspendWanted(job_of(world, process).id))
    world.wait(2.0)
    world.suspender_takes = 2.0
    world.send(ResumeWanted(job_of(world, process).id))
    world.wait(0.1)
    assert state_of(world, process) == SuspendState.RESUMING


def claim(world: World, size: int = 7 * GIB) -> int:
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", size)
    return b


def test_nobody_is_stopped_for_what_one_that_has_just_resumed_gives_in_time(world: World) -> None:
    a, c = beside(world)
    b = claim(world)
    world.wait(4.0)
    assert state_of(world, a) == "running" and used(world, b) < 7 * GIB, "it is left alone for a while"
    world.wait(3.0)
    assert used(world, b) == 7 * GIB and state_of(world, a) == SuspendState.SUSPENDED
    assert not world.terminated and used(world, c) == 5 * GIB


def test_one_that_resumes_just_now_is_waited_for_too(world: World) -> None:
    a = borrow(world, "A", 5 * GIB)
    c = start(world, "C", "1Gi", "15Gi")
    world.allocate(c, "GPU-0", 5 * GIB)
    begin_to_resume(world, a)
    b = claim(world)
    world.wait(12.0)
    assert used(world, b) == 7 * GIB and not world.terminated and used(world, c) == 5 * GIB


def test_where_it_cannot_give_in_time_another_is_stopped_at_once() -> None:
    world = node(claim_timeout=12.0)  # of which grace and teardown take 7 s, and to suspend takes 2.6 s
    a, c = beside(world)
    b = claim(world)
    world.wait(0.1)
    assert [one.job for one in world.terminated] == [job_of(world, c).id]
    world.wait(12.0)
    assert used(world, b) == 7 * GIB and state_of(world, a) == "running"
    world.node.validate()


def test_for_what_it_does_not_cover_as_few_others_are_stopped_as_are_needed(world: World) -> None:
    """Without it, both others would be."""
    a, c = beside(world)
    d = start(world, "D", "1Gi", "15Gi")
    world.allocate(d, "GPU-0", 2 * GIB)
    b = claim(world, 7 * GIB + 512 * MIB)
    world.wait(0.1)
    assert [one.job for one in world.terminated] == [job_of(world, d).id]
    world.wait(10.0)
    assert used(world, b) > 7 * GIB and used(world, c) == 5 * GIB
    assert state_of(world, a) == SuspendState.SUSPENDED and len(world.terminated) == 1


def test_the_owner_has_its_memory_in_time_if_the_one_it_waited_for_fails(world: World) -> None:
    a, _ = beside(world)
    world.suspenders[job_of(world, a).id] = ["refused"]
    b = claim(world)
    world.wait(6.0)
    assert "not_suspended" in told(world, a) and world.terminated
    world.wait(23.9)
    assert used(world, b) == 7 * GIB and not world.refusals


@pytest.mark.parametrize("grace", [None, 1.0, 20.0])
def test_a_claim_is_met_in_time_although_a_suspender_with_much_to_do_never_answers(grace: float | None) -> None:
    """To suspend is expected to take 14 s; three times that is more than a claim has."""
    world = node(suspend_rate=GIB)
    a = borrow(world, "A", 14 * GIB, "silent", grace=grace)
    b = claim(world)
    world.wait(29.9)
    assert a not in world.programs and used(world, b) == 7 * GIB and not world.refusals


@pytest.mark.parametrize("comes", [True, False])
def test_a_suspender_that_may_still_come_is_waited_for(world: World, comes: bool) -> None:
    """After a restart of the daemon, say."""
    a = borrow(world, "A", 5 * GIB)
    c = start(world, "C", "1Gi", "15Gi")
    world.allocate(c, "GPU-0", 5 * GIB)
    job = job_of(world, a).id
    del world.suspenders[job]
    world.restart()
    b = claim(world)
    world.wait(1.0)
    assert not world.terminated
    if comes:
        world.suspender_comes(job, "ok")
    world.wait(5.0)
    assert bool(world.terminated) is not comes
    assert (used(world, b) == 7 * GIB) is comes


def test_a_hook_that_can_be_called_soon_is_waited_for(world: World) -> None:
    a = start(world, "A", "1Gi", "15Gi", on_reclaim=("hook", "term", "kill"), min_run_time=10.0)
    world.allocate(a, "GPU-0", 5 * GIB)
    world.hooks.come(job_of(world, a).id, "ok")
    c = start(world, "C", "1Gi", "15Gi")
    world.allocate(c, "GPU-0", 5 * GIB)
    b = claim(world)
    world.wait(9.0)
    assert not world.terminated and not job_of(world, a).sleep
    world.wait(2.0)
    assert used(world, b) == 7 * GIB and used(world, c) == 5 * GIB and not world.terminated


def test_its_user_suspends_and_resumes_it(world: World) -> None:
    a = borrow(world, "A", 2 * GIB)
    job = job_of(world, a).id
    world.send(SuspendWanted(job))
    world.wait(30.0)
    assert state_of(world, a) == SuspendState.SUSPENDED, "there is room, but its user holds it"
    assert "stays so" in answer(world, SuspendWanted(job)).note  # type: ignore[attr-defined]
    world.send(ResumeWanted(job))
    world.wait(1.0)
    assert state_of(world, a) == "running"
    assert isinstance(answer(world, ResumeWanted(job)), SuspendRefused)


@pytest.mark.parametrize("heard", [True, False])
def test_a_restart_forgets_no_wish_to_suspend(world: World, heard: bool) -> None:
    """The daemon has said that it will be suspended, and ends before it is. Its suspender does it, or has not heard."""
    a = borrow(world, "A", 2 * GIB)
    job = job_of(world, a).id
    world.send(SuspendWanted(job))
    assert state_of(world, a) == SuspendState.SUSPENDING
    if not heard:
        world.work.clear()
    world.restart()
    world.wait(30.0)
    assert state_of(world, a) == SuspendState.SUSPENDED, "there is room, but its user holds it"
    world.send(ResumeWanted(job))
    world.wait(1.0)
    assert state_of(world, a) == "running"


def test_a_wish_to_suspend_can_be_taken_back_after_a_restart(world: World) -> None:
    a = borrow(world, "A", 2 * GIB)
    job = job_of(world, a).id
    world.send(SuspendWanted(job))
    world.restart()
    assert isinstance(answer(world, ResumeWanted(job)), SuspendNoted)
    world.wait(30.0)
    assert state_of(world, a) == "running"


def test_a_restart_forgets_no_suspension(world: World) -> None:
    a = borrow(world, "A", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(1.0)
    began = job_of(world, a).suspension.since
    world.restart()
    world.wait(2.0)
    assert state_of(world, a) == SuspendState.SUSPENDED
    assert job_of(world, a).suspension.since == pytest.approx(began), "who waits longest is the first to go on"
    world.exit(b, lag=0.1)
    world.wait(4.0)
    assert state_of(world, a) == "running" and used(world, a) == 12 * GIB


def test_a_restart_in_the_middle_of_a_step(world: World) -> None:
    """The suspender goes on, and says where the job is when it has done."""
    a = borrow(world, "A", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(0.1)
    assert state_of(world, a) == SuspendState.SUSPENDING
    world.restart()
    world.wait(3.0)
    assert state_of(world, a) == SuspendState.SUSPENDED and used(world, b) == 7 * GIB


@pytest.mark.parametrize("restarts", [1, 3])
@pytest.mark.parametrize("programs", [1, 2])
def test_a_restart_in_the_middle_of_a_long_step_stops_nobody(world: World, programs: int, restarts: int) -> None:
    """Its suspender is busy in the driver for longer than a new daemon waits for one to come."""
    world.suspender_takes = 9.0
    a = borrow(world, "A", 12 * GIB)
    for _ in range(programs - 1):
        world.attach(world.join(job_of(world, a).id), "GPU-0")
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    for _ in range(restarts):
        world.wait(1.0)
        world.restart()
        assert state_of(world, a) == SuspendState.SUSPENDING
    began = world.now
    while state_of(world, a) != SuspendState.SUSPENDED:
        world.wait(0.5)
        assert world.now < began + 9.0
        assert "trim" not in told(world, a), "it stands still"
    assert used(world, b) == 7 * GIB and not world.terminated
    world.exit(b, lag=0.1)
    world.wait(12.0)
    assert state_of(world, a) == "running" and used(world, a) == 12 * GIB


def test_a_command_that_its_suspender_never_heard_is_given_again_by_the_next_daemon(world: World) -> None:
    """The daemon ends between its notes and the command. The job has not failed to be suspended."""
    a = borrow(world, "A", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.work.clear()
    world.restart()
    world.wait(3.0)
    assert state_of(world, a) == SuspendState.SUSPENDED and used(world, b) == 7 * GIB
    assert not world.terminated and not world.node.counters.suspend_failures


def test_what_another_daemon_has_begun_teaches_no_speed(world: World) -> None:
    """The suspender's answer to it is of its look, not of the driver's work."""
    world.suspender_takes = 3.0
    a = borrow(world, "A", 12 * GIB)
    job = job_of(world, a).id
    world.send(SuspendWanted(job))
    world.restart()
    world.send(SuspenderAnswered(job, 0, "suspended", seconds=0.001))
    assert state_of(world, a) == SuspendState.SUSPENDED and not world.node.state.suspend_rate


@pytest.mark.parametrize("size", [GIB, 12 * GIB])
def test_a_restart_while_its_memory_comes_back_counts_it_once(size: int) -> None:
    """The driver goes on. NVML shows the memory before the suspender says where the job is."""
    world = node()
    a = start(world, "A", "512Mi", "13Gi", on_reclaim=SOFTLY)
    world.allocate(a, "GPU-0", size)
    world.suspender_comes(job_of(world, a).id, "ok")
    world.wait(3.0)
    begin_to_resume(world, a)
    learned = dict(world.node.state.overheads)
    world.restart()
    (work,) = world.work
    world._do(work, "ok")
    most = 0
    for _ in range(50):
        world.wait(0.1)
        world.send(world._sample("GPU-0"))
        most = max(most, world.node.state.usage(job_of(world, a), "GPU-0"))
    assert state_of(world, a) == "running" and used(world, a) == size
    assert most <= size + mib(300) and not world.node.counters.breaches
    assert world.node.state.overheads in ({}, learned), "that is no context's cost"
    world.node.validate()


def test_what_the_driver_has_put_back_unasked_is_charged_to_the_job_and_lent_to_nobody(world: World) -> None:
    """The daemon that told the suspender to bring it back ended before it noted that."""
    a = borrow(world, "A", 10 * GIB)
    c = start(world, "C", "none", "15Gi")
    job = job_of(world, a)
    world.send(SuspendWanted(job.id))
    world.wait(3.0)
    assert state_of(world, a) == SuspendState.SUSPENDED and world.node.state.usage(job, "GPU-0") == 0
    world.programs[a].away = False
    world.send(world._sample("GPU-0"))
    assert world.node.state.usage(job, "GPU-0") == 10 * GIB + mib(300)
    world.allocate(c, "GPU-0", 6 * GIB)
    assert world.refusals
    world.programs[a].away = True
    world.send(world._sample("GPU-0"))
    assert world.node.state.usage(job, "GPU-0") == 0, "it has left again"


@pytest.mark.parametrize("restarts", [1, 2])
def test_memory_on_its_way_back_is_lent_to_nobody_after_a_restart(world: World, restarts: int) -> None:
    """The driver may have put none of it back yet, so NVML does not show it."""
    a = borrow(world, "A", 10 * GIB)
    c = start(world, "C", "none", "15Gi")
    begin_to_resume(world, a)
    for _ in range(restarts):
        world.restart()
    assert state_of(world, a) == SuspendState.RESUMING
    world.allocate(c, "GPU-0", 6 * GIB)
    assert world.refusals
    world.wait(10.0)
    assert state_of(world, a) == "running" and used(world, a) == 10 * GIB
    assert not world.terminated


def test_after_a_restart_one_whose_suspender_says_nothing_ends(world: World) -> None:
    """As without a restart: it would hang, with its memory."""
    a = borrow(world, "A", 10 * GIB, "ok", "silent")
    begin_to_resume(world, a)
    world.restart()
    job = job_of(world, a).id
    world.wait(120.0)
    assert [one.job for one in world.killed] == [job]


def test_after_a_restart_nobody_is_stopped_before_its_suspender_could_come(world: World) -> None:
    a = borrow(world, "A", 12 * GIB)
    job = job_of(world, a).id
    del world.suspenders[job]
    b = start(world, "B", "8Gi", "8Gi")
    world.restart()
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(2.0)
    assert not world.terminated
    world.suspender_comes(job, "ok")
    world.wait(1.0)
    assert state_of(world, a) == SuspendState.SUSPENDED and used(world, b) == 7 * GIB


def test_one_whose_suspender_does_not_come_is_stopped(world: World) -> None:
    a = start(world, "A", "1Gi", "15Gi", on_reclaim=SOFTLY, grace=0.0)
    world.allocate(a, "GPU-0", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(4.0)
    assert not world.terminated
    world.wait(2.0)
    assert a not in world.programs and used(world, b) == 7 * GIB


def test_another_suspender_is_asked_where_the_job_is(world: World) -> None:
    a = borrow(world, "A", 12 * GIB)
    job = job_of(world, a).id
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(0.1)
    world.suspender_goes(job)
    world.suspender_comes(job, "ok")
    world.wait(1.0)
    assert state_of(world, a) == SuspendState.SUSPENDED and used(world, b) == 7 * GIB


def test_an_allocation_of_a_suspended_job_waits(world: World) -> None:
    """It was on its way to the daemon when its job was suspended."""
    a = borrow(world, "A", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.send(SuspendWanted(job_of(world, a).id))
    world.allocate(a, "GPU-0", GIB)
    world.wait(90.0)
    assert not world.refusals, "it is neither refused nor too late"
    world.send(ResumeWanted(job_of(world, a).id))
    world.wait(2.0)
    assert used(world, a) == 13 * GIB
    assert b in world.programs


def test_a_program_that_wants_a_context_meanwhile_waits_until_its_job_runs(world: World) -> None:
    """It has no gate yet, and its own patience ends with a claim's: so it is told to ask again."""
    a = borrow(world, "A", 12 * GIB)
    job = job_of(world, a).id
    world.send(SuspendWanted(job))
    world.wait(2.0)
    other = world.join(job)
    world.attach(other, "GPU-0")
    world.wait(100.0)
    (waiting,) = world.waiting.values()
    assert world.now - waiting.since < world.policy.claim_timeout, "its program would have given up"
    assert not world.refusals and world.node.counters.denials.total() == 0
    world.send(ResumeWanted(job))
    world.wait(2.0)
    assert state_of(world, a) == "running" and world.programs[other].contexts and not world.waiting


@pytest.mark.parametrize("available", [None, 8 * GIB, 14 * GIB])
def test_host_memory_counts_once_while_it_is_filled_and_not_again_when_it_is(available: int | None) -> None:
    """What the host has available lacks already what suspended jobs have taken, not what is on its way."""
    world = node(suspend_memory=20 * GIB)
    a = borrow(world, "A", 6 * GIB)
    world.node.state.host_available = available
    before = suspend.host_room(world.node.state)
    assert before == (20 * GIB if available is None else available)
    b = start(world, "B", "14Gi", "14Gi")
    world.allocate(b, "GPU-0", 10 * GIB)
    assert state_of(world, a) == SuspendState.SUSPENDING
    taken = job_of(world, a).suspension.host
    assert taken >= 6 * GIB and suspend.host_room(world.node.state) == before - taken
    world.wait(5.0)
    assert state_of(world, a) == SuspendState.SUSPENDED
    world.node.state.host_available = available
    assert suspend.host_room(world.node.state) == min(20 * GIB - taken, available or 20 * GIB)


def test_its_gate_opens_for_each_of_its_programs_when_it_is_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[OpenGate] = []
    obey = world._obey
    monkeypatch.setattr(
        world, "_obey", lambda one: (opened.append(one) if isinstance(one, OpenGate) else None, obey(one))[1]
    )
    a = borrow(world, "A", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(5.0)
    assert state_of(world, a) == SuspendState.SUSPENDED and not opened
    world.exit(b, lag=0.1)
    world.wait(3.0)
    assert opened == [OpenGate(job_of(world, a).id, (a,))]


def test_it_is_told_who_wants_its_memory_and_of_no_grace(world: World) -> None:
    """Nobody stops it, so it has nothing to hurry for."""
    a = borrow(world, "A", 12 * GIB)
    b = start(world, "B", "8Gi", "8Gi")
    world.allocate(b, "GPU-0", 7 * GIB)
    world.wait(1.0)
    job = job_of(world, a).id
    reasons = [one.reason for one in world.told if one.job == job and one.reason.code is Code.SUSPENDED]
    assert reasons
    facts = {name: OPERATOR.words(said) for name, said in reasons[0].facts}
    assert "grace" not in facts and any(" to B (" in said for said in facts.values())


def test_a_loan_asked_for_just_before_it_is_suspended_waits_and_is_met_when_it_runs(world: World) -> None:
    """It is told of nothing when it is suspended, so it is not refused what it asks for between the claim and that."""
    a = borrow(world, "A", 8 * GIB)
    begin_to_resume(world, a)
    world.wait(3.0)
    b = claim(world, 7 * GIB + GIB // 2)
    assert state_of(world, a) == "running", "it is left alone for a while"
    world.allocate(a, "GPU-0", GIB)
    world.wait(6.0)
    assert state_of(world, a) == SuspendState.SUSPENDED and used(world, b) == 7 * GIB + GIB // 2
    assert not world.refusals
    world.free(b, "GPU-0", 7 * GIB + GIB // 2)
    world.wait(6.0)
    assert state_of(world, a) == "running" and used(world, a) == 9 * GIB
    assert not world.refusals and not world.terminated
