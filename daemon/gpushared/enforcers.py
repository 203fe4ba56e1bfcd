"""How the daemon's decisions are put into force: the seam between it and what holds programs to their budget.

Today that is the shim: a word in a page shared with the process. A driver that enforces limits by itself
(soft and hard limit per cgroup, driver r615) would be a second implementation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from gpushare._layout import lib
from gpushared.core import Published
from gpushared.events import TrimSeen
from gpushared.pages import UNIT, Page, units


class Enforcer(Protocol):
    """Amounts in bytes; a process by the id of its page."""

    def open_share(self, process: int, gpu: str, credit: int, overhead: int) -> int | None:
        """Put a first budget into force on a GPU; the number of its line, None: no line is free."""

    def close_share(self, process: int, gpu: str) -> None:
        """The process's contexts on the GPU are closed. What it still uses stays."""

    def grant(self, process: int, gpu: str, size: int) -> None:
        """Let the process use so much more."""

    def revoke(self, process: int, gpu: str, size: int) -> tuple[int, int]:
        """Take unused credit back, up to this size: (what could be taken, what it uses)."""

    def used_by(self, processes: Iterable[int], gpu: str) -> dict[int, int]:
        """What processes use of a GPU now. A claim looks at all of them at once."""

    def publish(self, process: int, gpu: str, figures: Published) -> None:
        """Tell the process where it stands, so that it need not ask."""

    def trim(self, process: int, gpu: str, size: int, within: float) -> None:
        """Ask the process to free what its allocators only keep, up to this size, within so many seconds."""

    def trims_of(self, processes: Iterable[int]) -> dict[int, TrimSeen]:
        """Where those that can be asked to trim are with the last one."""


class ShimEnforcer:
    """Budgets in the words of credit pages."""

    def __init__(self) -> None:
        self.pages: dict[int, Page] = {}

    def open_share(self, process: int, gpu: str, credit: int, overhead: int) -> int | None:
        page = self.pages[process]
        number = page.line_of(gpu)
        if number is None:
            return None
        line = page.lines[gpu]
        if page.account is not None:
            page.account.give(number, units(credit))
        if overhead:  # else it is charged already
            self._account(process, gpu, overhead=units(overhead))
            line.overhead = units(overhead)
        line.attached = 1
        lib.gs_grant(line, units(credit))
        return number

    def close_share(self, process: int, gpu: str) -> None:
        line = self._line(process, gpu)
        if line is not None and lib.gs_word_load(line) >> 32 == 0:  # pools and mapped handles need no context
            line.attached = 0
            self._account(process, gpu, overhead=0)

    def grant(self, process: int, gpu: str, size: int) -> None:
        line = self._line(process, gpu)
        if line is not None:
            self._account(process, gpu, given=units(size))
            lib.gs_grant(line, units(size))

    def revoke(self, process: int, gpu: str, size: int) -> tuple[int, int]:
        line = self._line(process, gpu)
        if line is None:
            return 0, 0
        taken = lib.gs_revoke(line, units(size))
        self._account(process, gpu, given=-taken)
        return taken * UNIT, (lib.gs_word_load(line) >> 32) * UNIT

    def used_by(self, processes: Iterable[int], gpu: str) -> dict[int, int]:
        load, pages = lib.gs_word_load, self.pages
        found = {}
        for process in processes:
            page = pages.get(process)
            line = page.lines.get(gpu) if page is not None else None
            if line is not None:
                found[process] = (load(line) >> 32) * UNIT
        return found

    def credit(self, process: int, gpu: str) -> int:
        line = self._line(process, gpu)
        return 0 if line is None else (lib.gs_word_load(line) & 0xFFFFFFFF) * UNIT

    def peak(self, process: int, gpu: str) -> int:
        line = self._line(process, gpu)
        return 0 if line is None else line.peak * UNIT

    def refusals(self, process: int) -> int:
        page = self.pages.get(process)
        return sum(line.refusals for line in page.lines.values()) if page is not None else 0

    def publish(self, process: int, gpu: str, figures: Published) -> None:
        page = self.pages.get(process)
        line = page.lines.get(gpu) if page is not None else None
        if page is None or line is None or page.published.get(gpu) == figures:
            return
        page.published[gpu] = figures
        line.grantable = max(0, figures.grantable) // UNIT
        line.limit = figures.limit // UNIT
        line.request = figures.request // UNIT
        line.overhead = figures.overhead // UNIT
        line.job_usage = figures.job_usage // UNIT
        self._account(process, gpu, overhead=figures.overhead // UNIT)

    def _account(self, process: int, gpu: str, *, given: int = 0, overhead: int | None = None) -> None:
        """Enter it in the ledger, which outlives this daemon as the page does and which no process can write."""
        page = self.pages[process]
        if page.account is None:
            return
        index = page.gpus.index(gpu)
        if given:
            page.account.give(index, given)
        if overhead is not None:
            page.account.charge(index, overhead)

    def trim(self, process: int, gpu: str, size: int, within: float) -> None:
        page = self.pages.get(process)
        if page is not None and gpu in page.lines:
            page.ask_trim(gpu, units(size), int(within * 1000))

    def trims_of(self, processes: Iterable[int]) -> dict[int, TrimSeen]:
        found = {}
        for process in processes:
            page = self.pages.get(process)
            seen = page.trim_seen() if page is not None else None
            if seen is not None:
                found[process] = seen
        return found

    def _line(self, process: int, gpu: str) -> Any:
        page = self.pages.get(process)
        return page.lines.get(gpu) if page is not None else None
