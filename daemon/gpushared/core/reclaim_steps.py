"""Carries out reclaim steps: trims, stops and kills borrowers, with notices and records. reclaim.py decides when."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gpushare.quantity import format_bytes, format_duration
from gpushare.reasons import Code, Reason, Words, words
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import hook_steps, suspend_steps, visibility
from gpushared.core import suspend as suspend_rules
from gpushared.core.events import TrimSeen
from gpushared.core.instructions import Kill, Notify, Terminate, Trim
from gpushared.core.model import Ask, Gpu, Job, Reclaim
from gpushared.core.transaction import Transaction

NOT_SUSPENDED = "not suspended"
"""The label of a fact."""


class _Step(NamedTuple):
    step: ReclaimStep
    deadline: float
    reason: Reason


def trim(tx: Transaction, gpu: Gpu, job: Job, claim: Ask, size: int) -> None:
    """Ask all its processes that listen to free what their allocators only keep."""
    shares = [share for share in tx.state.shares_of(job, gpu.id) if share.trim is not None]
    for share in shares:
        share.trim = TrimSeen(begun=False, done=False)
    reason = _why(tx, gpu, job, claim, tx.policy.trim)
    facts = (*reason.facts[:-1], ("within", format_duration(tx.policy.trim)))
    reason = replace(reason, facts=facts, hint="nothing is lost: only caches are asked for")
    _step_on(tx, gpu, job, claim, _Step(ReclaimStep.TRIM, tx.now + tx.policy.trim, reason))
    job.trimmed_at[gpu.id] = tx.now
    tx.state.counters.trims += 1
    tx.emit(Trim(job.id, tuple(sorted(share.process for share in shares)), gpu.id, size, tx.policy.trim, reason))
    owner = visibility.name(tx.state.jobs[claim.job].spec)
    what = f"{format_bytes(claim.wanted)} of GPU {gpu.index}"
    loan = format_bytes(tx.state.loan(job, gpu.id))
    text = words("asked to trim its caches: ", owner, f" wants {what}, and this job has {loan} there on loan")
    tx.record_reason("trim", reason, text, job=job, gpu=gpu.id)


def trim_over(tx: Transaction, gpu: Gpu, job: Job, *, answered: bool) -> None:
    """Its trim has ended. It stays under reclaim until the next step is needed, or none."""
    reclaim = job.reclaims[gpu.id]
    reclaim.answered = True
    got = max(0, reclaim.loan - tx.state.loan(job, gpu.id))
    tx.state.counters.trimmed_bytes += got
    seconds = tx.now - reclaim.since
    if answered:
        text = f"trimming gave {format_bytes(got)} of GPU {gpu.index} back in {format_duration(seconds)}"
    else:
        what = f"{format_bytes(got)} of GPU {gpu.index}"
        text = f"no answer to the trim within {format_duration(seconds)}; {what} came back"
    tx.record("trimmed", text, job=job, gpu=gpu.id, got=got, owner=reclaim.owner, seconds=seconds, answered=answered)


def hook(tx: Transaction, gpu: Gpu, job: Job, claim: Ask, wish: hook_steps.Wish) -> None:
    """Have its relief hook called."""
    within = wish.within
    reason = _why(tx, gpu, job, claim, within)
    facts = (*reason.facts[:-1], ("within", format_duration(round(within, 1))))
    reason = replace(reason, facts=facts, hint=None)
    _step_on(tx, gpu, job, claim, _Step(ReclaimStep.HOOK, tx.now + within, reason))
    owner = visibility.name(tx.state.jobs[claim.job].spec)
    wants = f" wants {format_bytes(claim.wanted)} of GPU {gpu.index}; the hook has {format_duration(round(within, 1))}"
    tx.record_reason("hook", reason, words("its hook is called: ", owner, wants), job=job, gpu=gpu.id)
    hook_steps.relieve(tx, job, gpu.id, wish)


def suspend(tx: Transaction, gpu: Gpu, job: Job, claim: Ask, within: float) -> None:
    """Have its memory go to host memory, within so many seconds."""
    reason = suspend_steps.why_for(tx, gpu, job, _why(tx, gpu, job, claim, 0.0))
    _step_on(tx, gpu, job, claim, _Step(ReclaimStep.SUSPEND, tx.now + within, reason))
    owner = visibility.name(tx.state.jobs[claim.job].spec)
    loan = format_bytes(tx.state.loan(job, gpu.id))
    wants = f" wants {format_bytes(claim.wanted)} of GPU {gpu.index}, and this job has {loan} there on loan"
    tx.record_reason("suspend", reason, words("is suspended: ", owner, wants), job=job, gpu=gpu.id)
    suspend_steps.begin(tx, gpu, job, within, reason)


def stop(tx: Transaction, gpu: Gpu, victim: Job, claim: Ask, needed_by: float) -> None:
    """End a job for its loan: with SIGTERM and grace, unless it excludes them and may be killed. The grace is cut so
    that the memory is back at `needed_by` (seconds)."""
    if ReclaimStep.TERM in victim.spec.on_reclaim or tx.policy.last_step == ReclaimStep.TERM:
        _terminate(tx, gpu, victim, claim, needed_by)
    else:
        _step_on(tx, gpu, victim, claim, _Step(ReclaimStep.KILL, tx.now, _why_stopped(tx, gpu, victim, claim, 0.0)))
        kill(tx, gpu, victim, claim)


def _terminate(tx: Transaction, gpu: Gpu, victim: Job, claim: Ask, needed_by: float) -> None:
    grace = min(tx.policy.grace_of(victim.spec), max(0.0, needed_by - tx.now - tx.policy.teardown))
    reason = _why_stopped(tx, gpu, victim, claim, grace)
    already = next((one for one in victim.reclaims.values() if one.step >= ReclaimStep.TERM), None)
    deadline = already.deadline if already else tx.now + grace
    _step_on(tx, gpu, victim, claim, _Step(ReclaimStep.TERM, deadline, reason))
    if already is None:
        tx.state.counters.terms += 1
        tx.emit(Terminate(victim.id, tuple(sorted(victim.processes)), grace, reason))
    owner = visibility.name(tx.state.jobs[claim.job].spec)
    what = f"{format_bytes(claim.wanted)} of GPU {gpu.index}"
    loan = format_bytes(tx.state.loan(victim, gpu.id))
    otherwise = f"; it is stopped in {format_duration(max(0.0, deadline - tx.now))} otherwise"
    if tx.policy.last_step == ReclaimStep.TERM:
        otherwise = ""
    wants = f" wants {what}, and this job has {loan} there on loan{otherwise}"
    text = words("asked with SIGTERM to give back: ", owner, wants)
    tx.record_reason("term", reason, text, job=victim, gpu=gpu.id)


def _why_stopped(tx: Transaction, gpu: Gpu, victim: Job, claim: Ask, grace: float) -> Reason:
    """With what was in the way of suspending it, if it wanted that."""
    reason = _why(tx, gpu, victim, claim, grace)
    if ReclaimStep.SUSPEND not in victim.spec.on_reclaim:
        return reason
    why = suspend_rules.obstacle(tx.state, victim, tx.now) or "it could not leave the GPU in time"
    tx.record("not_suspended", f"is not suspended: {why}", job=victim, gpu=gpu.id)
    return replace(reason, facts=(*reason.facts, (NOT_SUSPENDED, why)))


def kill(tx: Transaction, gpu: Gpu, victim: Job, claim: Ask) -> None:
    """SIGKILL to the whole job. The claim, budgets and loan may be others than those for which it got SIGTERM."""
    here = victim.reclaims[gpu.id]
    grace = float(here.reason.data["grace"])  # type: ignore[arg-type]
    reason = _why(tx, gpu, victim, claim, grace)
    reason = replace(reason, facts=(*reason.facts, *(fact for fact in here.reason.facts if fact[0] == NOT_SUSPENDED)))
    here.reason, here.owner, here.asked, here.loan = reason, claim.job, claim.wanted, tx.state.loan(victim, gpu.id)
    for reclaim in victim.reclaims.values():
        reclaim.killed_at = tx.now
        reclaim.step = ReclaimStep.KILL
    victim.killed = reason
    tx.state.counters.kills += 1
    tx.emit(Kill(victim.id, tuple(sorted(victim.processes)), reason))
    why = f"its grace of {format_duration(grace)} is over" if grace else "it wants no notice"
    loan = format_bytes(tx.state.loan(victim, gpu.id))
    text = words(f"killed: {why}, and its loan of {loan} is needed by ", visibility.name(tx.state.jobs[claim.job].spec))
    tx.record_reason("kill", reason, text, job=victim, gpu=gpu.id)


def relieve(tx: Transaction, gpu: Gpu, job: Job, why: str) -> None:
    """End its reclaim: nothing more is asked of it."""
    reclaim = job.reclaims[gpu.id]
    if reclaim.step is ReclaimStep.TRIM and not reclaim.answered:
        trim_over(tx, gpu, job, answered=True)
    tx.state.end_reclaim(job, gpu.id)
    if reclaim.step <= ReclaimStep.SUSPEND:
        return  # the job was told nothing that would have to be taken back; a suspension comes to its end
    got = max(0, reclaim.loan - tx.state.loan(job, gpu.id))
    tx.state.counters.relieved += 1
    gave = f"gave {format_bytes(got)} of GPU {gpu.index} back" if got else f"keeps its loan on GPU {gpu.index}"
    text = f"{gave} and runs on: {why}"
    tx.record("relieved", text, job=job, gpu=gpu.id, got=got, owner=reclaim.owner, rung="term")
    reason = Reason(Code.RECLAIM, f"nothing more is asked back: {why}", data={"got": got})
    tx.emit(Notify(job.id, "relieved", reason))


def gone(tx: Transaction, gpu: Gpu, victim: Job) -> None:
    """The last process of a job under reclaim has left the GPU."""
    reclaim = tx.state.end_reclaim(victim, gpu.id)
    if reclaim is None or reclaim.step <= ReclaimStep.SUSPEND:
        return
    rung = str(reclaim.step)
    seconds = tx.now - reclaim.since
    how = "it was killed" if reclaim.step is ReclaimStep.KILL else "it ended when asked to"
    loan = f"its loan of {format_bytes(reclaim.loan)} on GPU {gpu.index}"
    text = f"{loan} came back after {format_duration(seconds)}: {how}"
    tx.record(
        "reclaimed",
        text,
        job=victim,
        gpu=gpu.id,
        rung=rung,
        got=reclaim.loan,
        owner=reclaim.owner,
        seconds=seconds,
    )


def _step_on(tx: Transaction, gpu: Gpu, job: Job, claim: Ask, taken: _Step) -> None:
    loan = tx.state.loan(job, gpu.id)
    reclaim = Reclaim(job.id, gpu.id, taken.step, tx.now, taken.deadline, taken.reason, claim.job, claim.wanted, loan)
    tx.state.begin_reclaim(job, reclaim)


# ---- what the borrower reads -----------------------------------------------------------------------


def _why(tx: Transaction, gpu: Gpu, victim: Job, claim: Ask, grace: float) -> Reason:
    state = tx.state
    owner = state.jobs[claim.job]
    usage, loan = state.usage(victim, gpu.id), state.loan(victim, gpu.id)
    request = victim.bounds[gpu.id].request
    contexts = sum(share.overhead for share in state.shares_of(victim, gpu.id))
    facts: tuple[tuple[Words, Words], ...] = (
        ("owed", words(f"{format_bytes(claim.wanted)} to ", visibility.who(owner.spec), ", within its request")),
        (
            "used",
            f"{format_bytes(usage)}, of which {format_bytes(request)} guaranteed and {format_bytes(loan)} on loan",
        ),
    )
    if not victim.may_borrow(gpu.id):
        facts += (("contexts", f"{format_bytes(contexts)} of that, more than they were charged when they opened"),)
    facts += (("grace", format_duration(grace) if grace else "none: it wants no notice"),)
    data = {
        "owner": owner.id,
        "owner_name": visibility.bare_name(owner.spec),
        "owner_user": visibility.bare_user(owner.spec),
        "victim": victim.id,
        "gpu": gpu.id,
        "asked": claim.wanted,
        "usage": usage,
        "request": request,
        "loan": loan,
        "grace": grace,
    }
    message = f"borrowed memory of GPU {gpu.index} is wanted back by its owner"
    way_out = "free memory on SIGTERM to go on" if grace else "have notice first with --on-reclaim term,kill"
    hint = f"ask for more with --request, or {way_out}"
    return Reason(Code.RECLAIM, message, facts, hint, data)
