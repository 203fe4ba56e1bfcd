"""The division of GPUs among queues, against an independent one in fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.cluster.quantity import MICRO, gpus, whole_gpus
from gpushare.cluster.shares import Claim, divide
from gpushare.errors import QuantityError

amounts = st.one_of(st.integers(0, 20), st.integers(0, 20 * MICRO))
claims = st.builds(
    Claim,
    quota=st.one_of(st.none(), amounts),
    cap=amounts,
    weight=st.one_of(st.just(0), st.integers(1, 5), amounts),
    priority=st.integers(0, 2),
)
levels = st.lists(claims, min_size=1, max_size=8)


def water(amount: Fraction, wants: list[Fraction], weights: list[Fraction]) -> list[Fraction]:
    """Weighted max-min by raising the level in steps, from one satisfied want to the next."""
    got = [Fraction(0)] * len(wants)
    while amount > 0:
        thirsty = [i for i in range(len(wants)) if weights[i] > 0 and got[i] < wants[i]]
        if not thirsty:
            break
        total = sum(weights[i] for i in thirsty)
        step = min([amount / total, *[(wants[i] - got[i]) / weights[i] for i in thirsty]])
        for i in thirsty:
            got[i] += step * weights[i]
            amount -= step * weights[i]
    return got


def exact(total: int, level: list[Claim]) -> list[Fraction]:
    base = [Fraction(claim.cap if claim.quota is None else min(claim.quota, claim.cap)) for claim in level]
    if sum(base) > total:
        return water(Fraction(total), base, [Fraction(total if c.quota is None else c.quota) for c in level])
    got, left = list(base), total - sum(base)
    for priority in sorted({claim.priority for claim in level}, reverse=True):
        mine = [i for i, claim in enumerate(level) if claim.priority == priority]
        more = water(left, [level[i].cap - base[i] for i in mine], [Fraction(level[i].weight) for i in mine])
        for i, amount in zip(mine, more, strict=True):
            got[i] += amount
        left -= sum(more)
    return got


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 40 * MICRO), levels)
def test_shares_are_the_exact_ones_within_a_millionth(total, level) -> None:
    for part, share in zip(divide(total, level), exact(total, level), strict=True):
        assert abs(part.share - share) < 1 + Fraction(1, 10**9)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 40 * MICRO), levels)
def test_never_above_cap_nor_above_what_there_is(total, level) -> None:
    parts = divide(total, level)
    assert sum(part.share for part in parts) <= total
    for part, claim in zip(parts, level, strict=True):
        assert 0 <= part.share <= claim.cap


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 40 * MICRO), levels)
def test_a_lower_class_gets_surplus_only_when_the_higher_is_satisfied(total, level) -> None:
    parts = divide(total, level)
    for part, claim in zip(parts, level, strict=True):
        if part.surplus:
            for other, higher in zip(parts, level, strict=True):
                if higher.priority > claim.priority and higher.weight > 0:
                    assert other.share == higher.cap


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 40 * MICRO), levels, st.integers(0, 7), amounts)
def test_asking_for_more_than_is_needed_gains_nothing(total, level, which, more) -> None:
    which %= len(level)
    honest = divide(total, level)[which].share
    greedy = [c._replace(cap=c.cap + more) if i == which else c for i, c in enumerate(level)]
    useful = min(divide(total, greedy)[which].share, level[which].cap)
    assert useful <= honest + 1


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 40 * MICRO), st.lists(amounts, min_size=2, max_size=6), st.integers(1, 5))
def test_nobody_envies_an_equal(total, caps, weight) -> None:
    parts = divide(total, [Claim(0, cap, weight, 0) for cap in caps])
    for mine, cap in zip(parts, caps, strict=True):
        for other in parts:
            assert mine.share >= min(other.share, cap) - 1


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 40 * MICRO), levels, st.integers(2, 9))
def test_the_unit_does_not_matter(total, level, factor) -> None:
    scaled = [
        Claim(None if c.quota is None else c.quota * factor, c.cap * factor, c.weight * factor, c.priority)
        for c in level
    ]
    for part, large in zip(divide(total, level), divide(total * factor, scaled), strict=True):
        assert abs(part.share * factor - large.share) <= factor


def test_quotas_above_what_exists_are_scaled() -> None:
    assert [part.share for part in divide(10, [Claim(8, 8, 8, 0), Claim(8, 8, 8, 0)])] == [5, 5]
    assert [part.share for part in divide(10, [Claim(8, 1, 8, 0), Claim(8, 8, 8, 0), Claim(4, 9, 4, 9)])] == [1, 6, 3]


def test_neither_request_nor_limit_nor_cluster_is_exceeded() -> None:
    asked = divide(gpus(4), [Claim(0, gpus(1.6), 1, 0), Claim(0, gpus(1.3), 1, 0)])
    assert [part.share for part in asked] == [gpus(1.6), gpus(1.3)]


def test_whole_gpus_by_the_largest_remainder() -> None:
    assert whole_gpus([6_666_667, 4_666_667, 4_666_666]) == [7, 5, 4]
    assert whole_gpus([gpus(1.5), gpus(1.5), 0]) == [2, 1, 0]


def test_numbers_of_gpus_are_read_exactly() -> None:
    assert gpus(0.1) + gpus(0.2) == gpus(0.3) == gpus("0.3") == 300_000
    assert gpus(Fraction(1, 3)) == 333_333
    for wrong in (-1, "x", float("nan"), float("inf"), 10**9, None):
        with pytest.raises(QuantityError):
            gpus(wrong)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 40 * MICRO), levels)
def test_what_an_unsatisfied_queue_gets_is_its_weight_in_what_was_left(total, level) -> None:
    within = sum(min(claim.cap, claim.cap if claim.quota is None else claim.quota) for claim in level) <= total
    for part, claim in zip(divide(total, level), level, strict=True):
        if within and not part.capped and part.weights:
            assert part.surplus - part.left * claim.weight // part.weights in (0, 1)


def test_a_class_that_nothing_reaches_shares_nothing() -> None:
    high, low = (Claim(quota=1, cap=10, weight=3, priority=priority) for priority in (1, 0))
    parts = divide(6, [high, high, low])
    assert [(part.surplus, part.left, part.weights) for part in parts] == [(2, 3, 6), (1, 3, 6), (0, 0, 0)]
