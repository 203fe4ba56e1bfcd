"""Looks after the GPUs' health: asks the driver now and then, listens to it all the time, and tells the core.

Asking is done on the shell's sampling thread, listening on one of its own. What was asked before the driver reported
something is old when the answer comes, and is asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from gpushared.core.events import GpuExamined, XidSeen
from gpushared.devices.gpus import Examination, Fault, GpuInfo
from gpushared.logs import facts, log
from gpushared.shell import Shell

LISTEN = 1.0
"""Seconds for which the driver is listened to at a time."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look."""

    infos: list[GpuInfo] | None
    """All GPUs; None: nobody asked."""
    examinations: dict[str, Examination | None]


class Watch:
    """One for each daemon."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._driver = shell.gpus.driver
        self._looking = False
        self._wanted: set[str] = set()
        """GPUs to look at as soon as the present look is over."""
        self._faults: dict[str, int] = {}
        """What the driver has reported of each GPU, counted."""
        self._ended = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="listener", daemon=True)
        shell.on_silence = self.suspect

    def start(self) -> None:
        """Look once, before anybody is admitted, and listen from now on."""
        self._take_in(self._look(list(self._shell.core.gpus), inventory=False, reopen=False))
        self._listener.start()

    def close(self) -> None:
        """The listener may be in the driver for a moment yet. Nobody waits for it: it has nothing more to say."""
        self._ended.set()

    def poll(self) -> None:
        """Ask for everything: what GPUs there are, how large, and how they are."""
        self._begin(list(self._shell.core.gpus), inventory=True)

    def suspect(self, gpu: str) -> None:
        """Something is odd about this GPU: ask now."""
        self._begin([gpu], inventory=False)

    # ---- asking ------------------------------------------------------------------------------------

    def _begin(self, gpus: list[str], *, inventory: bool) -> None:
        if self._looking:
            self._wanted.update(gpus)
            return
        self._looking = True
        counted = dict(self._faults)
        # A GPU that was lost and is back is known to the driver's library only when that is opened anew.
        reopen = inventory and any(gpu.health.lost for gpu in self._shell.core.gpus.values())

        def done(future: asyncio.Future[Seen]) -> None:
            self._looking = False
            if future.cancelled() or self._shell.loop.is_closed():
                return
            if future.exception() is not None:
                log.error("the GPUs cannot be examined", extra=facts(error=repr(future.exception())))
                return
            seen = future.result()
            stale = [gpu for gpu in seen.examinations if self._faults.get(gpu) != counted.get(gpu)]
            for gpu in stale:
                del seen.examinations[gpu]
            self._take_in(seen)
            again, self._wanted = self._wanted | set(stale), set()
            if again:
                self._begin(sorted(again), inventory=False)

        self._shell.on_thread(lambda: self._look(gpus, inventory=inventory, reopen=reopen)).add_done_callback(done)

    def _look(self, gpus: Iterable[str], *, inventory: bool, reopen: bool) -> Seen:
        if reopen:
            self._driver.reopen()
        infos = self._driver.list() if inventory else None
        every = dict.fromkeys([*gpus, *(info.uuid for info in infos or ())])
        return Seen(infos, {gpu: self._driver.examine(gpu) for gpu in every})

    def _take_in(self, seen: Seen) -> None:
        if seen.infos is not None:
            self._shell.take_in_gpus(seen.infos)
        for gpu, found in seen.examinations.items():
            if found is not None:
                self._shell.feed(GpuExamined(gpu, found.ailments, found.recovered))

    # ---- listening ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._ended.is_set():
            fault = self._driver.wait_for_fault(LISTEN)
            if fault is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._shell.loop.call_soon_threadsafe(self._heard, fault)

    def _heard(self, fault: Fault) -> None:
        for gpu in fault.gpus:
            self._faults[gpu] = self._faults.get(gpu, 0) + 1
            if fault.xid is not None:
                self._shell.feed(XidSeen(gpu, fault.xid))
            self.suspect(gpu)
