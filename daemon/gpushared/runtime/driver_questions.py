"""Questions to the driver whose answers become events: which GPUs there are, and how their memory is used.

They run on a thread: a driver that hangs must not stop the daemon's loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from gpushare.standstill import stands_still
from gpushared.clients.clients import Clients
from gpushared.clients.credit import CreditPages
from gpushared.core import instructions as do
from gpushared.core.events import Event, GpuFound, MemorySampled, Unhooked, Unmet
from gpushared.gpus.driver_thread import DriverThread
from gpushared.gpus.foreign_processes import Placed, UnhookedFinder
from gpushared.gpus.inventory import GpuInfo, Inventory, Sample
from gpushared.jobs.registry import JobRegistry
from gpushared.runtime.core_loop import CoreLoop
from gpushared.system.logs import facts, log

COUNTS_FOR = 10.0
"""The most seconds before a sample for which it tells which jobs had the GPU compute."""
SILENT_AFTER = 1.0
"""Seconds to wait for the driver; then claims and requests go on without its figures."""


class DriverQuestions:
    """One question at a time for each GPU."""

    def __init__(
        self,
        core_loop: CoreLoop,
        gpus: Inventory,
        credit: CreditPages,
        clients: Clients,
        registry: JobRegistry,
        *,
        placed: Placed,
    ) -> None:
        self.thread = DriverThread(asyncio.get_running_loop())
        self.on_silence: Callable[[str], None] = lambda _: None
        """Called with a GPU for which the driver did not answer."""
        self._core_loop = core_loop
        self._gpus = gpus
        self._credit = credit
        self._clients = clients
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._unhooked_finder = UnhookedFinder(placed)
        self._sampling: set[str] = set()
        self._silent: set[str] = set()
        """GPUs for which the driver has not answered for a while."""
        self._computed_at: dict[str, float] = {}
        """When each GPU was last sampled."""

    # ---- which GPUs there are ----------------------------------------------------------------------

    def find_gpus(self) -> None:
        """List the GPUs at the daemon's start. This blocks."""
        self.take_in_gpus(self._gpus.driver.list())

    def take_in_gpus(self, found: list[GpuInfo]) -> None:
        for info in self._gpus.note(found):
            self._core_loop.feed(gpu_found(info))

    def look_for_gpus(self, then: Callable[[], None]) -> None:
        """Call `then` when the driver has listed its GPUs, or has not answered for SILENT_AFTER."""
        answered = False

        def go_on(future: asyncio.Future[list[GpuInfo]] | None = None) -> None:
            nonlocal answered
            if self._loop.is_closed():
                return
            if future is not None and not future.cancelled() and future.exception() is None:
                self.take_in_gpus(future.result())
            if not answered:
                answered = True
                then()

        self._loop.call_later(SILENT_AFTER, go_on)
        self.thread.ask(self._gpus.driver.list).add_done_callback(go_on)

    # ---- samples -----------------------------------------------------------------------------------

    def sample_memory(self, wish: do.SampleMemory) -> None:
        self.sample_soon(wish.gpu)

    def sample_soon(self, gpu: str) -> None:
        """Ask how the GPU's memory is used; the answer becomes an event."""
        if gpu in self._silent:
            self._go_on_without(gpu)
        if gpu in self._sampling or gpu not in self._core_loop.core.gpus:
            return
        self._sampling.add(gpu)
        begun, before = time.monotonic(), self._stamps_on(gpu)
        contexts = self._credit.contexts(before, gpu)
        silence = self._loop.call_later(SILENT_AFTER, self._no_sample_yet, gpu)

        def done(future: asyncio.Future[Sample | None]) -> None:
            silence.cancel()
            self._silent.discard(gpu)
            self._sampling.discard(gpu)
            if future.cancelled() or self._loop.is_closed():
                return
            if future.exception() is not None:
                log.error("sampling failed", extra=facts(gpu=gpu, error=repr(future.exception())))
                return
            self._core_loop.feed(self._sampled(gpu, begun, before, contexts, future.result()))

        self.thread.ask(lambda: self._gpus.sample(gpu)).add_done_callback(done)

    def _no_sample_yet(self, gpu: str) -> None:
        self._silent.add(gpu)
        log.warning("the driver does not answer", extra=facts(gpu=gpu, seconds=SILENT_AFTER))
        self._go_on_without(gpu)

    def _go_on_without(self, gpu: str) -> None:
        """Claims do not wait for a driver that hangs."""
        self._core_loop.feed(_no_sample(gpu))

    def _stamps_on(self, gpu: str) -> dict[int, tuple[int, int]]:
        return self._credit.stamps(self._core_loop.core.gpus[gpu].shares, gpu)

    def _sampled(
        self,
        gpu: str,
        begun: float,
        before: dict[int, tuple[int, int]],
        contexts: dict[int, int],
        sample: Sample | None,
    ) -> Event:
        if sample is None:
            self.on_silence(gpu)
            return _no_sample(gpu)
        core, after = self._core_loop.core, self._stamps_on(gpu)
        for process in after:
            self.tell_unmet(process)
        steady = {process: stamp[0] for process, stamp in after.items() if before.get(process) == stamp}
        self._note_peaks(gpu, {process: used for process, (used, _) in after.items()})
        sample = self._gpus.named(gpu, sample, {core.processes[one].pid: used for one, used in steady.items()})
        halfway = self._stopped_halfway(gpu, steady, sample.by_pid or {})
        steady = {process: used for process, used in steady.items() if process not in halfway}
        unhooked = self._unhooked_finder.among(gpu, sample.by_pid, self._clients, core.jobs)
        self._note_observed(gpu, unhooked, sample.by_pid or {})
        self._note_computing(gpu, unhooked, sample.computing, begun)
        releases = {process: stamp[1] for process, stamp in after.items()}
        return MemorySampled(gpu, sample.used, sample.by_pid, steady, unhooked, sample.busy, begun, contexts, releases)

    def _stopped_halfway(self, gpu: str, steady: Mapping[int, int], by_pid: Mapping[int, int]) -> set[int]:
        """Processes that stand still, maybe inside a call. The driver may show less than they are charged
        for, and will show more when they go on. So this sample says nothing of what their contexts cost."""
        core = self._core_loop.core
        pids = {process: core.processes[process].pid for process in steady}
        charges = {process: used + core.gpus[gpu].shares[process].overhead for process, used in steady.items()}
        less = [process for process, pid in pids.items() if by_pid.get(pid, 0) < charges[process]]
        return {process for process in less if stands_still(pids[process])}

    def tell_unmet(self, process: int) -> None:
        """Tell the core how many calls of this process failed within the request because no daemon answered."""
        for gpu, count in self._credit.take_unmet(process).items():
            self._core_loop.feed(Unmet(process, gpu, count))

    def _note_peaks(self, gpu: str, used: dict[int, int]) -> None:
        """The page has the exact peak of a job with one process. For several, the samples give the peak."""
        core = self._core_loop.core
        shares = core.gpus[gpu].shares
        by_job: dict[str, list[int]] = {}
        for process, share in shares.items():
            here = used.get(process, share.used) if share.parked is None else 0  # what NVML shows of it is overhead
            usage = share.overhead - core.guessed(share) + here
            by_job.setdefault(share.job, []).append(usage)
        for share in shares.values():
            if len(by_job[share.job]) == 1:
                by_job[share.job] = [self._credit.peak(share) - core.guessed(share)]
        for job, amounts in by_job.items():
            self._registry.note_peak(job, gpu, sum(amounts))

    def _note_observed(self, gpu: str, unhooked: Mapping[int, Unhooked], by_pid: Mapping[int, int]) -> None:
        """The peak of a job that is only observed: the samples are all that is known of it."""
        amounts: dict[str, int] = {}
        for pid, process in unhooked.items():
            if self._core_loop.core.jobs[process.job].spec.observe:
                amounts[process.job] = amounts.get(process.job, 0) + by_pid.get(pid, 0)
        for job, amount in amounts.items():
            self._registry.note_peak(job, gpu, amount)

    def _note_computing(
        self, gpu: str, unhooked: Mapping[int, Unhooked], computing: Mapping[int, float] | None, begun: float
    ) -> None:
        """Add to the GPU time of each job. Of a long time between two samples only the last COUNTS_FOR seconds
        count."""
        seconds = min(COUNTS_FOR, max(0.0, begun - self._computed_at.get(gpu, begun)))
        self._computed_at[gpu] = begun
        if computing is None:
            return
        core = self._core_loop.core
        parts = dict.fromkeys((share.job for share in core.gpus[gpu].shares.values()), 0.0)
        for id, share in core.gpus[gpu].shares.items():
            parts[share.job] += computing.get(core.processes[id].pid, 0.0)
        for pid, process in unhooked.items():
            parts[process.job] = parts.get(process.job, 0.0) + computing.get(pid, 0.0)
        for job, part in parts.items():
            self._registry.note_computing(job, gpu, min(1.0, part), seconds)


def gpu_found(info: GpuInfo) -> GpuFound:
    return GpuFound(info.uuid, info.index, info.name, info.total, info.reserved)


def _no_sample(gpu: str) -> MemorySampled:
    """Corrects nothing, and ends the wait for a sample."""
    return MemorySampled(gpu, None, None, {})
