"""After a restart: who is there, what was promised, what is used. Nobody's help is needed for it.

    the GPUs        from the driver, before anything else
    the jobs        from state.json, if their wrapper or one of their processes lives
    the processes   from their pages: each has the words, the owner's pid and start time, and the job's id

A job without notes is rebuilt from its pages. Notes that cannot be read are set aside, not fatal: the pages hold
what matters. Shims then reconnect and present their pages, wrappers register again under their job's id, and both
find everything as it was.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushared import notes, state_file
from gpushared.events import JobEnded, JobRestored
from gpushared.hello import restore_client
from gpushared.logs import facts, log
from gpushared.pages import Page, Pages
from gpushared.processes import Process
from gpushared.shell import Shell


def recover(shell: Shell, pages: Pages) -> None:
    """Rebuild the core's state. The GPUs must be known to it already."""
    found = list(pages.reopen())
    _restore_jobs(shell, _read(shell.state_file.path), {f"{page.header.job_id:016x}" for page, _ in found})
    for page, owner in found:
        _restore_process(shell, page, owner)
    for entry in shell.book.live():
        if entry.wrapper is None and not shell.clients.has_job(entry.id):
            shell.feed(JobEnded(entry.id))
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


def _restore_job(shell: Shell, job: JobRestored, identity: dict[str, Any], since: float, has_pages: bool) -> None:
    wrapper = _find(identity.get("wrapper"))
    if wrapper is None and not has_pages:
        return
    entry = shell.book.open(job.job, job.spec)
    entry.state = "running"
    entry.started = float(identity.get("started", entry.started))
    if wrapper is not None:
        shell.book.set_wrapper(entry, wrapper, shell.readers)
    main = _find(identity.get("main"))
    if main is not None:
        shell.book.set_main(entry, main)
    shell.feed(replace(job, age=job.age + since))


def _find(identity: object) -> Process | None:
    match identity:
        case [int(pid), int(started)]:
            return Process.open(pid, started)
    return None


def _restore_process(shell: Shell, page: Page, owner: Process) -> None:
    if restore_client(shell, page, owner) is None:
        owner.close()
