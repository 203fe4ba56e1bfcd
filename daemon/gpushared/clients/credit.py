"""Enforces budgets: the only module that writes credit, limits and requests into credit pages.

Amounts are bytes. A process is named by the id of its page. Credit is entered into the ledger with each change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpushare._layout import lib
from gpushared.clients.pages import UNIT, Page, units
from gpushared.core.events import TrimSeen
from gpushared.core.instructions import Published
from gpushared.core.model import Gpu, Share

PINNED = {
    "managed": "it has managed memory, which cannot leave the GPU alone",
    "ipc": "it shares memory with other processes (CUDA IPC)",
    "vmm_export": "it has exported memory to other processes",
    "multicast": "it has multicast memory (NVLink)",
}
"""By the field of its line that counts them."""


class CreditPages:
    """Budgets in the words of credit pages."""

    def __init__(self) -> None:
        self.pages: dict[int, Page] = {}

    def open_share(self, process: int, gpu: str, credit: int, overhead: int) -> int | None:
        """Give the process its first budget on a GPU. Returns the number of its line; None: all lines are in use."""
        page = self.pages[process]
        number = page.line_of(gpu)
        if number is None:
            return None
        line = page.lines[gpu]
        _enter(page, gpu, units(credit), units(overhead) if overhead else None)  # otherwise it is charged already
        if overhead:
            line.overhead = units(overhead)
        line.attached = 1
        lib.gs_grant(line, units(credit))
        return number

    def close_share(self, process: int, gpu: str) -> None:
        """The process closed its contexts on the GPU. What it still uses stays."""
        line = self._line(process, gpu)
        if line is not None and lib.gs_word_load(line) >> 32 == 0:  # pools and mapped handles need no context
            line.attached = 0
            _enter(self.pages[process], gpu, 0, 0)

    def grant(self, process: int, gpu: str, size: int, figures: Published) -> None:
        """Let the process use `size` more bytes, and publish its figures."""
        page = self.pages.get(process)
        line = page.lines.get(gpu) if page is not None else None
        if page is None or line is None:
            return
        # The figures first: a program that reads in between sees too little, never too much. A daemon that starts now
        # finds the overhead that belongs to this credit.
        more = units(size)
        _tell(page, gpu, line, figures, given=more)
        lib.gs_grant(line, more)

    def revoke(self, process: int, gpu: str, size: int) -> tuple[int, int]:
        """Take unused credit back, up to this size. Returns what was taken and what the process uses."""
        line = self._line(process, gpu)
        if line is None:  # all lines were in use, so this credit was never written anywhere; or the process has gone
            return size if process in self.pages else 0, 0
        taken = lib.gs_revoke(line, units(size))
        _enter(self.pages[process], gpu, -taken, None)
        return taken * UNIT, (lib.gs_word_load(line) >> 32) * UNIT

    def used_by(self, processes: Iterable[int], gpu: str) -> dict[int, int]:
        """What these processes use of a GPU now, in bytes."""
        load, pages = lib.gs_word_load, self.pages
        found = {}
        for process in processes:
            page = pages.get(process)
            line = page.lines.get(gpu) if page is not None else None
            if line is not None:
                found[process] = (load(line) >> 32) * UNIT
        return found

    def usage_by_job(self, gpu: Gpu) -> dict[str, int]:
        """Job -> what its processes use of this GPU now, overhead included."""
        used, found = self.used_by(gpu.shares, gpu.id), dict[str, int]()
        for share in gpu.shares.values():
            now = share.used if share.parked is not None else used.get(share.process, share.used)
            usage = now + share.overhead
            found[share.job] = found.get(share.job, 0) + usage
        return found

    def stamps(self, processes: Iterable[int], gpu: str) -> dict[int, tuple[int, int]]:
        """As used_by(), with the number of releases, which also changes if memory was taken and freed in between."""
        found = {}
        for process in processes:
            line = self._line(process, gpu)
            if line is not None:
                # In this order: the process counts a release before it lowers `used`.
                used = (lib.gs_word_load(line) >> 32) * UNIT
                found[process] = used, line.releases
        return found

    def asking(self, processes: Iterable[int], gpu: str) -> dict[int, int]:
        """Process -> calls that have asked for credit and have neither taken it nor given up."""
        lines = ((process, self._line(process, gpu)) for process in processes)
        return {process: line.asking for process, line in lines if line is not None and line.asking}

    def take_unmet(self, process: int) -> dict[str, int]:
        """GPU -> calls within the request that failed without an answer and are not reported yet."""
        page = self.pages.get(process)
        found = {}
        for gpu, line in page.lines.items() if page is not None else ():
            count = (line.unmet - line.unmet_told) % 2**32
            if count:
                found[gpu] = count
                line.unmet_told = line.unmet
        return found

    def credit(self, process: int, gpu: str) -> int:
        line = self._line(process, gpu)
        return 0 if line is None else (lib.gs_word_load(line) & 0xFFFFFFFF) * UNIT

    def peak(self, share: Share) -> int:
        """The most bytes that the process has had there, with its context as it is charged now."""
        line = self._line(share.process, share.gpu)
        overhead = share.overhead if share.parked is None else share.parked.overhead
        return overhead + (0 if line is None else line.peak * UNIT)

    def refusals(self, process: int) -> int:
        page = self.pages.get(process)
        return sum(line.refusals for line in page.lines.values()) if page is not None else 0

    def publish(self, process: int, gpu: str, figures: Published) -> None:
        """Tell the process its figures, so that it need not ask."""
        page = self.pages.get(process)
        line = page.lines.get(gpu) if page is not None else None
        if page is not None and line is not None and page.published.get(gpu) != figures:
            _tell(page, gpu, line, figures)

    def trim(self, process: int, gpu: str, size: int, within: float) -> None:
        """Ask the process to free what its allocators only keep, up to this size, within so many seconds."""
        page = self.pages.get(process)
        if page is not None and gpu in page.lines:
            page.ask_trim(gpu, units(size), int(within * 1000))

    def ask_quiet(self, process: int, within: float) -> None:
        """Ask the process, whose gate is closed, to say when none of its calls waits for the GPU."""
        page = self.pages.get(process)
        if page is not None:
            page.ask_quiet(int(within * 1000))

    def trims_of(self, processes: Iterable[int]) -> dict[int, TrimSeen]:
        """How far each process that can be asked to trim is with the last trim."""
        found = {}
        for process in processes:
            page = self.pages.get(process)
            seen = page.trim_seen() if page is not None else None
            if seen is not None:
                found[process] = seen
        return found

    def turn_gate(self, process: int, *, closed: bool) -> None:
        """Have calls of the process that need credit wait, or let them go on. Write a closed gate every few seconds:
        calls do not wait for a daemon that has died."""
        page = self.pages.get(process)
        for line in page.lines.values() if page is not None else ():
            if closed or line.gate:
                lib.gs_turn_gate(line, closed)

    def contexts(self, processes: Iterable[int], gpu: str) -> dict[int, int]:
        """Process -> contexts that it has there, as it says."""
        lines = ((process, self._line(process, gpu)) for process in processes)
        return {process: line.contexts for process, line in lines if line is not None}

    def pinned(self, processes: Iterable[int], gpu: str) -> dict[int, str]:
        """Process -> what it holds that cannot leave the GPU."""
        found = {}
        for process in processes:
            line, page = self._line(process, gpu), self.pages.get(process)
            kinds = [text for name, text in PINNED.items() if line is not None and getattr(line, name)]
            if page is not None and page.driver_copies():
                kinds.append("it uses a second copy of the driver")
            if kinds:
                found[process] = kinds[0]
        return found

    def _line(self, process: int, gpu: str) -> Any:
        page = self.pages.get(process)
        return page.lines.get(gpu) if page is not None else None


def _tell(page: Page, gpu: str, line: Any, figures: Published, given: int = 0) -> None:
    page.published[gpu] = figures
    overhead = figures.overhead // UNIT
    line.grantable = figures.grantable // UNIT
    line.limit = figures.limit // UNIT
    line.request = figures.request // UNIT
    line.overhead = overhead
    line.job_usage = figures.job_usage // UNIT
    _enter(page, gpu, given, overhead)


def _enter(page: Page, gpu: str, given: int, overhead: int | None) -> None:
    """Enter it into the ledger, which outlives this daemon and which no program can change."""
    if page.account is not None:
        page.account.enter(page.gpus.index(gpu), given, overhead)
