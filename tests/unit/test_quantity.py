"""Amounts: the vectors that the C parser is tested on too, and what no vector can say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpushare.errors import QuantityError, UsageError
from gpushare.quantity import (
    MAX,
    NOTHING,
    Budget,
    Quantity,
    format_bytes,
    format_duration,
    parse_duration,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "quantities.json").read_text())
GIB = 2**30


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{v['dialect']}:{v['text']!r}" for v in VECTORS])
def test_vectors(vector):
    if vector["kind"] == "error":
        with pytest.raises(QuantityError) as caught:
            Quantity.parse(vector["text"], vector["dialect"])
        assert caught.value.hint
        assert "\n" not in caught.value.message
    else:
        found = Quantity.parse(vector["text"], vector["dialect"])
        assert (found.kind.value, found.value) == (vector["kind"], vector["value"])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("4g", "write 4Gi (2^30) or 4G (10^9)"),
        ("4GB", "write 4Gi (2^30) or 4G (10^9)"),
        ("256", "write 256Gi"),
        ("257", "write 257Mi"),
        ("4096", "write 4096Mi"),
        ("4096m", "write 4096M (10^6) or 4096Mi (2^20)"),
        ("4gi", "write 4Gi"),
        ("1.5", "write 1.5Gi for bytes, or at most 1"),
        ("150%", "write at most 100% (or 1), or bytes with a unit: 4Gi"),
        ("Max", "write max in lower case; not every variable takes it"),
    ],
)
def test_a_refusal_says_what_to_write(text, hint):
    with pytest.raises(QuantityError) as caught:
        Quantity.parse(text)
    assert caught.value.hint == hint


@pytest.mark.parametrize(("dialect", "text", "hint"), [("mib", "0", "leave the variable out for no limit")])
def test_a_refusal_of_a_variable_says_what_to_write(dialect: str, text: str, hint: str) -> None:
    with pytest.raises(QuantityError) as caught:
        Quantity.parse(text, dialect)
    assert caught.value.hint == hint


def test_the_amounts_with_names_are_what_their_names_say() -> None:
    for amount in (MAX, NOTHING):
        assert Quantity.parse(str(amount)) == amount == Quantity.parse(amount.canonical())


def test_resolve():
    total = 16 * GIB
    for text, amount in [("0.25", 4 * GIB), ("25%", 4 * GIB), ("max", total), ("none", 0), ("4G", 4 * 10**9)]:
        assert Quantity.parse(text).resolve(total) == amount // 512 * 512


def test_the_same_amount_is_equal_however_it_is_written():
    assert Quantity.parse("4Gi") == Quantity.parse("4096Mi") == Quantity.parse("4g", "hami")
    assert len({Quantity.parse("0.25"), Quantity.parse("25%")}) == 1
    assert Quantity.parse("0.25") != Quantity.parse("4Gi")


@pytest.mark.parametrize(
    ("request_", "limit", "burst_only", "expected"),
    [
        (None, None, False, ("none", "max")),
        (None, "4Gi", False, ("4Gi", "4Gi")),
        (None, "4Gi", True, ("none", "4Gi")),
        (None, "max", False, ("none", "max")),
        (None, "none", False, ("none", "max")),
        ("4Gi", None, False, ("4Gi", "4Gi")),
        ("none", None, False, ("none", "max")),
        ("4Gi", "8Gi", False, ("4Gi", "8Gi")),
        ("4Gi", "none", False, ("4Gi", "max")),
        ("0.25", "8Gi", False, ("0.25", "8Gi")),
        ("none", "8Gi", False, ("none", "8Gi")),
        ("max", "max", False, ("max", "max")),
    ],
)
def test_budget(request_, limit, burst_only, expected):
    budget = Budget.of(
        Quantity.parse(request_) if request_ else None,
        Quantity.parse(limit) if limit else None,
        limit_is_burst_only=burst_only,
    )
    assert (budget.request.canonical(), budget.limit.canonical()) == expected


@pytest.mark.parametrize(("request_", "limit"), [("8Gi", "4Gi"), ("0.5", "0.25"), ("max", "0.5")])
def test_a_request_above_the_limit_is_refused(request_, limit):
    with pytest.raises(UsageError) as caught:
        Budget.of(Quantity.parse(request_), Quantity.parse(limit))
    assert caught.value.code == "request_over_limit"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (2**20, "1.0 MiB"),
        (300 * 2**20, "300.0 MiB"),
        (1000 * 2**20, "1000.0 MiB"),
        (2**30 - 1, "1.0 GiB"),
        (4 * GIB, "4.0 GiB"),
        (2**41, "2048.0 GiB"),
        (-GIB, "-1.0 GiB"),
    ],
)
def test_format_bytes(amount, text):
    assert format_bytes(amount) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5),
        ("500ms", 0.5),
        ("2m", 120),
        ("2min", 120),
        ("1.5h", 5400),
        ("1d", 86400),
        ("7", 7),
        ("0", 0),
        (" 3 s ", 3),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1e3", "5 parsecs", "inf", "nan", "1h30m", "\u0665s", "1" * 20])
def test_bad_durations(text):
    with pytest.raises(QuantityError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.5, "500 ms"),
        (5, "5 s"),
        (59.9, "59.9 s"),
        (60, "1m"),
        (200, "3m20s"),
        (3700, "1h1m"),
        (90000, "1d1h"),
    ],
)
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize("text", ["0", "0.0", ".0", "0.", "0%", "0.00%", "0Gi", "0.0Mi", "0e3", " 0 "])
def test_nothing_is_told_how_to_say_it(text):
    with pytest.raises(QuantityError) as caught:
        Quantity.parse(text)
    assert caught.value.message.endswith(": nothing") and "write none" in caught.value.hint
