"""Turns in computing: who may launch, who is next, and that nobody waits for ever."""

from __future__ import annotations

import random

import pytest

from core.turn_world import STEP, Program, TurnWorld
from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX, NOTHING
from gpushare.reasons import Code
from gpushared.core.turns import LEAST_WEIGHT, Seen, Terms, Turn, Turns, refusal, weights

ACCURACY = 0.04
"""Of the GPU's working time, for programs that always want to compute."""


def test_one_job_that_computes_is_never_held_back() -> None:
    world = TurnWorld([Program("A"), Program("B", kernel=0, queued=0)])
    world.programs[1].stopped = True
    world.run(2)
    assert world.turns.count == 0 and not any(orders.closed for orders in world.looks)
    assert world.programs[0].ran == pytest.approx(2000, abs=5)


def test_shares_are_as_asked_for() -> None:
    world = TurnWorld([Program("A", 0.75), Program("B", 0.25)])
    world.run(20)
    assert world.shares()["A"] == pytest.approx(0.75, abs=ACCURACY)
    assert sum(one.ran for one in world.programs) > 0.85 * 20_000, "little time is lost between turns"


@pytest.mark.parametrize("kernels", [(40, 150), (150, 2), (5, 60), (1, 1)])
def test_long_and_short_kernels_get_the_same_shares(kernels: tuple[int, int]) -> None:
    world = TurnWorld([Program("A", 0.75, kernel=kernels[0]), Program("B", 0.25, kernel=kernels[1])])
    world.run(40)
    assert world.shares()["A"] == pytest.approx(0.75, abs=ACCURACY)


def test_work_that_is_queued_beyond_the_turn_is_made_up_for() -> None:
    world = TurnWorld([Program("A", 0.5), Program("B", 0.5, kernel=2, queued=200)])
    world.run(60)
    assert world.shares()["A"] == pytest.approx(0.5, abs=ACCURACY)


def test_what_a_job_does_not_use_is_the_others() -> None:
    world = TurnWorld([Program("A", 0.75, pause=200), Program("B", 0.25)])
    world.run(20)
    a, b = world.programs
    assert a.ran == pytest.approx(20_000 * 5 / 205, rel=0.35), "as if it were nearly alone"
    assert b.ran > 0.8 * 20_000
    assert a.longest_wait * STEP < 0.1, "it waits for no whole turn of a job that has had more than its part"


def test_an_idle_holder_loses_its_turn_at_once() -> None:
    world = TurnWorld([Program("A", length=30.0), Program("B")])
    world.run(1)
    a, b = world.programs
    assert world.turns.state_of("A") is Turn.HOLDS and world.turns.state_of("B") is Turn.WAITS
    a.resumes = world.now + 5000
    a.pause = 5000
    began, ran = world.now, b.ran
    while b.ran == ran:
        world.step()
    assert (world.now - began) * STEP < 0.04


def test_an_exclusive_job_is_alone_for_its_time_and_then_others_are() -> None:
    world = TurnWorld([Program("A", 0.5, length=2.0), Program("B", 0.5)])
    world.run(30)
    assert world.shares()["A"] == pytest.approx(0.5, abs=2 * ACCURACY)
    assert 1.9 < world.programs[1].longest_wait * STEP < 2.2


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_holder_that_is_gone_or_stopped_holds_nobody_back(end: str) -> None:
    world = TurnWorld([Program("A", length=30.0), Program("B")])
    world.run(1)
    a, b = world.programs
    assert world.turns.holder == "A"
    if end == "killed":
        world.kill(a)
    else:
        a.stopped = True
    world.run(0.1)
    ran = b.ran
    world.run(1)
    assert b.ran - ran > 900
    assert b.longest_wait * STEP < 1.1


def test_a_program_that_does_not_answer_is_waited_for_so_long_and_no_longer() -> None:
    """Its thread hangs, and it is not seen to be stopped."""
    turns = Turns(Terms())
    mute = Seen("A", 0.5, 0.1, launched=True, done=False)
    waits = Seen("B", 0.5, 0.1, waits=True)
    now = 0.0
    while turns.holder != "B":
        turns.look(now, [mute, waits])
        now += 0.004
        assert now < 1.3
    assert turns.look(now, [mute, waits]).closed == {"A"}


def test_a_job_that_was_idle_has_not_saved_up_turns() -> None:
    world = TurnWorld([Program("A", 0.5), Program("B", 0.5), Program("C", 0.5, pause=10**9)])
    world.run(20)
    late = world.programs[2]
    late.pause = late.resumes = 0
    world.forget()
    world.run(3)
    assert world.shares()["C"] == pytest.approx(1 / 3, abs=2 * ACCURACY)


def test_shares_of_jobs_that_ask_for_none() -> None:
    assert weights({"A": 0.75, "B": None}) == {"A": 0.75, "B": 0.25}
    assert weights({"A": 0.5, "B": None, "C": None}) == {"A": 0.5, "B": 0.25, "C": 0.25}
    assert weights({"A": 1.0, "B": None}) == {"A": 1.0, "B": LEAST_WEIGHT}
    assert weights({"A": 0.75, "B": 0.75}) == {"A": 0.75, "B": 0.75}
    assert weights({}) == {}


# ---- whatever the programs do --------------------------------------------------------------------------


def anyone(draw: random.Random, name: str) -> Program:
    return Program(
        name,
        weight=draw.choice([0.05, 0.1, 0.25, 0.5, 0.75, 1.0]),
        kernel=draw.choice([1, 3, 10, 50, 200]),
        queued=draw.choice([1, 1, 2, 10]),
        pause=draw.choice([0, 0, 0, 1, 3, 30, 300]),
        length=draw.choice([0.1, 0.1, 0.1, 1.0]),
    )


def longest(one: Program, others: list[Program], terms: Terms) -> float:
    """Seconds that a launch of `one` may wait: until the others have had as much for their weights, and each ends its
    turn and what it has queued."""
    had = (other.weight / one.weight * max(one.length, terms.turn) + 2 * other.length for other in others)
    ends = (terms.drain + other.kernel * other.queued * STEP + terms.begin for other in others)
    return 2 * (sum(had) + sum(ends))


@pytest.mark.parametrize("seed", range(60))
def test_nobody_starves_and_only_the_holder_launches(seed: int) -> None:
    draw = random.Random(seed)
    programs = [anyone(draw, name) for name in "ABCD"[: draw.randint(2, 4)]]
    world = TurnWorld(list(programs))
    for _ in range(40):
        world.run(0.5)
        chance = draw.random()
        if chance < 0.05:
            draw.choice(programs).stopped = True
        elif chance < 0.1 and len(world.programs) > 1:
            world.kill(draw.choice(world.programs))
    for orders in world.looks:
        assert orders.busy or not orders.closed, "while there are no turns, everybody may launch"
    for one in world.programs:
        others = [other for other in programs if other is not one]
        if not one.stopped:
            assert one.longest_wait * STEP <= longest(one, others, world.terms), (one, programs)


@pytest.mark.parametrize("seed", range(20))
def test_shares_of_any_programs_that_always_compute(seed: int) -> None:
    draw = random.Random(seed)
    programs = [anyone(draw, name) for name in "ABC"[: draw.randint(2, 3)]]
    for one in programs:
        one.pause, one.length, one.weight = 0, 0.1, draw.choice([0.25, 0.5, 0.75])
        one.queued = min(one.queued, int(Terms().drain / STEP / one.kernel))  # more is not waited for
    world = TurnWorld(programs)
    world.run(90)
    total = sum(one.weight for one in programs)
    for one in programs:
        assert world.shares()[one.name] == pytest.approx(one.weight / total, abs=ACCURACY), programs


# ---- who cannot have turns -------------------------------------------------------------------------------


def spec(**more: object) -> JobSpec:
    return JobSpec("job", 1000, "ada", ("x",), NOTHING, MAX)._replace(**more)


@pytest.mark.parametrize(
    "wish, on, words",
    [
        ({}, False, None),
        ({"compute": 0.5}, True, None),
        ({"exclusive": 30.0}, True, None),
        ({"compute": 0.5}, False, "--compute: jobs take no turns in computing on this node"),
        ({"compute": 0.5, "exclusive": 1.0}, False, "--compute and --exclusive: jobs take no turns"),
        ({"compute": 0.5, "gpus": 2}, True, "jobs on several GPUs take no turns"),
        ({"compute": 0.5, "observe": True}, True, "an observed job takes no turns"),
        ({"exclusive": 31.0}, True, "--exclusive 31 s: a turn is at most 30 s here"),
    ],
)
def test_what_is_refused(wish: dict[str, object], on: bool, words: str | None) -> None:
    reason = refusal(spec(**wish), on=on, longest=30.0)
    assert (reason is None) == (words is None)
    if reason is not None and words is not None:
        assert reason.code is Code.NO_TURNS and words in str(reason.message) and reason.hint
