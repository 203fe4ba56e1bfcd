"""Effects of instructions about credit: written into the pages, and answered to the processes."""

from __future__ import annotations

from collections.abc import Callable

from gpushare.standstill import stands_still
from gpushared.clients.clients import Client, Clients
from gpushared.clients.credit import CreditPages
from gpushared.clients.ledger import Terms
from gpushared.core import instructions as do
from gpushared.core.events import Event, Revoked, UsedSeen
from gpushared.runtime.core_loop import CoreLoop, Effect
from gpushared.runtime.publisher import Publisher


class CreditEffects:
    """One method for each kind of instruction."""

    def __init__(self, core_loop: CoreLoop, credit: CreditPages, clients: Clients) -> None:
        self._core_loop = core_loop
        self._credit = credit
        self._clients = clients
        self._publisher = Publisher(lambda: core_loop.core, credit)
        self.host_available: Callable[[], int | None] = lambda: None
        """Bytes of host memory that suspending may use; suspenders.py knows."""

    def effects(self) -> dict[type, Effect]:
        return {
            do.Attached: self._attached,
            do.Granted: self._granted,
            do.Denied: self._denied,
            do.Revoke: self._revoke,
            do.LookUsed: self._look_used,
            do.Publish: self._publisher.publish_soon,
            do.Trim: self._trim,
            do.BudgetSet: self._budget_set,
        }

    def _attached(self, done: do.Attached) -> None:
        line = None
        if done.process in self._credit.pages:
            line = self._credit.open_share(done.process, done.gpu, done.credit, done.overhead)
            self._publisher.publish(done.gpu, (done.process,))
        self._core_loop.asks.answer(done, line)

    def _granted(self, done: do.Granted) -> None:
        self._credit.grant(done.process, done.gpu, done.size, done.figures)
        self._core_loop.asks.answer(done, None)

    def _denied(self, done: do.Denied) -> None:
        self._core_loop.asks.answer(done, None)

    def _revoke(self, wish: do.Revoke) -> Event:
        taken, used = self._credit.revoke(wish.process, wish.gpu, wish.size)
        return Revoked(wish.process, wish.gpu, taken, used)

    def _look_used(self, wish: do.LookUsed) -> Event:
        return self.used_seen(wish.gpu)

    def used_seen(self, gpu: str) -> UsedSeen:
        """What the words of all processes on the GPU say now."""
        core, credit = self._core_loop.core, self._credit
        shares, watched = core.gpus[gpu].shares, core.watched(gpu)
        before = credit.stamps(watched, gpu)
        # `trims` before the words: of a trim that is seen to be over, all that it freed is seen.
        trims = credit.trims_of(shares)
        # `asking` before `used`: a call that takes its credit in between is then seen to have taken it.
        asking = credit.asking(shares, gpu)
        stamps = credit.stamps(shares, gpu)
        used = {process: stamp[0] for process, stamp in stamps.items()}
        releases = {process: stamp[1] for process, stamp in stamps.items()}
        after = credit.stamps(watched, gpu)
        moving = frozenset(process for process in watched if before.get(process) != after.get(process))
        clients = (self._clients.get(process) for process in watched)
        ending = frozenset(client.id for client in clients if client is not None and client.process.is_ending())
        pinned, contexts = credit.pinned(shares, gpu), credit.contexts(shares, gpu)
        away = ((process, self._clients.get(process)) for process in core.away(gpu))
        stopped = frozenset(process for process, client in away if client and stands_still(client.process.pid))
        host = self.host_available()
        return UsedSeen(gpu, used, trims, asking, ending, pinned, host, moving, contexts, stopped, releases)

    def _trim(self, wish: do.Trim) -> None:
        for process in wish.processes:
            self._credit.trim(process, wish.gpu, wish.size, wish.within)

    def trimmed(self, client: Client) -> None:
        """The process has ended a trim: look at once, so that a waiting claim gets the memory at once."""
        core = self._core_loop.core
        for gpu in client.page.gpus:
            if gpu in core.gpus and core.gpus[gpu].asks:
                self._core_loop.feed(self.used_seen(gpu))

    def _budget_set(self, done: do.BudgetSet) -> None:
        """Write it into the pages before the answer: the job must see the change when `gpushare set` returns."""
        core = self._core_loop.core
        terms = Terms.of(core.jobs[done.job].spec)
        for process in core.jobs[done.job].processes:
            client = self._clients.get(process)
            if client is not None and client.page.account is not None:
                client.page.account.set_terms(terms)
            for gpu in core.processes[process].shares:
                self._publisher.publish(gpu, (process,))
        self._core_loop.note_answer(done)
