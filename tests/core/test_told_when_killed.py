"""What a killed borrower is told: for whom, and with the numbers of that moment, not of its SIGTERM."""

from __future__ import annotations

from core.tale import start
from gpushare.quantity import Quantity
from gpushared.core.events import BudgetChanged, SuspenderAnswered, SuspendWanted
from gpushared.core.policy import Policy
from gpushared.core.visibility import OPERATOR
from property.world import World, mib

GIB = 1024 * mib(1)


def node() -> World:
    return World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))


def borrower(world: World) -> int:
    process = start(world, "train", "1Gi", "15Gi")
    world.allocate(process, "GPU-0", 12 * GIB)
    return process


def test_the_numbers_are_those_of_the_kill() -> None:
    world = node()
    train, serve = borrower(world), start(world, "serve", "8Gi", "8Gi")
    world.allocate(serve, "GPU-0", 7 * GIB)
    (told,) = world.terminated
    assert told.reason.data["loan"] == 12 * GIB + mib(300) - GIB
    world.send(BudgetChanged(world.programs[train].job, request=Quantity.parse("7Gi")))
    world.wait(6.0)
    (kill,) = world.killed
    data = kill.reason.data
    assert (data["loan"], data["request"]) == (5 * GIB + mib(300), 7 * GIB)
    assert data["usage"] == 12 * GIB + mib(300)
    assert dict(kill.reason.facts)["used"] == "12.3 GiB, of which 7.0 GiB guaranteed and 5.3 GiB on loan"
    assert data["grace"] == told.reason.data["grace"]


def test_it_is_killed_for_the_claim_that_needs_it_then() -> None:
    """The one that it got SIGTERM for has gone."""
    world = node()
    borrower(world)
    first, second = start(world, "first", "4Gi", "4Gi"), start(world, "second", "8Gi", "8Gi")
    world.allocate(first, "GPU-0", 3 * GIB + mib(700))
    world.allocate(second, "GPU-0", 7 * GIB)
    assert [one.reason.data["owner"] for one in world.terminated] == [world.programs[first].job]
    gone = world.programs[first].job
    world.exit(first)
    world.end(gone)
    world.wait(6.0)
    (kill,) = world.killed
    assert kill.reason.data["owner"] == world.programs[second].job
    assert kill.reason.data["asked"] == 7 * GIB
    text = next(one.text for one in world.node.story(kill.job) if one.event == "kill")
    assert OPERATOR.words(text).endswith("is needed by second")


def test_one_whose_suspension_was_given_up_and_succeeds_is_told_that_it_need_not_end() -> None:
    """What it is told then ends what it was told before (gpushared/jobs/lifecycle.py)."""
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300), suspend_patience=0.0))
    train = start(world, "train", "1Gi", "15Gi", on_reclaim=("suspend", "term", "kill"), grace=20.0)
    world.allocate(train, "GPU-0", 8 * GIB)
    job = world.programs[train].job
    world.suspender_comes(job, "failed")
    world.wait(3.0)
    world.send(SuspendWanted(job))
    world.wait(3.0)
    assert [one.job for one in world.terminated] == [job]
    suspension = world.node.jobs[job].suspension
    assert suspension is not None
    world.send(SuspenderAnswered(job, suspension.number, "suspended", seconds=1.0))
    assert [one.kind for one in world.told][-1] == "suspended"
