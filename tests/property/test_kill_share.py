"""How many reclaims end with a stopped job, where half of the borrowers may be suspended."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest

from gpushare.reclaim_steps import ReclaimStep
from gpushared.core.policy import GIB
from property.mixture import Mixture

SEEDS = range(3)
STOPS = (ReclaimStep.TERM, ReclaimStep.KILL)


def play(suspendable: int, others: int, owners: int, claims: tuple[float, float]) -> list[Mixture]:
    mixtures = [Mixture(seed, suspendable=suspendable, others=others, owners=owners, claims=claims) for seed in SEEDS]
    for one in mixtures:
        one.play(600)
        assert not one.world.node.counters.violations
    return mixtures


def share_of_stops(mixtures: list[Mixture]) -> float:
    met = sum((one.met() for one in mixtures), Counter())
    print(dict(met))
    assert met.total() >= 50, "too few reclaims to say anything"
    return sum(met[step] for step in STOPS) / met.total()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("owners", "claims"), [(1, (2.0, 6.0)), (2, (2.0, 5.0)), (3, (1.0, 3.0))], ids=["one", "two", "three"]
)
def test_where_half_of_the_borrowers_may_be_suspended_few_reclaims_stop_a_job(
    owners: int, claims: tuple[float, float]
) -> None:
    mixtures = play(4, 4, owners, claims)
    assert share_of_stops(mixtures) <= 0.1
    assert all(one.world.resumes >= one.world.suspends / 2 > 5 for one in mixtures), "those come back, too"
    usage = statistics.mean(used for one in mixtures for used in one.usage)
    assert usage > 0.9 * 15.5 * GIB, "that does not cost much memory which lies unused"


@pytest.mark.timeout(300)
def test_where_nobody_may_be_suspended_they_are_stopped() -> None:
    """So the measure of the other test can show it."""
    assert share_of_stops(play(0, 8, 2, (2.0, 6.0))) > 0.9
