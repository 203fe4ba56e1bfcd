"""What is kept free for the first job that waits to get its memory back."""

from __future__ import annotations

import pytest

from core.tale import job_of, start, told, used
from gpushare.reasons import Code
from gpushared.core.events import ResumeWanted, SuspendWanted
from gpushared.core.policy import MIB, Policy
from gpushared.core.suspension import SuspendState
from property.world import World, mib

GIB = 1024 * MIB
GPU = "GPU-0"
STEPS = {"suspend": ("suspend", "term", "kill"), "hook": ("hook", "term", "kill")}


class Three(World):
    """A has given 8 GiB to the owner B, which uses 9 of its 12 GiB now; U has nothing yet."""

    def __init__(self, step: str) -> None:
        super().__init__([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
        self.a = start(self, "A", "none", "15Gi", on_reclaim=STEPS[step])
        self.allocate(self.a, GPU, 8 * GIB)
        job = self.programs[self.a].job
        self.suspender_comes(job, "ok") if step == "suspend" else self.hooks.come(job, "ok")
        self.wait(6.0)
        self.b = start(self, "B", "12Gi", "12Gi")
        self.allocate(self.b, GPU, 9 * GIB)
        self.wait(3.0)
        assert a_waits(self)
        self.u = start(self, "U", "1Gi", "15Gi")


@pytest.fixture(params=STEPS)
def world(request: pytest.FixtureRequest) -> Three:
    one = Three(request.param)
    yield one
    one.node.validate()


def a_waits(world: Three) -> bool:
    job = job_of(world, world.a)
    suspended = job.suspension is not None and job.suspension.state is SuspendState.SUSPENDED
    return suspended or (job.sleep is not None and job.sleep.deadline is None)


def leave_some(world: Three) -> None:
    """B uses 5 GiB: A would fit, if the others gave their loans back."""
    world.free(world.b, GPU, 4 * GIB)
    world.wait(1.0)


def borrow(world: Three, size: int) -> bool:
    """Whether U gets so much on loan."""
    before = len(world.refusals)
    world.allocate(world.u, GPU, size)
    return len(world.refusals) == before


def test_nobody_borrows_what_the_first_that_waits_lacks(world: Three) -> None:
    assert borrow(world, 3 * GIB), "while owners leave too little room for it, memory is lent"
    leave_some(world)
    assert a_waits(world), "the loan is in its way"
    assert not borrow(world, GIB)
    refusal = world.refusals[-1].reason
    assert refusal.code is Code.NOT_FREE and any("which waits to go on" in repr(what) for _, what in refusal.facts)
    assert world.pages[GPU][world.u].grantable == 0, "programs see the same"
    world.free(world.u, GPU, 3 * GIB)
    world.wait(3.0)
    assert not a_waits(world), "it goes on as soon as it fits"
    assert borrow(world, 256 * MIB), "what is left is lent again"


def test_an_owner_gets_what_is_kept(world: Three) -> None:
    assert borrow(world, 3 * GIB)
    leave_some(world)
    refused = len(world.refusals)
    world.allocate(world.b, GPU, 4 * GIB)
    assert used(world, world.b) == 9 * GIB and len(world.refusals) == refused, "within its request"
    assert a_waits(world)


def test_within_its_request_a_borrower_gets_it_too(world: Three) -> None:
    assert borrow(world, 3 * GIB)
    leave_some(world)
    world.free(world.u, GPU, 3 * GIB - 64 * MIB)
    world.allocate(world.u, GPU, 512 * MIB)
    assert used(world, world.u) == 576 * MIB


def test_a_job_of_higher_priority_borrows_all_the_same(world: Three) -> None:
    assert borrow(world, 3 * GIB)
    leave_some(world)
    world.u = start(world, "V", "none", "15Gi", priority=1)
    assert borrow(world, GIB)


def test_nothing_is_kept_for_a_job_that_cannot_go_on(world: Three) -> None:
    """The process that would bring it back has gone."""
    assert borrow(world, 3 * GIB)
    leave_some(world)
    assert not borrow(world, 512 * MIB)
    job = world.programs[world.a].job
    world.suspender_goes(job) if job in world.suspenders else world.hooks.go(job)
    assert borrow(world, 512 * MIB)


def test_nothing_is_kept_for_a_job_that_stands_still(world: Three) -> None:
    """Ctrl-Z has stopped its program, perhaps for the night."""
    assert borrow(world, 3 * GIB)
    leave_some(world)
    assert not borrow(world, 512 * MIB)
    world.pause(world.a, True)
    world.wait(1.0)
    assert world.pages[GPU][world.u].grantable > GIB, "programs see that"
    assert borrow(world, 512 * MIB)
    world.pause(world.a, False)
    world.wait(2.0)
    assert not borrow(world, 512 * MIB), "it waits again"
    world.free(world.u, GPU, 3 * GIB + 512 * MIB)
    world.wait(3.0)
    assert not a_waits(world)


def test_it_is_not_tried_while_it_stands_still_and_others_go_on(world: Three) -> None:
    other = start(world, "C", "none", "15Gi", on_reclaim=("suspend", "term", "kill"))
    world.allocate(other, GPU, GIB)
    world.suspender_comes(world.programs[other].job, "ok")
    world.wait(6.0)
    world.send(SuspendWanted(world.programs[other].job))
    world.wait(2.0)
    world.pause(world.a, True)
    world.wait(1.0)
    world.send(ResumeWanted(world.programs[other].job))
    world.wait(1.0)
    assert job_of(world, other).suspension is None, "it waits for nobody who stands still"
    assert a_waits(world)
    leave_some(world)
    leave_some(world)
    world.wait(5.0)
    assert a_waits(world) and not {"not_resumed", "not_awake"} & set(told(world, world.a)), "nobody has tried"
    world.pause(world.a, False)
    world.wait(3.0)
    assert not a_waits(world)
