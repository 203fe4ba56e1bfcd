"""GPUs as integers: a millionth of a GPU (`micro`) is the unit of every quota, share and sum.

0.1 + 0.2 GPUs fit a quota of 0.3 because they are 100,000 + 200,000 in 300,000. A task that asks for bytes is
charged the part of the GPU that the bytes are, rounded down: so whatever fits on a GPU in bytes never adds up to
more than one GPU of quota, and three thirds of a GPU whose bytes do not divide by three still fit a quota of 1.

A share in bytes is rounded down for the same reason: shares that add up to at most one GPU take at most its bytes.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from fractions import Fraction

from gpushare.errors import QuantityError

MICRO = 1_000_000
"""Micro-GPUs in a GPU."""
MOST = 10**7 * MICRO
"""More than ten million GPUs is a mistake, not a quantity."""


def gpus(amount: int | float | str | Fraction | Decimal) -> int:
    """Micro-GPUs from a number of GPUs: gpus(0.3) == gpus("0.3") == 300_000, whatever the float thinks it is."""
    if isinstance(amount, Fraction):
        return round(amount * MICRO)
    try:
        exact = Decimal(repr(amount) if isinstance(amount, float) else amount)
        micro = int((exact * MICRO).to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, OverflowError, ValueError, TypeError):
        raise QuantityError(f"cannot read {amount!r} as a number of GPUs", hint="write 2, 0.5 or 0.25") from None
    if micro < 0 or micro > MOST:
        raise QuantityError(f"{amount!r} is not a number of GPUs", hint="write a number from 0 to 10000000")
    return micro


def format_gpus(micro: int) -> str:
    """As few digits as say it exactly: 2, 0.5, 6.666667."""
    sign, micro = ("-", -micro) if micro < 0 else ("", micro)
    whole, rest = divmod(micro, MICRO)
    return f"{sign}{whole}" + (f".{rest:06d}".rstrip("0") if rest else "")


def bytes_of_share(share: int, memory: int) -> int:
    """What a share (micro) of a GPU with so many bytes takes of it."""
    return share * memory // MICRO


def charge_of_bytes(amount: int, memory: int) -> int:
    """What bytes on a GPU with `memory` bytes cost (micro)."""
    return amount * MICRO // memory


def whole_gpus(shares: list[int]) -> list[int]:
    """Shares as whole GPUs with the same sum (itself rounded down): largest remainder first, then the first named."""
    floors = [share // MICRO for share in shares]
    left = sum(shares) // MICRO - sum(floors)
    # A sum of shares that were rounded down to millionths may miss its whole number by less than one each.
    if sum(shares) % MICRO > MICRO - len(shares) - 1:
        left += 1
    order = sorted(range(len(shares)), key=lambda index: (-(shares[index] % MICRO), index))
    for index in order[:left]:
        floors[index] += 1
    return floors
