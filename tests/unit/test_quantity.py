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
    count,
    format_bytes,
    format_duration,
    hint_for_something,
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
        ("NONE", "write none in lower case; not every variable takes it"),
        ("4t", "write 4Ti (2^40) or 4T (10^12)"),
        ("4.5mb", "write 4.5Mi (2^20) or 4.5M (10^6)"),
        ("4 kib", "write 4Ki"),
        ("4TIB", "write 4Ti"),
        ("4,5Gi", "write 4.5Gi"),
        ("2.", "write 2Gi for bytes, or at most 1"),
        ("whole", "write max for all of the GPU, 50% for half of it"),
        ("-4Gi", "write a share (0.25, 25%), bytes with a unit (4Gi, 4096Mi, 4G), or max"),
        ("1Ki", "write at least 1Mi"),
        ("4X", "write a share (0.25, 25%), bytes with a unit (4Gi, 4096Mi, 4G), or max"),
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
        (2**30 - 2**30 // 20480, "1.0 GiB"),
        (2**20 - 2**20 // 20480, "1.0 MiB"),
        (2**20 - 2**20 // 20480 - 1, "1023.9 KiB"),
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


# ---- from Python ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "canonical"),
    [
        ("4Gi", "4Gi"),
        (" 25% ", "0.25"),
        (2 * GIB, "2Gi"),
        (0.25, "0.25"),
        (1.0, "1"),
        (1, "1"),
        (float(2 * GIB), "2Gi"),
        ("max", "max"),
    ],
)
def test_an_amount_is_text_bytes_or_a_fraction(amount, canonical):
    found = Quantity.of(amount)
    assert found.canonical() == canonical and Quantity.of(found) is found


@pytest.mark.parametrize("amount", [True, False, None, [1], b"4Gi", 4 + 0j])
def test_what_is_no_amount_at_all_is_refused(amount):
    with pytest.raises(QuantityError, match="is not an amount of memory") as caught:
        Quantity.of(amount)
    assert repr(amount) in caught.value.message
    assert caught.value.hint == 'write "4Gi", 4 * 2**30 (bytes), or a share of the GPU: 0.25, "25%"'


@pytest.mark.parametrize("amount", [4096, 2.5, -1, 0, 0.0, float("nan"), float("inf"), 2**60])
def test_a_number_that_cannot_be_meant_is_told_how_python_would_write_it(amount):
    with pytest.raises(QuantityError, match="cannot read") as caught:
        Quantity.of(amount)
    assert caught.value.hint.startswith('write "4Gi", 4 * 2**30 (bytes)') and caught.value.code == "bad_quantity"


def test_a_text_is_told_what_to_write_as_on_the_command_line():
    with pytest.raises(QuantityError) as caught:
        Quantity.of("4g")
    assert caught.value.hint == "write 4Gi (2^30) or 4G (10^9)"


def test_an_amount_is_equal_to_amounts_alone():
    four = Quantity.parse("4Gi")
    assert four != "4Gi" and four != 4 * GIB and four is not None and four == Quantity.of(4 * GIB)
    assert f"{Quantity.parse(' 4096Mi ')}" == "4096Mi", "as its user wrote it"
    assert str(Quantity.plain(four.kind, four.value)) == "4Gi"


def test_a_limit_alone_is_the_request_too():
    assert Budget.of(None, Quantity.parse("4Gi")).request.canonical() == "4Gi"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "an amount of memory is empty"),
        ("0.0000000001", "too small a share"),
        ("100", "no unit"),
        ("1.5", "more than the whole GPU"),
        ("101%", "more than the whole GPU"),
        ("1000Ki", "less than 1Mi"),
        ("1025Ti", "more than any GPU has"),
        ("1234567890123456789", "more than 18 digits"),
        ("all", "not a number"),
        ("-4Gi", "an amount has no sign"),
        ("+4Gi", "an amount has no sign"),
        ("x", "not a number"),
        ("MAX", "not one of the words"),
        ("4,5Gi", "a comma"),
        ("4m", "m means 1/1000 in Kubernetes"),
        ("4g", "two meanings"),
        ("4kb", "the unit is written Ki"),
        ("4gib", "the unit is written Gi"),
        ("4 parsecs", "no unit 'parsecs'"),
        ("1e31", "no unit 'e31'"),
        ("x" * 41, f"cannot read '{'x' * 37}...' as an amount of memory: not a number"),
        ("x" * 40, f"cannot read '{'x' * 40}' as an amount of memory: not a number"),
    ],
)
def test_why_an_amount_is_refused(text, why):
    with pytest.raises(QuantityError) as caught:
        Quantity.parse(text)
    assert why in caught.value.message


@pytest.mark.parametrize(
    ("text", "value"),
    [("1Mi", 2**20), ("1024Ti", 2**50), (".000000000000000001e30", 10**12), (".000000000000000001e31", None)],
)
def test_the_smallest_and_the_largest_amount(text, value):
    if value is None:
        with pytest.raises(QuantityError):
            Quantity.parse(text)
    else:
        assert Quantity.parse(text).value == value


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (0, ("job",), "0 jobs"),
        (1, ("job",), "1 job"),
        (2, ("job",), "2 jobs"),
        (1, ("job is", "jobs are"), "1 job is"),
        (2, ("job is", "jobs are"), "2 jobs are"),
    ],
)
def test_one_and_many(number, words, text):
    assert count(number, *words) == text


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("0", "write at least 1Mi"),
        ("4g", "write 4Gi (2^30) or 4G (10^9)"),
    ],
)
def test_where_nothing_is_no_answer_the_hint_does_not_offer_it(error, hint):
    with pytest.raises(QuantityError) as caught:
        Quantity.parse(error)
    assert hint_for_something(caught.value) == hint
    assert hint_for_something(UsageError("no hint")) == ""
