"""Nobody is forgotten: after each event, an allocator without any memory of failures finds nothing more to do.

The running allocator does not look again at what it believes cannot start. The second one is built after each event
from the facts alone (allocator_facts.py), so it looks at everything. What it would do and the first did not is an
exception.

Not judged are moments whose facts cannot be handed on by public events: while a job has a reservation or runs on
reserved nodes, while tasks that were told to stop hold their GPUs, and while an engine has refused to stop a job. The
run counts both kinds of moments.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from allocator_facts import left_undone
from allocator_world import Taste, World

from gpushare.cluster.model import Grow, Shrink, TimePassed

EVENTS = int(os.environ.get("GPUSHARE_TEST_EVENTS", "1500"))
SEED = int(os.environ.get("GPUSHARE_TEST_SEED", "1"))
LENGTH = 75
"""Events of one cluster's life."""

ALL = Taste(reserve=False)
TASTES = {
    "everything": ALL,
    "reserve": Taste(),
    "reported": replace(ALL, reported=True),
    "engine": replace(ALL, engine=True),
    "engine_reported": replace(ALL, engine=True, reported=True),
    "bytes": replace(ALL, ladders=False, elastic=False, min_runtime=False, losses=False, changes=False),
    "elastic": replace(ALL, bytes=False, fixed=False, selectors=False, losses=False),
    "patient": replace(ALL, patient=True),
    "tight": replace(ALL, tight=True, ladders=False, elastic=False),
}


@dataclass
class Judged:
    """What was seen in the life of some clusters."""

    events: int = 0
    moments: int = 0
    """After which the second allocator was asked."""
    found: Counter[str] = field(default_factory=Counter)
    """Kinds of actions that had been left undone."""
    forgotten: dict[tuple[int, str], str] = field(default_factory=dict)
    """By seed and job: what was first found for it, and after which event."""
    wrong: int = 0
    """Moments at which something had been left undone."""


def rest(world: World) -> bool:
    """Whether what follows at once from the last event has been done, and can be told by public events."""
    for _ in range(50):
        if world.allocator.next_wake is None or world.allocator.next_wake > world.allocator.now:
            break
        world.send(TimePassed())
    else:
        raise AssertionError("it does not come to rest")
    reserved = world.allocator.dump()["reserved"][0]
    if world.leaving or reserved is not None or any(view.backfill for view in world.allocator.jobs.values()):
        return False
    return not any(job.spared > world.now for job in world.allocator._state.jobs.values())


def live(seed: int, taste: Taste, judged: Judged) -> None:
    world = World(seed, taste)
    changed: dict[str, float] = {}
    heard = 0
    for number in range(LENGTH):
        world.step()
        judged.events += 1
        ready = rest(world)
        for (_, now), actions in zip(world.log[heard:], world.actions[heard:], strict=True):
            changed.update({action.job: now for action in actions if isinstance(action, (Shrink, Grow))})
        heard = len(world.log)
        if not ready:
            continue
        judged.moments += 1
        undone = left_undone(world.allocator, changed)
        judged.wrong += bool(undone)
        for action in undone:
            key = seed, action.job
            if key not in judged.forgotten:
                judged.found[type(action).__name__] += 1
                judged.forgotten[key] = f"seed {seed}, event {number}: {type(action).__name__} {action.job}"


def judge(name: str, events: int) -> Judged:
    judged = Judged()
    seed = SEED * 1_000_000
    while judged.events < events:
        seed += 1
        try:
            live(seed, TASTES[name], judged)
        except Exception as error:
            raise AssertionError(f"{name}: seed {seed} after {judged.events} events") from error
    return judged


@pytest.mark.timeout(0)
def test_nothing_is_left_undone() -> None:
    forgotten: list[str] = []
    for name in TASTES:
        judged = judge(name, EVENTS // len(TASTES))
        found = f"{len(judged.forgotten)} jobs forgotten at {judged.wrong} moments {dict(judged.found)}"
        print(f"{name}: {judged.events} events, {judged.moments} moments judged: {found}", flush=True)
        assert judged.moments > judged.events / 10, "too few moments were judged"
        forgotten += [f"{name}: {what}" for what in judged.forgotten.values()]
    assert not forgotten, forgotten[:10]


@pytest.mark.parametrize(
    ("taste", "seed"),
    [
        ("tight", 41000005),  # only a limit further up kept a job from taking the place of others in its queue
        ("tight", 21000017),  # bytes too dear on the GPUs that fit best
        ("reserve", 21000054),  # tasks that only the largest GPUs hold
        ("elastic", 21000036),  # a queue gives up its minimum run time
    ],
)
def test_lives_in_which_a_job_was_once_forgotten(taste: str, seed: int) -> None:
    judged = Judged()
    live(seed, TASTES[taste], judged)
    assert not judged.forgotten
