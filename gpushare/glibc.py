"""The version of glibc that a compiled library needs, and the one that is here.

A library names the glibc version of each function that it uses, and the loader of an older system refuses it. The
versions are read from the file (the ELF section of needed versions), so the answer is right however it was built.
"""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

__all__ = ["here", "needed", "text"]

Version = tuple[int, ...]

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_VERNEED, _DT_VERNEEDNUM = 5, 0x6FFFFFFE, 0x6FFFFFFF
_HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_NEED = struct.Struct("<HHIII")
_VERSION = struct.Struct("<IHHII")


def here() -> Version | None:
    """The version in this process; None: not glibc."""
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return None
    return _parse(name.removeprefix("glibc "))


def needed(path: Path) -> Version:
    """The newest version of glibc that the library names; () if none. Raises ValueError for another kind of file."""
    data = path.read_bytes()
    try:
        versions = [_parse(name.removeprefix("GLIBC_")) for name in _named(data) if name.startswith("GLIBC_")]
    except (struct.error, LookupError, OverflowError) as error:
        raise ValueError(f"{path}: cut short, or damaged") from error
    return max((version for version in versions if version is not None), default=())


def text(version: Version) -> str:
    return ".".join(map(str, version))


def _parse(number: str) -> Version | None:
    match = re.match(r"\d+(\.\d+)+", number, re.ASCII)
    return tuple(int(part) for part in match[0].split(".")) if match else None


def _named(data: bytes) -> list[str]:
    """All needed versions, of all libraries."""
    magic, bits, order, _, _, _, _, at, _, _, _, size, count, *_ = _HEADER.unpack_from(data)
    if magic != b"\x7fELF" or bits != 2 or order != 1:
        raise ValueError("not a 64-bit little-endian ELF file")
    segments = [_SEGMENT.unpack_from(data, at + i * size) for i in range(count)]
    dynamic = next((segment for segment in segments if segment[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return []
    entries = dict(_ENTRY.iter_unpack(data[dynamic[2] : dynamic[2] + dynamic[5]]))
    if _DT_VERNEED not in entries:
        return []
    strings = _offset(segments, entries[_DT_STRTAB])
    place = _offset(segments, entries[_DT_VERNEED])
    names = []
    for _ in range(entries[_DT_VERNEEDNUM]):
        _, versions, _, first, following = _NEED.unpack_from(data, place)
        version = place + first
        for _ in range(versions):
            _, _, _, name, step = _VERSION.unpack_from(data, version)
            start = strings + name
            names.append(data[start : data.index(b"\0", start)].decode("ascii", "replace"))
            version += step
            if not step:
                break  # this was the last one, whatever the count says
        place += following
        if not following:
            break
    return names


def _offset(segments: list[tuple[int, ...]], address: int) -> int:
    """The position of an address in the file."""
    for kind, _, offset, base, _, size, *_ in segments:
        if kind == _PT_LOAD and base <= address < base + size:
            return offset + address - base
    raise ValueError("an address that is not in the file")
