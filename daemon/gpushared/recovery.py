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
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushared import state_file
from gpushared.anew import submission
from gpushared.core import notes
from gpushared.core.events import JobRestored
from gpushared.hello import restore_client
from gpushared.logs import facts, log
from gpushared.programs.pages import Page, Pages
from gpushared.programs.processes import Process
from gpushared.shell import Shell

ASKS_AGAIN_WITHIN = 30.0
"""Seconds for which a queued job keeps its place, or what it has got, until its wrapper asks for it again."""


def recover(shell: Shell, pages: Pages) -> None:
    """Rebuild the core's state. The GPUs must be known to it already."""
    found = list(pages.reopen())
    _restore_jobs(shell, _read(shell.state_file.path), {f"{page.header.job_id:016x}" for page, _ in found})
    for page, owner in found:
        _restore_process(shell, page, owner)
    for entry in shell.book.live():
        if entry.state == "running" and entry.wrapper is None and not shell.clients.has_job(entry.id):
            shell.end_job(entry)
    for entry in sorted(shell.book.live(), key=lambda entry: entry.started):
        if entry.state == "queued":
            shell.feed(submission(entry))
    jobs = sum(1 for _ in shell.book.live())
    if jobs or len(shell.clients):
        log.info("state rebuilt", extra=facts(jobs=jobs, processes=len(shell.clients)))


def _read(path: Path) -> dict[str, Any]:
    try:
        state = dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        aside = path.with_suffix(".bad")
        log.warning("the notes cannot be read", extra=facts(file=str(path), error=str(error), kept_as=str(aside)))
        with contextlib.suppress(OSError):
            path.replace(aside)
        return {}
    return state


def _restore_jobs(shell: Shell, state: dict[str, Any], with_pages: set[str]) -> None:
    if not state:
        return
    try:
        if state["version"] != state_file.VERSION:
            log.warning("the notes are of another version", extra=facts(version=state["version"]))
            return
        core, identities = state_file.read(state)
        jobs = notes.restore(core)
        overheads = notes.restore_overheads(core)
        since = max(0.0, time.time() - float(state["time"]))
        reservations = notes.restore_reservations(core, since)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("the notes make no sense", extra=facts(error=repr(error)))
        return
    shell.core.state.overheads.update(overheads)
    for reservation in reservations:
        shell.feed(reservation)
    for job in jobs:
        identity = identities.get(job.job)
        _restore_job(shell, job, identity if isinstance(identity, dict) else {}, since, job.job in with_pages)
    for id, identity in identities.items():
        if isinstance(identity, dict) and identity.get("queued") is not None:
            _restore_queued(shell, id, identity)


def _restore_job(shell: Shell, job: JobRestored, identity: dict[str, Any], since: float, has_pages: bool) -> None:
    # A wrapper that has ended its job may live on; the job does not, once its processes are gone.
    wrapper = _find(identity.get("wrapper")) if job.open else None
    if wrapper is None and not has_pages:
        return
    entry = shell.book.open(job.job, job.spec)
    entry.state, entry.over = "running", not job.open
    entry.started = float(identity.get("started", entry.started))
    if wrapper is not None:
        shell.book.set_wrapper(entry, wrapper, shell.readers)
    entry.main = _find(identity.get("main"))
    saved = None if job.saved is None else job.saved + since
    shell.feed(replace(job, age=job.age + since, saved=saved))


def _restore_queued(shell: Shell, id: str, identity: dict[str, Any]) -> None:
    """It keeps its place. Its wrapper, whose call has ended with the earlier daemon, asks again by the job's id."""
    wrapper = _find(identity.get("wrapper"))
    if wrapper is None:
        return
    try:
        spec, patience = notes.spec_from_note(identity["queued"]["spec"]), float(identity["queued"]["patience"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("a queued job's note makes no sense", extra=facts(job=id, error=repr(error)))
        wrapper.close()
        return
    entry = shell.book.open(id, spec)
    entry.started, entry.patience = float(identity.get("started", entry.started)), patience
    unclaimed = entry.admission = shell.loop.create_future()
    shell.book.set_wrapper(entry, wrapper, shell.readers)

    def drop() -> None:
        if entry.admission is not unclaimed:
            return
        log.info("nobody asks for a queued job any more", extra=facts(job=id))
        if entry.state == "queued":
            shell.withdraw(entry)
        else:
            shell.end_job(entry)

    shell.loop.call_later(ASKS_AGAIN_WITHIN, drop)


def _find(identity: object) -> Process | None:
    match identity:
        case [int(pid), int(started)]:
            return Process.open(pid, started)
    return None


def _restore_process(shell: Shell, page: Page, owner: Process) -> None:
    if restore_client(shell, page, owner) is None:
        owner.close()
