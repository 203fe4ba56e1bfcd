"""Whom to take borrowed memory back from: one pure function with a documented order.

A reclaim is only worth its harm if it covers the shortfall, so the plan is all or nothing. Among the sets of
borrowers that cover it the best is, in this order:

    1. the fewest victims
    2. the lowest priorities (compared from the highest in the set downwards)
    3. the longest idle, in whole minutes (compared from the least idle in the set upwards)
    4. the least lost work: the sum of what the victims hold (bytes) times the seconds since they started, or since
       they said that their work is saved
    5. the smallest sum of loans, then the ids: so that the same state gives the same plan

What a victim is good for is its *loan*, not all that it holds: the part within its request is its own guarantee,
and no claim is met from that. With requests that fit into the GPU the loans always cover a claim; they fall short
only when memory outside gpushare is in the way, and then nobody is killed in vain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

EXHAUSTIVE = 14
"""Up to so many borrowers all sets are compared (16,384); beyond, sets are built greedily."""


@dataclass(frozen=True, slots=True)
class Borrower:
    """A job that could be a victim, on the GPU in question."""

    job: str
    loan: int
    usage: int
    """What it holds, on all its GPUs: it goes as a whole."""
    priority: int
    unsaved: float
    """Seconds since it started, or since its last checkpoint."""
    idle: float = 0.0
    """Seconds since it last computed or changed its memory."""

    @property
    def lost_work(self) -> float:
        return self.usage * self.unsaved

    @property
    def idle_minutes(self) -> int:
        """Whole minutes: a pause between two steps of a loop says nothing, and must not decide for ever."""
        return int(self.idle // 60)


def plan(shortfall: int, borrowers: Sequence[Borrower]) -> tuple[Borrower, ...]:
    """The victims whose loans cover the shortfall (bytes) with the least harm; () if no set of them does."""
    able = [borrower for borrower in borrowers if borrower.loan > 0]
    if shortfall <= 0 or sum(borrower.loan for borrower in able) < shortfall:
        return ()
    if len(able) > EXHAUSTIVE:
        return _greedy(shortfall, able)
    for size in range(1, len(able) + 1):
        covering = [group for group in combinations(able, size) if sum(one.loan for one in group) >= shortfall]
        if covering:
            return min(covering, key=_harm)
    return ()


def _harm(group: Sequence[Borrower]) -> tuple[object, ...]:
    return (
        sorted((one.priority for one in group), reverse=True),
        [-minutes for minutes in sorted(one.idle_minutes for one in group)],
        sum(one.lost_work for one in group),
        sum(one.loan for one in group),
        sorted(one.job for one in group),
    )


def _greedy(shortfall: int, able: Sequence[Borrower]) -> tuple[Borrower, ...]:
    """The largest loans give the smallest number; the last place then goes to the least harmful that still covers."""
    by_loan = sorted(able, key=lambda one: (-one.loan, _harm([one])))
    chosen: list[Borrower] = []
    missing = shortfall
    for borrower in by_loan:
        enough = [one for one in by_loan if one not in chosen and one.loan >= missing]
        if enough:
            return (*chosen, min(enough, key=lambda one: _harm([one])))
        chosen.append(borrower)
        missing -= borrower.loan
    return tuple(chosen)
