"""Amounts and durations: what holds of any text and any number."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import QuantityError
from gpushare.quantity import (
    MAX_BYTES,
    MIN_BYTES,
    SHARE_PARTS,
    Dialect,
    Kind,
    Quantity,
    format_bytes,
    parse_duration,
)


@given(st.text(max_size=30), st.sampled_from(Dialect))
def test_any_text_is_read_or_refused(text, dialect):
    try:
        found = Quantity.parse(text, dialect)
    except QuantityError:
        return
    assert found.kind is not Kind.BYTES or MIN_BYTES <= found.value <= MAX_BYTES
    assert found.kind is not Kind.SHARE or 0 < found.value <= SHARE_PARTS


@given(st.integers(MIN_BYTES, MAX_BYTES))
def test_bytes_round_trip(value):
    quantity = Quantity.parse(str(value))
    assert quantity.value == value
    assert Quantity.parse(quantity.canonical()) == quantity


@given(st.integers(1, SHARE_PARTS))
def test_shares_round_trip(value):
    quantity = Quantity(Kind.SHARE, value, "")
    assert Quantity.parse(quantity.canonical()) == quantity


@given(st.decimals(0, 4096, places=6), st.sampled_from(["Ki", "Mi", "Gi", "Ti", "M", "G", "T"]))
def test_arithmetic_is_exact(number, unit):
    sizes = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "M": 10**6, "G": 10**9, "T": 10**12}
    exact = int(Fraction(number) * sizes[unit])
    text = f"{number:f}{unit}"
    if MIN_BYTES <= exact <= MAX_BYTES:
        assert Quantity.parse(text).value == exact
    else:
        with pytest.raises(QuantityError):
            Quantity.parse(text)


@given(st.sampled_from(["max", "none", "0.3", "77%", "1", "5Gi", "1000000001"]), st.integers(0, 2**41))
def test_resolve_is_whole_units_and_no_share_exceeds_the_gpu(text, total):
    amount = Quantity.parse(text).resolve(total)
    assert amount % 512 == 0
    if Quantity.parse(text).kind in (Kind.SHARE, Kind.MAX):
        assert 0 <= amount <= total


@given(st.integers(0, 2**50))
def test_what_is_shown_is_never_a_thousand_and_more_of_the_smaller_unit(amount):
    number, unit = format_bytes(amount).split()
    assert unit == "GiB" or float(number) < 1024


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_refused(text):
    with contextlib.suppress(QuantityError):
        assert parse_duration(text) >= 0
