"""Overuse: memory that a job uses beyond its credit. NVML shows it, and `on_breach` in the settings says what follows.

The library keeps programs within their credit, with two exceptions. A process of the job may have no page (a static or
setuid program): it is *unhooked*. Or the page does not say what the process uses, because it was edited or no hook saw
the memory: NVML then shows more overhead. The next sample finds both.

    warn   the processes are named; an unhooked process is not charged to its job, like any unmanaged program
    deny   unhooked processes are charged to their job, which cannot grow as long as it is above its limit
    kill   as deny; and a job that stays above its limit for a second is stopped
"""

from __future__ import annotations

from collections.abc import Mapping

from gpushare.quantity import format_bytes
from gpushare.reasons import Code, Mention, Reason, joined, words
from gpushared.core import reclaim_steps, visibility
from gpushared.core.events import MemorySampled
from gpushared.core.instructions import Kill, Notify
from gpushared.core.model import Gpu, Job, Process, Share, whole_units
from gpushared.core.transaction import Transaction


def unhooked_id(pid: int) -> int:
    """The id of its share: negative, because the ids of pages are not."""
    return -pid


def correct_unhooked(tx: Transaction, gpu: Gpu, sample: MemorySampled, by_pid: Mapping[int, int]) -> None:
    """Give each unhooked process a share of its job: all overhead, of the size that NVML shows.

    A program may have become another (exec) under the same pid. Memory of the earlier program that is on its way back
    is not charged to the new one, unless it does not come back in time.
    """
    state = tx.state
    coming_back: dict[int, int] = {}
    for entry in gpu.returning.values():
        if tx.now - entry.since <= tx.policy.unkillable_after:
            coming_back[entry.pid] = coming_back.get(entry.pid, 0) + entry.amount
    charged = {} if tx.policy.on_breach == "warn" else sample.unhooked
    for id in [one for one in gpu.shares if one < 0]:
        share = gpu.shares[id]
        if charged.get(state.processes[id].pid) is None:
            _drop(tx, share)
    for one in state.jobs.values():
        one.observed.pop(gpu.id, None)
    for pid, process in sample.unhooked.items():
        job = state.jobs.get(process.job)
        if job is None or gpu.id not in job.bounds:
            continue
        amount = whole_units(max(0, by_pid.get(pid, 0) - coming_back.get(pid, 0)))
        if job.spec.observe:
            job.observed[gpu.id] = job.observed.get(gpu.id, 0) + amount
            continue
        known = gpu.shares.get(unhooked_id(pid))
        if known is None and not amount:
            continue
        if known is not None:
            state.change(known, overhead=amount - known.overhead)
        elif pid in charged:
            owner = state.processes.get(unhooked_id(pid)) or _join(tx, job, pid, process.command)
            state.add_share(Share(owner.id, job.id, gpu.id, tx.now, overhead=amount, measured=True))
        if known is None:
            _tell_of_unhooked(tx, gpu, job, visibility.program(job.spec.uid, process.command, pid), amount)


def _join(tx: Transaction, job: Job, pid: int, command: str) -> Process:
    process = tx.state.processes[unhooked_id(pid)] = Process(unhooked_id(pid), job.id, pid, command, tx.now)
    job.processes.add(process.id)
    return process


def _drop(tx: Transaction, share: Share) -> None:
    """An unhooked process has ended, or NVML shows no memory of it on the GPU any more."""
    state = tx.state
    state.drop_share(share)
    process = state.processes[share.process]
    job, gpu = state.jobs[share.job], state.gpus[share.gpu]
    if not state.has_share(job, gpu.id):
        reclaim_steps.gone(tx, gpu, job)
    if not process.shares:
        state.jobs[process.job].processes.discard(process.id)
        del state.processes[process.id]


def _tell_of_unhooked(tx: Transaction, gpu: Gpu, job: Job, who: Mention, amount: int) -> None:
    if job.unhooked_told.get(who.own) == gpu.id:
        return
    job.unhooked_told[who.own] = gpu.id
    counted = "it is not counted" if tx.policy.on_breach == "warn" else "it is counted against the job's limit"
    reason = Reason(
        Code.BREACH,
        words(who, f" uses {format_bytes(amount)} of GPU {gpu.index} without gpushare's library"),
        (("job", words(visibility.name(job.spec), f" ({job.id}), under which it was started")),),
        f"a static or setuid program cannot be kept to a budget; {counted}",
        {"process": who, "amount": amount, "gpu": gpu.id, "job": job.id},
    )
    tx.record_reason("unhooked", reason, job=job, gpu=gpu.id)
    tx.emit(Notify(job.id, "unhooked", reason))


def check(tx: Transaction, gpu: Gpu) -> None:
    """After a sample: act on jobs that are above their limit by measured memory, not because it was lowered."""
    state = tx.state
    slack = max(tx.policy.breach_least, int(gpu.total * tx.policy.breach_share))
    for id in dict.fromkeys(share.job for share in gpu.shares.values()):
        job = state.jobs[id]
        over = state.usage(job, gpu.id) - job.bounds[gpu.id].limit
        allocated = sum(share.used for share in state.shares_of(job, gpu.id))
        if over <= slack or allocated > job.bounds[gpu.id].limit:
            job.breaches.pop(gpu.id, None)
            continue
        since = job.breaches.setdefault(gpu.id, tx.now)
        reason = _why(tx, gpu, job, over)
        if since == tx.now:
            state.counters.breaches += 1
            tx.record_reason("breach", reason, job=job, gpu=gpu.id)
            tx.emit(Notify(job.id, "breach", reason))
        elif tx.policy.on_breach == "kill" and tx.now - since >= tx.policy.breach_lasts and job.killed is None:
            job.killed = reason
            state.counters.kills_for_breach += 1
            tx.emit(Kill(job.id, tuple(sorted(job.processes)), reason))
            tx.record_reason("kill", reason, words("killed: ", reason.message), job=job, gpu=gpu.id)


def _why(tx: Transaction, gpu: Gpu, job: Job, over: int) -> Reason:
    state = tx.state
    bounds, usage = job.bounds[gpu.id], state.usage(job, gpu.id)
    largest = sorted(state.shares_of(job, gpu.id), key=lambda share: (-share.overhead, share.process))
    uid = job.spec.uid
    named = [
        words(visibility.program(uid, process.command, process.pid), f" {format_bytes(share.overhead)}")
        for share, process in ((share, state.processes[share.process]) for share in largest[:4])
        if share.overhead
    ]
    facts = (
        ("limit", format_bytes(bounds.limit)),
        ("in use", f"{format_bytes(usage)}, as the driver sees it"),
        ("uncounted", joined(", ", named)),
    )
    data = {
        "gpu": gpu.id,
        "job": job.id,
        "over": over,
        "usage": usage,
        "limit": bounds.limit,
        "request": bounds.request,
        "loan": state.loan(job, gpu.id),
    }
    first = state.processes[largest[0].process]
    do = "and others use" if len(named) > 1 else "uses"
    more = f" {do} {format_bytes(over)} more of GPU {gpu.index} than the job's limit, past gpushare's account"
    message = words(visibility.program(uid, first.command, first.pid), more)
    hint = "contexts and loaded modules count: raise --limit, and --request with it, if that is what it needs"
    return Reason(Code.BREACH, message, facts, hint, data)
