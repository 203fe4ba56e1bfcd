"""Amounts of GPU memory and durations, as people write them. Pure: text in, numbers out.

Tools disagree about `4g`, `4G` and `4096` (docker and systemd: 2^30; Kubernetes: 10^9; NVIDIA: MiB), and seven per cent
less can stop a job. So the native dialect takes only unambiguous amounts, and suggests one for everything else.
Variables of other products are read in the dialect of their product.

    native  0.25  25%  4Gi  4096Mi  4G  4096M  1e9  8589934592  max  none
    runai   0.25  4Gi  4G  2500M  500000000         (a fraction up to 1, else a Kubernetes quantity)
    mib     4096                                    (whole MiB)
    hami    4g  3000m  8589934592  0                (k, m, g are powers of 1024; 0 is no limit)

The library reads the same dialects in C. Both parsers are tested on tests/vectors/quantities.json. The arithmetic is
exact, with integers: at most 18 digits, rounded down.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gpushare.errors import QuantityError, UsageError

__all__ = [
    "Amount",
    "Budget",
    "Dialect",
    "Kind",
    "Quantity",
    "count",
    "format_bytes",
    "format_duration",
    "parse_duration",
]

UNIT_BYTES = 512  # of the credit word, shim/credit.h
SHARE_PARTS = 10**9
MIN_BYTES = 2**20
MAX_BYTES = 2**50
MOST_GIB = 256
"""Hints take a bare number up to this for GiB, as GPUs are sold, and a larger one for MiB, as nvidia-smi shows them."""
MAX_DIGITS = 18
MAX_EXPONENT = 30

BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
DECIMAL = {"M": 10**6, "G": 10**9, "T": 10**12}
NATIVE_UNITS = BINARY | {f"{unit}B": value for unit, value in BINARY.items()} | DECIMAL
RUNAI_UNITS = BINARY | {"k": 10**3} | DECIMAL
HAMI_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}

BLANKS = " \t\n\r\v\f"
_NUMBER = re.compile(r"([0-9]+)(\.[0-9]*)?|(\.[0-9]+)", re.ASCII)
_EXPONENT = re.compile(r"[eE]\+?([0-9]{1,2})", re.ASCII)
_INTEGER = re.compile(r"[0-9]+", re.ASCII)
_HAMI = re.compile(r"([0-9]+)([kKmMgG]?)", re.ASCII)

ALL = ("all", "full", "whole", "half", "unlimited", "infinite", "inf")
"""Words that people try for `max`."""
FROM_PYTHON = 'write "4Gi", 4 * 2**30 (bytes), or a share of the GPU: 0.25, "25%"'
WHAT_TO_WRITE = "write a share (0.25, 25%), bytes with a unit (4Gi, 4096Mi, 4G), or max"


class Dialect(Enum):
    NATIVE = "native"
    RUNAI = "runai"
    MIB = "mib"
    HAMI = "hami"


class Kind(Enum):
    BYTES = "bytes"
    SHARE = "share"
    MAX = "max"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Quantity:
    """An amount of memory per GPU. `text` is what the user wrote, for messages; equality is about the amount."""

    kind: Kind
    value: int
    text: str

    @classmethod
    def parse(cls, text: str, dialect: Dialect | str = Dialect.NATIVE) -> Quantity:
        """Parse 4Gi, 4096Mi, 4G (10^9), 0.25, 25%, max or none, or what another dialect takes. Raises QuantityError."""
        dialect = Dialect(dialect)
        trimmed = text.strip(BLANKS)
        if not trimmed:
            raise QuantityError("an amount of memory is empty", hint=WHAT_TO_WRITE)
        kind, value = _PARSERS[dialect](trimmed)
        if kind is Kind.BYTES:
            _check_range(trimmed, value)
        if kind is Kind.SHARE and value == 0:
            raise _refuse(trimmed, "too small a share", WHAT_TO_WRITE)
        return cls(kind, value, trimmed)

    @classmethod
    def of(cls, amount: str | int | float | Quantity) -> Quantity:
        """From Python: text as parse() takes it, a number of bytes (2 * 2**30), or a fraction (0.25)."""
        if isinstance(amount, Quantity):
            return amount
        if isinstance(amount, bool) or not isinstance(amount, str | int | float):
            raise QuantityError(f"{amount!r} is not an amount of memory", hint=FROM_PYTHON)
        if isinstance(amount, float) and amount.is_integer():
            amount = int(amount)
        try:
            return cls.parse(str(amount))
        except QuantityError as error:
            hint = FROM_PYTHON if not isinstance(amount, str) else error.hint
            raise QuantityError(error.message, hint=hint, code=error.code) from None

    @classmethod
    def plain(cls, kind: Kind, value: int) -> Quantity:
        """An amount that no user wrote: messages show it in the native dialect."""
        return cls(kind, value, cls(kind, value, "").canonical())

    def resolve(self, total: int) -> int:
        """The amount in bytes on a GPU with `total` bytes, rounded down to the unit of the credit word."""
        match self.kind:
            case Kind.BYTES:
                amount = self.value
            case Kind.SHARE:
                amount = total * self.value // SHARE_PARTS
            case Kind.MAX:
                amount = total
            case Kind.NONE:
                amount = 0
        return amount // UNIT_BYTES * UNIT_BYTES

    def canonical(self) -> str:
        """The same amount in the native dialect."""
        match self.kind:
            case Kind.BYTES:
                return _shortest_bytes(self.value)
            case Kind.SHARE:
                whole, parts = divmod(self.value, SHARE_PARTS)
                return "1" if whole else f"0.{parts:09d}".rstrip("0")
            case _:
                return "max" if self.kind is Kind.MAX else "none"

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return (self.kind, self.value) == (other.kind, other.value)

    def __hash__(self) -> int:
        return hash((self.kind, self.value))


Amount = str | int | float | Quantity
"""The types that Quantity.of() takes."""

MAX = Quantity(Kind.MAX, 0, "max")
NOTHING = Quantity(Kind.NONE, 0, "none")


class Budget(NamedTuple):
    """A job's request and limit on each of its GPUs, both said."""

    request: Quantity
    limit: Quantity

    @classmethod
    def of(cls, request: Quantity | None, limit: Quantity | None, *, limit_is_burst_only: bool = False) -> Budget:
        """Fill in a missing request or limit.

        A limit alone is also the request, so that one option gives what people expect: a smaller card. There are two
        exceptions. RUNAI_GPU_MEMORY_LIMIT guarantees nothing, because in Run:ai it only says how far a job may burst.
        And a limit of `none` does not ask for the whole GPU.
        """
        if limit is not None and limit.kind is Kind.NONE:
            limit = MAX
        if request is None:
            unlimited = limit is None or limit.kind is Kind.MAX
            request = NOTHING if limit is None or unlimited or limit_is_burst_only else limit
        elif limit is None:
            limit = MAX if request.kind is Kind.NONE else request
        budget = cls(request, limit or MAX)
        budget._check_order()
        return budget

    def _check_order(self) -> None:
        """Refuse what is wrong on every GPU. A fraction and bytes are compared later, when the GPU is known."""
        request, limit = self.request, self.limit
        same = request.kind is limit.kind and request.value > limit.value
        whole = request.kind is Kind.MAX and limit.kind is Kind.SHARE and limit.value < SHARE_PARTS
        if same or whole:
            raise UsageError(
                f"the request {request} is above the limit {limit}",
                code="request_over_limit",
                hint="raise the limit, or leave it out: then it equals the request",
            )


def _parse_native(text: str) -> tuple[Kind, int]:
    if text == "max":
        return Kind.MAX, 0
    if text == "none":
        return Kind.NONE, 0
    number, rest = _split_number(text)
    unit = rest.lstrip(BLANKS)
    if unit == "%":
        return _share(text, number, SHARE_PARTS // 100)
    if unit in NATIVE_UNITS:
        return _bytes(text, number, NATIVE_UNITS[unit])
    return _bare_or_exponent(text, number, rest)


def _parse_runai(text: str) -> tuple[Kind, int]:
    number, unit = _split_number(text)
    if unit in RUNAI_UNITS:
        return _bytes(text, number, RUNAI_UNITS[unit])
    return _bare_or_exponent(text, number, unit)


def _parse_mib(text: str) -> tuple[Kind, int]:
    if not _INTEGER.fullmatch(text) or len(text) > MAX_DIGITS:
        raise _refuse(text, "this variable takes whole MiB", "write the number of MiB without a unit, as in 4096")
    if int(text) == 0:
        raise _refuse(text, "nothing", "leave the variable out for no limit")
    return Kind.BYTES, int(text) * 2**20


def _parse_hami(text: str) -> tuple[Kind, int]:
    match = _HAMI.fullmatch(text)
    if not match or len(match[1]) > MAX_DIGITS:
        raise _refuse(text, "not an amount as HAMi writes it", "write 3000m (MiB) or 4g (GiB); 0 is no limit")
    amount = int(match[1]) * HAMI_UNITS[match[2].lower()]
    return (Kind.BYTES, amount) if amount else (Kind.NONE, 0)


_PARSERS = {
    Dialect.NATIVE: _parse_native,
    Dialect.RUNAI: _parse_runai,
    Dialect.MIB: _parse_mib,
    Dialect.HAMI: _parse_hami,
}


class _Number(NamedTuple):
    digits: int
    scale: int  # the number is digits / 10^scale
    pointed: bool

    def times(self, factor: int) -> int:
        return self.digits * factor // int(10**self.scale)


def _split_number(text: str) -> tuple[_Number, str]:
    match = _NUMBER.match(text)
    if not match:
        raise _refuse_word(text)
    whole, fraction = match[1] or "", match[2] or match[3] or ""
    digits = whole + fraction[1:]
    if len(digits) > MAX_DIGITS:
        raise _refuse(text, f"more than {MAX_DIGITS} digits", WHAT_TO_WRITE)
    return _Number(int(digits), len(fraction[1:]), bool(fraction)), text[match.end() :]


def _bytes(text: str, number: _Number, unit: int) -> tuple[Kind, int]:
    if number.digits == 0:
        raise _refuse_zero(text)
    return Kind.BYTES, number.times(unit)


def _share(text: str, number: _Number, unit: int) -> tuple[Kind, int]:
    if number.digits == 0:
        raise _refuse_zero(text)
    if number.digits * unit > SHARE_PARTS * 10**number.scale:
        raise _refuse(text, "more than the whole GPU", "write at most 100% (or 1), or bytes with a unit: 4Gi")
    return Kind.SHARE, number.times(unit)


def _bare_or_exponent(text: str, number: _Number, rest: str) -> tuple[Kind, int]:
    exponent = _EXPONENT.fullmatch(rest)
    if exponent and int(exponent[1]) <= MAX_EXPONENT:
        return _bytes(text, number, int(10 ** int(exponent[1])))
    if rest:
        raise _refuse_unit(text, rest.strip(BLANKS))
    if number.digits <= 10**number.scale:
        return _share(text, number, SHARE_PARTS)
    if number.pointed:
        raise _refuse(text, "more than the whole GPU", f"write {text.rstrip('.')}Gi for bytes, or at most 1")
    if number.digits < MIN_BYTES:
        unit = "Gi" if number.digits <= MOST_GIB else "Mi"
        raise _refuse(text, "no unit", f"write {text}{unit}")
    return Kind.BYTES, number.digits


def _check_range(text: str, value: int) -> None:
    if value < MIN_BYTES:
        raise _refuse(text, "less than 1Mi", "write at least 1Mi")
    if value > MAX_BYTES:
        raise _refuse(text, "more than any GPU has", WHAT_TO_WRITE)


def _refuse(text: str, why: str, hint: str) -> QuantityError:
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    return QuantityError(f"cannot read {shown!r} as an amount of memory: {why}", hint=hint)


NOTHING_WANTED = "none for no guarantee or no limit, else "


def _refuse_zero(text: str) -> QuantityError:
    return _refuse(text, "nothing", f"write {NOTHING_WANTED}at least 1Mi")


def hint_for_something(error: UsageError) -> str:
    """The hint of an error about an amount, where nothing is no answer."""
    return (error.hint or "").replace(NOTHING_WANTED, "")


def _refuse_word(text: str) -> QuantityError:
    lower = text.lower()
    if lower in ALL:
        return _refuse(text, "not a number", "write max for all of the GPU, 50% for half of it")
    if lower in ("max", "none"):
        return _refuse(text, "not one of the words", f"write {lower} in lower case; not every variable takes it")
    if text[0] in "+-":
        return _refuse(text, "an amount has no sign", WHAT_TO_WRITE)
    return _refuse(text, "not a number", WHAT_TO_WRITE)


def _refuse_unit(text: str, unit: str) -> QuantityError:
    if re.match(r",[0-9]", unit):
        return _refuse(text, "a comma", f"write {text.replace(',', '.')}")
    number = text[: text.find(unit)].strip(BLANKS)
    letter = unit[:1].upper()
    if unit == "m":
        return _refuse(text, "m means 1/1000 in Kubernetes", f"write {number}M (10^6) or {number}Mi (2^20)")
    if unit.upper() in ("M", "G", "T", "MB", "GB", "TB"):
        power = {"M": (20, 6), "G": (30, 9), "T": (40, 12)}[letter]
        return _refuse(
            text, "two meanings", f"write {number}{letter}i (2^{power[0]}) or {number}{letter} (10^{power[1]})"
        )
    if unit.upper() in ("K", "KB", "KI", "KIB", "MI", "MIB", "GI", "GIB", "TI", "TIB"):
        return _refuse(text, f"the unit is written {letter}i", f"write {number}{letter}i")
    return _refuse(text, f"no unit {unit!r}", WHAT_TO_WRITE)


def _shortest_bytes(value: int) -> str:
    for unit, size in reversed(BINARY.items()):
        if value % size == 0:
            return f"{value // size}{unit}"
    return str(value)


def format_bytes(amount: int) -> str:
    """For people: GiB with one decimal; smaller amounts in smaller units."""
    if amount < 0:
        return f"-{format_bytes(-amount)}"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        # Otherwise an amount just below a unit would show as 1024.0 of the smaller unit.
        if amount >= size - size // 20480:
            return f"{amount / size:.1f} {unit}"
    return f"{amount} B"


def count(number: int, one: str, many: str | None = None) -> str:
    """1 job, 2 jobs; `many` if the plural is not just an s: count(2, "job is", "jobs are")."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)[ \t]*(ms|s|m|min|h|d)?", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Seconds from `5s`, `500ms`, `2m`, `1.5h`, or bare seconds."""
    match = _DURATION.fullmatch(text.strip(BLANKS))
    if not match:
        raise QuantityError(
            f"cannot read {text!r} as a duration", hint="write 5s, 500ms, 2m, 1h, or a number of seconds"
        )
    return float(match[1]) * _SECONDS[match[2] or "s"]


def format_duration(seconds: float) -> str:
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = int(seconds)
    for size, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}" + (f"{rest}{name}" if rest else "")
    raise AssertionError(seconds)
