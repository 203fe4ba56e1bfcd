"""Chooses the borrowers that must give memory back: one pure function with one documented order.

The plan is all or nothing: the victims' loans cover the shortfall, or no job is touched. Of all sets of borrowers that
cover it, the plan is the first in this order:

    1. By class, from the highest down: the set with the fewest victims of the highest class comes first; of these the
       one with the fewest victims of the next class; and so on. So no class higher than needed is touched, and any
       number of lower victims is taken before one of a higher class.
    2. Of two sets with the same number of victims in each class: compare the dearest borrower that is in only one of
       them. The other set comes first.

A job's class is its priority. Jobs above their own limit, because it was lowered, are below all other jobs. Jobs that
chose to borrow nothing (limit = request) are above all: only what their contexts cost beyond what they were charged
at first is on loan.
Of two borrowers the dearer is, by the first of these that differs,

    1. the one of the higher class
    2. the one that its hook has put to sleep
    3. the one that has been idle for fewer whole minutes
    4. the one that loses more work: its bytes times the seconds since it started or saved
    5. the one with the larger loan
    6. the one with the larger id

Rule 2 compares single borrowers, not sums. To find the least sum of lost work that covers a shortfall is the knapsack
problem, which takes exponential time. With rule 2, exchanging one victim for another at a time is exact: it finds the
first of all sets, for any number of borrowers and loans of any size, in the time that sorting takes.

A victim counts with its *loan*, not with all that it holds: what it holds within its request is its own guarantee.
Because all requests fit into the GPU, the loans cover every claim, unless memory outside gpushare is in the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

ASLEEP = -60.0
"""Stands for the idle seconds of a job that its hook has put to sleep. Such a job is idle because it has given back
what it could. So it is dearer than jobs of its class that have given nothing."""


@dataclass(frozen=True, slots=True)
class Borrower:
    """A job that could be a victim, on the GPU in question."""

    job: str
    loan: int
    """Bytes that its end would give back; with 0 it is never a victim."""
    usage: int
    """Bytes that it holds on all its GPUs: it goes as a whole."""
    priority: int
    unsaved: float
    """Seconds since it started, or since its last checkpoint."""
    idle: float = 0.0
    """Seconds since it last computed or changed its memory; ASLEEP: its hook has put it to sleep."""
    over_limit: bool = False
    """It holds more than its limit allows since the limit was lowered."""
    unwilling: bool = False
    """It chose to borrow nothing."""

    @property
    def lost_work(self) -> float:
        return self.usage * self.unsaved

    @property
    def idle_minutes(self) -> int:
        """Whole minutes: a pause between two steps of a loop must not decide."""
        return int(self.idle // 60)


def plan(shortfall: int, borrowers: Sequence[Borrower]) -> tuple[Borrower, ...]:
    """The victims whose loans cover the shortfall (bytes) with the least harm; () if no set of them does."""
    below = _sum(borrowers)
    if below < shortfall:
        return ()
    by_dearness = sorted(borrowers, key=_dearness, reverse=True)
    classes = [list(members) for _, members in groupby(by_dearness, key=_class)]
    fewest = []
    missing = shortfall
    for members in classes:
        below -= _sum(members)
        fewest.append(_largest(members, missing - below))
        missing -= _sum(fewest[-1])
    victims: list[Borrower] = []
    surplus = -missing
    for members, largest in zip(classes, fewest, strict=True):
        chosen = _spare_the_dearest(members, largest, surplus)
        surplus -= _sum(largest) - _sum(chosen)
        victims += chosen
    return tuple(victims)


def _largest(members: Sequence[Borrower], amount: int) -> list[Borrower]:
    """The fewest members that cover the amount (bytes): those with the largest loans."""
    chosen: list[Borrower] = []
    for one in sorted(members, key=_loan, reverse=True):
        if amount <= 0:
            break
        chosen.append(one)
        amount -= one.loan
    return chosen


def _spare_the_dearest(members: Sequence[Borrower], largest: Sequence[Borrower], surplus: int) -> list[Borrower]:
    """As many victims as `largest` has, each as cheap as the surplus (bytes) allows. Members come dearest first.

    Each victim is exchanged for the largest loan among the cheaper members that are no victims, if the surplus covers
    the difference. That is exact: of all sets that spare this victim, this one gives back the most.
    """
    chosen = set(largest)
    others = deque(one for one in sorted(members, key=_loan, reverse=True) if one not in chosen)
    for one in members:
        if one not in chosen:
            continue
        while others and _dearness(others[0]) > _dearness(one):
            others.popleft()
        if others and one.loan - others[0].loan <= surplus:
            surplus -= one.loan - others[0].loan
            chosen.remove(one)
            chosen.add(others.popleft())
    return [one for one in members if one in chosen]


def _class(one: Borrower) -> tuple[int, int]:
    return (0 if one.over_limit else 2 if one.unwilling else 1, one.priority)


def _dearness(one: Borrower) -> tuple[object, ...]:
    return (_class(one), -one.idle_minutes, one.lost_work, one.loan, one.job)


def _loan(one: Borrower) -> int:
    return one.loan


def _sum(some: Sequence[Borrower]) -> int:
    return sum(one.loan for one in some)
