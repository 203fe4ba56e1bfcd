"""Watches the GPUs' health: asks the driver now and then, listens to it all the time, and tells the core.

Questions run on the driver's thread; listening has a thread of its own. An answer to a question from before a report of
the driver is stale: the monitor asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpushared.core.events import Event, GpuExamined, XidSeen
from gpushared.core.node import NodeState
from gpushared.gpus.driver_thread import DriverThread
from gpushared.gpus.inventory import Driver, Examination, Fault, GpuInfo
from gpushared.system.logs import facts, log

LISTEN = 1.0
"""Seconds for which the driver is listened to at a time."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look."""

    infos: list[GpuInfo] | None
    """All GPUs; None: not asked for."""
    examinations: dict[str, Examination | None]


class HealthMonitor:
    """One for each daemon."""

    def __init__(
        self,
        thread: DriverThread,
        driver: Driver,
        core: Callable[[], NodeState],
        feed: Callable[[Event], None],
        found: Callable[[list[GpuInfo]], None],
    ) -> None:
        """`core` returns the present core; `feed` hands it an event; `found` takes a new inventory."""
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._driver = driver
        self._core = core
        self._feed = feed
        self._found = found
        self._looking = False
        self._wanted: set[str] = set()
        """GPUs to examine as soon as the present examination is over."""
        self._faults: dict[str, int] = {}
        """Counts of reports of the driver, by GPU."""
        self._ended = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="listener", daemon=True)

    def start(self) -> None:
        """Examine once, before any job is admitted, and listen from now on."""
        self._take_in(self._look(list(self._core().gpus), inventory=False, reopen=False))
        self._listener.start()

    def close(self) -> None:
        """The listener may be in the driver for a moment yet. It is not waited for: it reports nothing more."""
        self._ended.set()

    def poll(self) -> None:
        """Ask for everything: which GPUs there are, their sizes and their health."""
        self._begin(list(self._core().gpus), inventory=True)

    def suspect(self, gpu: str) -> None:
        """Examine this GPU now: it may be unwell."""
        self._begin([gpu], inventory=False)

    # ---- asking ------------------------------------------------------------------------------------

    def _begin(self, gpus: list[str], *, inventory: bool) -> None:
        if self._looking:
            self._wanted.update(gpus)
            return
        self._looking = True
        counted = dict(self._faults)
        # The driver's library finds a GPU that was lost and is back only after it is opened again.
        reopen = inventory and any(gpu.health.lost for gpu in self._core().gpus.values())

        def done(future: asyncio.Future[Seen]) -> None:
            self._looking = False
            if future.cancelled() or self._loop.is_closed():
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

        self._thread.ask(lambda: self._look(gpus, inventory=inventory, reopen=reopen)).add_done_callback(done)

    def _look(self, gpus: Iterable[str], *, inventory: bool, reopen: bool) -> Seen:
        if reopen:
            self._driver.reopen()
        infos = self._driver.list() if inventory else None
        every = dict.fromkeys([*gpus, *(info.uuid for info in infos or ())])
        return Seen(infos, {gpu: self._driver.examine(gpu) for gpu in every})

    def _take_in(self, seen: Seen) -> None:
        if seen.infos is not None:
            self._found(seen.infos)
        for gpu, found in seen.examinations.items():
            if found is not None:
                self._feed(GpuExamined(gpu, found.issues, found.recovered))

    # ---- listening ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._ended.is_set():
            fault = self._driver.wait_for_fault(LISTEN)
            if fault is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._heard, fault)

    def _heard(self, fault: Fault) -> None:
        for gpu in fault.gpus:
            self._faults[gpu] = self._faults.get(gpu, 0) + 1
            if fault.xid is not None:
                self._feed(XidSeen(gpu, fault.xid))
            self.suspect(gpu)
