"""The victims: few, low, with little to lose; nobody in vain. Small cases by hand, all cases against brute force."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from gpushared.core import planner
from gpushared.core.planner import Borrower, plan


def borrower(
    job: str, loan: int, *, usage: int | None = None, priority: int = 0, unsaved: float = 10.0, idle: float = 0.0
) -> Borrower:
    return Borrower(job, loan, loan if usage is None else usage, priority, unsaved, idle)


def jobs(victims: tuple[Borrower, ...]) -> list[str]:
    return sorted(victim.job for victim in victims)


def test_the_one_whose_loan_covers_it_alone_goes() -> None:
    assert jobs(plan(4, [borrower("small", 2), borrower("large", 5)])) == ["large"]


def test_what_a_victim_holds_within_its_request_does_not_count() -> None:
    assert plan(4, [borrower("a", 2, usage=100)]) == ()


def test_nobody_goes_when_all_together_are_not_enough() -> None:
    assert plan(10, [borrower("a", 4), borrower("b", 5)]) == ()


def test_nobody_goes_without_a_shortfall() -> None:
    assert plan(0, [borrower("a", 4)]) == ()


def test_lower_priority_goes_first_even_with_more_to_lose() -> None:
    assert jobs(plan(4, [borrower("vip", 5, priority=1, unsaved=1), borrower("batch", 9, unsaved=1000)])) == ["batch"]


def test_fewer_victims_come_before_priority() -> None:
    three = [borrower("vip", 6, priority=5), borrower("a", 3), borrower("b", 3)]
    assert jobs(plan(6, three)) == ["vip"]


def test_least_lost_work_decides_among_equals() -> None:
    assert jobs(plan(4, [borrower("old", 5, unsaved=900), borrower("young", 5, unsaved=3)])) == ["young"]


def test_the_longest_idle_goes_before_the_one_with_the_least_to_lose() -> None:
    nap = [borrower("asleep", 5, unsaved=9000, idle=3600), borrower("busy", 5, unsaved=1, idle=30)]
    assert jobs(plan(4, nap)) == ["asleep"]


def test_a_short_pause_is_not_idleness() -> None:
    assert jobs(plan(4, [borrower("old", 5, unsaved=900, idle=59), borrower("young", 5, unsaved=3)])) == ["young"]


def test_saved_work_is_not_lost_work() -> None:
    assert jobs(plan(4, [borrower("saved", 5, unsaved=1), borrower("unsaved", 5, unsaved=100)])) == ["saved"]


borrowers = st.lists(
    st.builds(
        Borrower,
        job=st.integers(0, 10**6).map(str),
        loan=st.integers(0, 20),
        usage=st.integers(0, 40),
        priority=st.integers(-1, 1),
        unsaved=st.integers(0, 5).map(float),
        idle=st.integers(0, 3).map(lambda minutes: 61.0 * minutes),
    ),
    max_size=6,
    unique_by=lambda one: one.job,
)


@given(borrowers, st.integers(0, 60))
def test_against_all_subsets(candidates: list[Borrower], shortfall: int) -> None:
    """An independent statement of the order: each rule in turn keeps only the best of the sets that are left."""
    chosen = plan(shortfall, candidates)
    able = [one for one in candidates if one.loan]
    subsets = chain.from_iterable(combinations(able, size) for size in range(1, len(able) + 1))
    left = [group for group in subsets if sum(one.loan for one in group) >= shortfall]
    if shortfall == 0 or not left:
        assert chosen == ()
        return
    rules = (
        len,
        lambda group: sorted((one.priority for one in group), reverse=True),
        lambda group: [-one for one in sorted(int(one.idle / 60) for one in group)],
        lambda group: sum(one.usage * one.unsaved for one in group),
        lambda group: sum(one.loan for one in group),
    )
    for rule in rules:
        best = min(map(rule, left))
        left = [group for group in left if rule(group) == best]
    assert jobs(chosen) in [jobs(group) for group in left]


@given(st.lists(st.integers(1, 50), min_size=planner.EXHAUSTIVE + 1, max_size=40), st.integers(1, 600))
def test_many_borrowers_still_give_a_sufficient_plan_without_a_needless_victim(
    loans: list[int], shortfall: int
) -> None:
    candidates = [borrower(f"job{index}", loan) for index, loan in enumerate(loans)]
    chosen = plan(shortfall, candidates)
    total = sum(one.loan for one in chosen)
    if sum(loans) < shortfall:
        assert chosen == ()
    else:
        assert total >= shortfall
        assert all(total - one.loan < shortfall for one in chosen), "a victim that was not needed"
