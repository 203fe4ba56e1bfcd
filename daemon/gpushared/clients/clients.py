"""The processes that have a credit page: their identity, their page, and whether they are connected.

A client lasts as long as its process, connected or not: a shim may lose its connection (the daemon was restarted, a
descriptor was closed) while its process goes on using its credit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from gpushared.clients.pages import Page
from gpushared.core.events import ProcessRestored, ShareSeen
from gpushared.system.processes import Process

TICKETS = 64
"""Allocations of one process whose waits are remembered; the oldest go first."""


class Client:
    """One process with a page."""

    __slots__ = ("budget", "command", "disconnect", "id", "job", "page", "process", "uid", "waits")

    def __init__(self, page: Page, process: Process, job: str, uid: int) -> None:
        self.id = page.id
        self.page = page
        self.process = process
        self.job = job
        self.uid = uid
        self.command = ""
        self.budget: object = None
        """The budget in its HELLO. If the environment alone made its job, children with the same budget join that
        job."""
        self.disconnect: Callable[[], None] | None = None
        """Closes its connection. None: it has none now."""
        self.waits: OrderedDict[int, float] = OrderedDict()
        """Ticket -> seconds that an allocation has waited. It may ask again, because another thread took its credit or
        because its connection was lost; with the ticket it keeps its place and its deadline."""

    def remember_wait(self, ticket: int, waited: float) -> None:
        if not ticket:
            return
        self.waits[ticket] = waited
        if len(self.waits) > TICKETS:
            self.waits.popitem(last=False)

    def restored(self) -> ProcessRestored:
        """The event that makes a core know the process, from its page and the ledger."""
        shares = tuple(
            ShareSeen(self.page.gpus[seen.index], seen.used, seen.credit, seen.overhead)
            for seen in self.page.lines_seen()
            if seen.credit or seen.used or seen.overhead
        )
        return ProcessRestored(self.id, self.job, self.process.pid, shares, self.command)


class Clients:
    """All clients."""

    def __init__(self) -> None:
        self._by_id: dict[int, Client] = {}
        self._by_pid: dict[int, list[Client]] = {}
        self._of_job: dict[str, int] = {}

    def add(self, client: Client) -> None:
        self._by_id[client.id] = client
        self._by_pid.setdefault(client.process.pid, []).append(client)
        self._of_job[client.job] = self._of_job.get(client.job, 0) + 1

    def remove(self, client: Client) -> None:
        if self._by_id.pop(client.id, None) is None:
            return
        self._of_job[client.job] -= 1
        if not self._of_job[client.job]:
            del self._of_job[client.job]
        same = self._by_pid.get(client.process.pid, [])
        if client in same:
            same.remove(client)
        if not same:
            self._by_pid.pop(client.process.pid, None)

    def get(self, id: int) -> Client | None:
        return self._by_id.get(id)

    def of_pid(self, pid: int) -> list[Client]:
        return list(self._by_pid.get(pid, ()))

    def of_job(self, job: str) -> list[Client]:
        return [client for client in self._by_id.values() if client.job == job]

    def has_job(self, job: str) -> bool:
        """Whether the job has clients. This takes no search: a job may have hundreds of processes, and each that ends
        asks."""
        return job in self._of_job

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)
