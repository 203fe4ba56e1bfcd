"""The tables on terminals of several widths: which columns go first, which are wrapped, how they are aligned."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from gpushare.cli import output, ps
from gpushare.cli.output import Column

GOLDEN = Path(__file__).with_name("tables.txt")
MODULES = sorted(path.stem for path in Path(output.__file__).parent.glob("[a-z]*.py"))


SENTENCE = "one two three four five six seven eight nine ten eleven twelve"


def all_columns() -> Iterator[tuple[str, list[Column]]]:
    for module in MODULES:
        for name, columns in sorted(vars(import_module(f"gpushare.cli.{module}")).items()):
            if isinstance(columns, list) and columns and isinstance(columns[0], Column):
                yield f"{module}.{name}", columns
    yield "ps", [*ps.COLUMNS, ps.COMMAND]
    yield "ps --all", [*ps.COLUMNS, *ps.ENDED, ps.COMMAND]
    yield "top", [*ps.COLUMNS, ps.COMPUTING, ps.COMMAND]


def tables() -> str:
    """Each table with one row: a number, words of three lengths, or a sentence where it may be cut or wrapped."""
    found = []
    for name, columns in all_columns():
        row = [
            "12.0 GiB" if one.right else SENTENCE[: 7 + 8 * (index % 3)] if not (one.wrap or one.shrink) else SENTENCE
            for index, one in enumerate(columns)
        ]
        found.append(f"{name}, as it gets narrower: {', '.join(left_out(columns, row)) or 'all stay'}\n")
        for width in (200, 100, 80, 60, 45, 30):
            lines = output.table(columns, [row], width)
            text = "\n".join(re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in lines)
            found.append(f"{name}, {width}\n{text}\n")
    return "\n".join(found)


def left_out(columns: list[Column], row: list[str]) -> list[str]:
    """The columns in the order in which they go, with the width that has no more room for each."""
    gone: dict[str, int] = {}
    for width in range(400, 10, -1):
        kept = [columns[index].title for index in output._kept(columns, [row], width)]
        gone |= {one.title: width for one in columns if one.title not in (*kept, *gone)}
    return [f"{title} at {width}" for title, width in gone.items()]


def test_tables_show_the_same_columns_as_before() -> None:
    told = tables()
    if os.environ.get("GPUSHARE_TEST_UPDATE"):
        GOLDEN.write_text(told)
    changes = difflib.unified_diff(GOLDEN.read_text().splitlines(), told.splitlines(), "tables.txt", "now", n=2)
    assert not (difference := "\n".join(changes)), f"{difference}\nif so it should be: GPUSHARE_TEST_UPDATE=1"
