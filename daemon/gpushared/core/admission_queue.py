"""Jobs on their way in: a submission is admitted, refused, or queued until it fits.

A job that comes later and has no higher priority takes no room on a GPU that a queued job could use. Otherwise a
stream of small jobs would keep a large one out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpushare.job_spec import JobSpec
from gpushare.quantity import format_bytes, format_duration
from gpushare.reasons import Code, Reason, words
from gpushared.core import admission, reservations, visibility
from gpushared.core.events import JobSubmitted, JobWithdrawn
from gpushared.core.instructions import JobAdmitted, JobQueued, JobRefused, Persist, Publish
from gpushared.core.model import A_YEAR, Bounds, Job, Submission
from gpushared.core.state import State
from gpushared.core.transaction import Transaction


def submitted(tx: Transaction, event: JobSubmitted) -> None:
    state = tx.state
    if event.job in state.jobs:
        # The wrapper has come back after a restart of the daemon: its job is admitted already.
        state.jobs[event.job].open = True
        tx.emit(JobAdmitted(event.job, tuple(state.jobs[event.job].bounds)))
        return
    inside = reservations.of_job(tx, event.spec)
    if isinstance(inside, Reason):
        _refuse(tx, event.job, event.spec, inside)
        return
    ahead = [waiting for waiting in state.queue.values() if waiting.spec.priority >= event.spec.priority]
    found = admission.place(state, event.spec, (), inside) if event.spec.gpus else {}
    if isinstance(found, Reason):
        _queue_or_refuse(tx, event, found)
    elif ahead and inside is None and _overtakes(tx, ahead, found):
        facts = tuple((words(visibility.name(one.spec)), f"waits for {one.spec.request}") for one in ahead[:4])
        message = f"{len(ahead)} jobs queue for room already" if len(ahead) > 1 else "a job queues for room already"
        reason = Reason(Code.NOT_ADMITTED, message, facts, "queue behind them with --wait")
        _queue_or_refuse(tx, event, reason)
    else:
        _admit(tx, event.job, event.spec, found)


def withdrawn(tx: Transaction, event: JobWithdrawn) -> None:
    if tx.state.queue.pop(event.job, None) is not None:
        tx.emit(Persist())
        admit_waiting(tx)


def admit_waiting(tx: Transaction) -> None:
    """Admit the queued jobs that fit now: by priority, then by arrival. None overtakes another on a GPU that both
    could use."""
    state = tx.state
    waited_for: set[str] = set()
    for waiting in sorted(state.queue.values(), key=lambda one: one.order):
        if tx.now < waiting.until and admission.is_blocked(state, waiting.spec, waited_for):
            continue
        inside = reservations.of_job(tx, waiting.spec)
        if isinstance(inside, Reason):  # the reservation was released meanwhile
            found: dict[str, Bounds] | Reason = inside
        else:
            found = admission.place(state, waiting.spec, waited_for, inside)
        if not isinstance(found, Reason):
            del state.queue[waiting.job]
            _admit(tx, waiting.job, waiting.spec, found)
        elif found.code is not Code.NOT_ADMITTED:
            # No GPU is left that it could wait for: they are lost, or have become too small.
            _drop(tx, waiting, found)
        elif tx.now >= waiting.until:
            message = words("the time given with --wait is over: ", found.message)
            hint = "request less, or wait longer with --wait"
            _drop(tx, waiting, replace(found, code=Code.WAIT_OVER, message=message, hint=hint))
        else:
            waited_for |= _waited_for(tx, (waiting,))


def places(state: State, bounds: Mapping[str, Bounds]) -> str:
    """The GPUs of a job with its request and limit on each, for a message."""
    return ", ".join(
        f"GPU {state.gpus[gpu].index} ({format_bytes(one.request)} requested, limit {format_bytes(one.limit)})"
        for gpu, one in bounds.items()
    )


def _queue_or_refuse(tx: Transaction, event: JobSubmitted, reason: Reason) -> None:
    if event.wait is None or reason.code is not Code.NOT_ADMITTED:
        _refuse(tx, event.job, event.spec, reason)
        return
    patience = f", or is refused in {format_duration(event.wait)}" if event.wait < A_YEAR else ""
    reason = replace(reason, hint=f"it starts when there is room for it{patience}")
    until = tx.now + event.wait
    tx.state.queue[event.job] = Submission(event.job, event.spec, tx.now - event.age, until)
    tx.emit(JobQueued(event.job, reason))
    tx.record_of_submission("queued", reason, event.job, event.spec)
    tx.emit(Persist())


def _admit(tx: Transaction, id: str, spec: JobSpec, bounds: dict[str, Bounds]) -> None:
    job = Job(id, spec, tx.now, dict(bounds))
    tx.state.add_job(job)
    tx.emit(JobAdmitted(id, tuple(bounds)))
    tx.record("admitted", f"admitted on {places(tx.state, bounds) or 'each GPU that it opens'}", job=job)
    tx.emit(Persist())
    for gpu in bounds:
        tx.emit(Publish(gpu))


def _refuse(tx: Transaction, job: str, spec: JobSpec, reason: Reason) -> None:
    tx.emit(JobRefused(job, reason))
    tx.record_of_submission("refused", reason, job, spec)


def _drop(tx: Transaction, waiting: Submission, reason: Reason) -> None:
    """Refuse a job that was queued."""
    del tx.state.queue[waiting.job]
    _refuse(tx, waiting.job, waiting.spec, reason)
    tx.emit(Persist())


def _overtakes(tx: Transaction, ahead: Iterable[Submission], found: Mapping[str, Bounds]) -> bool:
    """Whether it would take room on a GPU that a queued job waits for."""
    waited_for = _waited_for(tx, ahead)
    return any(bounds.request and gpu in waited_for for gpu, bounds in found.items())


def _waited_for(tx: Transaction, ahead: Iterable[Submission]) -> set[str]:
    """The GPUs that these jobs could use."""
    waited_for: set[str] = set()
    for waiting in ahead:
        gpus = admission.candidates(tx.state, waiting.spec)
        if not isinstance(gpus, Reason):
            waited_for.update(gpu.id for gpu in gpus)
        if len(waited_for) == len(tx.state.gpus):
            break  # a thousand jobs may be queued
    return waited_for
