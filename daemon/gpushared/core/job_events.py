"""Events about a job that is admitted: restored, ended, checkpointed, its budget changed."""

from __future__ import annotations

from gpushare.reasons import Reason
from gpushared.core import admission, admission_queue, budget_change, hook_steps, lending, reclaim, suspend_steps
from gpushared.core.events import BudgetChanged, Checkpointed, JobEnded, JobRestored, JobWithdrawn, LeftAlone
from gpushared.core.instructions import BudgetRefused, JobClosed, Persist, Publish
from gpushared.core.model import Bounds, Job
from gpushared.core.transaction import Transaction


def restored(tx: Transaction, event: JobRestored) -> None:
    state = tx.state
    bounds = {}
    for id in event.gpus:
        gpu = state.gpus.get(id)
        if gpu is None:
            continue
        found = admission.bounds_on(gpu, event.spec.request, event.spec.limit)
        taken = gpu.requested + state.reserved(gpu.id)
        inside = state.reservations.get(event.spec.reservation)
        kept = state.remainder(inside, gpu.id) if inside is not None else 0
        if isinstance(found, Reason) or found.request > gpu.capacity - taken + kept:
            # The GPU, the reserve or the state file has changed: the job keeps its limit and loses its guarantee.
            found = Bounds(0, min(event.spec.limit.resolve(gpu.total), gpu.capacity))
        bounds[id] = found
    job = Job(event.job, event.spec, tx.now - event.age, bounds, open=event.open)
    job.restored_at = tx.now
    job.active_at = tx.now  # nothing is known about the time without a daemon: do not call it idle
    if event.saved is not None:
        job.saved_at = tx.now - event.saved
    state.add_job(job)
    if event.suspended is not None and event.suspended.gpu in bounds:
        suspend_steps.restore(tx, job, event.suspended)
    if event.asleep is not None:
        hook_steps.restore(tx, job, event.asleep)
    tx.record("restored", "restored by a daemon that started again", job=job)
    for id in bounds:
        tx.emit(Publish(id))


def ended(tx: Transaction, event: JobEnded) -> None:
    job = tx.state.jobs.get(event.job)
    if job is None:
        admission_queue.withdrawn(tx, JobWithdrawn(event.job))
        return
    job.open = False
    close_if_over(tx, job)


def close_if_over(tx: Transaction, job: Job) -> None:
    """Drop the job if its wrapper and all its processes have ended."""
    if job.open or job.processes:
        return
    tx.record("ended", "the job is over", job=job)
    tx.emit(JobClosed(job.id))
    tx.state.drop_job(job)
    tx.emit(Persist())
    admission_queue.admit_waiting(tx)
    for gpu in job.bounds:
        lending.answer_asks(tx, tx.state.gpus[gpu])
        tx.emit(Publish(gpu))


def checkpointed(tx: Transaction, event: Checkpointed) -> None:
    job = tx.state.jobs.get(event.job)
    if job is not None:
        job.saved_at = tx.now
        tx.emit(Persist())
        tx.record("checkpointed", "says that its work is saved", job=job)


def budget_changed(tx: Transaction, event: BudgetChanged) -> None:
    found = budget_change.find(tx.state, event)
    if isinstance(found, Reason):
        tx.emit(BudgetRefused(event.job, found))
        return
    budget_change.apply(tx, event.job, found)
    admission_queue.admit_waiting(tx)


def left_alone(tx: Transaction, event: LeftAlone) -> None:
    reclaim.left_alone(tx, event)
    for gpu in tx.state.gpus.values():
        lending.answer_asks(tx, gpu)
