"""How results look: tables for people, JSON for programs. The only module that imports rich.

Data goes to stdout and everything else to stderr. A table has no frame, so that it can be read, grepped and cut;
it is fitted to a terminal's width and never cut when piped. Colour only repeats what the words say.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

__all__ = ["Column", "age", "clock", "jsonl", "option", "print_json", "print_table", "progress"]

PIPED_WIDTH = 10_000
STYLES = {
    "borrowing": "yellow",
    "asked_back": "bold red",
    "waiting": "magenta",
    "queued": "cyan",
    "unmanaged": "magenta",
    "escaped": "bold red",
    "ended": "dim",
    "degraded": "yellow",
    "sick": "bold red",
    "lost": "bold red",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
    "skip": "dim",
}

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    shrink: bool = False  # may be cut to fit a terminal


def option(*formats: str) -> Callable[[Function], Function]:
    """-o FORMAT, and --json for short."""

    def add(function: Function) -> Function:
        function = click.option("--json", "output", flag_value="json", help="Same as -o json.")(function)
        return click.option(
            "-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True, help="Format."
        )(function)

    return add


def print_json(schema: str, content: Mapping[str, object]) -> None:
    click.echo(json.dumps({"schema": f"gpushare.{schema}/1", **content}, indent=2))


def jsonl(schema: str, items: Sequence[Mapping[str, object]]) -> None:
    for item in items:
        click.echo(json.dumps({"schema": f"gpushare.{schema}/1", **item}))


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], dim: Callable[[int], bool] | None = None
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis" if column.shrink else "ignore",
            min_width=None if column.shrink else _widest(columns, rows, column),
        )
    for index, row in enumerate(rows):
        style = "dim" if dim is not None and dim(index) else ""
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row), style=style)
    terminal = sys.stdout.isatty()
    drawn = io.StringIO()
    width = Console(file=sys.stdout).width if terminal else PIPED_WIDTH
    Console(file=drawn, width=width, force_terminal=terminal or None, highlight=False).print(table)
    click.echo("\n".join(line.rstrip() for line in drawn.getvalue().splitlines()))


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while something takes long, for a terminal only: call it with how much is done of how much."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _widest(columns: Sequence[Column], rows: Sequence[Sequence[str]], column: Column) -> int:
    index = columns.index(column)
    return max([len(column.title), *(len(row[index]) for row in rows)])


def clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))


def age(moment: float) -> str:
    from gpushare.quantity import format_duration

    return format_duration(float(int(max(0.0, time.time() - moment)))).replace(" ", "")
