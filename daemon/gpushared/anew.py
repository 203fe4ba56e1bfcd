"""Another core, made from what stands outside one that has failed (shell.py says when and why).

    the GPUs          from the last inventory
    the jobs          from the book, which says what their users have been told
    the processes     from their pages and the ledger, as after a restart
    who queues        from the book, in the order of arrival

What only a core knows is taken from the failed one where it is of one piece, and cannot be half changed in a way that
matters: reservations, ages, learned overheads, health, memory on its way back, counters, stories. What was going on is
not: a claim begins anew with the time that it has left, and so does what was asked of borrowers for it.
"""

from __future__ import annotations

import time
from typing import Protocol

from gpushared.core import notes
from gpushared.core.events import Event, GpuFound, JobEnded, JobRestored, JobSubmitted
from gpushared.core.node import NodeState
from gpushared.core.state import State
from gpushared.devices.gpus import Gpus
from gpushared.jobs import Book, Entry
from gpushared.programs.clients import Clients


class Shell(Protocol):
    """What stands outside a core (shell.py)."""

    core: NodeState
    gpus: Gpus
    book: Book
    clients: Clients

    def restore(self, event: Event) -> None: ...


def rebuild(shell: Shell, failed: NodeState) -> None:
    """`shell.core` is fresh. Raises what a handler raises."""
    now, old = time.monotonic(), failed.state
    for info in shell.gpus.infos.values():
        shell.restore(GpuFound(info.uuid, info.index, info.name, info.total, info.reserved))
    _keep(shell.core.state, old)
    for reservation in notes.restore_reservations(notes.take_node(old, now), 0.0):
        shell.restore(reservation)
    entries = list(shell.book.live())
    for entry in entries:
        if entry.state == "running":
            shell.restore(_job(entry, old, now))
            if entry.id in old.jobs:
                shell.core.jobs[entry.id].story[:0] = old.jobs[entry.id].story
    for client in shell.clients:
        seen = client.page.lines_seen()
        shell.restore(client.restored((client.page.gpus[line.index], line) for line in seen))
    for entry in sorted(entries, key=lambda entry: entry.began):
        if entry.state == "queued" and entry.admission is not None and not entry.admission.done():
            shell.restore(submission(entry))
    for entry in entries:
        if entry.state == "running" and not shell.clients.has_job(entry.id) and (entry.over or entry.wrapper is None):
            shell.restore(JobEnded(entry.id))
    for id, gpu in shell.core.gpus.items():
        if id in old.gpus:
            gpu.returning = {
                process: entry for process, entry in old.gpus[id].returning.items() if entry.job in shell.core.jobs
            }
        gpu.excess = max(0, -gpu.free)


def submission(entry: Entry) -> JobSubmitted:
    """One that queues, as it stands now."""
    now = time.monotonic()
    wait = None if entry.patience is None else max(0.0, entry.patience - now)
    return JobSubmitted(entry.id, entry.spec, wait, now - entry.began)


def _keep(state: State, old: State) -> None:
    state.overheads.update(old.overheads)
    state.counters, state.records = old.counters, old.records
    for id, gpu in state.gpus.items():
        known = old.gpus.get(id)
        if known is not None:
            gpu.health, gpu.unmanaged = known.health, known.unmanaged
            gpu.some, gpu.full = known.some, known.full
            gpu.health.condition = max((one.condition for one in gpu.health.ailments), default=gpu.health.condition)


def _job(entry: Entry, old: State, now: float) -> JobRestored:
    known = old.jobs.get(entry.id)
    if known is None:
        return JobRestored(entry.id, entry.spec, (), now - entry.began, not entry.over)
    saved = now - known.saved_at if known.saved_at >= known.since else None
    return JobRestored(entry.id, entry.spec, tuple(known.bounds), now - known.since, not entry.over, saved)
