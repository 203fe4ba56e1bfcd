"""gpushare top: the GPUs and their jobs, live. `frame` makes a picture of an answer; the rest is the terminal."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import click

from gpushare.api import Gpu, Job, Status
from gpushare.cli import output as _output
from gpushare.cli import ps
from gpushare.cli.status import ailments, bar, headline
from gpushare.config import load_settings
from gpushare.errors import DaemonUnreachable
from gpushare.locate import find
from gpushare.quantity import format_bytes

BAR = 30
LEGEND = "# guaranteed  + borrowed  ! outside gpushare  . free  | requested"
COLOURS = {"#": "green", "+": "yellow", "!": "magenta", ".": "dim", "|": "bold"}
PIPED = os.terminal_size((100, 10_000))
ANSWERS_WITHIN = 2.0

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the alternate screen, without a cursor
HOME, END_OF_LINE, BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def _most(key: str) -> Callable[[Job], object]:
    return lambda job: -sum(gpu[key] for gpu in job["gpus"])  # type: ignore[literal-required]


SORTS: dict[str, Callable[[Job], object]] = {
    "usage": _most("usage"),
    "loan": _most("loan"),
    "age": lambda job: job["since"],
    "name": lambda job: job["name"],
}


@dataclass(frozen=True, slots=True)
class Look:
    """How it is shown."""

    size: os.terminal_size
    sort: str = "usage"
    terminal: bool = True
    footer: str = ""


@click.command(short_help="Watch the GPUs and their jobs.")
@click.option(
    "-i", "--interval", metavar="SECONDS", type=click.FloatRange(0.1), default=2.0, show_default=True, help="How often."
)
@click.option("-1", "--once", is_flag=True, help="Show one picture and end, as when piped.")
@click.option("-s", "--sort", type=click.Choice(list(SORTS)), default="usage", show_default=True, help="Jobs by.")
def command(interval: float, once: bool, sort: str) -> None:
    """Watch how the memory of each GPU is divided, and its jobs. q ends it, s sorts by something else."""
    node = find(load_settings())
    if once or not sys.stdout.isatty():
        status = node.client().status()
        terminal = sys.stdout.isatty()
        size = os.terminal_size((_output.terminal_size().columns, PIPED.lines)) if terminal else PIPED
        click.echo("\n".join(frame(headline(node, status), status, Look(size, sort, terminal))))
        return
    sorts = list(SORTS)
    with contextlib.suppress(KeyboardInterrupt), screen() as wait:
        while True:
            footer = f"q quit   s sort by {sorts[(sorts.index(sort) + 1) % len(sorts)]}   every {interval:g} s"
            look = Look(_size(), sort, footer=footer)
            _draw(_picture(look), look.size)
            key = wait(interval)
            if key in ("q", "Q", "\x04", "gone"):
                return
            if key == "s":
                sort = sorts[(sorts.index(sort) + 1) % len(sorts)]


def _size() -> os.terminal_size:
    """At this moment; COLUMNS and LINES of the environment do not follow a window that is drawn larger."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return size if all(size) else os.terminal_size((80, 24))


def _picture(look: Look) -> list[str]:
    """A daemon that is restarted meanwhile is waited for: whoever watches wants to see it come back."""
    try:
        node = find(load_settings())
        status = node.client(ANSWERS_WITHIN).status()
    except DaemonUnreachable as error:
        return _bottom([error.message, "trying again"], look)
    return frame(headline(node, status), status, look)


# ---- the picture -----------------------------------------------------------------------------------


def frame(title: str, status: Status, look: Look) -> list[str]:
    """The lines of one picture: no more than there is room for, each no longer."""
    width = look.size.columns
    clock = time.strftime("%H:%M:%S")
    lines = [title[: max(0, width - len(clock) - 1)].ljust(width - len(clock)) + clock]
    tall = len(status["gpus"]) * 2 + len(status["jobs"]) + 6 <= look.size.lines
    for gpu in status["gpus"]:
        lines += _gpu(gpu, look, tall=tall)
    lines += [LEGEND, ""]
    room = look.size.lines - len(lines) - (2 if look.footer else 0)
    return _bottom(lines + _jobs(status["jobs"], look, room), look)


def _bottom(lines: list[str], look: Look) -> list[str]:
    if look.footer:
        height = look.size.lines - 1
        lines = [*lines[:height], *[""] * (height - len(lines)), _paint(look.footer, "dim", look)]
    return [_output.cut(line, look.size.columns) for line in lines] if look.terminal else lines


def _gpu(gpu: Gpu, look: Look, *, tall: bool) -> list[str]:
    """One line, and another with the numbers where there is room for it."""
    label = f"GPU {gpu['index']} "
    of = f" {format_bytes(gpu['usage']):>9} used {format_bytes(gpu['free']):>9} free"
    strip = _strip(gpu, max(8, min(BAR, look.size.columns - len(label) - len(of) - 2)))
    if look.terminal:
        strip = _output.styled(*((mark, COLOURS.get(mark, "")) for mark in strip))
    for one in ailments(gpu, hints=False)[:1]:
        of += f"  {one.removeprefix(label)}"
    lines = [label + strip + of]
    if tall:
        numbers = {"requested": gpu["requested"], "lent": gpu["lent"], "capacity": gpu["capacity"]}
        rare = {"coming back": gpu["returning"], "outside gpushare": gpu["unmanaged"]}
        numbers |= {name: amount for name, amount in rare.items() if amount}
        lines.append(f"      {'  '.join(f'{name} {format_bytes(amount)}' for name, amount in numbers.items())}")
    return lines


def _strip(gpu: Gpu, width: int) -> str:
    """status' bar, with a mark where the requests end: left of it is promised, right of it can only be lent."""
    strip = bar(gpu, width)
    if gpu["total"] <= 0:
        return strip
    at = 1 + min(width - 1, round(gpu["requested"] / gpu["total"] * width))
    return strip[:at] + "|" + strip[at + 1 :]


def _jobs(jobs: list[Job], look: Look, room: int) -> list[str]:
    if not jobs:
        return ["no jobs"]
    in_order = sorted(jobs, key=SORTS[look.sort])  # type: ignore[arg-type]
    rows = [(job["uid"], row) for job in in_order for row in ps.rows(job)]
    shown = rows if len(rows) + 1 <= room else rows[: max(0, room - 2)]
    lines = _output.table(
        [*ps.COLUMNS, ps.COMMAND],
        [row for _, row in shown],
        look.size.columns if look.terminal else None,
        dim=lambda index: shown[index][0] != os.getuid(),
    )
    return lines + ([f"and {len(rows) - len(shown)} more"] if len(shown) < len(rows) else [])


def _paint(text: str, style: str, look: Look) -> str:
    return _output.styled((text, style)) if look.terminal and style else text


# ---- the terminal ----------------------------------------------------------------------------------


def _draw(lines: list[str], size: os.terminal_size) -> None:
    text = f"{END_OF_LINE}\r\n".join(lines[-size.lines :])
    sys.stdout.write(f"{HOME}{text}{END_OF_LINE}{BELOW}")
    sys.stdout.flush()


@contextlib.contextmanager
def screen() -> Iterator[Callable[[float], str]]:
    """The terminal as a canvas, and a function that waits: for a key, for another size, or as long as it is told.

    Whatever ends us, the terminal is as it was before; Ctrl-Z and fg work.
    """
    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = termios.tcgetattr(keys) if keys is not None else None

    def enter() -> None:
        if keys is not None:
            tty.setcbreak(keys)
        os.write(1, ENTER.encode())

    def leave() -> None:
        os.write(1, LEAVE.encode())
        if keys is not None and before is not None:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)

    def pause(_number: int, _frame: object) -> None:
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        enter()

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    read, write = os.pipe()
    os.set_blocking(write, False)
    handlers = {signal.SIGWINCH: lambda *_: None, signal.SIGTSTP: pause, signal.SIGTERM: end, signal.SIGHUP: end}
    earlier = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    earlier_wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def wait(seconds: float) -> str:
        """The key; nothing when the time is over, or after a signal; "gone" when the terminal is."""
        ready, _, _ = select.select([read, *([keys] if keys is not None else [])], [], [], seconds)
        if read in ready:
            os.read(read, 4096)
        if keys not in ready:
            return ""
        assert keys is not None
        try:
            return os.read(keys, 64)[:1].decode(errors="replace") or "gone"
        except OSError:
            return "gone"

    enter()
    try:
        yield wait
    finally:
        with contextlib.suppress(OSError):
            leave()
        signal.set_wakeup_fd(earlier_wakeup)
        for number, handler in earlier.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)
