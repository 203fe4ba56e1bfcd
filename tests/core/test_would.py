"""What a budget would become: looked at, and nothing is changed by looking."""

from __future__ import annotations

import copy

import pytest

from core.tale import start
from gpushare.quantity import Quantity
from gpushared.core import budget_change
from gpushared.core.events import BudgetChanged
from gpushared.core.policy import MIB, Policy
from property.world import World, mib

GIB = 1024 * MIB


@pytest.mark.parametrize("fails", [False, True])
def test_the_state_is_the_new_one_while_it_is_looked_at_and_the_old_one_afterwards(fails: bool) -> None:
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))
    process = start(world, "one", "4Gi", "8Gi", priority=1)
    world.allocate(process, "GPU-0", 7 * GIB)
    world.send(world._sample("GPU-0"))
    job, state = world.programs[process].job, world.node.state
    found = budget_change.find(
        state, BudgetChanged(job, request=Quantity.parse("2Gi"), limit=Quantity.parse("6Gi"), priority=5)
    )
    assert isinstance(found, budget_change.Found)
    before = copy.deepcopy(state)

    def look() -> tuple[int, int, int, int]:
        if fails:
            raise RuntimeError
        bounds = state.jobs[job].bounds["GPU-0"]
        return bounds.request, bounds.limit, state.jobs[job].spec.priority, state.gpus["GPU-0"].requested

    if fails:
        with pytest.raises(RuntimeError):
            budget_change.would(state, job, found, look)
    else:
        seen, note = budget_change.would(state, job, found, look)
        assert seen == (2 * GIB, 6 * GIB, 5, 2 * GIB)
        assert note == "1.3 GiB above the new limit on GPU 0: nothing is taken away, but the job cannot grow"
    assert state == before
    world.node.validate()
