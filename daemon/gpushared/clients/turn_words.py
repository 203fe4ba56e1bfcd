"""The word of a process's line by which its launches wait (GS_TURN_* in shim/credit.h): read and written here only."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpushare._layout import lib
from gpushared.clients.credit import CreditPages

CLOSED, QUIET, PROBE = int(lib.GS_TURN_CLOSED), int(lib.GS_TURN_QUIET), int(lib.GS_TURN_PROBE)
WANTED, HELD, ASKS = int(lib.GS_TURN_WANTED), int(lib.GS_TURN_HELD), int(lib.GS_TURN_ASKS)


class Word(NamedTuple):
    """What a process's launches did since the daemon last wrote the word."""

    held: bool
    """Launches can be held back."""
    launched: bool
    waits: bool
    done: bool
    """The GPU has done what was launched before the last question, or there was none."""


class TurnWords:
    """Over the pages that the daemon has."""

    def __init__(self, credit: CreditPages) -> None:
        self._credit = credit
        self._watched: set[tuple[int, str]] = set()
        """The processes and GPUs whose words this daemon has written."""

    def read(self, process: int, gpu: str) -> Word:
        line = self._line(process, gpu)
        word = line.turn if line is not None else 0
        watched = (process, gpu) in self._watched
        return Word(bool(word & HELD), watched and not word & QUIET, bool(word & WANTED), not word & (PROBE | ASKS))

    def say(self, process: int, gpu: str, *, closed: bool, ask: bool = False) -> None:
        """Close or open the word, and begin to look whether the process launches. `ask`: ask it whether the GPU has
        done what it launched. Write a closed word twice a second at least: launches do not wait for a daemon that has
        died."""
        line = self._line(process, gpu)
        if line is None or not line.turn & HELD:
            return
        self._watched.add((process, gpu))
        clear = 0 if closed else CLOSED | WANTED
        lib.gs_say_turn(line, clear, QUIET | (CLOSED if closed else 0) | (PROBE if ask else 0))
        if line.turn & PROBE:
            self._credit.pages[process].wake_trimmer()

    def release(self, process: int, gpu: str) -> None:
        """No job takes turns: launches of the process do not wait, and are not watched."""
        line = self._line(process, gpu)
        self._watched.discard((process, gpu))
        if line is not None and line.turn & (CLOSED | QUIET | PROBE | WANTED):
            lib.gs_say_turn(line, CLOSED | QUIET | PROBE | WANTED, 0)

    def release_all(self) -> None:
        """Also what an earlier daemon has left."""
        for process, page in self._credit.pages.items():
            for gpu in page.lines:
                self.release(process, gpu)
        self._watched.clear()

    def _line(self, process: int, gpu: str) -> Any:
        page = self._credit.pages.get(process)
        return page.lines.get(gpu) if page is not None else None
