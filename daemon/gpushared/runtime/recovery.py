"""After a restart: fills the registry and the clients from what the earlier daemon left, then rebuilds the core.

    the jobs        from state.json, if their wrapper or one of their processes lives
    the processes   from their pages: each has the words, the owner's pid and start time, and the job's id

A job that is not in state.json is made from its pages and the ledger. A state.json that cannot be read is renamed and
kept: the pages have what matters. Shims then connect again and present their pages, wrappers register again under
their job's id, and both go on as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX, NOTHING, Budget, Kind, Quantity
from gpushare.reclaim_steps import USUAL_STEPS
from gpushared.clients.clients import Client
from gpushared.clients.ledger import Terms
from gpushared.clients.pages import LineSeen, Page, Pages
from gpushared.core import persistence
from gpushared.core.events import JobRestored
from gpushared.jobs.found_state import FoundState
from gpushared.jobs.placements import Placement
from gpushared.jobs.registry import JobRecord, JobState
from gpushared.limits.identities import user_name
from gpushared.runtime.core_loop import CoreLoop
from gpushared.runtime.rebuild import Earlier, Outside, rebuild
from gpushared.system.logs import facts, log
from gpushared.system.processes import Process, command_of

ASKS_AGAIN_WITHIN = 30.0
"""Seconds for which a queued job keeps its place, or its admission, until its wrapper asks for it again."""

Adopt = Callable[[Client], None]
"""ProcessLifecycle.adopt."""


def recover(core_loop: CoreLoop, outside: Outside, found: FoundState, pages: Pages, adopt: Adopt) -> None:
    """The core must know the GPUs already."""
    reopened = list(pages.reopen())
    earlier = read_jobs(outside, found, {f"{page.header.job_id:016x}" for page, _ in reopened})
    for page, owner in reopened:
        if take_in(outside, adopt, page, owner) is None:
            owner.close()
    rebuild(core_loop, outside, earlier)
    jobs = sum(1 for _ in outside.jobs.registry.live())
    if jobs or len(outside.clients):
        log.info("state rebuilt", extra=facts(jobs=jobs, processes=len(outside.clients)))


# ---- jobs ------------------------------------------------------------------------------------------


def read_jobs(outside: Outside, found: FoundState, with_pages: set[str]) -> Earlier:
    """Open a record for each job that is still there. `with_pages`: the ids of jobs with living processes."""
    if not found.state:
        return Earlier({})
    jobs, since = found.jobs, found.since
    outside.jobs.placements.attempts.update(found.attempts)
    core = {**found.state["core"], "jobs": [one["note"] for one in jobs.values() if one.get("note") is not None]}
    overheads = persistence.restore_overheads(core, found.odd)
    reservations = persistence.restore_reservations(core, since, found.odd)
    known = {}
    for job in persistence.restore(core, since, found.odd):
        known[job.job] = job
        _open_running(outside, job, jobs.get(job.job, {}), found, has_pages=job.job in with_pages)
    for id, identity in jobs.items():
        if identity.get("queued") is not None and outside.jobs.registry.get(id) is None:
            _open_queued(outside, id, identity, found)
    return Earlier(known, reservations, overheads)


def _open_running(
    outside: Outside, job: JobRestored, identity: dict[str, Any], found: FoundState, *, has_pages: bool
) -> None:
    # A wrapper that has ended its job may live on; the job ends with its last process all the same.
    # If the wrapper was killed, the job lasts as long as its program. A placement does not: its engine ends it.
    placement = _placement(job.job, identity, found)
    held = job.open and placement is None
    wrapper = (_find(identity.get("wrapper")) or _find(identity.get("main"))) if held else None
    if wrapper is None and not has_pages and (placement is None or not job.open):
        return
    if placement is not None:
        outside.jobs.placements.put(replace(placement, leaving=not job.open))
    registry = outside.jobs.registry
    record = registry.open(job.job, job.spec)
    record.become(JobState.RUNNING)
    record.over = not job.open
    _set_beginning(record, identity, found)
    if wrapper is not None:
        registry.set_wrapper(record, wrapper)
    record.main = _find(identity.get("main"))


def _placement(job: str, identity: dict[str, Any], found: FoundState) -> Placement | None:
    note = identity.get("placement")
    try:
        return None if note is None else Placement.noted(job, persistence.mapping(note))
    except persistence.OddNote as why:
        found.odd(f"placement of job {job}", why)
        return None


def _open_queued(outside: Outside, id: str, identity: dict[str, Any], found: FoundState) -> None:
    """It keeps its place. The call of its wrapper ended with the earlier daemon; it asks again by the job's id."""
    wrapper = _find(identity.get("wrapper"))
    if wrapper is None:
        return
    try:
        queued = persistence.mapping(identity["queued"])
        spec, until = persistence.spec_from_note(queued.get("spec")), _until(queued, found)
    except persistence.OddNote as why:
        found.odd(f"queued job {id}", why)
        wrapper.close()
        return
    loop = asyncio.get_running_loop()
    record = outside.jobs.registry.open(id, spec)
    _set_beginning(record, identity, found)
    record.patience = until
    unclaimed = record.admission = loop.create_future()
    outside.jobs.registry.set_wrapper(record, wrapper)

    def drop() -> None:
        if record.admission is not unclaimed:
            return
        log.info("nobody asks for a queued job any more", extra=facts(**record.who))
        if record.state is JobState.QUEUED:
            outside.jobs.withdraw(record)
        else:
            outside.jobs.end(record)

    loop.call_later(ASKS_AGAIN_WITHIN, drop)


def _until(queued: dict[str, Any], found: FoundState) -> float:
    """When the queued job's patience ends, by the core's clock."""
    if found.same_clock and "until" in queued:
        return persistence.number(queued["until"])
    return persistence.number(queued.get("patience")) - time.time() + time.monotonic()


def _set_beginning(record: JobRecord, identity: dict[str, Any], found: FoundState) -> None:
    """Set when the job began. Not before 1970 and not in the future: it is shown as a date, and the queue is in its
    order."""
    with contextlib.suppress(persistence.OddNote):
        began = record.began - max(0.0, record.started - persistence.seconds(identity.get("started")))
        if found.same_clock and "began" in identity:
            began = min(record.began, persistence.number(identity["began"]))
        record.started = min(record.started, persistence.seconds(identity.get("started")))
        record.began = began


def _find(identity: object) -> Process | None:
    match identity:
        case [int(pid), int(started)] if 0 < pid < 2**31:
            return Process.open(pid, started)
    return None


# ---- processes -------------------------------------------------------------------------------------


def take_in(outside: Outside, adopt: Adopt, page: Page, owner: Process) -> Client | None:
    """Adopt a page of an earlier daemon with its process, and its job if the registry does not have it. The core is not
    told. None: the page names no job, and is closed."""
    header = page.header
    if header.job_id == 0:
        page.close(remove=False)
        return None
    registry = outside.jobs.registry
    lines = page.take_lines(outside.gpus.by_bytes)
    record = registry.get(f"{header.job_id:016x}")
    if record is None or record.state is not JobState.RUNNING:
        record = registry.open(f"{header.job_id:016x}", _spec_of(page, owner, [seen for _, seen in lines]))
        record.become(JobState.RUNNING)
    client = Client(page, owner, record.id, header.uid)
    client.command = command_of(owner.pid)
    client.budget = Budget(record.spec.request, record.spec.limit)
    if page.account is not None:
        page.account.set_terms(Terms.of(record.spec))
    adopt(client)
    return client


def _spec_of(page: Page, owner: Process, lines: list[LineSeen]) -> JobSpec:
    """The specification of a job whose only trace is a page."""
    header = page.header
    terms = page.account.terms if page.account is not None else None
    if terms is None:  # an older daemon's
        request = max((seen.request for seen in lines), default=0)
        limit = max((seen.limit for seen in lines), default=0)
        terms = Terms(
            Quantity.plain(Kind.BYTES, request) if request else NOTHING,
            Quantity.plain(Kind.BYTES, limit) if limit else MAX,
            USUAL_STEPS,
            0.0,
        )
    return JobSpec(
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
