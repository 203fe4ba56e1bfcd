"""One small change of one source file: what the sampler draws and what a test should notice."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes `start` to `end` of a file become `becomes`. The number of lines stays the same."""

    path: str
    """Relative to the root of the tree."""
    start: int
    end: int
    becomes: bytes
    operator: str
    """The kind of change, for example "comparison"."""

    def apply(self, source: bytes) -> bytes:
        """The changed source. A statement of several lines leaves empty lines behind, so that line numbers stay."""
        lines = source[self.start : self.end].count(b"\n") - self.becomes.count(b"\n")
        return source[: self.start] + self.becomes + b"\n" * lines + source[self.end :]

    def line_number(self, source: bytes) -> int:
        """Of the first changed byte, from 1."""
        return source.count(b"\n", 0, self.start) + 1

    def lines(self, source: bytes) -> range:
        """The numbers of the lines that the change touches."""
        first = self.line_number(source)
        return range(first, first + source[self.start : self.end].count(b"\n") + 1)

    def line_before(self, source: bytes) -> str:
        """The first line that the change touches, without the space around it."""
        return _line(source, self.line_number(source))

    def line_after(self, source: bytes) -> str:
        return _line(self.apply(source), self.line_number(source))

    def diff(self, source: bytes) -> str:
        """As `patch -p1` reads it."""
        before, after = (text.decode().splitlines(keepends=True) for text in (source, self.apply(source)))
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}", n=1))


def _line(source: bytes, number: int) -> str:
    return source.split(b"\n")[number - 1].decode().strip()
