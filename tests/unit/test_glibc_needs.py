"""Which glibc a library needs, read from files of the test's making: several libraries, versions in any order."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gpushare import glibc

LOAD, DYNAMIC = 1, 2
STRTAB, VERNEED, VERNEEDNUM = 5, 0x6FFFFFFE, 0x6FFFFFFF
BASE, DATA = 0x400000, 0x1000
"""The file from DATA on is at BASE in memory."""


def library(
    needs: list[list[str]], *, magic=b"\x7fELF", bits=2, order=1, dynamic=True, says=True, count=None, last=0
) -> bytes:
    """An ELF file that needs these versions of each of its libraries. `count`: of versions, whatever there are."""
    strings = b"\0"
    places = {}
    for name in dict.fromkeys(name for some in needs for name in some):
        places[name] = len(strings)
        strings += name.encode() + b"\0"
    versions = b""
    for number, some in enumerate(needs):
        size = 16 + 16 * len(some) + 8  # with a gap before the next
        following = size if number + 1 < len(needs) else 0
        versions += struct.pack("<HHIII", 1, len(some) if count is None else count, 0, 16, following)
        for index, name in enumerate(some):
            step = 16 if index + 1 < len(some) else last
            versions += struct.pack("<IHHII", 0, 0, 0, places[name], step)
        versions += b"\xff" * 8
    entries = [(STRTAB, BASE), (VERNEED, BASE + len(strings)), (VERNEEDNUM, len(needs))] if says else [(STRTAB, BASE)]
    table = b"".join(struct.pack("<qQ", *entry) for entry in [*entries, (0, 0)])
    body = strings + versions
    segments = [(LOAD, 0, BASE - 64, 0, 64), (LOAD, DATA, BASE, 0, len(body))]  # one ends where the next begins
    if dynamic:
        segments.append((DYNAMIC, DATA + len(body), 0, 0, len(table)))
    header = struct.pack(
        "<4sBB10xHHIQQQIHHHHHH", magic, bits, order, 3, 62, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0
    )
    told = b"".join(
        struct.pack("<IIQQQQQQ", kind, 4, at, base, 0, size, size, 8) for kind, at, base, _, size in segments
    )
    return (header + told).ljust(DATA, b"\0") + body + table


def needed(tmp_path: Path, data: bytes) -> tuple[int, ...]:
    path = tmp_path / "lib.so"
    path.write_bytes(data)
    return glibc.needed(path)


@pytest.mark.parametrize(
    ("needs", "version"),
    [
        ([["GLIBC_2.2.5"]], (2, 2, 5)),
        ([["GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.17"]], (2, 34)),
        ([["GLIBC_2.34", "GLIBC_2.17"], ["GLIBC_2.9"]], (2, 34)),
        ([["GLIBC_2.4"], ["GCC_3.0"], ["GLIBC_2.17", "GLIBC_2.28"]], (2, 28)),
        ([["GLIBC_2.10"], ["GLIBC_2.9"]], (2, 10)),
        ([["GLIBC_PRIVATE", "GLIBC_2.5"]], (2, 5)),
        ([["GCC_9.9", "GLIBCXX_3.4"]], ()),
    ],
)
def test_the_newest_of_all_that_are_named(tmp_path, needs, version):
    assert needed(tmp_path, library(needs)) == version


def test_a_version_beyond_the_last_is_not_read(tmp_path):
    assert needed(tmp_path, library([["GLIBC_2.5"]], count=3)) == (2, 5), "the chain ends, whatever its count says"


@pytest.mark.parametrize("more", [{"dynamic": False}, {"says": False}])
def test_a_file_that_names_none_needs_none(tmp_path, more):
    assert needed(tmp_path, library([["GLIBC_2.5"]], **more)) == ()


@pytest.mark.parametrize("more", [{"magic": b"\x7fEXE"}, {"bits": 1}, {"order": 2}])
def test_another_kind_of_file_is_refused(tmp_path, more):
    with pytest.raises(ValueError, match="not a 64-bit little-endian ELF file"):
        needed(tmp_path, library([["GLIBC_2.5"]], **more))


def test_a_file_that_is_cut_short_is_refused_or_read(tmp_path):
    """At whatever byte it ends; and never with another error."""
    data = library([["GLIBC_2.5", "GLIBC_2.7"], ["GLIBC_2.6"]])
    refused = 0
    for end in [*range(0, 300, 7), *range(DATA, len(data), 5)]:
        try:
            assert needed(tmp_path, data[:end]) in ((), (2, 7))
        except ValueError as error:
            assert "lib.so" in str(error) or "not in the file" in str(error) or "ELF" in str(error)
            refused += 1
    assert refused > 20
    assert needed(tmp_path, data) == (2, 7)


def test_an_address_outside_of_the_file_is_named(tmp_path):
    data = library([["GLIBC_2.5"]])
    wrong = data.replace(struct.pack("<qQ", STRTAB, BASE), struct.pack("<qQ", STRTAB, BASE + 0x100000))
    with pytest.raises(ValueError, match="an address that is not in the file"):
        needed(tmp_path, wrong)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("glibc 2.36", (2, 36)),
        ("glibc 2.35-0ubuntu3", (2, 35)),
        ("", None),
        (None, None),
        ("musl", None),
        ("glibc 2", None),
    ],
)
def test_the_one_that_is_here(monkeypatch, said, version):
    monkeypatch.setattr(glibc.os, "confstr", lambda name: said)
    assert glibc.here() == version


@pytest.mark.parametrize("error", [ValueError("unknown"), OSError(22, "no")])
def test_a_c_library_that_does_not_say_is_another_one(monkeypatch, error):
    def confstr(_name):
        raise error

    monkeypatch.setattr(glibc.os, "confstr", confstr)
    assert glibc.here() is None
