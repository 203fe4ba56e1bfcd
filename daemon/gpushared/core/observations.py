"""What the daemon has observed: `used` in the pages, credit that was revoked, memory that NVML shows."""

from __future__ import annotations

from collections import Counter

from gpushared.core import admission_queue, claims, idle, job_events, lending, measure
from gpushared.core.events import MemorySampled, Revoked, UsedSeen
from gpushared.core.instructions import Publish
from gpushared.core.model import Gpu
from gpushared.core.transaction import Transaction


def used_seen(tx: Transaction, event: UsedSeen) -> None:
    gpu = tx.state.gpus[event.gpu]
    gpu.looking = False
    gpu.seen_at = tx.now
    unanswered = Counter(ask.process for ask in gpu.asks.values())
    for process, used in event.used.items():
        share = gpu.shares.get(process)
        if share is None:
            continue
        share.trim = event.trims.get(process)
        share.pinned = event.pinned.get(process, "")
        share.ending, share.moving = process in event.ending, process in event.moving
        _note_stopped(tx, gpu, process, process in event.stopped)
        measure.count_contexts(tx, share, event.contexts.get(process, -1))
        if process in gpu.holds:
            answered = event.asking.get(process, 0) - unanswered[process]
            if answered <= 0 or tx.now >= gpu.holds[process] + tx.policy.hold:
                tx.state.end_hold(share)
            while len(share.granted) > answered > 0:
                share.granted.popleft()  # calls take their credit in about the order of the answers
        freed = measure.has_freed(share, event.releases)
        if tx.state.see(share, used) or freed:
            tx.state.jobs[share.job].active_at = tx.now
    if event.host_available is not None:
        tx.state.host_available = event.host_available
    claims.measure_asks(tx, gpu)
    for ask in gpu.asks.values():
        ask.looked, ask.verified = True, ask.closely
    measure.work_off(tx, gpu)
    lending.answer_asks(tx, gpu)
    idle.look(tx, gpu)


def _note_stopped(tx: Transaction, gpu: Gpu, process: int, stopped: bool) -> None:
    """Nothing is kept free for a job that stands still."""
    known = tx.state.processes[process]
    if known.stopped is not stopped:
        known.stopped = stopped
        tx.emit(Publish(gpu.id))


def revoked(tx: Transaction, event: Revoked) -> None:
    gpu = tx.state.gpus[event.gpu]
    gpu.revoking = max(0, gpu.revoking - 1)
    share = gpu.shares.get(event.process)
    if share is not None:
        tx.state.change(share, credit=-event.taken)
        tx.state.see(share, event.used)
        tx.state.counters.revoked_bytes += event.taken
    if not gpu.revoking:
        lending.answer_asks(tx, gpu)
        tx.emit(Publish(gpu.id))


def memory_sampled(tx: Transaction, event: MemorySampled) -> None:
    gpu = tx.state.gpus.get(event.gpu)
    if gpu is None:
        return
    measure.take_sample(tx, gpu, event)
    for job in tx.state.owners(gpu.id):
        job_events.close_if_over(tx, job)  # its last program may be a static one: only the sample shows its end
    for ask in gpu.asks.values():
        ask.sampled = ask.sampled or event.begun is None or event.begun >= ask.made
    idle.look(tx, gpu)
    lending.answer_asks(tx, gpu)
    admission_queue.admit_waiting(tx)


def note_pressure(gpu: Gpu, now: float) -> None:
    """Run or stop the GPU's pressure clocks (pressure.py)."""
    blocked = {ask.job for ask in gpu.asks.values() if ask.short}
    gpu.some.note(now, bool(blocked))
    gpu.full.note(now, bool(blocked) and all(share.job in blocked for share in gpu.shares.values()))
