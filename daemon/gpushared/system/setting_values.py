"""How values of the settings file are read: each function takes what TOML has, and raises UsageError."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from gpushare.errors import UsageError
from gpushare.quantity import NOTHING, Kind, Quantity, parse_duration

MIB = 2**20


def host_memory() -> int:
    """This machine's memory, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UsageError("not a share of the GPU from 0 up to, but not including, 1")
    return float(value)


def amount(value: object) -> int:
    if value == 0 and not isinstance(value, bool):
        return 0
    if not isinstance(value, str):
        raise UsageError('not an amount of memory in quotes, such as "256Mi"')
    quantity = Quantity.parse(value)
    if quantity.kind is not Kind.BYTES:
        raise UsageError('not an amount in bytes, such as "256Mi"')
    return quantity.resolve(0)


def host_amount(value: object) -> int:
    quantity = request(value)
    if quantity.kind is Kind.MAX:
        raise UsageError('not a part of the machine\'s memory, such as "64Gi" or "50%"')
    return quantity.resolve(host_memory())


def seconds(least: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        if isinstance(value, str):
            seconds = parse_duration(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            seconds = float(value)
        else:
            raise UsageError('not a duration, such as "5s"')
        if not math.isfinite(seconds):
            raise UsageError(f"{seconds} is no length of time")
        if seconds < least:
            raise UsageError(f"a duration of {seconds} s is too short, the least is {least} s")
        return seconds

    return parse


def choice(*allowed: str, read: Callable[[str], Any] = str) -> Callable[[object], Any]:
    def parse(value: object) -> Any:
        if not isinstance(value, str) or value not in allowed:
            raise UsageError(f"not one of {', '.join(allowed)}")
        return read(value)

    return parse


def group(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError("not the name of a group in quotes")
    return value


def request(value: object) -> Quantity:
    if value == 0 and not isinstance(value, bool):
        return NOTHING
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise UsageError('not an amount of memory, such as "8Gi" or "25%"')
    return Quantity.parse(value)


def limit(value: object) -> Quantity:
    amount = request(value)
    if amount.kind is Kind.NONE:
        raise UsageError('a limit of nothing; write "max" for all of the GPU')
    return amount


def count(least: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise UsageError(f"not a whole number from {least}")
        return value

    return parse


def port(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 65536:
        raise UsageError("not a port of localhost, such as 9837, or 0 for none")
    return value


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError("neither true nor false")
    return value
