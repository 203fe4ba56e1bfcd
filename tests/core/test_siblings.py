"""Processes of one job at its limit: who waits for whom, and for how long."""

from __future__ import annotations

from core.tale import siblings, spec, start, used
from gpushared.core.events import BudgetChanged
from gpushared.core.policy import MIB, Policy
from property.world import World

GIB = 1024 * MIB
GPU = "GPU-0"


def test_an_ask_has_its_turn_though_calls_of_its_job_are_answered_one_after_the_other() -> None:
    """Each answer starts a hold of its own: if they all counted, a busy process would keep its sibling out."""
    world = World([16 * GIB], [0], Policy(chunk=0, overhead_guess=0))
    world.note_limit = lambda limit: None  # type: ignore[method-assign]
    job = world.submit(spec("three", "4Gi", "4Gi"))
    first, second, other = (world.join(job) for _ in range(3))
    for process in (first, second, other):
        world.attach(process, GPU)
    for process in (first, second):
        world.programs[process].slow = True
        world.pause(process, True)
    world.allocate(first, GPU, GIB)
    world.wait(0.1)
    world.allocate(other, GPU, 3 * GIB + GIB // 2)
    world.wait(0.5)
    world.allocate(second, GPU, GIB)
    world.wait(0.4)
    assert [world.programs[one].words[GPU].credit for one in (first, second)] == [GIB, GIB]
    assert not used(world, other)
    world.wait(0.2)
    assert used(world, other) == 3 * GIB + GIB // 2, "it has waited for a second"


def test_a_claim_keeps_its_place_when_the_priority_of_its_job_changes() -> None:
    """Otherwise the next claim of the same job came before it and took its place in the request."""
    world = World([16 * GIB], [0], Policy(chunk=0, overhead_guess=0))
    world.note_limit = lambda limit: None  # type: ignore[method-assign]
    borrower = start(world, "B", "none", "16Gi", on_reclaim=("kill",))
    world.allocate(borrower, GPU, 15 * GIB)
    first, second = siblings(world, "two", "8Gi", "16Gi")
    world.programs[borrower].stubborn = True
    world.allocate(first, GPU, 5 * GIB)
    world.send(BudgetChanged(world.programs[first].job, priority=2))
    world.allocate(second, GPU, 5 * GIB)
    assert [one.process for one in world.refusals] == [second], "the second is above the request"
    world.programs[borrower].stubborn = False
    world.wait(3.0)
    assert used(world, first) >= 5 * GIB
