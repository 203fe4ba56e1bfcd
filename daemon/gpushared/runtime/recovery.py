"""After a restart: who is there, what was promised, what is used. Nobody's help is needed for it.

    the GPUs        from the driver, before anything else
    the jobs        from state.json, if their wrapper or one of their processes lives; those that queue, in their order
    the processes   from their pages: each has the words, the owner's pid and start time, and the job's id

A job without notes is rebuilt from its pages and the ledger. Notes that cannot be read are set aside, not fatal: the
pages hold what matters. Shims then reconnect and present their pages, wrappers register again under their job's id, and
both find everything as it was.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX, NOTHING, Budget, Kind, Quantity
from gpushare.reclaim_steps import JOB_STEPS
from gpushared.clients.clients import Client
from gpushared.clients.ledger import Terms
from gpushared.clients.pages import Page, Pages
from gpushared.core import persistence
from gpushared.core.events import JobRestored
from gpushared.jobs import state_file
from gpushared.jobs.registry import JobRecord
from gpushared.limits.identities import user_name
from gpushared.runtime.rebuild import submission
from gpushared.runtime.shell import Shell
from gpushared.system.logs import facts, log
from gpushared.system.processes import Process, command_of

ASKS_AGAIN_WITHIN = 30.0
"""Seconds for which a queued job keeps its place, or what it has got, until its wrapper asks for it again."""


def recover(shell: Shell, pages: Pages) -> None:
    """Rebuild the core's state. The GPUs must be known to it already."""
    found = list(pages.reopen())
    _restore_jobs(shell, Found(shell.state_file.path), {f"{page.header.job_id:016x}" for page, _ in found})
    for page, owner in found:
        _restore_process(shell, page, owner)
    for record in shell.registry.live():
        if record.state == "running" and record.wrapper is None and not shell.clients.has_job(record.id):
            shell.end_job(record)
    for record in sorted(shell.registry.live(), key=lambda record: record.began):
        if record.state == "queued":
            shell.feed(submission(record))
    jobs = sum(1 for _ in shell.registry.live())
    if jobs or len(shell.clients):
        log.info("state rebuilt", extra=facts(jobs=jobs, processes=len(shell.clients)))


class Found:
    """state.json as an earlier daemon, or a later one, has left it. What in it makes no sense is left out and logged,
    and the file is kept under another name: it is about to be written anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._aside = path.with_suffix(".bad")
        self._is_kept = False
        self.state = self._read()

    def _read(self) -> dict[str, Any]:
        try:
            state = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            self._keep()
            log.warning("the notes cannot be read", extra=self._facts(error=str(error)))
            return {}
        if not isinstance(state, dict) or not isinstance(state.get("core"), dict):
            self._keep()
            log.warning("the notes make no sense", extra=self._facts(error="they are no object with a core"))
            return {}
        if state.get("version") != state_file.VERSION:
            log.warning("the notes are of another version", extra=self._facts(version=str(state.get("version"))[:40]))
        return state

    def odd(self, what: str, why: persistence.OddNote) -> None:
        """An record that is not used."""
        self._keep()
        log.warning("a part of the notes makes no sense", extra=self._facts(what=what, error=str(why)))

    def _facts(self, **more: object) -> dict[str, Any]:
        return facts(file=str(self._path), **({"kept_as": str(self._aside)} if self._is_kept else {}), **more)

    def _keep(self) -> None:
        if not self._is_kept:
            with contextlib.suppress(OSError):
                shutil.copyfile(self._path, self._aside)
                self._aside.chmod(0o600)
                self._is_kept = True

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """By id."""
        found = self.state.get("jobs")
        jobs = {}
        for id, one in found.items() if isinstance(found, dict) else ():
            try:
                jobs[persistence.job_id(id)] = persistence.mapping(one)
            except persistence.OddNote as why:
                self.odd(f"job {id[:40]}", why)
        if found is not None and not isinstance(found, dict):
            self.odd("jobs", persistence.OddNote("they are no object"))
        return jobs

    @property
    def _written(self) -> float:
        return persistence.now_of(self.state["core"])

    @property
    def same_clock(self) -> bool:
        """Whether the core's clock of then is the present one."""
        boot = self.state.get("boot")
        return boot is not None and boot == state_file.boot() and self._written <= time.monotonic()

    @property
    def since(self) -> float:
        """Seconds since it was written: by the core's clock, for the system's may have been set meanwhile. The system's
        counts after a boot, and where the notes do not name theirs."""
        if self.same_clock:
            return time.monotonic() - self._written
        try:
            return max(0.0, time.time() - persistence.number(self.state.get("time")))
        except persistence.OddNote as why:
            self.odd("time", why)
            return 0.0


def _restore_jobs(shell: Shell, found: Found, with_pages: set[str]) -> None:
    if not found.state:
        return
    jobs, since = found.jobs, found.since
    core = {**found.state["core"], "jobs": [one["note"] for one in jobs.values() if one.get("note") is not None]}
    shell.core.state.overheads.update(persistence.restore_overheads(core, found.odd))
    for reservation in persistence.restore_reservations(core, since, found.odd):
        shell.feed(reservation)
    for job in persistence.restore(core, found.odd):
        _restore_job(shell, job, jobs.get(job.job, {}), found, job.job in with_pages)
    for id, identity in jobs.items():
        if identity.get("queued") is not None and shell.registry.get(id) is None:
            _restore_queued(shell, id, identity, found)


def _restore_job(shell: Shell, job: JobRestored, identity: dict[str, Any], found: Found, has_pages: bool) -> None:
    # A wrapper that has ended its job may live on; the job does not, once its processes are gone.
    wrapper = _find(identity.get("wrapper")) if job.open else None
    if wrapper is None and not has_pages:
        return
    record = shell.registry.open(job.job, job.spec)
    record.state, record.over = "running", not job.open
    _set_beginning(record, identity, found)
    if wrapper is not None:
        shell.registry.set_wrapper(record, wrapper, shell.epoll)
    record.main = _find(identity.get("main"))
    since = found.since
    saved = None if job.saved is None else job.saved + since
    shell.feed(replace(job, age=job.age + since, saved=saved))


def _restore_queued(shell: Shell, id: str, identity: dict[str, Any], found: Found) -> None:
    """It keeps its place. Its wrapper, whose call has ended with the earlier daemon, asks again by the job's id."""
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
    record = shell.registry.open(id, spec)
    _set_beginning(record, identity, found)
    record.patience = until
    unclaimed = record.admission = shell.loop.create_future()
    shell.registry.set_wrapper(record, wrapper, shell.epoll)

    def drop() -> None:
        if record.admission is not unclaimed:
            return
        log.info("nobody asks for a queued job any more", extra=facts(**record.who))
        if record.state == "queued":
            shell.withdraw(record)
        else:
            shell.end_job(record)

    shell.loop.call_later(ASKS_AGAIN_WITHIN, drop)


def _until(queued: dict[str, Any], found: Found) -> float:
    """By the core's clock."""
    if found.same_clock and "until" in queued:
        return persistence.number(queued["until"])
    return persistence.number(queued.get("patience")) - time.time() + time.monotonic()


def _set_beginning(record: JobRecord, identity: dict[str, Any], found: Found) -> None:
    """Not before 1970 nor to come: it is shown as a date, and is the order of the queue."""
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


def _restore_process(shell: Shell, page: Page, owner: Process) -> None:
    if restore_client(shell, page, owner) is None:
        owner.close()


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
            amounts = _of_bytes(request) if request else NOTHING, _of_bytes(limit) if limit else MAX
            terms = Terms(*amounts, JOB_STEPS, 0.0)
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
        shell.registry.open(job, spec).state = "running"
        shell.feed(JobRestored(job, spec, tuple(gpu for gpu, _ in lines), age=0.0))
    client = Client(page, owner, job, header.uid)
    client.command = command_of(owner.pid)
    spec = shell.core.jobs[job].spec
    client.budget = Budget(spec.request, spec.limit)
    if page.account is not None:
        page.account.set_terms(Terms.of(spec))
    shell.adopt(client)
    shell.feed(client.restored(lines))
    return client


def _of_bytes(value: int) -> Quantity:
    return Quantity(Kind.BYTES, value, Quantity(Kind.BYTES, value, "").canonical())
