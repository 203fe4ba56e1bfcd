"""A state that was written and read again decides as if nothing had happened."""

from __future__ import annotations

import json
import os

import pytest
from allocator_world import Taste, World

from gpushare.cluster.snapshot import restore, take

EVENTS = int(os.environ.get("GPUSHARE_TEST_EVENTS", "6000"))
SEED = int(os.environ.get("GPUSHARE_TEST_SEED", "1"))
LENGTH = 120
TASTES = {
    "everything": Taste(),
    "reported": Taste(reported=True),
    "engine": Taste(reported=True, engine=True),
    "patient": Taste(patient=True),
    "plain": Taste(ladders=False, bytes=False),
}


def decided(text: str) -> dict[str, object]:
    """A state without what people were told about why jobs wait: the twin, which looks at all of them after each
    reading, has said it with newer numbers."""
    state = json.loads(text)
    for one in state["classes"]:
        one.pop("gate", None)
        one.pop("more_gate", None)
    return state


@pytest.mark.parametrize("name", TASTES)
@pytest.mark.timeout(0)
def test_a_state_that_was_read_decides_as_the_one_that_was_written(name) -> None:
    """Two twins hear the same events; one is written and read before every one of them."""
    seen = 0
    for seed in range(SEED * 1_000_000, SEED * 1_000_000 + max(2, EVENTS // 6 // LENGTH // len(TASTES))):
        world = World(seed, TASTES[name])
        for _ in range(LENGTH):
            before = take(world.allocator)
            told = len(world.log)
            world.step()
            for index in range(told, len(world.log)):
                event, now = world.log[index]
                twin = restore(world.policy, before)
                assert tuple(twin.handle(event, now)) == world.actions[index], f"seed {seed}, event {index}"
                twin.validate()
                before = take(twin)
                seen += 1
            assert decided(before) == decided(take(world.allocator)), f"seed {seed}"
            assert restore(world.policy, before).next_wake == world.allocator.next_wake
        again = restore(world.policy, take(world.allocator))
        assert again.dump() == world.allocator.dump()
        assert {name: again.explain(name) for name in again.jobs} == {
            name: world.allocator.explain(name) for name in world.jobs
        }
    assert seen
