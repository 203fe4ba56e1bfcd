"""Events about an ask: a process wants to open a context, wants credit, or gives up. lending.py answers."""

from __future__ import annotations

from gpushare.quantity import format_bytes
from gpushare.reasons import Code, Reason
from gpushared.core import admission, admission_queue, lending
from gpushared.core.claims import cost_of_a_context
from gpushared.core.events import AskCancelled, AttachAsked, CreditAsked
from gpushared.core.instructions import Attached, Denied, Persist
from gpushared.core.model import Ask, Gpu, Job, whole_units
from gpushared.core.transaction import Transaction


def attach(tx: Transaction, event: AttachAsked) -> None:
    state = tx.state
    process, gpu = state.processes.get(event.process), state.gpus.get(event.gpu)
    if process is None or gpu is None:
        tx.emit(Denied(event.ask, event.process, event.gpu, _no_such_gpu(event.gpu)))
        return
    job = state.jobs[process.job]
    share = process.shares.get(gpu.id)
    if share is not None and share.attached and not event.another:
        tx.emit(Attached(event.ask, process.id, gpu.id, 0, 0))
        return
    refusal = _admit_on(tx, job, gpu)
    if refusal is not None:
        tx.emit(Denied(event.ask, process.id, gpu.id, refusal))
        lending.record_denial(tx, gpu, job, refusal)
        return
    cost = cost_of_a_context(tx, gpu, job)
    _wait_for(tx, Ask(event.ask, process.id, job.id, gpu.id, cost, tx.now - event.waited, attach=True))


def credit(tx: Transaction, event: CreditAsked) -> None:
    state = tx.state
    process = state.processes.get(event.process)
    share = process.shares.get(event.gpu) if process else None
    if process is None or share is None:
        tx.emit(Denied(event.ask, event.process, event.gpu, _no_such_gpu(event.gpu)))
        return
    job = state.jobs[process.job]
    job.active_at = tx.now
    if job.aside is not None:
        job.aside.asked = True
    if event.again:
        _refuse_for_driver(tx, event, job)
        return
    size = whole_units(event.size)
    ask = Ask(event.ask, process.id, process.job, event.gpu, size, tx.now - event.waited)
    ask.driver_failed, ask.allocation = event.driver_failed, event.allocation if event.allocation >= size else 0
    _wait_for(tx, ask)


def cancelled(tx: Transaction, event: AskCancelled) -> None:
    ask = tx.state.asks.get(event.ask)
    if ask is not None:
        lending.drop_ask(tx, ask)
        lending.answer_asks(tx, tx.state.gpus[ask.gpu])


def _wait_for(tx: Transaction, ask: Ask) -> None:
    ask.priority, ask.made = tx.state.jobs[ask.job].spec.priority, tx.now
    ask.deadline = ask.since + tx.policy.claim_timeout
    lending.add_ask(tx, ask)


def _admit_on(tx: Transaction, job: Job, gpu: Gpu) -> Reason | None:
    """A job that the environment alone has made is admitted on each GPU that it opens; other jobs stay on theirs."""
    if gpu.id in job.bounds:
        return None
    if job.spec.gpus:
        mine = tuple((f"GPU {tx.state.gpus[id].index}", id) for id in job.bounds)
        message = f"this job was not admitted on GPU {gpu.index}"
        return Reason(Code.NOT_ADMITTED, message, mine, "keep CUDA_VISIBLE_DEVICES as `gpushare run` sets it")
    found = admission.place(tx.state, job.spec._replace(gpus=1, devices=(gpu.id,)))
    if isinstance(found, Reason):
        return found
    for id, bounds in found.items():
        tx.state.bind(job, id, bounds)
    tx.record("admitted", f"admitted on {admission_queue.places(tx.state, found)}", job=job, gpu=gpu.id)
    tx.emit(Persist())
    return None


def _no_such_gpu(gpu: str) -> Reason:
    return Reason(Code.NO_SUCH_GPU, f"the daemon knows no GPU {gpu}", hint="see `gpushare status`")


def _refuse_for_driver(tx: Transaction, event: CreditAsked, job: Job) -> None:
    """The account and NVML agree that there is room, but the driver fails: its free memory is in pieces that are too
    small, or it has a fault. Within the request this breaks the guarantee, and is counted."""
    gpu = tx.state.gpus[event.gpu]
    within = tx.state.usage(job, gpu.id) <= job.bounds[gpu.id].request
    if within:
        tx.state.counters.violations["driver"] += 1
    amount = format_bytes(max(event.size, event.allocation))
    reason = Reason(
        Code.DRIVER_FAILED,
        f"the driver cannot allocate {amount} on GPU {gpu.index}, although there is room",
        (("request", "within it: its guarantee is not kept" if within else "above it"),),
        "its memory may be in too small pieces: for PyTorch set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        {"asked": max(event.size, event.allocation), "job": job.id, "within": within},
    )
    tx.emit(Denied(event.ask, event.process, gpu.id, reason))
    lending.record_denial(tx, gpu, job, reason)
