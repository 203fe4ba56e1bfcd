"""GS_HELLO: who a process is, whose job it is, and which page is its own.

    GPUSHARE_JOB set        the job of that id, if the process's user may
    the environment alone   a job of its own; a child of such a process that says the same joins its parent's job
    a page presented        the process had a daemon before: it keeps its page, whatever else has been lost

A job that nobody here knows any more (a daemon without its notes) is made again from what the process says, or
from its page. That gives no one more than a new job would.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpushare._layout import ffi, lib
from gpushare.errors import GpushareError
from gpushare.quantity import MAX, NOTHING, Budget, Kind, Quantity
from gpushare.reasons import Reason
from gpushare.rungs import LADDER
from gpushared.core.events import JobRestored, JobSpec, JobSubmitted, ProcessJoined
from gpushared.gate import Gate
from gpushared.identities import user_name
from gpushared.jobs import Entry
from gpushared.logs import facts, log
from gpushared.programs.clients import Client
from gpushared.programs.ledger import Terms
from gpushared.programs.pages import Page, Pages, has_page
from gpushared.programs.processes import Process, command_of, parent_of, printable
from gpushared.shell import PER_CLIENT, Shell

OK, NOT_ALLOWED, NOT_ADMITTED = int(lib.GS_OK), int(lib.GS_NOT_ALLOWED), int(lib.GS_NOT_ADMITTED)
HAS_PAGE = int(lib.GS_HELLO_HAS_PAGE)
PAGES_PER_PROCESS = 64
"""A process needs one; each costs the daemon descriptors and a job."""
ANCESTORS = 32
"""How far up a job of the environment alone is looked for."""
MAX_GRACE = 24 * 3600.0
RUNGS = ((int(lib.GS_RUNG_TRIM), "trim"), (int(lib.GS_RUNG_TERM), "term"), (int(lib.GS_RUNG_KILL), "kill"))
REFILL_AFTER = 0.02
"""Seconds from a newcomer to the next spare page: by then it has its context."""


@dataclass(slots=True)
class Welcome:
    """What GS_WELCOME will say."""

    status: int
    page_id: int = 0
    job_id: int = 0
    patience_ms: int = 0
    text: str = ""
    client: Client | None = None
    new: bool = False
    """When it is sent, settle_in() must follow, before anything else."""


class Refusal(Exception):
    """Why a process gets no page."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Welcomer:
    """Answers GS_HELLO."""

    def __init__(self, shell: Shell, pages: Pages, patience: Callable[[], float], gate: Gate) -> None:
        self.shell = shell
        self.pages = pages
        self.gate = gate
        self._patience = patience
        self._refill: asyncio.TimerHandle | None = None
        pages.make_spares()

    def welcome(self, peer: Process, uid: int, hello: Any, descriptor: int | None) -> Welcome:
        """`descriptor` stays the caller's."""
        try:
            known = self._known(peer, uid, hello, descriptor)
            client = known or self._newcomer(peer, uid, hello)
        except Refusal as refusal:
            return Welcome(refusal.status, text=refusal.text)
        except OSError as error:
            log.error("cannot make a page", extra=facts(error=str(error)))
            return Welcome(int(lib.GS_SHUTTING_DOWN), text=f"the daemon cannot make a page: {error.strerror}")
        patience = int(self._patience() * 1000)
        return Welcome(OK, client.id, int(client.job, 16), patience, client=client, new=known is None)

    def settle_in(self, client: Client) -> None:
        """What the newcomer need not wait for: the rest of the daemon learns of it, and the next page is made ready."""
        client.command = command_of(client.process.pid)
        self.shell.adopt(client)
        self.shell.feed(ProcessJoined(client.id, client.job, client.process.pid, client.command))
        if self._refill is None:
            self._refill = self.shell.loop.call_later(REFILL_AFTER, self._make_spares)

    def _make_spares(self) -> None:
        self._refill = None
        try:
            self.pages.make_spares()
        except OSError as error:
            log.error("cannot make a page", extra=facts(error=str(error)))

    # ---- a process that has a page -----------------------------------------------------------------

    def _known(self, peer: Process, uid: int, hello: Any, descriptor: int | None) -> Client | None:
        """The client whose page is presented; None: no page, or one that is not this process's own.

        A forked child presents its parent's page, if its shim does not know better: it gets one of its own.
        """
        if not hello.flags & HAS_PAGE:
            return None
        client = self.shell.clients.get(hello.page_id)
        if client is not None:
            # Without the descriptor too (the program may have closed it): who a process is, the kernel says.
            return client if client.process.same(peer) and client.uid == uid else None
        if descriptor is None:
            return None
        page = self.pages.adopt(descriptor)
        if page is None:
            return None
        header = page.header
        same = (header.pid, header.start_time, header.uid) == (peer.pid, peer.start_time, uid)
        entry = self.shell.book.get(f"{header.job_id:016x}")
        foreign = entry is not None and uid not in (0, entry.spec.uid)
        if not same or foreign or page.id != hello.page_id:
            page.close(remove=False)
            return None
        page.account = self.pages.ledger.open(header)
        if entry is not None:
            page.account.set_terms(Terms.of(entry.spec))
        most = self._limits(entry)
        page.claimed_lines(most)
        return restore_client(self.shell, page, peer)

    def _limits(self, entry: Entry | None) -> dict[bytes, int]:
        """What a page may say at most that it was given, on each GPU."""
        gpus, limit = self.shell.core.gpus, entry.spec.limit if entry is not None else MAX
        return {
            identity: min(limit.resolve(gpus[gpu].total), gpus[gpu].capacity)
            for identity, gpu in self.shell.gpus.by_bytes.items()
            if gpu in gpus
        }

    # ---- a process without one ---------------------------------------------------------------------

    def _newcomer(self, peer: Process, uid: int, hello: Any) -> Client:
        for earlier in self.shell.clients.of_pid(peer.pid):
            # The same process, but the program that had this page is no more: exec.
            if earlier.connection is None and has_page(earlier.process, earlier.page) is False:
                self.shell.process_gone(earlier)
        mine = len(self.shell.clients.of_pid(peer.pid))
        if mine >= PAGES_PER_PROCESS or not self.shell.doors.has_room(uid, PER_CLIENT):
            raise Refusal(NOT_ADMITTED, "this process, or its user, has too many connections to the daemon already")
        budget = _budget(hello)
        job = self._job_of(hello, peer, uid, budget)
        entry = self.shell.book.get(job)
        spec = entry.spec if entry is not None else None
        grace = max(1, int(spec.grace * 1000)) if spec is not None and spec.grace is not None else 0
        name = spec.name if spec is not None else command_of(peer.pid)
        priority = spec.priority if spec is not None else 0
        try:
            terms = Terms.of(spec) if spec is not None else None
            page = self.pages.create(peer, uid, job=job, priority=priority, grace_ms=grace, name=name, terms=terms)
        except OSError:
            if entry is not None and entry.wrapper is None and not self.shell.clients.has_job(job):
                self.shell.end_job(entry)
            raise
        client = Client(page, peer, job, uid)
        client.budget = budget
        return client

    def _job_of(self, hello: Any, peer: Process, uid: int, budget: Budget) -> str:
        if hello.job_id:
            job = f"{hello.job_id:016x}"
            entry = self.shell.book.get(job)
            if entry is not None and uid not in (0, entry.spec.uid):
                raise Refusal(NOT_ALLOWED, f"job {job} belongs to another user\nhint: unset GPUSHARE_JOB")
            if entry is not None and entry.state == "queued":
                raise Refusal(NOT_ADMITTED, f"job {job} still waits for room")
            if job not in self.shell.core.jobs:
                return self._submit(job, hello, peer, uid)
            return job
        return self._parents_job(peer, uid, budget) or self._submit(new_job_id(), hello, peer, uid)

    def _parents_job(self, peer: Process, uid: int, budget: Budget) -> str | None:
        pid: int | None = peer.pid
        for _ in range(ANCESTORS):
            pid = parent_of(pid) if pid else None
            if not pid or pid == 1:
                return None
            for client in self.shell.clients.of_pid(pid):
                entry = self.shell.book.get(client.job)
                alone = entry is not None and entry.wrapper is None and entry.state == "running"
                if alone and client.uid == uid and client.budget == budget:
                    return client.job
        return None

    def _submit(self, job: str, hello: Any, peer: Process, uid: int) -> str:
        name = printable(_text(hello.name), 63) or command_of(peer.pid)
        grace = min(hello.grace_ms / 1000, MAX_GRACE) if hello.grace_ms else None
        budget, place = self.gate.budget(
            uid, _amount(hello.request.kind, hello.request.value), _amount(hello.limit.kind, hello.limit.value)
        )
        spec = JobSpec(
            name=name,
            uid=uid,
            user=user_name(uid),
            command=(command_of(peer.pid),),
            request=budget.request,
            limit=budget.limit,
            gpus=0,
            priority=hello.priority,
            grace=grace,
            min_run_time=hello.min_run_ms / 1000,
            on_reclaim=tuple(name for bit, name in RUNGS if hello.rungs & bit) or LADDER,
            request_source=place or "GPUSHARE_REQUEST",
            limit_source=place or "GPUSHARE_LIMIT",
        )
        allowed = self.gate.admit(spec)
        if isinstance(allowed, Reason):
            raise Refusal(NOT_ADMITTED, self.shell.viewer_of(uid).told(allowed).render())
        spec = allowed
        entry = self.shell.book.open(job, spec)
        entry.admission = self.shell.loop.create_future()
        self.shell.feed(JobSubmitted(job, spec))
        refusal = entry.admission.result() if entry.admission.done() else None
        if entry.state != "running":
            self.shell.book.forget(entry)
            if refusal is None:
                raise Refusal(NOT_ADMITTED, "the job was not admitted")
            raise Refusal(NOT_ADMITTED, self.shell.viewer_of(uid).told(refusal).render())
        return job


def restore_client(shell: Shell, page: Page, owner: Process) -> Client | None:
    """A page that an earlier daemon has made: its process, with all that it holds, and its job if need be."""
    header = page.header
    if header.job_id == 0:
        page.close(remove=False)
        return None
    job = f"{header.job_id:016x}"
    lines = page.take_lines(shell.gpus.by_bytes)
    if job not in shell.core.jobs:
        terms = page.account.terms if page.account is not None else None
        if terms is None:  # of a daemon that wrote none
            request = max((seen.request for _, seen in lines), default=0)
            limit = max((seen.limit for _, seen in lines), default=0)
            terms = Terms(_of_bytes(request) if request else NOTHING, _of_bytes(limit) if limit else MAX, LADDER, 0.0)
        spec = JobSpec(
            name=header.job_name or command_of(owner.pid),
            uid=header.uid,
            user=user_name(header.uid),
            command=(command_of(owner.pid),),
            request=terms.request,
            limit=terms.limit,
            gpus=0,
            priority=header.priority,
            grace=header.grace_ms / 1000 if header.grace_ms else None,
            min_run_time=terms.min_run_time,
            on_reclaim=terms.on_reclaim,
            request_source="its credit page",
            limit_source="its credit page",
        )
        shell.book.open(job, spec).state = "running"
        shell.feed(JobRestored(job, spec, tuple(gpu for gpu, _ in lines)))
    client = Client(page, owner, job, header.uid)
    client.command = command_of(owner.pid)
    spec = shell.core.jobs[job].spec
    client.budget = Budget(spec.request, spec.limit)
    if page.account is not None:
        page.account.set_terms(Terms.of(spec))
    shell.adopt(client)
    shell.feed(client.restored(lines))
    return client


def _budget(hello: Any) -> Budget:
    request, limit = hello.request, hello.limit
    return _budget_of((request.kind, request.value), (limit.kind, limit.value))


@lru_cache(64)
def _budget_of(request: tuple[int, int], limit: tuple[int, int]) -> Budget:
    """A job's processes all say the same."""
    try:
        return Budget.of(_amount(*request), _amount(*limit))
    except GpushareError as error:
        raise Refusal(NOT_ADMITTED, f"{error.message}\nhint: {error.hint}" if error.hint else error.message) from None


def _amount(kind: int, value: int) -> Quantity | None:
    if kind == lib.GS_AMOUNT_UNSET:
        return None
    if kind == lib.GS_AMOUNT_MAX:
        return MAX
    if kind == lib.GS_AMOUNT_BYTES and value <= 2**50:
        return _of_bytes(value) if value else NOTHING
    if kind == lib.GS_AMOUNT_SHARE and 0 < value <= 10**9:
        share = Quantity(Kind.SHARE, value, "")
        return Quantity(Kind.SHARE, value, share.canonical())
    raise Refusal(NOT_ADMITTED, f"no amount of memory: kind {kind}, value {value}")


def _of_bytes(value: int) -> Quantity:
    return Quantity(Kind.BYTES, value, Quantity(Kind.BYTES, value, "").canonical())


def _text(field: Any) -> str:
    return bytes(ffi.buffer(field)).split(b"\0", 1)[0].decode(errors="replace")


def new_job_id() -> str:
    job = ""
    while not int(job or "0", 16):
        job = secrets.token_hex(8)
    return job
