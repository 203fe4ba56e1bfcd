"""A borrower whose program belongs to another user by now: it is not stopped, and nobody waits for its memory."""

from __future__ import annotations

import pytest

from core.tale import start, used
from gpushared.core.events import LeftAlone
from gpushared.core.policy import MIB, Policy
from property.world import World, mib

GIB = 1024 * MIB


@pytest.fixture
def world() -> World:
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    world.ever_stubborn = True
    yield world
    world.node.validate()


def borrower(world: World, name: str, size: int, **more: object) -> int:
    process = start(world, name, "none", "14Gi", **more)
    world.allocate(process, "GPU-0", size)
    assert used(world, process) == size
    return process


def test_others_are_asked_at_once_instead(world):
    gone, other = borrower(world, "first", 7 * GIB, priority=-1), borrower(world, "second", 6 * GIB)
    world.setuid = {gone}
    owner = start(world, "serve", "4Gi", "4Gi")
    world.allocate(owner, "GPU-0", 3 * GIB)
    world.wait(9.0)
    assert used(world, owner) == 3 * GIB
    assert gone in world.programs and other not in world.programs
    job = world.node.jobs[world.programs[gone].job]
    assert not job.reclaims and job.left_alone == {gone}
    (told,) = [one for one in world.node.story(job.id) if one.event == "left_alone"]
    assert str(world.programs[gone].pid) in told.text and "another user" in told.text
    assert world.node.counters.left_alone == 1
    assert len(world.terminated) == 2 and len(world.killed) == 1


def test_a_claim_that_only_it_could_meet_fails_in_its_time_and_says_why(world):
    gone = borrower(world, "first", 12 * GIB)
    world.setuid = {gone}
    owner = start(world, "serve", "8Gi", "8Gi")
    world.allocate(owner, "GPU-0", 7 * GIB)
    world.wait(31.0)
    (refusal,) = world.refusals
    assert refusal.reason.data["cause"] == "left_alone"
    assert world.node.counters.violations == {"left_alone": 1}
    assert len(world.terminated) == 1 and not world.killed, "it is asked once"


def test_when_that_program_has_gone_the_job_is_a_borrower_like_any_other(world):
    gone = borrower(world, "first", 3 * GIB)
    job = world.programs[gone].job
    world.node.handle(LeftAlone(job, {world.programs[gone].pid: gone}), world.now)
    other = world.join(job)
    world.attach(other, "GPU-0")
    world.wait(1.0)
    world.allocate(other, "GPU-0", 10 * GIB)
    assert world.node.jobs[job].is_left_alone
    world.exit(gone)
    world.wait(1.0)
    assert not world.node.jobs[job].is_left_alone
    owner = start(world, "serve", "8Gi", "8Gi")
    world.allocate(owner, "GPU-0", 7 * GIB)
    world.wait(9.0)
    assert used(world, owner) == 7 * GIB


def test_a_main_process_without_memory_changes_nothing_but_the_story(world):
    process = borrower(world, "first", 12 * GIB)
    job = world.programs[process].job
    world.node.handle(LeftAlone(job, {77: None}), world.now)
    assert not world.node.jobs[job].is_left_alone
    assert world.node.story(job)[-1].facts == {"pid": 77}
    world.node.handle(LeftAlone("gone", {77: None}), world.now)
    assert world.node.counters.left_alone == 1
