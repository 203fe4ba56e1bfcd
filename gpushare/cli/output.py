"""The form of results: tables for people, JSON for programs. The only module that imports rich.

Data goes to stdout, everything else to stderr. A table has no frame, so that it can be read, grepped and cut. In a
terminal it fits the width: the least important columns are left out, and nothing is cut at the edge. In a pipe it is
whole. Colours only repeat what the words say.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpushare.printable import one_line, printable

if TYPE_CHECKING:
    from rich.text import Text

__all__ = [
    "Column",
    "age",
    "clock",
    "echo",
    "jsonl",
    "note",
    "option",
    "print_json",
    "print_table",
    "progress",
    "styled",
    "table",
]

PIPED_WIDTH = 10_000
GAP = 2
SHRUNK = 10
"""The least width of a column that may be cut, unless the column gives another."""
STYLES = {
    "borrowing": "yellow",
    "stopped": "magenta",
    "hook": "magenta",
    "asleep": "magenta",
    "idle": "magenta",
    "waking": "magenta",
    "suspending": "magenta",
    "suspended": "magenta",
    "resuming": "magenta",
    "asked_back": "bold red",
    "waiting": "magenta",
    "observed": "blue",
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
    shrink: bool = False  # may be cut in a narrow terminal
    wrap: bool = False  # goes on in the next line where it does not fit
    spare: int = 0  # may be left out to fit a terminal: the largest first; 0 never
    least: int = SHRUNK  # the least width where it is cut or wrapped


def option(*formats: str) -> Callable[[Function], Function]:
    """-o FORMAT, and --json for short."""

    def add(function: Function) -> Function:
        function = click.option("--json", "output", flag_value="json", help="Same as -o json.")(function)
        return click.option(
            "-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True, help="Format."
        )(function)

    return add


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Plain text for people, the only way out of a command for it: what others have named does not move the cursor."""
    click.echo(printable(str(text)), err=err, nl=nl)


def echo_drawn(lines: Sequence[str]) -> None:
    """Lines of a table or picture, with our own colours: their parts have been made printable."""
    click.echo("\n".join(lines))


def print_json(schema: str, content: Mapping[str, object]) -> None:
    click.echo(json.dumps({"schema": f"gpushare.{schema}/1", **content}, indent=2))


def note(text: str) -> None:
    """Beside a result: on stderr."""
    echo(f"gpushare: {text}", err=True)


def jsonl(schema: str, items: Sequence[Mapping[str, object]]) -> None:
    for item in items:
        click.echo(json.dumps({"schema": f"gpushare.{schema}/1", **item}))


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], dim: Callable[[int], bool] | None = None
) -> None:
    echo_drawn(table(columns, rows, terminal_size().columns if sys.stdout.isatty() else None, dim))


def terminal_size() -> os.terminal_size:
    return shutil.get_terminal_size()  # heeds COLUMNS and LINES


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int | None,
    dim: Callable[[int], bool] | None = None,
) -> list[str]:
    """The lines. width: of the terminal that they are for; None is no terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [[one_line(cell) for cell in row] for row in rows]
    room = width or PIPED_WIDTH
    kept = _kept(columns, rows, room)
    widths = _widths(columns, rows, kept, room)
    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index in kept:
        column = columns[index]
        drawn.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wrap,
            overflow="ellipsis",
            width=widths[index],
        )
    for number, row in enumerate(rows):
        style = "dim" if dim is not None and dim(number) else ""
        drawn.add_row(*(Text(row[index], style=STYLES.get(row[index], "")) for index in kept), style=style)
    console = Console(
        file=io.StringIO(),
        width=max(room, _total(widths.values()) + GAP),
        height=25,  # with both, rich takes our width on a dumb terminal, too
        force_terminal=width is not None or None,
        highlight=False,
    )
    console.print(drawn)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def styled(*parts: tuple[str, str]) -> str:
    """One line for a terminal, of (text, style) pairs."""
    from rich.text import Text

    return _ansi(Text.assemble(*((one_line(text), style) for text, style in parts)))


def markdown(text: str, width: int) -> str:
    """For a terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(file=io.StringIO(), width=width, force_terminal=True, highlight=False)
    console.print(Markdown(text, hyperlinks=False))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _ansi(text: Text) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=PIPED_WIDTH, force_terminal=True, highlight=False)
    console.print(text, end="", soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cut(line: str, width: int) -> str:
    """A line of a table, no longer than a terminal is wide."""
    from rich.text import Text

    text = Text.from_ansi(line)
    if text.cell_len <= width:
        return line
    text.truncate(width)
    return _ansi(text)


def selected(line: str, width: int) -> str:
    """A line of a table, as a bar across the terminal."""
    from rich.text import Text

    return styled((Text.from_ansi(line).plain.ljust(width), "reverse"))


def _kept(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Which of the columns are shown."""
    kept = list(range(len(columns)))
    while _total([_least(columns, rows, index) for index in kept]) > room:
        spare = max(kept, key=lambda index: columns[index].spare)
        if not columns[spare].spare:
            break
        kept.remove(spare)
    return kept


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], kept: list[int], room: int) -> dict[int, int]:
    """The widths of the columns. If they are too wide together, those that may be cut shrink, the widest first."""
    widths = {index: _widest(columns, rows, index) for index in kept}
    while _total(widths.values()) > room:
        shrinkable = [index for index in kept if widths[index] > _least(columns, rows, index)]
        if not shrinkable:
            break  # it is still too wide: wrap
        widths[max(shrinkable, key=lambda index: widths[index])] -= 1
    return widths


def _total(widths: Collection[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _least(columns: Sequence[Column], rows: Sequence[Sequence[str]], index: int) -> int:
    widest = _widest(columns, rows, index)
    return min(widest, columns[index].least) if columns[index].shrink or columns[index].wrap else widest


def _widest(columns: Sequence[Column], rows: Sequence[Sequence[str]], index: int) -> int:
    return max([len(columns[index].title), *(len(row[index]) for row in rows)])


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


def clock(moment: float) -> str:
    """The time of day; with the date if it is another day."""
    when, now = time.localtime(moment), time.localtime()
    same_day = (when.tm_year, when.tm_yday) == (now.tm_year, now.tm_yday)
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", when)


def age(moment: float) -> str:
    return lasted(time.time() - moment)


def lasted(seconds: float) -> str:
    from gpushare.quantity import format_duration

    return format_duration(float(int(max(0.0, seconds)))).replace(" ", "")
