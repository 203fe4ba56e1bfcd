"""What the next daemon knows of a job's work: who is the cheapest to stop stays so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.tale import spec, start
from gpushared.core.events import Checkpointed
from gpushared.core.instructions import Revoke
from gpushared.core.model import Bounds
from gpushared.core.policy import MIB, Policy
from property.world import World, mib

GIB = 1024 * MIB
GPU = "GPU-0"


def node() -> World:
    return World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_how_long_ago_jobs_began_and_saved_is_not_forgotten(restarts: int) -> None:
    world = node()
    jobs = {}
    for name, saves in (("old", 100), ("fresh", 20), ("never", None)):
        process = start(world, name, "none", "max", on_reclaim=("term", "kill"))
        world.allocate(process, GPU, 4 * GIB)
        jobs[name] = world.programs[process].job, saves
    began = world.now
    world.wait(50.0)
    world.send(Checkpointed(jobs["old"][0]))
    world.wait(80.0)
    world.send(Checkpointed(jobs["fresh"][0]))
    for _ in range(restarts):
        world.wait(10.0)
        world.restart()
    known = {name: world.node.jobs[job] for name, (job, _) in jobs.items()}
    assert [one.since for one in known.values()] == pytest.approx([began] * 3)
    assert known["old"].saved_at == pytest.approx(began + 50.0)
    assert known["fresh"].saved_at == pytest.approx(began + 130.0)
    assert known["never"].saved_at < began
    owner = start(world, "owner", "6Gi", "6Gi")
    world.allocate(owner, GPU, 5 * GIB)
    assert [one.job for one in world.terminated] == [jobs["fresh"][0]], "it has the least to lose"


def test_what_a_word_says_while_it_is_lowered_is_known_at_once() -> None:
    """The program has taken some of its idle credit since the daemon has looked."""
    world = node()
    one, other = start(world, "one", "none", "max"), start(world, "other", "none", "max")
    world.allocate(one, GPU, 12 * GIB)
    world.free(one, GPU, 8 * GIB)
    obey, word = world._obey, world.programs[one].words[GPU]

    def take_before(instruction):
        if isinstance(instruction, Revoke) and instruction.process == one and word.used < 6 * GIB:
            word.used = 6 * GIB
        return obey(instruction)

    world._obey = take_before  # type: ignore[method-assign]
    usages = []
    handle = world.node.handle
    world.node.handle = lambda event, now: (  # type: ignore[method-assign]
        handle(event, now),
        usages.append(world.node.state.usage(world.node.jobs[world.programs[one].job], GPU)),
    )[0]
    world.allocate(other, GPU, 8 * GIB)
    assert word.used == 6 * GIB
    assert usages[-1] == world.usage(world.programs[one].job, GPU)


def test_nobody_has_been_idle_while_no_daemon_looked() -> None:
    """What was seen before the restart is not known any more, and the time without a daemon says nothing."""
    world = node()
    sample = world._sample
    world._sample = lambda gpu: replace(sample(gpu), busy=frozenset())  # type: ignore[method-assign]
    jobs = {}
    for name, size in (("long", 4 * GIB), ("short", 3 * GIB)):
        process = start(world, name, "none", "max", on_reclaim=("term", "kill"))
        world.allocate(process, GPU, size)
        jobs[name] = world.programs[process].job
        world.wait(200.0)
    world.restart()
    world.wait(30.0)
    owner = start(world, "owner", "9Gi", "9Gi")
    world.allocate(owner, GPU, 8 * GIB + GIB // 4)
    assert [one.job for one in world.terminated] == [jobs["short"]], "it has less to lose"


def test_gpu_that_a_job_took_after_the_last_notes_is_a_loan_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page knows of that GPU, the notes of the dead daemon do not."""
    world = World([16 * GIB] * 2, [mib(300)] * 2, Policy(overhead_guess=mib(300)))
    process = start(world, "one", "2Gi", "12Gi", gpus=0)
    written = world.node.notes()
    world.attach(process, "GPU-1")
    world.allocate(process, "GPU-1", 10 * GIB)

    def stale(_: object) -> dict[str, object]:
        monkeypatch.undo()
        return written

    monkeypatch.setattr(type(world.node), "notes", stale)
    world.restart()
    job = world.node.jobs[world.programs[process].job]
    assert job.bounds["GPU-1"] == Bounds(0, 12 * GIB)
    owner = world.join(world.submit(spec("owner", "10Gi", "10Gi", devices=("GPU-1",))))
    world.attach(owner, "GPU-1")
    world.wait(1.0)
    world.allocate(owner, "GPU-1", 9 * GIB)
    assert [one.job for one in world.terminated] == [job.id]


def test_context_that_is_closed_at_a_restart_is_charged_when_it_opens_again() -> None:
    world = node()
    process = start(world, "one", "2Gi", "8Gi")
    world.detach(process, GPU)
    world.wait(1.0)
    world.restart()
    job = world.node.jobs[world.programs[process].job]
    assert world.node.state.usage(job, GPU) == 0
    world.attach(process, GPU)
    assert world.node.state.usage(job, GPU) == mib(300)


def test_what_a_context_costs_is_still_learned_from_one_that_opened_just_before_a_restart() -> None:
    """The page has the guess, and nothing says in it whether it was measured."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(500)))
    process = start(world, "one", "2Gi", "8Gi")
    assert world.node.state.overheads == {}
    world.restart()
    world.wait(10.0)
    assert world.node.state.overheads == {"software GPU": mib(300)}
    assert world.node.state.usage(world.node.jobs[world.programs[process].job], GPU) == mib(300)
