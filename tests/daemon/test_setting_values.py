"""How a value of the settings file is read, of each kind, and what is said of one that is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare.errors import UsageError
from gpushare.quantity import MAX, NOTHING, Kind
from gpushared.system import setting_values as values

MIB = 2**20
FIVE = values.seconds(5.0)
TWO_WORDS = values.choice("kill", "none")
FROM_THREE = values.count(3)

GOOD: list[tuple[Callable[[object], Any], object, object]] = [
    (values.share, 0, 0.0),
    (values.share, 0.999, 0.999),
    (values.amount, 0, 0),
    (values.amount, "256Mi", 256 * MIB),
    (values.amount, "1Gi", 1024 * MIB),
    (values.host_amount, "64Mi", 64 * MIB),
    (values.host_amount, 0, 0),
    (values.host_amount, "0.5", 4096 * MIB),
    (values.host_amount, 0.25, 2048 * MIB),
    (FIVE, 5, 5.0),
    (FIVE, "5s", 5.0),
    (FIVE, "2m", 120.0),
    (FIVE, 7.5, 7.5),
    (TWO_WORDS, "none", "none"),
    (values.choice("1", "2", read=int), "2", 2),
    (values.group, "gpu", "gpu"),
    (values.group, "", ""),
    (values.request, 0, NOTHING),
    (values.limit, "max", MAX),
    (FROM_THREE, 3, 3),
    (FROM_THREE, 2**31 - 1, 2**31 - 1),
    (values.port, 0, 0),
    (values.port, 65535, 65535),
    (values.flag, True, True),
    (values.flag, False, False),
]

SHARE = "not a share of the GPU from 0 up to, but not including, 1"
AMOUNT = 'not an amount of memory in quotes, such as "256Mi"'
BYTES = 'not an amount in bytes, such as "256Mi"'
REQUEST = 'not an amount of memory, such as "8Gi" or "25%"'
DURATION = 'not a duration, such as "5s"'
SHORT = "a duration of {} s is too short, the least is 5.0 s"
PORT = "not a port of localhost, such as 9837, or 0 for none"

BAD: list[tuple[Callable[[object], Any], object, str]] = [
    *((values.share, one, SHARE) for one in (1, 1.0, -0.1, True, False, "0.5", None)),
    *((values.amount, one, AMOUNT) for one in (256, 0.5, False, True, None, [])),
    *((values.amount, one, BYTES) for one in ("50%", "0.5", "max", "none")),
    (values.host_amount, "max", 'not a part of the machine\'s memory, such as "64Gi" or "50%"'),
    (values.host_amount, True, REQUEST),
    *((FIVE, one, DURATION) for one in (True, None, [])),
    (FIVE, 4.9, SHORT.format(4.9)),
    (FIVE, "4s", SHORT.format(4.0)),
    (FIVE, -math.inf, "-inf is no length of time"),
    (FIVE, math.inf, "inf is no length of time"),
    (FIVE, math.nan, "nan is no length of time"),
    *((TWO_WORDS, one, "not one of kill, none") for one in ("stop", True, None, "")),
    (values.group, 7, "not the name of a group in quotes"),
    *((values.request, one, REQUEST) for one in (True, False, None, [])),
    *((values.limit, one, 'a limit of nothing; write "max" for all of the GPU') for one in (0, "none")),
    *((FROM_THREE, one, "not a whole number from 3") for one in (2, 2**31, 3.0, True, "3")),
    *((values.port, one, PORT) for one in (-1, 65536, True, "80", 80.0)),
    *((values.flag, one, "neither true nor false") for one in (0, 1, "true", None)),
]


def named(one: Any) -> str:
    return getattr(one, "__qualname__", repr(one)).partition(".")[0]


@pytest.mark.parametrize(("read", "value", "found"), GOOD, ids=named)
def test_what_is_read(read: Callable[[object], Any], value: object, found: object, monkeypatch: Any) -> None:
    monkeypatch.setattr(values, "host_memory", lambda: 8192 * MIB)
    assert read(value) == found and type(read(value)) is type(found)


@pytest.mark.parametrize(("read", "value", "words"), BAD, ids=named)
def test_what_is_no_value(read: Callable[[object], Any], value: object, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(value)
    assert caught.value.message == words


def test_amounts_of_a_budget_keep_their_kind() -> None:
    assert [values.request(one).kind for one in ("8Gi", "25%", 0.25, 1)] == [Kind.BYTES, *2 * [Kind.SHARE], Kind.SHARE]
    assert values.limit(0.5) == values.request("0.5")


def test_the_machines_memory_is_what_the_kernel_says() -> None:
    total = Path("/proc/meminfo").read_text().splitlines()[0].split()[1]
    assert values.host_memory() == int(total) * 1024
