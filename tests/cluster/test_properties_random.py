"""Random events against the allocator, every invariant checked after each, on the engine's books and on its own.

A few thousand events in the ordinary run; GPUSHARE_TEST_EVENTS=200000 GPUSHARE_TEST_SEED=1 drives as many as one wants.
The run counts what it has seen and fails if it was shallow.
"""

from __future__ import annotations

import copy
import os
from collections import Counter

import pytest
from allocator_world import Taste, World

from gpushare.cluster.model import TimePassed

EVENTS = int(os.environ.get("GPUSHARE_TEST_EVENTS", "6000"))
SEED = int(os.environ.get("GPUSHARE_TEST_SEED", "1"))
LENGTH = 150
"""Events of one cluster's life."""

TASTES = {
    "everything": Taste(),
    "reported": Taste(reported=True),
    "engine": Taste(engine=True),
    "patient": Taste(patient=True),
    "engine_reported": Taste(engine=True, reported=True),
    "plain": Taste(ladders=False, bytes=False, losses=False, selectors=False, reserve=False, min_runtime=False),
    "plain_reported": Taste(reported=True, ladders=False, bytes=False, selectors=False, changes=False),
}


def at_rest(world: World) -> None:
    """What follows from an event follows at once: then nothing is left to decide, unless it wants to be asked again."""
    if world.allocator.next_wake != world.allocator.now:
        twin = copy.deepcopy(world.allocator)
        assert not twin.handle(TimePassed(), twin.now), "something was left undone"


@pytest.mark.parametrize("name", TASTES)
@pytest.mark.timeout(0)
def test_random_events_break_no_invariant(name) -> None:
    seen: Counter[str] = Counter()
    events, seed = 0, SEED * 1_000_000
    while events < EVENTS // len(TASTES):
        seed += 1
        world = World(seed, TASTES[name])
        try:
            for number in range(LENGTH):
                world.step()
                if number % 10 == 0:
                    at_rest(world)
            world.settle()
        except Exception as error:
            raise AssertionError(f"seed {seed} after {len(world.log)} events") from error
        seen += world.seen
        events += len(world.log)
    print(name, events, dict(sorted(seen.items())))
    for what in ("Start", "Preempt", "Move", "reclaim", "preempt"):
        assert seen[what], f"never seen: {what}"
