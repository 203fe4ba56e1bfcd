"""Processes with a page, from the adoption of the page to the end of the process."""

from __future__ import annotations

import asyncio

from gpushare._layout import lib
from gpushared.clients.clients import Client, Clients
from gpushared.clients.credit import CreditPages
from gpushared.core.events import Detached, ProcessGone
from gpushared.jobs.lifecycle import JobLifecycle
from gpushared.jobs.registry import JobRecord
from gpushared.limits.identities import user_name
from gpushared.limits.user_limits import UserLimits
from gpushared.runtime.core_loop import CoreLoop
from gpushared.runtime.driver_questions import DriverQuestions
from gpushared.system.epoll import Epoll
from gpushared.system.logs import facts, log

PER_CLIENT = 2
"""Descriptors: a page and a pidfd."""
LOOK_AGAIN = 0.5
"""Seconds from a lost connection to a second look at its process."""


class ProcessLifecycle:
    """Adopts processes and notices their ends."""

    def __init__(
        self,
        core_loop: CoreLoop,
        credit: CreditPages,
        clients: Clients,
        *,
        jobs: JobLifecycle,
        driver: DriverQuestions,
        limits: UserLimits,
        epoll: Epoll,
    ) -> None:
        self._core_loop = core_loop
        self._credit = credit
        self._clients = clients
        self._jobs = jobs
        self._driver = driver
        self._limits = limits
        self._epoll = epoll
        self._broken = int(lib.gs_pages_broken())

    def adopt(self, client: Client) -> None:
        """A process has a page: watch it until it ends."""
        self._clients.add(client)
        self._credit.pages[client.id] = client.page
        self._limits.enter(client.uid, PER_CLIENT)
        client.process.watch(self._epoll, lambda: self.gone(client))

    def gone(self, client: Client) -> None:
        """The process has ended, or has become another program."""
        if self._clients.get(client.id) is not client:
            return
        record = self._jobs.registry.get(client.job)
        if client.page.broken:
            who = record.who if record is not None else {"job": client.job, "user": user_name(client.uid)}
            log.warning(
                "a process has cut its credit page short, and is outside of gpushare from now on",
                extra=facts(pid=client.process.pid, command=client.command, **who),
            )
        disconnect, client.disconnect = client.disconnect, None
        if disconnect is not None:  # without a word to connection_lost(), which would lead back to here
            disconnect()
        if record is not None:
            record.totals.refusals += self._credit.refusals(client.id)
            self._note_last_peak(client, record)
        self._driver.tell_unmet(client.id)
        self._clients.remove(client)
        self._core_loop.feed(ProcessGone(client.id, {} if client.page.broken else client.page.used()))
        self._credit.pages.pop(client.id, None)
        self._limits.leave(client.uid, PER_CLIENT)
        client.process.close()
        client.page.close(remove=True)
        if record is not None and not (self._clients.has_job(client.job) or self._jobs.lasts_without_processes(record)):
            self._jobs.end(record)

    def give_up_broken(self) -> None:
        """Give up processes that have truncated their page: their use is unknown."""
        broken = int(lib.gs_pages_broken())
        if broken == self._broken:
            return
        self._broken = broken
        for client in self._clients:
            if client.page.broken:
                self.gone(client)

    def connection_lost(self, client: Client) -> None:
        """The process has ended, has become another program (exec), or has only closed the socket."""
        self.end_if_replaced(client)
        # exec closes one descriptor after the other: this socket may have been closed before the page's.
        asyncio.get_running_loop().call_later(LOOK_AGAIN, self.end_if_replaced, client)

    def end_if_replaced(self, client: Client) -> None:
        """A process that lives, but has neither connection nor page, has become another program. (A process that ends
        just now is left to its pidfd.)"""
        alone = self._clients.get(client.id) is client and client.disconnect is None
        if alone and client.process.alive() and not client.page.is_held():
            self.gone(client)

    def end_replaced(self) -> None:
        """Look at all clients that have not connected since an earlier daemon ended. Nothing reports their exec."""
        for client in self._clients:
            if client.disconnect is None:
                self.end_if_replaced(client)

    def detached(self, client: Client, gpu: str) -> None:
        """The process has closed its last context on the GPU."""
        self._core_loop.feed(Detached(client.id, gpu, client.page.used().get(gpu, 0)))
        self._credit.close_share(client.id, gpu)

    def _note_last_peak(self, client: Client, record: JobRecord) -> None:
        core = self._core_loop.core
        process = core.processes.get(client.id)
        if process is None:
            return
        job = core.jobs[client.job]
        for gpu, share in process.shares.items():
            used = client.page.used().get(gpu, share.used) if share.parked is None else share.used
            guessed = sum(map(core.guessed, core.shares_of(job, gpu)))
            record.totals.note_peak(gpu, job.usage[gpu] - guessed + used - share.used)
            peak = self._credit.peak(share) - core.guessed(share)
            record.totals.note_peak(gpu, peak)  # at some moment the job used at least as much

    def close(self) -> None:
        """The daemon stops. Pages stay where they are, for the next daemon."""
        for client in self._clients:
            client.process.close()
            client.page.close(remove=False)
        self._credit.pages.clear()
