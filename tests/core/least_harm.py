"""Which borrowers the promised order stops, stated without the planner: all sets compared, a table, an exact solver.

The order: the fewest victims of the highest class, then of the next, and so on; of two sets with the same numbers the
dearest borrower in which they differ decides. The classes, from the lowest: jobs above a lowered limit, by priority;
then all that may borrow, by priority; then jobs whose limit is their request, by priority.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class Candidate:
    """A job that may be stopped, as an onlooker describes it."""

    job: str
    loan: int
    priority: int = 0
    over_limit: bool = False
    idle_minutes: int = 0
    lost_work: float = 0.0
    unwilling: bool = False

    @property
    def level(self) -> tuple[int, int]:
        return (0 if self.over_limit else 2 if self.unwilling else 1, self.priority)

    @property
    def dear(self) -> tuple[object, ...]:
        return (self.level, -self.idle_minutes, self.lost_work, self.loan, self.job)


def of_all_sets(shortfall: int, candidates: Sequence[Candidate]) -> set[str]:
    """Every set is looked at: for a dozen candidates."""
    levels = sorted({one.level for one in candidates}, reverse=True)
    lenders = [one for one in candidates if one.loan > 0]

    def harm(group: Sequence[Candidate]) -> tuple[object, object]:
        numbers = [sum(1 for one in group if one.level == level) for level in levels]
        return numbers, sorted((one.dear for one in group), reverse=True)

    covering = [
        group
        for size in range(1, len(lenders) + 1)
        for group in combinations(lenders, size)
        if sum(one.loan for one in group) >= shortfall
    ]
    return {one.job for one in min(covering, key=harm)} if covering and shortfall > 0 else set()


def by_table(shortfall: int, candidates: Sequence[Candidate]) -> set[str]:
    """For hundreds: a table tells how much any number of the candidates from some place on can cover at most."""
    rows = sorted((one for one in candidates if one.loan > 0), key=lambda one: one.dear, reverse=True)
    if shortfall <= 0 or sum(one.loan for one in rows) < shortfall:
        return set()
    levels = sorted({one.level for one in rows}, reverse=True)
    members = {level: [one for one in rows if one.level == level] for level in levels}
    most = {level: _most(members[level]) for level in levels}
    numbers: list[int] = []
    for place, level in enumerate(levels):
        below = sum(one.loan for lower in levels[place + 1 :] for one in members[lower])
        above = sum(most[levels[i]][0][number] for i, number in enumerate(numbers))
        table = most[level][0]
        numbers.append(next(n for n in range(len(table)) if above + table[n] + below >= shortfall))
    taken: set[str] = set()
    covered = 0
    for place, level in enumerate(levels):
        below = sum(most[lower][0][numbers[place + 1 + i]] for i, lower in enumerate(levels[place + 1 :]))
        wanted = numbers[place]
        for row, one in enumerate(members[level]):
            without = most[level][row + 1]
            if wanted < len(without) and covered + without[wanted] + below >= shortfall:
                continue
            taken.add(one.job)
            covered += one.loan
            wanted -= 1
    return taken


def _most(members: Sequence[Candidate]) -> list[list[int]]:
    """[row][number]: the most that so many of the members from that row on lend together."""
    table = [[0]]
    for one in reversed(members):
        later = table[0]
        with_it = [0] + [one.loan + amount for amount in later]
        table.insert(0, [max(amount, *later[n : n + 1], 0) for n, amount in enumerate(with_it)])
    return table


def by_solver(shortfall: int, candidates: Sequence[Candidate]) -> set[str]:
    """An integer program: the numbers first, then the dearest of all candidates, sixteen at a time."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    stopped = {one.job: model.new_bool_var(one.job) for one in candidates}
    model.add(sum(stopped[one.job] * one.loan for one in candidates) >= shortfall)
    for one in candidates:
        if one.loan <= 0:
            model.add(stopped[one.job] == 0)

    def least(what: object) -> int | None:
        model.minimize(what)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        if solver.solve(model) != cp_model.OPTIMAL:
            return None
        value = round(solver.objective_value)
        model.add(what == value)
        chosen.clear()
        chosen.update(job for job, variable in stopped.items() if solver.value(variable))
        return value

    chosen: set[str] = set()
    for level in sorted({one.level for one in candidates}, reverse=True):
        if least(sum(stopped[one.job] for one in candidates if one.level == level)) is None:
            return set()
    dearest = sorted(candidates, key=lambda one: one.dear, reverse=True)
    for first in range(0, len(dearest), 16):
        some = dearest[first : first + 16]
        least(sum(stopped[one.job] * 2 ** (len(some) - 1 - place) for place, one in enumerate(some)))
    return set(chosen) if shortfall > 0 else set()
