"""Answers GS_HELLO: which process it is, which job it belongs to, and which page it has.

    GPUSHARE_JOB set        the job of that id, if the process's user may
    the environment alone   a job of its own; a child of such a process with the same budget joins its parent's job
    a page presented        the process had a daemon before: it keeps its page

A job that this daemon does not know (state.json was lost) is made again from the process's frame or page. That gives a
process no more than a new job would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpushare._layout import ffi, lib
from gpushare.errors import GpushareError
from gpushare.job_spec import LONGEST_GRACE, JobSpec
from gpushare.quantity import MAX, NOTHING, Budget, Kind, Quantity
from gpushare.reasons import Reason
from gpushare.reclaim_steps import JOB_STEPS, STEP_BITS, USUAL_STEPS, ReclaimStep
from gpushared.clients.clients import Client
from gpushared.clients.ledger import Terms
from gpushared.clients.pages import Pages
from gpushared.core.events import JobSubmitted, ProcessJoined
from gpushared.jobs.placements import PLACED_ONLY
from gpushared.jobs.registry import JobRecord, JobState, new_job_id
from gpushared.limits.access import Access
from gpushared.limits.identities import user_name
from gpushared.runtime.process_lifecycle import PER_CLIENT
from gpushared.runtime.rebuild import new_to_core
from gpushared.runtime.recovery import take_in
from gpushared.runtime.shell import Shell
from gpushared.system.logs import facts, log
from gpushared.system.processes import Process, command_of, parent_of, printable

OK, NOT_ALLOWED, NOT_ADMITTED = int(lib.GS_OK), int(lib.GS_NOT_ALLOWED), int(lib.GS_NOT_ADMITTED)
HAS_PAGE = int(lib.GS_HELLO_HAS_PAGE)
PAGES_PER_PROCESS = 64
"""A process needs one; each costs the daemon descriptors and a job."""
ANCESTORS = 32
"""Processes upwards among which the job of a parent is looked for."""
REFILL_AFTER = 0.02
"""Seconds from a newcomer to the next spare page: by then it has its context."""


@dataclass(slots=True)
class Welcome:
    """The content of GS_WELCOME."""

    status: int
    page_id: int = 0
    job_id: int = 0
    patience_ms: int = 0
    text: str = ""
    client: Client | None = None
    new: bool = False
    """Call introduce() right after sending."""


class Refusal(Exception):
    """Why a process gets no page."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Handshake:
    """Answers GS_HELLO."""

    def __init__(self, shell: Shell, pages: Pages, patience: Callable[[], float], access: Access) -> None:
        self.shell = shell
        self.pages = pages
        self.access = access
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

    def introduce(self, client: Client) -> None:
        """Tell the rest of the daemon of a new client, and make the next page ready: the client waits for neither."""
        client.command = command_of(client.process.pid)
        self.shell.processes.adopt(client)
        self.shell.feed(ProcessJoined(client.id, client.job, client.process.pid, client.command))
        if self._refill is None:
            self._refill = asyncio.get_running_loop().call_later(REFILL_AFTER, self._make_spares)

    def _make_spares(self) -> None:
        self._refill = None
        try:
            self.pages.make_spares()
        except OSError as error:
            log.error("cannot make a page", extra=facts(error=str(error)))

    # ---- a process that has a page -----------------------------------------------------------------

    def _known(self, peer: Process, uid: int, hello: Any, descriptor: int | None) -> Client | None:
        """The client whose page is presented; None: no page, or one that is not this process's own.

        A forked child may present its parent's page. It gets one of its own.
        """
        if not hello.flags & HAS_PAGE:
            return None
        client = self.shell.clients.get(hello.page_id)
        if client is not None:
            # The descriptor is not needed (the program may have closed it): the kernel tells which process it is.
            return client if client.process.same(peer) and client.uid == uid else None
        if descriptor is None:
            return None
        page = self.pages.adopt(descriptor)
        if page is None:
            return None
        header = page.header
        same = (header.pid, header.start_time, header.uid) == (peer.pid, peer.start_time, uid)
        record = self.shell.registry.get(f"{header.job_id:016x}")
        foreign = record is not None and uid not in (0, record.spec.uid)
        if not same or foreign or page.id != hello.page_id:
            page.close(remove=False)
            return None
        page.account = self.pages.ledger.open(header)
        if record is not None:
            page.account.set_terms(Terms.of(record.spec))
        most = self._limits(record)
        page.claimed_lines(most)
        client = take_in(self.shell.outside, self.shell.processes.adopt, page, peer)
        if client is not None:
            self._tell_core(client)
        return client

    def _tell_core(self, client: Client) -> None:
        """Restore a process of an earlier daemon in the core, and its job if the core does not have it."""
        record = self.shell.registry.get(client.job)
        if record is not None and record.id not in self.shell.core.jobs:
            self.shell.feed(new_to_core(record, [client]))
        self.shell.feed(client.restored())

    def _limits(self, record: JobRecord | None) -> dict[bytes, int]:
        """The most credit to believe of a page, on each GPU, in bytes."""
        gpus, limit = self.shell.core.gpus, record.spec.limit if record is not None else MAX
        return {
            identity: min(limit.resolve(gpus[gpu].total), gpus[gpu].capacity)
            for identity, gpu in self.shell.gpus.by_bytes.items()
            if gpu in gpus
        }

    # ---- a process without one ---------------------------------------------------------------------

    def _newcomer(self, peer: Process, uid: int, hello: Any) -> Client:
        for earlier in self.shell.clients.of_pid(peer.pid):
            # The same process, but another program: the one that had this page has called exec.
            if earlier.disconnect is None and not earlier.page.is_held():
                self.shell.processes.gone(earlier)
        mine = len(self.shell.clients.of_pid(peer.pid))
        if mine >= PAGES_PER_PROCESS or not self.shell.limits.users.has_room(uid, PER_CLIENT):
            raise Refusal(NOT_ADMITTED, "this process, or its user, has too many connections to the daemon already")
        budget = _budget(hello)
        job = self._job_of(hello, peer, uid, budget)
        record = self.shell.registry.get(job)
        spec = record.spec if record is not None else None
        grace = max(1, int(spec.grace * 1000)) if spec is not None and spec.grace is not None else 0
        name = spec.name if spec is not None else command_of(peer.pid)
        priority = spec.priority if spec is not None else 0
        try:
            terms = Terms.of(spec) if spec is not None else None
            page = self.pages.create(peer, uid, job=job, priority=priority, grace_ms=grace, name=name, terms=terms)
        except OSError:
            if record is not None and not (
                self.shell.clients.has_job(job) or self.shell.jobs.lasts_without_processes(record)
            ):
                self.shell.jobs.end(record)
            raise
        if spec is not None and (spec.idle_release is not None or ReclaimStep.SUSPEND in spec.on_reclaim):
            page.may_be_asked_to_trim()  # or to be quiet
        client = Client(page, peer, job, uid)
        client.budget = budget
        return client

    def _job_of(self, hello: Any, peer: Process, uid: int, budget: Budget) -> str:
        placed = self._placed_job(peer, uid, f"{hello.job_id:016x}")
        if placed is not None:
            return placed
        if hello.job_id:
            job = f"{hello.job_id:016x}"
            record = self.shell.registry.get(job)
            if record is not None and uid not in (0, record.spec.uid):
                raise Refusal(NOT_ALLOWED, f"job {job} belongs to another user\nhint: unset GPUSHARE_JOB")
            if self.shell.jobs.placements.of_job(job) is not None:
                raise Refusal(NOT_ALLOWED, f"this program does not run where job {job} was placed")
            if record is not None and record.state is JobState.QUEUED:
                raise Refusal(NOT_ADMITTED, f"job {job} still waits for room")
            if job not in self.shell.core.jobs:
                return self._submit(job, hello, peer, uid)
            return job
        return self._parents_job(peer, uid, budget) or self._submit(new_job_id(), hello, peer, uid)

    def _placed_job(self, peer: Process, uid: int, says: str) -> str | None:
        """The job of the placement that it runs in, whatever it says. Of several there, the one that it says."""
        placements = self.shell.jobs.placements
        placement = placements.of_process(peer.pid, says)
        if placement is None:
            return None
        record = self.shell.registry.get(placement.job)
        if record is None or placement.leaving or placement.job not in self.shell.core.jobs:
            raise Refusal(NOT_ADMITTED, f"{placement.id}, in which this program runs, has been ended")
        if record.spec.uid not in (0, uid) and uid:
            raise Refusal(NOT_ALLOWED, f"{placement.id}, in which this program runs, was placed for another user")
        return placement.job

    def _parents_job(self, peer: Process, uid: int, budget: Budget) -> str | None:
        pid: int | None = peer.pid
        for _ in range(ANCESTORS):
            pid = parent_of(pid) if pid else None
            if not pid or pid == 1:
                return None
            for client in self.shell.clients.of_pid(pid):
                record = self.shell.registry.get(client.job)
                alone = record is not None and record.wrapper is None and record.state is JobState.RUNNING
                if alone and client.uid == uid and client.budget == budget:
                    return client.job
        return None

    def _submit(self, job: str, hello: Any, peer: Process, uid: int) -> str:
        name = printable(_text(hello.name), 63) or command_of(peer.pid)
        grace = min(hello.grace_ms / 1000, LONGEST_GRACE) if hello.grace_ms else None
        budget, place = self.access.budget(
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
            on_reclaim=_steps(hello.steps) or USUAL_STEPS,
            request_source=place or "GPUSHARE_REQUEST",
            limit_source=place or "GPUSHARE_LIMIT",
        )
        if self.access.placed_only(uid):
            raise Refusal(NOT_ADMITTED, PLACED_ONLY)
        allowed = self.access.admit(spec, self.shell.registry.bytes_of_live(uid))
        if isinstance(allowed, Reason):
            raise Refusal(NOT_ADMITTED, self.access.viewer(uid).told(allowed).render())
        spec = allowed
        record = self.shell.registry.open(job, spec)
        record.admission = asyncio.get_running_loop().create_future()
        self.shell.feed(JobSubmitted(job, spec))
        if record.state is not JobState.RUNNING:
            self.shell.registry.forget(record)
            refusal = record.admission.result()
            assert refusal is not None, "the core answers at once, and its failure is an answer, too"
            raise Refusal(NOT_ADMITTED, self.access.viewer(uid).told(refusal).render())
        return job


def _budget(hello: Any) -> Budget:
    request, limit = hello.request, hello.limit
    return _budget_of((request.kind, request.value), (limit.kind, limit.value))


@lru_cache(64)
def _budget_of(request: tuple[int, int], limit: tuple[int, int]) -> Budget:
    """Cached: all processes of a job send the same."""
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
        return Quantity.plain(Kind.BYTES, value) if value else NOTHING
    if kind == lib.GS_AMOUNT_SHARE and 0 < value <= 10**9:
        return Quantity.plain(Kind.SHARE, value)
    raise Refusal(NOT_ADMITTED, f"no amount of memory: kind {kind}, value {value}")


def _steps(bits: int) -> tuple[ReclaimStep, ...]:
    return tuple(step for step in JOB_STEPS if bits & STEP_BITS[step])


def _text(field: Any) -> str:
    return bytes(ffi.buffer(field)).split(b"\0", 1)[0].decode(errors="replace")
