"""The victims: few, low, with little to lose; nobody in vain. Small cases by hand, all cases against brute force."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from gpushared import planner
from gpushared.planner import Borrower, plan


def borrower(job: str, loan: int, *, usage: int | None = None, priority: int = 0, running: float = 10.0) -> Borrower:
    return Borrower(job, loan, loan if usage is None else usage, priority, running)


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
    assert jobs(plan(4, [borrower("vip", 5, priority=1, running=1), borrower("batch", 9, running=1000)])) == ["batch"]


def test_fewer_victims_come_before_priority() -> None:
    three = [borrower("vip", 6, priority=5), borrower("a", 3), borrower("b", 3)]
    assert jobs(plan(6, three)) == ["vip"]


def test_least_lost_work_decides_among_equals() -> None:
    assert jobs(plan(4, [borrower("old", 5, running=900), borrower("young", 5, running=3)])) == ["young"]


borrowers = st.lists(
    st.builds(
        Borrower,
        job=st.integers(0, 10**6).map(str),
        loan=st.integers(0, 20),
        usage=st.integers(0, 40),
        priority=st.integers(-1, 1),
        running=st.integers(0, 5).map(float),
    ),
    max_size=6,
    unique_by=lambda one: one.job,
)


@given(borrowers, st.integers(0, 60))
def test_against_all_subsets(candidates: list[Borrower], shortfall: int) -> None:
    """An independent statement of the order: no set that covers the shortfall is better than the plan."""
    chosen = plan(shortfall, candidates)
    able = [one for one in candidates if one.loan]
    subsets = chain.from_iterable(combinations(able, size) for size in range(1, len(able) + 1))
    covering = [group for group in subsets if sum(one.loan for one in group) >= shortfall]
    if shortfall == 0 or not covering:
        assert chosen == ()
        return
    assert sum(one.loan for one in chosen) >= shortfall
    fewest = min(len(group) for group in covering)
    assert len(chosen) == fewest
    rivals = [group for group in covering if len(group) == fewest]
    lowest = min(sorted((one.priority for one in group), reverse=True) for group in rivals)
    assert sorted((one.priority for one in chosen), reverse=True) == lowest
    rivals = [group for group in rivals if sorted((one.priority for one in group), reverse=True) == lowest]
    assert sum(one.lost_work for one in chosen) == min(sum(one.lost_work for one in group) for group in rivals)


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
