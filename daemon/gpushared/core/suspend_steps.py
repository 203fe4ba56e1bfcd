"""Carries out what suspend.py and resume.py decide, with notices and records; and takes what suspenders answer."""

from __future__ import annotations

from dataclasses import replace

from gpushare.quantity import format_bytes, format_duration
from gpushare.reasons import Code, Reason, words
from gpushared.core.events import SuspendedBefore
from gpushared.core.instructions import (
    Kill,
    Notify,
    OpenGate,
    Persist,
    Publish,
    Resume,
    Revoke,
    Suspend,
    Terminate,
)
from gpushared.core.model import Gpu, Job, Returning, Share
from gpushared.core.suspend import ANSWER_MARGIN, allowed, expected, grace_left
from gpushared.core.suspension import SuspendState, Suspension
from gpushared.core.transaction import Transaction

LONGEST_PAUSE = 60.0
"""Seconds between two tries to resume."""


def begin(tx: Transaction, gpu: Gpu, job: Job, within: float, reason: Reason, *, held: bool = False) -> None:
    """Ask its suspender, which has `within` seconds. Idle credit is revoked: no call of the job can use it now."""
    usage = tx.state.usage(job, gpu.id)
    number = tx.next_command()
    suspension = Suspension(gpu.id, SuspendState.SUSPENDING, tx.now, number, usage, held=held, reason=reason)
    suspension.deadline = tx.now + within + ANSWER_MARGIN
    tx.state.set_suspension(job, suspension)
    for share in _shares(tx, job):
        tx.state.end_hold(share)
        if share.idle:
            gpu.revoking += 1
            tx.emit(Revoke(share.process, gpu.id, share.idle))
    for ask in gpu.asks.values():
        if ask.job == job.id:
            ask.claim = ask.short = False
    tx.emit(Suspend(job.id, number, _processes(tx, job), usage, within))
    tx.emit(Persist())


def ask_again(tx: Transaction, job: Job) -> bool:
    """Its suspender was ended before the driver had taken the memory, or the daemon before that one heard the command:
    ask the present one, in what is left of the time. False: too little is left, or no process has memory any more."""
    suspension, gpu = _of(tx, job)
    if suspension.deadline is None:
        return False
    usage = tx.state.usage(job, gpu.id)
    left = suspension.deadline - ANSWER_MARGIN - tx.now
    if left < expected(tx.state, gpu, usage):
        return False
    suspension.number = tx.next_command()
    tx.emit(Suspend(job.id, suspension.number, _processes(tx, job), usage, left))
    tx.emit(Persist())
    return True


def restore(tx: Transaction, job: Job, before: SuspendedBefore) -> None:
    """As an earlier daemon has noted it. If its memory was on the way, it may be on the GPU, or be moved just now: it
    is charged until its suspender says where it is. That one is busy in the driver until then."""
    under_way = SuspendState.SUSPENDING if before.leaving else SuspendState.RESUMING
    state = under_way if before.command else SuspendState.SUSPENDED
    suspension = Suspension(before.gpu, state, tx.now - before.age, before.command, 0, held=before.held)
    tx.note_command(before.command)
    tx.state.set_suspension(job, suspension)


def restore_share(tx: Transaction, job: Job, share: Share) -> None:
    """Of such a job: its page says what it had."""
    suspension, gpu = _of(tx, job)
    suspension.host += share.usage
    if suspension.state is SuspendState.SUSPENDED:
        tx.state.park(share)
    else:
        within = allowed(tx.state, gpu, suspension.host)
        suspension.deadline = tx.policy.helper_due(job) + within + ANSWER_MARGIN


def suspended(tx: Transaction, job: Job, seconds: float) -> None:
    """Its memory is in host memory. It is free for others when NVML shows so."""
    suspension, gpu = _of(tx, job)
    got = tx.state.usage(job, gpu.id)
    for share in _shares(tx, job):
        amount = share.usage
        tx.state.park(share)
        if amount:
            pid = tx.state.processes[share.process].pid
            gpu.returning[share.process] = Returning(pid, job.id, amount, tx.now)
    if seconds > 0 and got:
        tx.state.suspend_rate[gpu.name] = got / seconds
    suspension.state, suspension.deadline, suspension.host = SuspendState.SUSPENDED, None, got
    tx.state.end_reclaim(job, gpu.id)
    tx.state.counters.suspends += 1
    tx.state.counters.suspended_bytes += got
    text = f"suspended: its {format_bytes(got)} of GPU {gpu.index} are in host memory now"
    tx.record("suspended", text, job=job, gpu=gpu.id, got=got, seconds=tx.now - suspension.since, driver=seconds)
    reason = suspension.reason or (why_by_user(tx, gpu, job) if suspension.held else _why_noted(gpu, got))
    tx.emit(Notify(job.id, "suspended", reason))
    tx.emit(Persist())
    tx.emit(Publish(gpu.id))
    tx.sample(gpu)


def not_suspended(tx: Transaction, job: Job, problem: str) -> None:
    """It could not be suspended, and runs on. The claims that wait for its memory go on to the next step."""
    _, gpu = _of(tx, job)
    tx.state.end_reclaim(job, gpu.id)
    tx.state.set_suspension(job, None)
    job.suspender.failure = (tx.now, problem)
    tx.state.counters.suspend_failures["suspend"] += 1
    tx.record("not_suspended", f"could not be suspended, and runs on: {problem}", job=job, gpu=gpu.id)
    reason = Reason(Code.NOT_SUSPENDED, f"this job could not be suspended, and runs on: {problem}")
    tx.emit(Notify(job.id, "not_suspended", reason))
    _let_run(tx, job)


def resume(tx: Transaction, job: Job, within: float) -> None:
    """Reserve its memory, and ask its suspender, which has `within` seconds."""
    suspension, gpu = _of(tx, job)
    _charge_again(tx, job)
    suspension.state, suspension.number = SuspendState.RESUMING, tx.next_command()
    suspension.deadline = tx.now + within + ANSWER_MARGIN
    tx.emit(Resume(job.id, suspension.number, _processes(tx, job), suspension.host, within))
    tx.emit(Persist())
    tx.emit(Publish(gpu.id))


def resumed(tx: Transaction, job: Job, seconds: float) -> None:
    """It runs again."""
    suspension, gpu = _of(tx, job)
    _charge_again(tx, job)  # if it resumed by hand, or was never suspended
    tx.state.set_suspension(job, None)
    job.resumed_at = job.active_at = tx.now
    tx.state.counters.resumes += 1
    span = format_duration(round(tx.now - suspension.since, 1))
    text = f"runs again on GPU {gpu.index}, {span} after it was suspended"
    tx.record("resumed", text, job=job, gpu=gpu.id, seconds=tx.now - suspension.since, driver=seconds)
    tx.emit(Notify(job.id, "resumed", Reason(Code.RESUMED, f"this job runs again, {span} after it was suspended")))
    _let_run(tx, job)


def not_resumed(tx: Transaction, job: Job, problem: str) -> None:
    """It is still in host memory; it is tried again."""
    suspension, gpu = _of(tx, job)
    for share in _shares(tx, job):
        if share.parked is None:
            tx.state.park(share)
    suspension.state, suspension.deadline = SuspendState.SUSPENDED, None
    pause = min(LONGEST_PAUSE, tx.policy.resume_retry * 2**suspension.failures)
    suspension.failures += 1
    suspension.not_before = tx.now + pause
    tx.state.counters.suspend_failures["resume"] += 1
    text = f"could not resume, and is tried again in {format_duration(pause)}: {problem}"
    tx.record("not_resumed", text, job=job, gpu=gpu.id)
    tx.emit(Persist())
    tx.emit(Publish(gpu.id))


def stuck(tx: Transaction, job: Job, problem: str) -> None:
    """Nobody knows a way back. It must not hang: it is told to end, and killed after its grace."""
    suspension, gpu = _of(tx, job)
    what = "resume" if suspension.state is SuspendState.RESUMING else "suspend"
    tx.state.counters.suspend_failures[what] += 1
    tx.state.end_reclaim(job, gpu.id)
    grace = grace_left(tx.state, job, gpu, tx.now)
    suspension.state, suspension.deadline = SuspendState.STUCK, tx.now + grace
    suspension.reason = Reason(
        Code.SUSPEND_STUCK,
        f"this job cannot be brought back after it was to {what}: {problem}",
        (("grace", format_duration(grace)),),
        "its work since the last checkpoint is lost; start it again, without the step suspend if this repeats",
        {"gpu": gpu.id, "grace": grace, "usage": tx.state.usage(job, gpu.id), "victim": job.id},
    )
    tx.emit(Terminate(job.id, tuple(sorted(job.processes)), grace, suspension.reason))
    tx.record_reason("stuck", suspension.reason, job=job, gpu=gpu.id)
    tx.emit(Persist())


def kill_stuck(tx: Transaction, job: Job) -> None:
    """Its grace is over."""
    suspension, gpu = _of(tx, job)
    assert suspension.reason is not None
    suspension.deadline = None
    job.killed = suspension.reason
    tx.state.counters.kills += 1
    tx.emit(Kill(job.id, tuple(sorted(job.processes)), suspension.reason))
    text = words("killed: it could not be brought back after a suspension, and its grace is over")
    tx.record_reason("kill", suspension.reason, text, job=job, gpu=gpu.id)


def why_by_user(tx: Transaction, gpu: Gpu, job: Job) -> Reason:
    amount = format_bytes(tx.state.usage(job, gpu.id))
    message = f"this job is suspended, as its user wants: {amount} of GPU {gpu.index} are in host memory"
    return Reason(Code.SUSPENDED, message, hint=f"`gpushare resume {job.id}` brings it back")


def why_for(tx: Transaction, gpu: Gpu, job: Job, reason: Reason) -> Reason:
    """From the reason of a reclaim."""
    facts = tuple(fact for fact in reason.facts if fact[0] != "grace")
    return replace(_why_noted(gpu, tx.state.usage(job, gpu.id)), facts=facts, data=reason.data)


def _why_noted(gpu: Gpu, amount: int) -> Reason:
    """For whom, only an earlier daemon knew."""
    message = (
        f"this job is suspended: {format_bytes(amount)} of GPU {gpu.index} go to host memory until there is room again"
    )
    return Reason(Code.SUSPENDED, message, hint="nothing is lost: it goes on by itself")


# ---- the parts of a step ---------------------------------------------------------------------------


def _of(tx: Transaction, job: Job) -> tuple[Suspension, Gpu]:
    assert job.suspension is not None
    return job.suspension, tx.state.gpus[job.suspension.gpu]


def _shares(tx: Transaction, job: Job) -> list[Share]:
    _, gpu = _of(tx, job)
    return tx.state.suspendable_shares(job, gpu.id)


def _processes(tx: Transaction, job: Job) -> tuple[int, ...]:
    return tuple(sorted(share.process for share in _shares(tx, job)))


def _charge_again(tx: Transaction, job: Job) -> None:
    """All that is charged as in host memory is charged on the GPU."""
    _, gpu = _of(tx, job)
    for share in _shares(tx, job):
        if share.parked is not None:
            gpu.returning.pop(share.process, None)
            tx.state.unpark(share)
    tx.state.note_excess(job, gpu.id)


def _let_run(tx: Transaction, job: Job) -> None:
    """Its calls go on. Those that have asked begin their wait now."""
    for gpu in tx.state.gpus.values():
        for ask in gpu.asks.values():
            if ask.job == job.id:
                ask.since = ask.made = tx.now
                ask.deadline = tx.now + tx.policy.claim_timeout
                ask.looked = ask.sampled = ask.verified = ask.closely = False
        tx.emit(Publish(gpu.id))
    tx.emit(OpenGate(job.id, tuple(sorted(job.processes))))
    tx.emit(Persist())
