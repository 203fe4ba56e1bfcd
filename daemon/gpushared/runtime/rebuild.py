"""Makes a core's state from what is outside it. A restart of the daemon and a failure of the core use the same code:

    GPUs          from the inventory
    jobs          from the registry
    processes     from their pages and the ledger
    the queue     from the registry, in order of arrival
    the rest      from what an earlier core knew (Earlier): reservations, ages, learned overheads

A daemon that starts first fills the registry and the clients (recovery.py), and reads Earlier from state.json. After a
failure both are there, and Earlier is taken from the failed core: also health, counters, stories, and memory on its way
back, which do no harm if they are half changed. Reclaims under way are lost in both cases: a claim begins again with
the time that it has left.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpushared.clients.clients import Client, Clients
from gpushared.core.events import JobEnded, JobRestored, JobSubmitted, ReservationRestored
from gpushared.core.node import NodeState
from gpushared.gpus.inventory import Inventory
from gpushared.jobs.lifecycle import JobLifecycle
from gpushared.jobs.registry import JobRecord, JobState
from gpushared.runtime.core_loop import CoreLoop
from gpushared.runtime.driver_questions import gpu_found
from gpushared.runtime.hook_runners import HookRunners
from gpushared.runtime.suspenders import Suspenders


class Outside(NamedTuple):
    """What is outside a core."""

    gpus: Inventory
    jobs: JobLifecycle
    clients: Clients
    suspenders: Suspenders
    hook_runners: HookRunners


@dataclass(frozen=True, slots=True)
class Earlier:
    """What only an earlier core knew."""

    jobs: Mapping[str, JobRestored]
    """By id."""
    reservations: Sequence[ReservationRestored] = ()
    overheads: Mapping[str, int] | None = None
    core: NodeState | None = None
    """The core that failed; None after a restart."""

    @classmethod
    def of(cls, core: NodeState) -> Earlier:
        now = time.monotonic()
        jobs = {job.job: job for job in core.jobs_to_restore(now)}
        return cls(jobs, core.reservations_to_restore(now), core=core)


def rebuild(core_loop: CoreLoop, outside: Outside, earlier: Earlier) -> None:
    """The core of `core_loop` is fresh. Raises what a handler raises."""
    core, registry, clients = core_loop.core, outside.jobs.registry, outside.clients
    for info in outside.gpus.infos.values():
        core_loop.restore(gpu_found(info))
    core.learn(earlier.overheads or {})
    if earlier.core is not None:
        core.inherit(earlier.core)
    for reservation in earlier.reservations:
        core_loop.restore(reservation)
    records = list(registry.live())
    running = [record for record in records if record.state is JobState.RUNNING]
    for record in running:
        core_loop.restore(_job(record, clients, earlier))
    for client in clients:
        core_loop.restore(client.restored())
    for record in running:
        for followers in (outside.suspenders, outside.hook_runners):
            there = followers.known(record.id)
            if there is not None:
                core_loop.restore(there)
                followers.ask_again(record.id)
    for record in running:
        held = not record.over and outside.jobs.lasts_without_processes(record)
        if not held and not clients.has_job(record.id):
            outside.jobs.note_end(record)
            core_loop.restore(JobEnded(record.id))
    for record in sorted(records, key=lambda record: record.began):
        if record.state is JobState.QUEUED and record.is_asked_for:
            core_loop.restore(submission(record))
    if earlier.core is not None:
        core.inherit_jobs(earlier.core)


def submission(record: JobRecord) -> JobSubmitted:
    """A job that queues, as it stands now."""
    now = time.monotonic()
    wait = None if record.patience is None else max(0.0, record.patience - now)
    return JobSubmitted(record.id, record.spec, wait, now - record.began)


def _job(record: JobRecord, clients: Clients, earlier: Earlier) -> JobRestored:
    known = earlier.jobs.get(record.id)
    if known is not None:
        return replace(known, spec=record.spec, open=not record.over)
    return new_to_core(record, clients.of_job(record.id))


def new_to_core(record: JobRecord, clients: Sequence[Client]) -> JobRestored:
    """A job that no core knows: its GPUs are those that the pages of its processes name."""
    gpus = dict.fromkeys(gpu for client in clients for gpu in client.page.gpus)
    return JobRestored(record.id, record.spec, tuple(gpus), time.monotonic() - record.began, not record.over)
