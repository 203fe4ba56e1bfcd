"""gpushare top: the GPUs and their jobs, live.

`frame` draws an answer, `press` handles a key; the rest is the terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import click

from gpushare.api import Gpu, Job, Status
from gpushare.cli import output as _output
from gpushare.cli import ps
from gpushare.cli.screen import draw, screen, size
from gpushare.cli.status import ailments, bar, headline
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable, GpushareError
from gpushare.interval import Interval
from gpushare.locate import Node, find
from gpushare.printable import one_line
from gpushare.quantity import format_bytes

BAR, NARROW = 30, 8
BESIDE = 80
"""Columns beside a bar; the bar takes the rest of a wide terminal."""
LEGEND = "# guaranteed  + borrowed  ! outside gpushare  . free  | requested"
COLOURS = {"#": "green", "+": "yellow", "!": "magenta", ".": "dim", "|": "bold"}
PIPED = os.terminal_size((100, 10_000))
ANSWERS_WITHIN = 2.0
A_DAY = 86400.0


def _most(key: str) -> Callable[[Job], object]:
    return lambda job: -sum(gpu[key] for gpu in job["gpus"])  # type: ignore[literal-required]


SORTS: dict[str, Callable[[Job], object]] = {
    "usage": _most("usage"),
    "loan": _most("loan"),
    "age": lambda job: job["since"],
    "name": lambda job: job["name"],
}


BY_LETTER = {name[0]: name for name in SORTS}
STOP = "k"
HELP = {
    "up, down": "select a job (Esc: none)",
    STOP: "stop the selected job with SIGTERM; asks first",
    "s": "sort the jobs by something else",
    ", ".join(BY_LETTER): f"sort by {', '.join(SORTS)}",
    "h, ?": "this list; any key ends it",
    "q": "quit",
}


@dataclass(frozen=True, slots=True)
class Look:
    """The columns, widths and sort order."""

    size: os.terminal_size
    sort: str = "usage"
    terminal: bool = True
    footer: str = ""
    emphasis: str = "dim"
    """The text of the footer."""
    selected: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What is shown, selected and asked."""

    sort: str = "usage"
    selected: str | None = None
    """The id of a job."""
    asking: Job | None = None
    """The job that an open question is about."""
    stop: Job | None = None
    """The answer was yes."""
    note: str = ""
    """The message of the last key; the next key removes it."""
    help: bool = False
    over: bool = False


@click.command(short_help="Watch the GPUs and their jobs.")
@click.option(
    "-i", "--interval", metavar="SECONDS", type=Interval(0.1, A_DAY), default=2.0, show_default=True, help="How often."
)
@click.option("-1", "--once", is_flag=True, help="Show the jobs once and end, as when piped.")
@click.option("-s", "--sort", type=click.Choice(list(SORTS)), default="usage", show_default=True, help="Jobs by.")
@click.option("--readonly", is_flag=True, help="Only watch: no key stops a job.")
def command(interval: float, once: bool, sort: str, readonly: bool) -> None:
    """Watch how the memory of each GPU is divided, and its jobs. q ends it, h lists the other keys."""
    node = find(load_settings())
    if once or not sys.stdout.isatty():
        status = node.client().status()
        terminal = sys.stdout.isatty()
        room = os.terminal_size((_output.terminal_size().columns, PIPED.lines)) if terminal else PIPED
        _output.echo_drawn(frame(headline(node, status), status, Look(room, sort, terminal)))
        return
    view = View(sort)
    with contextlib.suppress(KeyboardInterrupt), screen() as wait:
        while not view.over:
            room, found = size(), _ask()
            emphasis = "bold" if view.asking is not None or view.note else "dim"
            look = Look(room, view.sort, footer=footer(view, interval), emphasis=emphasis, selected=view.selected)
            draw(_picture(found, view, look, readonly=readonly), room)
            jobs = [] if isinstance(found, DaemonUnreachable) else found[1]["jobs"]
            view = press(view, wait(interval), jobs, readonly=readonly)
            if view.stop is not None:
                view = replace(view, stop=None, note=_stop(view.stop))


def _ask() -> tuple[Node, Status] | DaemonUnreachable:
    """Ask the daemon. If it restarts meanwhile, wait for it."""
    try:
        node = find(load_settings())
        return node, node.client(ANSWERS_WITHIN).status()
    except DaemonUnreachable as error:
        return error


def _picture(found: tuple[Node, Status] | DaemonUnreachable, view: View, look: Look, *, readonly: bool) -> list[str]:
    if view.help:
        return _bottom(_help(readonly=readonly), look)
    if isinstance(found, DaemonUnreachable):
        return _bottom([one_line(found.message), "trying again"], look)
    node, status = found
    return frame(headline(node, status), status, look)


def _stop(job: Job) -> str:
    from gpushare.stop import ask_to_stop

    try:
        return ask_to_stop(find(load_settings()).client(ANSWERS_WITHIN), job["id"])
    except GpushareError as error:
        return error.message


# ---- the keys --------------------------------------------------------------------------------------


def press(view: View, key: str, jobs: list[Job], *, readonly: bool = False) -> View:
    """The view after a key; "" is no key: only the jobs may have changed."""
    if key in ("end", "gone"):
        return replace(view, over=True)
    if view.selected not in {job["id"] for job in jobs}:
        view = replace(view, selected=None)
    if not key:
        return view
    if view.asking is not None:
        return replace(view, asking=None, stop=view.asking if key in "yY" else None)
    view = replace(view, note="")
    if view.help:
        return replace(view, help=False)
    sorts, order = list(SORTS), [job["id"] for job in _in_order(jobs, view.sort)]
    match key:
        case "q" | "Q":
            return replace(view, over=True)
        case "h" | "?":
            return replace(view, help=True)
        case "s":
            return replace(view, sort=sorts[(sorts.index(view.sort) + 1) % len(sorts)])
        case "up" | "down":
            return replace(view, selected=_beside(order, view.selected, 1 if key == "down" else -1))
        case "escape":
            return replace(view, selected=None)
        case "k":
            if readonly:
                return replace(view, note=f"{STOP} is off: --readonly")
            if view.selected is None:
                return replace(view, note="select a job first: arrow keys")
            return replace(view, asking=next(job for job in jobs if job["id"] == view.selected))
    return replace(view, sort=BY_LETTER.get(key, view.sort))


def _beside(order: list[str], selected: str | None, step: int) -> str | None:
    if not order:
        return None
    if selected is None:
        return order[0 if step > 0 else -1]
    return order[min(max(order.index(selected) + step, 0), len(order) - 1)]


def footer(view: View, interval: float) -> str:
    if view.help:
        return "any key: back to the jobs"
    if view.asking is not None:
        job = view.asking
        what = f"job {job['name']} of {job['user']} ({job['id']})"
        return f"y/n  take {what} from the queue?" if job["state"] == "queued" else f"y/n  ask {what} to stop?"
    if view.note:
        return view.note
    sorts = list(SORTS)
    by = sorts[(sorts.index(view.sort) + 1) % len(sorts)]
    return f"h help   q quit   s sort by {by}   every {interval:g} s"


def _help(*, readonly: bool) -> list[str]:
    keys = {key: text for key, text in HELP.items() if not (readonly and key == STOP)}
    width = max(map(len, keys))
    return ["keys of gpushare top", "", *(f"  {key:<{width}}  {text}" for key, text in keys.items())]


# ---- the picture -----------------------------------------------------------------------------------


def frame(title: str, status: Status, look: Look) -> list[str]:
    """The lines of one picture, cut to the room."""
    title = one_line(title)
    width = look.size.columns
    clock = time.strftime("%H:%M:%S")
    lines = [title[: max(0, width - len(clock) - 1)].ljust(width - len(clock)) + clock]
    tall = len(status["gpus"]) * 2 + len(status["jobs"]) + 6 <= look.size.lines
    for gpu in status["gpus"]:
        lines += _gpu(gpu, look, tall=tall)
    lines += [*legend(width), ""]
    room = look.size.lines - len(lines) - (2 if look.footer else 0)
    return _bottom(lines + _jobs(status["jobs"], look, room), look)


def legend(width: int) -> list[str]:
    """The parts in one line if they fit, else in several."""
    lines = [""]
    for part in LEGEND.split("  "):
        joined = f"{lines[-1]}  {part}" if lines[-1] else part
        lines[-1:] = [joined] if len(joined) <= width or not lines[-1] else [lines[-1], part]
    return lines


def _bottom(lines: list[str], look: Look) -> list[str]:
    if look.footer:
        height = look.size.lines - 1
        lines = [*lines[:height], *[""] * (height - len(lines)), _paint(look.footer, look.emphasis, look)]
    return [_output.cut(line, look.size.columns) for line in lines] if look.terminal else lines


def _gpu(gpu: Gpu, look: Look, *, tall: bool) -> list[str]:
    """One line, and a second with the numbers if there is room."""
    label = f"GPU {gpu['index']} "
    of = f" {format_bytes(gpu['usage']):>9} used {format_bytes(gpu['free']):>9} free"
    if len(label) + NARROW + 2 + len(of) > look.size.columns:
        of = f" {format_bytes(gpu['free']):>9} free"
    strip = _strip(
        gpu, max(NARROW, min(max(BAR, look.size.columns - BESIDE), look.size.columns - len(label) - len(of) - 2))
    )
    if look.terminal:
        strip = _output.styled(*((mark, COLOURS.get(mark, "")) for mark in strip))
    for one in ailments(gpu, hints=False)[:1]:
        of += f"  {one_line(one.removeprefix(label))}"
    lines = [label + strip + of]
    if tall:
        numbers = {"requested": gpu["requested"], "lent": gpu["lent"], "capacity": gpu["capacity"]}
        rare = {"coming back": gpu["returning"], "outside gpushare": gpu["unmanaged"]}
        numbers |= {name: amount for name, amount in rare.items() if amount}
        lines.append(f"      {'  '.join(f'{name} {format_bytes(amount)}' for name, amount in numbers.items())}")
    return lines


def _strip(gpu: Gpu, width: int) -> str:
    """The bar of `status`, with a mark where the requests end: memory right of it can only be lent."""
    strip = bar(gpu, width)
    if gpu["total"] <= 0:
        return strip
    at = 1 + min(width - 1, round(gpu["requested"] / gpu["total"] * width))
    return strip[:at] + "|" + strip[at + 1 :]


def _jobs(jobs: list[Job], look: Look, room: int) -> list[str]:
    if not jobs:
        return ["no jobs"]
    rows = [(job, row) for job in _in_order(jobs, look.sort) for row in ps.rows(job, live=True)]
    shown = rows if len(rows) + 1 <= room else _around(rows, look.selected, max(0, room - 2))
    titles, *lines = _output.table(
        [*ps.COLUMNS, ps.COMPUTING, ps.COMMAND],
        [row for _, row in shown],
        look.size.columns if look.terminal else None,
        dim=lambda index: shown[index][0]["uid"] != os.getuid(),
    )
    for index, (job, _) in enumerate(shown):
        if look.selected == job["id"]:
            lines[index] = _output.selected(lines[index], look.size.columns)
    return [titles, *lines] + ([f"and {len(rows) - len(shown)} more"] if len(shown) < len(rows) else [])


def _in_order(jobs: list[Job], sort: str) -> list[Job]:
    return sorted(jobs, key=SORTS[sort])  # type: ignore[arg-type]


def _around(rows: list[tuple[Job, list[str]]], selected: str | None, count: int) -> list[tuple[Job, list[str]]]:
    """The rows that fit, scrolled so that the selected job is among them."""
    last = max((index for index, (job, _) in enumerate(rows) if job["id"] == selected), default=0)
    first = max(0, last + 1 - count)
    return rows[first : first + count]


def _paint(text: str, style: str, look: Look) -> str:
    return _output.styled((text, style)) if look.terminal and style else one_line(text)
