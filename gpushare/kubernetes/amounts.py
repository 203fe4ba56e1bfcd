"""Amounts of memory as Kubernetes writes them (`8Gi`, `1536Mi`, `8589934592`, `1e9`, `500M`), exact. Pure."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache

from gpushare.errors import QuantityError

__all__ = ["milli", "parse", "written"]

BINARY = {unit: 2 ** (10 * power) for power, unit in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
AMOUNT = re.compile(r"\+?([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})([A-Za-z]{0,2}|[eE][+-]?[0-9]{1,2})", re.ASCII)


def parse(text: object) -> int:
    """Bytes, rounded up as Kubernetes does. Raises QuantityError."""
    return math.ceil(_exact(text))


def milli(text: object) -> int:
    """Thousandths, as of CPUs, rounded up. Raises QuantityError."""
    return math.ceil(_exact(text) * 1000)


def _exact(text: object) -> Fraction:
    exact = _read(str(text)) if isinstance(text, str | int) and not isinstance(text, bool) else None
    if exact is None:
        raise QuantityError(f"cannot read {str(text)[:40]!r} as an amount of Kubernetes", hint="write 8Gi or 1536Mi")
    return exact


@lru_cache(1000)  # thousands of pods and GPUs say few different ones
def _read(text: str) -> Fraction | None:
    match = AMOUNT.fullmatch(text)
    factor = None if match is None else _factor(match[2])
    return None if match is None or factor is None else Fraction(match[1]) * factor


def _factor(unit: str) -> Fraction | None:
    if unit in BINARY:
        return Fraction(BINARY[unit])
    if unit in DECIMAL:
        return Fraction(10) ** DECIMAL[unit]
    return Fraction(10) ** int(unit[1:]) if unit[0] in "eE" and len(unit) > 1 else None


def written(amount: int) -> str:
    """Bytes in the largest unit that says them exactly."""
    unit = next(unit for unit in reversed(BINARY) if amount % BINARY[unit] == 0) if amount else ""
    return f"{amount // BINARY[unit]}{unit}"
