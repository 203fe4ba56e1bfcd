"""Events about a process: it joins a job, is restored, closes its contexts, ends."""

from __future__ import annotations

from gpushare.reasons import Mention, words
from gpushared.core import job_events, lending, measure, reclaim_steps, suspend_steps, visibility
from gpushared.core.events import Detached, ProcessGone, ProcessJoined, ProcessRestored, Unmet
from gpushared.core.instructions import Kill, Persist, Publish
from gpushared.core.model import Bounds, Gpu, Job, Process, Returning, Share
from gpushared.core.transaction import Transaction


def joined(tx: Transaction, event: ProcessJoined) -> None:
    job = tx.state.jobs.get(event.job)
    if job is None or event.process in tx.state.processes:
        return
    tx.state.processes[event.process] = Process(event.process, job.id, event.pid, event.command, tx.now)
    job.processes.add(event.process)
    tx.record("joined", words(_program(job, event), " joins"), job=job, pid=event.pid)
    if job.killed is not None:
        tx.emit(Kill(job.id, (event.process,), job.killed))  # the whole job was killed: no process joins it any more


def restored(tx: Transaction, event: ProcessRestored) -> None:
    joined(tx, ProcessJoined(event.process, event.job, event.pid, event.command))
    state = tx.state
    if event.process not in state.processes:
        return
    job = state.jobs[event.job]
    for seen in event.shares:
        gpu = state.gpus.get(seen.gpu)
        if gpu is None or seen.gpu in state.processes[event.process].shares:
            continue
        if seen.gpu not in job.bounds:
            state.bind(job, gpu.id, Bounds(0, min(job.spec.limit.resolve(gpu.total), gpu.capacity)))
            tx.emit(Persist())
        credit = max(seen.credit, seen.used)
        attached = seen.overhead > 0  # a closed context is not charged; a new one will be
        share = Share(event.process, job.id, gpu.id, tx.now, credit, seen.used, seen.overhead, attached)
        state.add_share(share)
        if job.suspension is not None and job.suspension.gpu == gpu.id:
            suspend_steps.restore_share(tx, job, share)
        state.note_excess(job, gpu.id)
        tx.emit(Publish(gpu.id))


def gone(tx: Transaction, event: ProcessGone) -> None:
    """Its idle credit is free at once; the memory that it used is free when NVML shows so."""
    state = tx.state
    process = state.processes.get(event.process)
    if process is None:
        return
    job = state.jobs[process.job]
    for ask in [ask for ask in state.asks.values() if ask.process == process.id]:
        lending.drop_ask(tx, ask)
    touched = []
    for share in list(process.shares.values()):
        gpu = state.gpus[share.gpu]
        used = min(event.used.get(gpu.id, share.used), share.credit)
        _expect_back(tx, gpu, share, process.pid, used + share.overhead)
        state.drop_share(share)
        touched.append(gpu)
    job.processes.discard(process.id)
    del state.processes[process.id]
    if job.suspension is not None and not state.suspendable_shares(job, job.suspension.gpu):
        state.set_suspension(job, None)
        tx.emit(Persist())
    for gpu in touched:
        if not state.has_share(job, gpu.id):
            reclaim_steps.gone(tx, gpu, job)
    tx.record("left", words(_program(job, process), " has gone"), job=job, pid=process.pid)
    for gpu in touched:
        if gpu.asks and gpu.returning:
            tx.sample(gpu)  # an ask waits for this memory, and it may be free already
        lending.answer_asks(tx, gpu)
        tx.emit(Publish(gpu.id))
    job_events.close_if_over(tx, job)


def detached(tx: Transaction, event: Detached) -> None:
    """It has closed its contexts on a GPU, and lives on."""
    state = tx.state
    process = state.processes.get(event.process)
    share = process.shares.get(event.gpu) if process else None
    if process is None or share is None or not (share.attached or share.overhead):
        return
    gpu = state.gpus[event.gpu]
    share.attached = False
    gpu.guessed.discard(share.process)
    state.see(share, event.used)
    if share.parked is not None:
        share.parked.overhead = 0
    overhead = share.overhead
    state.change(share, overhead=-overhead)
    _expect_back(tx, gpu, share, process.pid, overhead)
    measure.work_off(tx, gpu)
    lending.answer_asks(tx, gpu)
    tx.emit(Publish(gpu.id))


def unmet(tx: Transaction, event: Unmet) -> None:
    """Allocations within its request failed while there was no daemon."""
    process = tx.state.processes.get(event.process)
    gpu = tx.state.gpus.get(event.gpu)
    if process is None or gpu is None:
        return
    tx.state.counters.violations["no_daemon"] += event.count
    times = "an allocation" if event.count == 1 else f"{event.count} allocations"
    text = f"{times} on GPU {gpu.index} failed within the request: no daemon answered in time"
    tx.record("unmet", text, job=tx.state.jobs[process.job], gpu=gpu.id, count=event.count)


def _expect_back(tx: Transaction, gpu: Gpu, share: Share, pid: int, amount: int) -> None:
    """The driver is about to free so many bytes; until NVML shows it, they are not free."""
    if amount <= 0:
        return
    earlier = gpu.returning.get(share.process)
    amount += earlier.amount if earlier else 0
    gpu.returning[share.process] = Returning(pid, share.job, amount, tx.now)


def _program(job: Job, process: Process | ProcessJoined) -> Mention:
    return visibility.program(job.spec.uid, process.command, process.pid)
