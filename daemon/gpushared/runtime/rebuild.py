"""Another core, made from what stands outside one that has failed (shell.py says when and why).

    the GPUs          from the last inventory
    the jobs          from the registry, which says what their users have been told
    the processes     from their pages and the ledger, as after a restart
    who queues        from the registry, in the order of arrival

What only a core knows is taken from the failed one where it is of one piece, and cannot be half changed in a way that
matters: reservations, ages, learned overheads, health, memory on its way back, counters, stories. What was going on is
not: a claim begins anew with the time that it has left, and so does what was asked of borrowers for it.
"""

from __future__ import annotations

import time
from typing import Protocol

from gpushared.clients.clients import Clients
from gpushared.core import persistence
from gpushared.core.events import Event, GpuFound, JobEnded, JobRestored, JobSubmitted
from gpushared.core.node import NodeState
from gpushared.core.state import State
from gpushared.gpus.inventory import Inventory
from gpushared.jobs.registry import JobRecord, JobRegistry


class Shell(Protocol):
    """What stands outside a core (shell.py)."""

    core: NodeState
    gpus: Inventory
    registry: JobRegistry
    clients: Clients

    def restore(self, event: Event) -> None: ...


def rebuild(shell: Shell, failed: NodeState) -> None:
    """`shell.core` is fresh. Raises what a handler raises."""
    now, old = time.monotonic(), failed.state
    for info in shell.gpus.infos.values():
        shell.restore(GpuFound(info.uuid, info.index, info.name, info.total, info.reserved))
    _keep(shell.core.state, old)
    for reservation in persistence.restore_reservations(persistence.take_node(old, now), 0.0):
        shell.restore(reservation)
    records = list(shell.registry.live())
    for record in records:
        if record.state == "running":
            shell.restore(_job(record, old, now))
            if record.id in old.jobs:
                shell.core.jobs[record.id].story[:0] = old.jobs[record.id].story
    for client in shell.clients:
        seen = client.page.lines_seen()
        shell.restore(client.restored((client.page.gpus[line.index], line) for line in seen))
    for record in sorted(records, key=lambda record: record.began):
        if record.state == "queued" and record.admission is not None and not record.admission.done():
            shell.restore(submission(record))
    for record in records:
        if (
            record.state == "running"
            and not shell.clients.has_job(record.id)
            and (record.over or record.wrapper is None)
        ):
            shell.restore(JobEnded(record.id))
    for id, gpu in shell.core.gpus.items():
        if id in old.gpus:
            gpu.returning = {
                process: record for process, record in old.gpus[id].returning.items() if record.job in shell.core.jobs
            }
        gpu.excess = max(0, -gpu.free)


def submission(record: JobRecord) -> JobSubmitted:
    """One that queues, as it stands now."""
    now = time.monotonic()
    wait = None if record.patience is None else max(0.0, record.patience - now)
    return JobSubmitted(record.id, record.spec, wait, now - record.began)


def _keep(state: State, old: State) -> None:
    state.overheads.update(old.overheads)
    state.counters, state.records = old.counters, old.records
    for id, gpu in state.gpus.items():
        known = old.gpus.get(id)
        if known is not None:
            gpu.health, gpu.unmanaged = known.health, known.unmanaged
            gpu.some, gpu.full = known.some, known.full
            gpu.health.condition = max((one.condition for one in gpu.health.issues), default=gpu.health.condition)


def _job(record: JobRecord, old: State, now: float) -> JobRestored:
    known = old.jobs.get(record.id)
    if known is None:
        return JobRestored(record.id, record.spec, (), now - record.began, not record.over)
    saved = now - known.saved_at if known.saved_at >= known.since else None
    return JobRestored(record.id, record.spec, tuple(known.bounds), now - known.since, not record.over, saved)
