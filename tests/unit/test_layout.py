"""The bytes that C and Python share: sizes and offsets as the C compiler asserts them, seen from Python."""

from __future__ import annotations

import pytest

from gpushare._layout import ffi, lib
from gpushare.quantity import UNIT_BYTES


@pytest.mark.parametrize(
    ("struct", "size"),
    [
        ("struct gs_line", 128),
        ("struct gs_page", 4096),
        ("struct gs_frame", 512),
        ("struct gs_hello", 136),
        ("struct gs_amount", 16),
    ],
)
def test_sizes(struct: str, size: int) -> None:
    assert ffi.sizeof(struct) == size


@pytest.mark.parametrize(
    ("struct", "field", "offset"),
    [
        ("struct gs_line", "word", 0),
        ("struct gs_line", "grantable", 64),
        ("struct gs_line", "uuid", 104),
        ("struct gs_page", "line", 128),
        ("struct gs_frame", "u", 16),
        ("struct gs_answer", "text", 16),
    ],
)
def test_offsets(struct: str, field: str, offset: int) -> None:
    assert ffi.offsetof(struct, field) == offset


def line() -> object:
    return ffi.new("struct gs_line *")


def test_reserve_fits_only_within_the_credit() -> None:
    one = line()
    lib.gs_grant(one, 100)
    assert lib.gs_reserve(one, 60) == 1
    assert lib.gs_reserve(one, 41) == 0, "and changes nothing"
    assert lib.gs_word_used(lib.gs_word_load(one)) == 60
    assert lib.gs_reserve(one, 40) == 1
    assert one.peak == 100
    lib.gs_release(one, 100)
    assert lib.gs_word_load(one) == 100


def test_revoke_takes_no_more_than_is_idle() -> None:
    one = line()
    lib.gs_grant(one, 100)
    lib.gs_reserve(one, 70)
    assert lib.gs_revoke(one, 50) == 30
    assert lib.gs_revoke(one, 1) == 0
    assert lib.gs_word_credit(lib.gs_word_load(one)) == 70


def test_units_round_up_and_saturate() -> None:
    assert lib.gs_units(0) == 0
    assert lib.gs_units(1) == 1
    assert lib.gs_units(512) == 1
    assert lib.gs_units(513) == 2
    assert lib.gs_units(2**64 - 1) == 2**32 - 1
    one = line()
    lib.gs_grant(one, 2**32 - 2)
    assert lib.gs_reserve(one, lib.gs_units(2**64 - 1)) == 0


def test_python_counts_credit_in_the_same_units() -> None:
    assert UNIT_BYTES == lib.GS_UNIT_BYTES
