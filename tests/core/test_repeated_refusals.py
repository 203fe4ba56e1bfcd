"""A program that is refused again and again: its story tells of it, and is not filled with it."""

from __future__ import annotations

from core.tale import job_of, start
from gpushare.reasons import Code
from gpushared.core.policy import Policy
from gpushared.core.repeats import MOST, WITHIN, Repeats
from gpushared.core.visibility import OPERATOR
from property.world import World, mib

GIB = 1024 * mib(1)


def told(world: World, process: int) -> list[str]:
    return [str(OPERATOR.words(one.text)) for one in job_of(world, process).story if one.event == "denied"]


def node() -> World:
    return World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))


def poll(world: World, process: int, size: int, seconds: float) -> int:
    """It asks every 50 ms. How often it was refused."""
    before = world.node.counters.denials[Code.NOT_FREE.value]
    for _ in range(round(seconds / 0.05)):
        world.allocate(process, "GPU-0", size)
        world.wait(0.05)
    return world.node.counters.denials[Code.NOT_FREE.value] - before


def test_a_borrower_that_polls_while_a_claim_waits() -> None:
    world = node()
    train, serve = start(world, "train", "1Gi", "12Gi", grace=4.0), start(world, "serve", "13Gi", "13Gi")
    world.allocate(train, "GPU-0", 8 * GIB)
    world.wait(1.0)
    world.allocate(serve, "GPU-0", 12 * GIB)
    assert poll(world, train, 2 * mib(1), 3.0) > 20
    (line,) = told(world, train)
    assert line.endswith("it is above this job's request, and nothing of the 6.9 GiB that are free can be lent")
    facts = next(dict(one.reason.facts) for one in world.refusals if one.reason.code is Code.NOT_FREE)
    assert OPERATOR.words(facts["claimed"]) == "serve (alice) 11.9 GiB, within the request"


def test_the_next_line_says_how_many_were_left_out() -> None:
    world = node()
    train, serve = start(world, "train", "1Gi", "15Gi"), start(world, "serve", "8Gi", "8Gi", lend=False)
    assert poll(world, train, 9 * GIB, WITHIN - 1) > 100
    world.allocate(train, "GPU-0", 10 * GIB)
    world.wait(1.5)
    world.allocate(train, "GPU-0", 9 * GIB)
    world.wait(0.1)
    _, first, other, third = told(world, train)  # at first it had some credit left
    assert first.startswith("cannot allocate 9.0 GiB") and first.endswith("that are free can be lent")
    assert other.startswith("cannot allocate 10.0 GiB"), "another amount is other news"
    assert third.startswith("cannot allocate 9.0 GiB") and " more like it)" in third
    assert int(third.rsplit("(and ", 1)[1].split()[0]) > 100
    kept = dict(world.refusals[-1].reason.facts)["kept"]
    assert kept == "7.6 GiB of requests that are not lent"
    assert serve


def test_kinds_are_counted_apart_and_few_are_remembered() -> None:
    one = Repeats()
    assert [one.left_out(("a", "g", 1), now) for now in (0.0, 1.0, WITHIN - 0.1)] == [0, None, None]
    assert one.left_out(("a", "g", 2), 1.0) == 0 and one.left_out(("b", "g", 1), 1.0) == 0
    assert one.left_out(("a", "g", 1), WITHIN) == 2
    for size in range(3, 3 + MOST):
        assert one.left_out(("a", "g", size), WITHIN) == 0
    assert one.left_out(("a", "g", 1), WITHIN) == 0, "forgotten: it is told again"
