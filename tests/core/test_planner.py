"""Whom a claim stops: small cases by hand, many cases against three judges that share no code with the planner."""

from __future__ import annotations

import gc
import os
import time
from random import Random

import pytest

from core.least_harm import Candidate, by_solver, by_table, of_all_sets
from gpushared.core.planner import Borrower, plan

CASES = max(500, int(os.environ.get("GPUSHARE_TEST_EVENTS", "20000")) // 10)
GIB = 2**30


def borrower(
    job: str,
    loan: int,
    *,
    usage: int | None = None,
    priority: int = 0,
    unsaved: float = 10.0,
    idle: float = 0.0,
    over_limit: bool = False,
    unwilling: bool = False,
) -> Borrower:
    return Borrower(job, loan, loan if usage is None else usage, priority, unsaved, idle, over_limit, unwilling)


def jobs(victims: tuple[Borrower, ...]) -> list[str]:
    return sorted(victim.job for victim in victims)


# ---- all or nothing --------------------------------------------------------------------------------


def test_the_one_whose_loan_covers_it_alone_goes() -> None:
    assert jobs(plan(4, [borrower("small", 2), borrower("large", 5)])) == ["large"]


def test_what_a_victim_holds_within_its_request_does_not_count() -> None:
    assert plan(4, [borrower("a", 2, usage=100)]) == ()


def test_nobody_goes_when_all_together_are_not_enough() -> None:
    assert plan(10, [borrower("a", 4), borrower("b", 5)]) == ()
    assert jobs(plan(9, [borrower("a", 4), borrower("b", 5)])) == ["a", "b"]


def test_nobody_goes_without_a_shortfall() -> None:
    assert plan(0, [borrower("a", 4)]) == ()
    assert plan(-1, [borrower("a", 4)]) == ()
    assert jobs(plan(1, [borrower("a", 4)])) == ["a"]


def test_who_has_no_loan_is_no_victim() -> None:
    assert plan(0, [borrower("a", 0)]) == ()
    assert jobs(plan(5, [borrower("none", 0, priority=-9), borrower("a", 5), borrower("zero", 0)])) == ["a"]


# ---- classes ---------------------------------------------------------------------------------------


def test_lower_priority_goes_first_even_with_more_to_lose() -> None:
    assert jobs(plan(4, [borrower("vip", 5, priority=1, unsaved=1), borrower("batch", 9, unsaved=1000)])) == ["batch"]


def test_a_higher_class_is_spared_by_any_number_of_lower_victims() -> None:
    assert jobs(plan(6, [borrower("vip", 6, priority=100), borrower("a", 3), borrower("b", 3)])) == ["a", "b"]
    many = [borrower(f"low{n}", 1) for n in range(30)]
    assert jobs(plan(30, [borrower("vip", 30, priority=100), *many])) == sorted(one.job for one in many)


@pytest.mark.parametrize("lows", [2, 13, 14, 15, 40])
def test_one_large_loan_of_high_priority_is_left_alone(lows: int) -> None:
    """However many borrowers there are: the small loans of low priority cover it."""
    some = [borrower(f"low{n}", 2 * GIB) for n in range(lows)]
    chosen = plan(4 * GIB, [borrower("vip", 9 * GIB, priority=100), *some])
    assert len(chosen) == 2
    assert all(victim.priority == 0 for victim in chosen)


def test_no_more_of_the_highest_class_than_needed_then_no_more_of_the_next() -> None:
    three = [borrower("high", 5, priority=2), borrower("higher", 6, priority=2)]
    middle = [borrower("m1", 2, priority=1), borrower("m2", 2, priority=1)]
    low = [borrower("l1", 1), borrower("l2", 1)]
    assert jobs(plan(9, [*three, *middle, *low])) == ["higher", "l1", "m1"]
    assert jobs(plan(12, [*three, *middle, *low])) == ["higher", "l1", "l2", "m1", "m2"]


def test_lower_victims_go_only_as_far_as_the_higher_leave_something_to_cover() -> None:
    """The lower class lacks one byte: one of the higher goes, and covers it all."""
    low = [borrower("l1", 4), borrower("l2", 4)]
    assert jobs(plan(9, [borrower("high", 9, priority=1), *low])) == ["high"]
    assert jobs(plan(9, [borrower("high", 5, priority=1), *low])) == ["high", "l1"]


def test_who_is_above_a_lowered_limit_goes_before_any_priority() -> None:
    over = borrower("over", 5, priority=9, over_limit=True)
    assert jobs(plan(5, [over, borrower("low", 5, priority=-9)])) == ["over"]
    assert jobs(plan(5, [over, borrower("also", 5, priority=8, over_limit=True)])) == ["also"]


def test_who_chose_to_borrow_nothing_goes_after_any_priority() -> None:
    content = borrower("content", 5, priority=-9, unwilling=True)
    assert jobs(plan(5, [content, borrower("high", 5, priority=9)])) == ["high"]
    assert jobs(plan(6, [content, borrower("high", 5, priority=9)])) == ["content", "high"]
    lowered = borrower("lowered", 5, over_limit=True, unwilling=True)
    assert jobs(plan(5, [lowered, borrower("low", 5, priority=-9)])) == ["lowered"], "it was given more, and lost it"


# ---- within a class --------------------------------------------------------------------------------


def test_least_lost_work_decides_among_equals() -> None:
    assert jobs(plan(4, [borrower("old", 5, unsaved=900), borrower("young", 5, unsaved=3)])) == ["young"]
    assert jobs(plan(4, [borrower("wide", 5, usage=50), borrower("slim", 5, usage=6)])) == ["slim"]


def test_the_longest_idle_goes_before_the_one_with_the_least_to_lose() -> None:
    nap = [borrower("asleep", 5, unsaved=9000, idle=3600), borrower("busy", 5, unsaved=1, idle=30)]
    assert jobs(plan(4, nap)) == ["asleep"]


def test_a_short_pause_is_not_idleness() -> None:
    assert jobs(plan(4, [borrower("old", 5, unsaved=900, idle=59.9), borrower("young", 5, unsaved=3)])) == ["young"]
    assert jobs(plan(4, [borrower("old", 5, unsaved=900, idle=60), borrower("young", 5, unsaved=3)])) == ["old"]
    assert jobs(plan(4, [borrower("old", 5, unsaved=900, idle=179), borrower("young", 5, unsaved=3, idle=120)])) == [
        "young"
    ]


def test_saved_work_is_not_lost_work() -> None:
    assert jobs(plan(4, [borrower("saved", 5, unsaved=1), borrower("unsaved", 5, unsaved=100)])) == ["saved"]


def test_the_smaller_loan_then_the_smaller_id_decides_at_last() -> None:
    assert jobs(plan(4, [borrower("a", 6, usage=9), borrower("b", 5, usage=9)])) == ["b"]
    assert jobs(plan(4, [borrower("b", 5), borrower("a", 5), borrower("c", 5)])) == ["a"]


def test_the_busiest_is_spared_where_two_others_are_enough() -> None:
    """Not the sums decide but the single borrower: whoever computes now is left alone if that costs no more victims."""
    busy = borrower("busy", 11)
    naps = [borrower("b", 6, idle=1800, unsaved=900), borrower("c", 6, idle=1200, unsaved=900)]
    assert jobs(plan(12, [busy, borrower("longest", 1, idle=3600), *naps])) == ["b", "c"]


def test_the_dearest_comes_first_in_every_exchange() -> None:
    """There is room for one exchange only: the dearer of the two victims is spared by it."""
    victims = [borrower("dear", 10, unsaved=90), borrower("less", 10, unsaved=80)]
    spare = [borrower("s1", 8, unsaved=1), borrower("s2", 8, unsaved=2)]
    assert jobs(plan(18, [*victims, *spare])) == ["less", "s1"]
    assert jobs(plan(16, [*victims, *spare])) == ["s1", "s2"]
    assert jobs(plan(19, [*victims, *spare])) == ["dear", "less"]


def test_what_the_higher_class_can_spare_is_spent_there_first() -> None:
    high = [borrower("dear", 10, priority=1, unsaved=90), borrower("cheap", 8, priority=1)]
    low = [borrower("dear-low", 5, unsaved=90), borrower("cheap-low", 3)]
    assert jobs(plan(13, [*high, *low])) == ["cheap", "dear-low"]
    assert jobs(plan(11, [*high, *low])) == ["cheap", "cheap-low"]


# ---- against the judges ----------------------------------------------------------------------------


def seen(one: Borrower) -> Candidate:
    """What an onlooker would say of it."""
    lost = one.usage * one.unsaved
    return Candidate(one.job, one.loan, one.priority, one.over_limit, int(one.idle / 60), lost, one.unwilling)


def some_borrowers(random: Random, count: int, *, bytes_apart: int) -> list[Borrower]:
    """Classes, idle minutes and lost work meet often; so do loans where they are small."""
    classes = random.choice([[0], [0, 100], [-1, 0, 1], [-5, 0, 0, 3, 100]])
    largest = random.choice([3, 20, 1000]) * bytes_apart
    found = []
    for number in range(count):
        loan = random.choice([0, *[random.randint(1, largest)] * 9])
        found.append(
            Borrower(
                f"{random.randrange(16**6):06x}{number:03}",
                loan,
                loan + random.choice([0, 0, 5]) * bytes_apart,
                random.choice(classes),
                random.choice([0.0, 1.5, 60.0, random.uniform(0, 9000)]),
                random.choice([0.0, 30.0, 61.0, 125.0, random.uniform(0, 500)]),
                random.random() < 0.1,
                random.random() < 0.1,
            )
        )
    return found


def some_shortfall(random: Random, borrowers: list[Borrower]) -> int:
    total = sum(one.loan for one in borrowers)
    return random.choice([random.randint(-1, total + 2), random.randint(0, total // 3 + 1), total])


def compare(random: Random, count: int, judge, *, bytes_apart: int = 1) -> int:
    """One case; the number of victims in it."""
    borrowers = some_borrowers(random, count, bytes_apart=bytes_apart)
    shortfall = some_shortfall(random, borrowers)
    victims = plan(shortfall, borrowers)
    assert len(set(victims)) == len(victims)
    wanted = judge(shortfall, [seen(one) for one in borrowers])
    assert {victim.job for victim in victims} == wanted, (shortfall, borrowers)
    random.shuffle(borrowers)
    assert plan(shortfall, borrowers) == victims, "the order in which they are named decides"
    return len(victims)


def test_against_all_sets() -> None:
    random = Random(1)
    sizes = [compare(random, random.randint(1, 8), of_all_sets) for _ in range(CASES)]
    sizes += [compare(random, random.randint(9, 12), of_all_sets) for _ in range(CASES // 50)]
    assert sum(size > 2 for size in sizes) > len(sizes) / 5, "nearly all cases are trivial"


def test_against_a_table_of_what_the_others_can_cover() -> None:
    random = Random(2)
    sizes = [
        compare(random, random.randint(1, 64), by_table, bytes_apart=random.choice([1, GIB])) for _ in range(CASES)
    ]
    sizes += [compare(random, random.randint(65, 300), by_table, bytes_apart=GIB // 7) for _ in range(CASES // 50)]
    assert sum(size > 5 for size in sizes) > len(sizes) / 3, "nearly all cases are trivial"


def test_against_an_exact_solver() -> None:
    pytest.importorskip("ortools")
    random = Random(3)
    for _ in range(CASES // 20):
        compare(random, random.randint(1, 64), by_solver, bytes_apart=random.choice([1, 512]))


def test_the_judges_agree() -> None:
    random = Random(4)
    for _ in range(200):
        candidates = [seen(one) for one in some_borrowers(random, random.randint(1, 8), bytes_apart=1)]
        shortfall = random.randint(-1, sum(one.loan for one in candidates) + 2)
        assert by_table(shortfall, candidates) == of_all_sets(shortfall, candidates)


# ---- time ------------------------------------------------------------------------------------------


def seconds(part: float, borrowers: list[Borrower]) -> float:
    """The processor time of one plan, the best of several."""
    shortfall = int(sum(one.loan for one in borrowers) * part)
    times = []
    gc.disable()
    for _ in range(7):
        begin = time.thread_time()
        plan(shortfall, borrowers)
        times.append(time.thread_time() - begin)
    gc.enable()
    return min(times)


@pytest.mark.parametrize("part", [0.01, 0.5, 0.99])
def test_ten_times_the_borrowers_cost_about_ten_times_the_time(part: float) -> None:
    """One class, loans of any number of bytes. To compare all pairs of borrowers would take a hundred times as long."""
    random = Random(5)
    many = [borrower(f"{n:06}", random.randint(1, 2**36), idle=random.uniform(0, 600)) for n in range(3000)]
    assert seconds(part, many) < 40 * seconds(part, many[:300])
