"""Changes a running job's budget: first computes what it would become, then applies it.

The two are apart so that the shell can write the new budget to the state file before the change takes effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from gpushare.job_spec import JobSpec
from gpushare.quantity import Kind, Quantity, format_bytes
from gpushare.reasons import Code, Reason
from gpushared.core import admission, health, lending, measure
from gpushared.core.events import BudgetChanged
from gpushared.core.instructions import BudgetSet, Persist, Publish
from gpushared.core.model import Bounds, Job
from gpushared.core.state import State
from gpushared.core.transaction import Transaction

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Found:
    """What a job's budget becomes."""

    spec: JobSpec
    bounds: Mapping[str, Bounds]
    """By GPU."""


def find(state: State, event: BudgetChanged) -> Found | Reason:
    """The new budget, on all GPUs of the job, or why it is refused. Changes nothing."""
    job = state.jobs.get(event.job)
    if job is None:
        return Reason(Code.NO_SUCH_JOB, f"no job {event.job}", hint="see `gpushare ps`")
    request: Quantity = event.request or job.spec.request
    limit: Quantity = event.limit or job.spec.limit
    changed: dict[str, Bounds] = {}
    for id in job.bounds:
        found = _bounds_on(state, job, id, request, limit)
        if isinstance(found, Reason):
            return found
        changed[id] = found
    spec = job.spec._replace(
        request=request,
        limit=limit,
        request_source=event.request_source if event.request else job.spec.request_source,
        limit_source=event.limit_source if event.limit else job.spec.limit_source,
        priority=job.spec.priority if event.priority is None else event.priority,
    )
    return Found(spec, changed)


def _bounds_on(state: State, job: Job, id: str, request: Quantity, limit: Quantity) -> Bounds | Reason:
    gpu = state.gpus[id]
    found = admission.bounds_on(gpu, request, limit)
    if isinstance(found, Reason) or found.request <= job.bounds[id].request:
        return found
    if not gpu.health.admits:
        return health.none_left([gpu], 1)
    inside = state.reservations.get(job.spec.reservation)
    room = admission.unrequested(state, gpu, but=job, inside=inside)
    if found.request > room:
        wanted = job.spec._replace(request=request, gpus=1)
        refusal = admission.no_room(state, wanted, [gpu], but=job, inside=inside)
        return replace(refusal, hint=f"raise it to at most {max(0, room) // 2**20}Mi, or when one of these ends")
    return found


def would(state: State, id: str, found: Found, look: Callable[[], Seen]) -> tuple[Seen, str]:
    """What `look` returns with the new budget, and the note that would answer the change.

    The state is changed for the call of `look` only, not copied: a copy of a thousand jobs would take seconds.
    """
    job = state.jobs[id]
    spec, bounds = job.spec, dict(job.bounds)
    try:
        _set(state, job, found)
        return look(), _after_change(state, job)
    finally:
        _set(state, job, Found(spec, bounds))


def _set(state: State, job: Job, found: Found) -> None:
    for gpu, bounds in found.bounds.items():
        state.bind(job, gpu, bounds)
    job.spec = found.spec


def apply(tx: Transaction, id: str, found: Found) -> None:
    """A lower limit takes nothing away: it only stops growth."""
    state = tx.state
    job = state.jobs[id]
    _set(state, job, found)
    for ask in state.asks.values():
        if ask.job == id:
            ask.priority = job.spec.priority  # else a later ask of the same job would take its place
    tx.emit(BudgetSet(job.id, _after_change(state, job)))
    tx.record_reason("changed", _changed(state, job), job=job)
    tx.emit(Persist())
    for gpu in found.bounds:
        state.note_excess(job, gpu)
        tx.look(state.gpus[gpu])  # idle credit over the limit is taken before the change is answered
        measure.work_off(tx, state.gpus[gpu])
        lending.answer_asks(tx, state.gpus[gpu])
        tx.emit(Publish(gpu))


def _changed(state: State, job: Job) -> Reason:
    spec = job.spec
    bounds = {id: {"request": one.request, "limit": one.limit} for id, one in job.bounds.items()}
    less = _less_than_said(state, job)
    limit = _said(spec.limit) + (f" ({less})" if less else "")
    message = f"its budget is now: request {_said(spec.request)}, limit {limit}, priority {spec.priority}"
    return Reason(Code.BUDGET_CHANGED, message, data={"priority": spec.priority, "gpus": bounds})


def _said(amount: Quantity) -> str:
    """An engine says bytes."""
    return format_bytes(amount.value) if amount.text.isdecimal() else str(amount)


def _less_than_said(state: State, job: Job) -> str:
    """Where the limit is less than was said in bytes: no GPU gives more than it has."""
    limit = job.spec.limit
    if limit.kind is not Kind.BYTES:
        return ""
    less = [(state.gpus[id], one.limit) for id, one in job.bounds.items() if one.limit < limit.value]
    return ", ".join(f"{format_bytes(amount)} on GPU {gpu.index}, which can give no more" for gpu, amount in less)


def _after_change(state: State, job: Job) -> str:
    notes, over = [], []
    less = _less_than_said(state, job)
    if less:
        notes.append(f"the limit is {less}")
    for id, bounds in job.bounds.items():
        excess = state.usage(job, id) - bounds.limit
        if excess > 0:
            over.append(f"{format_bytes(excess)} above the new limit on GPU {state.gpus[id].index}")
    if over:
        notes.append(f"{', '.join(over)}: nothing is taken away, but the job cannot grow")
    return "; ".join(notes)
