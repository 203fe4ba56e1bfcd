"""The terminal as a canvas. It is restored however the program ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator

__all__ = ["draw", "screen", "size"]

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the alternate screen, without a cursor
HOME, END_OF_LINE, BELOW = "\x1b[H", "\x1b[K", "\x1b[J"

ESCAPE = b"\x1b"
REST_WITHIN = 0.05
"""Seconds to wait after ESC for the rest of a key's sequence; without it, it was the ESC key."""
KEYS = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    ESCAPE: "escape",
    b"\x04": "end",
    b"": "gone",
}
"""Keys with a name; others have their character."""
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def size() -> os.terminal_size:
    """The present size. COLUMNS and LINES of the environment do not follow a resized window."""
    found = os.get_terminal_size(sys.stdout.fileno())
    return found if all(found) else os.terminal_size((80, 24))


def draw(lines: list[str], room: os.terminal_size) -> None:
    text = f"{END_OF_LINE}\r\n".join(lines[-room.lines :])
    data = f"{HOME}{text}{END_OF_LINE}{BELOW}".encode(sys.stdout.encoding, "replace")
    while data:  # not through Python's buffer: after a signal its rest would be drawn on the restored screen
        data = data[os.write(sys.stdout.fileno(), data) :]


@contextlib.contextmanager
def screen() -> Iterator[Callable[[float], str]]:
    """The canvas, and a function that waits for a key, for a new size, or for a time in seconds.

    Ctrl-Z, fg and a SIGSTOP from elsewhere work: after each the terminal is set up again.
    """
    terminal = _Terminal(sys.stdin.fileno() if sys.stdin.isatty() else None)
    read, write = os.pipe()
    os.set_blocking(write, False)
    handlers: dict[signal.Signals, Callable[[int, object], None]] = dict.fromkeys(ENDING, _end)
    handlers |= {signal.SIGWINCH: lambda *_: None, signal.SIGTSTP: terminal.pause}
    handlers[signal.SIGCONT] = lambda *_: terminal.enter()
    earlier = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    earlier_wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        terminal.enter()
        yield lambda seconds: _wait(read, terminal.keys, seconds)
    finally:
        with contextlib.suppress(OSError):
            terminal.leave()
        signal.set_wakeup_fd(earlier_wakeup)
        for number, handler in earlier.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


class _Terminal:
    """Switches between the canvas and what was on the terminal before."""

    def __init__(self, keys: int | None) -> None:
        """`keys`: the descriptor that keys come from; None: there are none."""
        self.keys = keys
        self._before = termios.tcgetattr(keys) if keys is not None else None
        self._entered = False

    def enter(self) -> None:
        if self.keys is not None:
            tty.setcbreak(self.keys)
        if not self._entered:
            os.write(1, ENTER.encode())
        self._entered = True

    def leave(self) -> None:
        self._entered = False
        os.write(1, LEAVE.encode())
        if self.keys is not None and self._before is not None:
            termios.tcsetattr(self.keys, termios.TCSADRAIN, self._before)

    def pause(self, _number: int, _frame: object) -> None:
        self.leave()
        os.kill(os.getpid(), signal.SIGSTOP)


def _end(number: int, _frame: object) -> None:
    for one in ENDING:
        signal.signal(one, signal.SIG_IGN)  # a second signal must not stop the clean-up
    raise SystemExit(128 + number)


def _wait(wakeup: int, keys: int | None, seconds: float) -> str:
    """The key; nothing after the time or a signal; "gone" if the terminal is gone."""
    ready, _, _ = select.select([wakeup, *([keys] if keys is not None else [])], [], [], seconds)
    if wakeup in ready:
        os.read(wakeup, 4096)
    return _key(keys) if keys is not None and keys in ready else ""


def _key(keys: int) -> str:
    """One key press. A held key may have sent many."""
    try:
        data = os.read(keys, 64)
        if data == ESCAPE and select.select([keys], [], [], REST_WITHIN)[0]:
            data += os.read(keys, 64)
    except OSError:
        return "gone"
    if data[:1] == ESCAPE and data != ESCAPE:
        return KEYS.get(data[:3], "")
    return KEYS.get(data[:1]) or data[:1].decode(errors="replace")
