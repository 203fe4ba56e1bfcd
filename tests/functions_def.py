"""Reads functions.def as the C preprocessor does, or not at all.

The file is C: the compiler derives four tables from it, and tests derive their expectations from the same rows. So this
reader knows just the C that the file is written in, and refuses everything else: a row that it would see and the
compiler would not (or the other way round) must not pass in silence. tests/fuzz holds it to that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).resolve().parents[1] / "shim" / "functions.def"
STREAMS = ("LEGACY", "PER_THREAD")
RULES = (
    "HOOK",
    "TURN",
    "PASS_NO_MEMORY",
    "PASS_OVERHEAD",
    "PASS_FOREIGN",
    "PASS_HOST",
    "PASS_RECONCILED",
    "PASS_PRIVATE",
    "PASS_OTHER_PROCESS",
)


class Row(NamedTuple):
    base: str
    symbol: str
    since: int
    stream: str
    family: str = ""  # of GS_OTHER: none, nor a rule
    rule: str = ""


class BadRow(ValueError):
    pass


# Empty definitions, for whoever takes rows of one kind only, and their end.
DIRECTIVE = re.compile(r"#(?:ifndef GS_\w+|define GS_FN\(base, symbol, since, stream, family, rule\)|"
                       r"define GS_OTHER\(base, symbol, since, stream\)|endif|undef GS_\w+)")  # fmt: skip
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
GAP = r"[ \t\n]*"
NAME = r"(cu[A-Za-z0-9_]+)"
ROW = re.compile(
    rf"(GS_FN|GS_OTHER){GAP}\({GAP}{NAME}{GAP},{GAP}{NAME}{GAP},{GAP}([1-9][0-9]*){GAP},{GAP}([A-Z_]+){GAP}"
    rf"(?:,{GAP}([A-Z]+){GAP},{GAP}([A-Z_]+){GAP})?\)"
)
# Where the C of the file ends: what starts another kind of token, joins lines, or is a character of no C at all.
FOREIGN = re.compile(r"[^A-Za-z0-9_(), \t\n#/*]|//|\?\?|%:")


def _without_comments(text: str) -> str:
    """Comments become spaces, and keep their line ends: directives end where their lines do."""
    return COMMENT.sub(lambda found: " " + "\n" * found[0].count("\n"), text)


def _rows(text: str) -> Iterator[Row]:
    at = 0
    while at < len(text):
        gap = re.compile(GAP).match(text, at)
        assert gap is not None
        if gap.end() == len(text):
            return
        found = ROW.match(text, gap.end())
        line = text.count("\n", 0, gap.end()) + 1
        if found is None:
            raise BadRow(f"line {line}: no row: {text[gap.end() : gap.end() + 40]!r}")
        macro, base, symbol, since, stream, family, rule = found.groups()
        if (macro == "GS_FN") != (family is not None):
            raise BadRow(f"line {line}: {macro} with {'too few' if macro == 'GS_FN' else 'too many'} parts")
        if stream not in STREAMS or (rule is not None and rule not in RULES):
            raise BadRow(f"line {line}: unknown word: {stream}, {rule}")
        yield Row(base, symbol, int(since), stream, family or "", rule or "")
        at = found.end()


def read(text: str) -> list[Row]:
    bare = _without_comments(text)
    foreign = FOREIGN.search(bare)
    if foreign is not None:
        raise BadRow(f"line {bare.count(chr(10), 0, foreign.start()) + 1}: {foreign[0]!r} is not of this file's C")
    lines = bare.split("\n")
    for number, line in enumerate(lines, 1):
        if "#" in line and DIRECTIVE.fullmatch(line.rstrip(" \t")) is None:
            raise BadRow(f"line {number}: unknown directive: {line!r}")
    directives = [line.rstrip(" \t") for line in lines if "#" in line]
    if directives not in (EXPECTED, []):
        raise BadRow(f"directives are not the expected ones: {directives}")
    rows = list(_rows("\n".join("" if "#" in line else line for line in lines)))
    seen: set[str] = set()
    for row in rows:
        if row.symbol in seen:
            raise BadRow(f"{row.symbol} stands there twice")
        if not row.symbol.startswith(row.base):
            raise BadRow(f"{row.symbol} is no variant of {row.base}")
        seen.add(row.symbol)
    return rows


EXPECTED = [
    "#ifndef GS_FN",
    "#define GS_FN(base, symbol, since, stream, family, rule)",
    "#endif",
    "#ifndef GS_OTHER",
    "#define GS_OTHER(base, symbol, since, stream)",
    "#endif",
    "#undef GS_FN",
    "#undef GS_OTHER",
]


def rows() -> list[Row]:
    return read(FILE.read_text())
