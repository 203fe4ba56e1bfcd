"""Reclaim: getting a claim's shortfall back from borrowers, by the gentlest step that is enough.

Idle credit has been revoked before anything here runs (lending.py). What is left of the ladder, rung by rung:

    trim   the program's own allocators give back what they only keep; nobody loses anything
    term   SIGTERM to all processes of a victim; it may free memory, or write a checkpoint and go
    kill   SIGKILL when its grace is over and the memory is still missing

A job may leave out trim or term (`--on-reclaim`), never kill: a loan that cannot be taken back would be a gift.

Rules, each held at the moment of action and on words read at that moment:

* there is a shortfall, and borrowers' loans can cover it: else nobody is touched (invariant 6)
* only borrowers are asked, never the claimant's own job; none is stopped within its protected start (5)
* whom to trim, to stop and to kill is planner.py's choice each time (7); a job is on a rung as a whole (8)
* the rung comes first, then the class: a job of high priority is asked for caches before one of low priority is stopped
* who has been told to stop counts first, whatever its priority: to tell others as well would harm both
* nobody is stopped while a trim may still be enough, and no claim waits for trims longer than the trim time
* nobody is stopped on an old sample: memory outside gpushare may have come back, or be too much for all loans
* a victim that has given back, or is no longer needed, is left in peace
* memory that is on its way back counts as covered, and as free only when NVML says so (9)

reclaim_steps.py does what is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpushare.quantity import format_bytes, format_duration
from gpushare.reasons import Code, Reason
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import blockers, planner, reclaim_steps, unconfirmed
from gpushared.core.events import LeftAlone
from gpushared.core.model import Ask, Gpu, Job, Share
from gpushared.core.transaction import Transaction


def pursue(tx: Transaction, gpu: Gpu, claims: Sequence[Ask]) -> None:
    """Take the next step for the claims that wait, if there is one to take now."""
    asked = _asked(gpu)
    if not claims:
        for job in asked:
            reclaim_steps.relieve(tx, gpu, job, "the memory is no longer needed")
        return
    fresh = tx.now - tx.policy.poll / 2
    if gpu.seen_at < fresh:
        tx.look(gpu)
        return
    if gpu.returning and gpu.sampled_at < fresh:
        tx.sample(gpu)
    for job in asked:
        _note_end_of_trim(tx, gpu, job)
    _note_unkillable(tx, gpu)
    pursued, shortfall = _feasible(tx, gpu, claims)
    if pursued is None or shortfall <= 0:
        why = "all loans together would not be enough" if pursued is None else "the memory came from elsewhere"
        for job in asked:
            reclaim_steps.relieve(tx, gpu, job, why)
    else:
        _climb(tx, gpu, claims, pursued, shortfall)
    highest = max((job.reclaims[gpu.id].step for job in gpu.under_reclaim.values()), default=ReclaimStep.REVOKE)
    for ask in claims:
        ask.step = max(ask.step, highest)


def _climb(tx: Transaction, gpu: Gpu, claims: Sequence[Ask], pursued: Ask, shortfall: int) -> None:
    asked = [job for job in _asked(gpu) if not _gave_back(tx, gpu, job)]
    told_to_stop = [job for job in asked if job.reclaims[gpu.id].step is ReclaimStep.TERM]
    due = any(tx.now >= job.reclaims[gpu.id].deadline for job in told_to_stop)
    if due and _is_stale(tx, gpu):
        return
    if tx.policy.last_step == ReclaimStep.KILL:
        _kill_due(tx, gpu, told_to_stop, shortfall)
    missing = shortfall - sum(tx.state.loan(job, gpu.id) for job in told_to_stop)
    if missing <= 0 or tx.policy.last_step == ReclaimStep.REVOKE:
        return
    if _trimming(tx, gpu, claims, pursued, missing) or _is_stale(tx, gpu):
        return
    if tx.policy.last_step == ReclaimStep.TRIM:
        return
    needed_by = _first_to_fail(tx, gpu, claims[: claims.index(pursued) + 1])
    for victim in planner.plan(missing, _borrowers(tx, gpu, _stoppable(tx, gpu, claims))):
        reclaim_steps.stop(tx, gpu, tx.state.jobs[victim.job], pursued, needed_by)


def _first_to_fail(tx: Transaction, gpu: Gpu, claims: Sequence[Ask]) -> float:
    """The earliest deadline of the claims (in order) that the loans of those who have been told to stop do not cover.

    The last claim may have come much later than one that waits for the same borrower.
    """
    told = sum(tx.state.loan(job, gpu.id) for job in _told(gpu))
    uncovered = (ask for count, ask in enumerate(claims, 1) if _missing(tx, gpu, claims[:count]) > told)
    return min((ask.deadline for ask in uncovered), default=claims[-1].deadline)


def _is_stale(tx: Transaction, gpu: Gpu) -> bool:
    """Whether NVML must be asked before anybody is stopped: memory outside gpushare comes and goes between samples."""
    stale = gpu.sampled_at < tx.now - tx.policy.poll / 2
    if stale:
        tx.sample(gpu)
    return stale


# ---- who is where -----------------------------------------------------------------------------------


def _asked(gpu: Gpu) -> list[Job]:
    """Jobs that have been asked and not yet killed."""
    return [job for job in gpu.under_reclaim.values() if job.reclaims[gpu.id].killed_at is None]


def _told(gpu: Gpu) -> list[Job]:
    """Jobs that have been told to stop and not yet killed."""
    return [job for job in _asked(gpu) if job.reclaims[gpu.id].step is ReclaimStep.TERM]


def _killed(tx: Transaction, gpu: Gpu) -> list[Job]:
    """Killed jobs whose memory may be counted on: the kernel is still at it."""
    found = []
    for job in gpu.under_reclaim.values():
        killed_at = job.reclaims[gpu.id].killed_at
        if killed_at is not None and tx.now - killed_at <= tx.policy.unkillable_after:
            found.append(job)
    return found


def _lenders(tx: Transaction, gpu: Gpu, claims: Sequence[Ask]) -> list[Job]:
    """Whose loans could meet these claims at all."""
    claimants = {ask.job for ask in claims}
    return [
        job
        for job in tx.state.owners(gpu.id)
        # A job with limit = request never borrows; what it is above that, NVML has found, not the job, unless its
        # limit has been lowered.
        if job.id not in claimants
        and (job.bounds[gpu.id].limit > job.bounds[gpu.id].request or _over_lowered_limit(tx, gpu, job))
        # Nobody is stopped for a context that may cost less than it is charged.
        and tx.state.loan(job, gpu.id) > unconfirmed.contexts(gpu, tx.state.shares_of(job, gpu.id))
    ]


def _over_lowered_limit(tx: Transaction, gpu: Gpu, job: Job) -> bool:
    """It has allocated more than its limit allows now."""
    return sum(share.used for share in tx.state.shares_of(job, gpu.id)) > job.bounds[gpu.id].limit


def _stoppable(tx: Transaction, gpu: Gpu, claims: Sequence[Ask]) -> list[Job]:
    """Who could be stopped for these claims, and has not been told so yet."""
    return [
        job
        for job in _lenders(tx, gpu, claims)
        if tx.now - job.since >= job.spec.min_run_time
        and not tx.state.is_left_alone(job)
        and (gpu.id not in job.reclaims or job.reclaims[gpu.id].step is ReclaimStep.TRIM)
    ]


def _trimmable(tx: Transaction, gpu: Gpu, claims: Sequence[Ask]) -> list[Job]:
    """Who could be asked to trim now: nobody twice for the same claim, nobody when the time for it is over."""
    fresh = [ask for ask in claims if ask.trim_until is None or tx.now < ask.trim_until]
    newest = max((ask.since for ask in fresh), default=None)
    if newest is None:
        return []

    def may(job: Job) -> bool:
        if ReclaimStep.TRIM not in job.spec.on_reclaim or not _listeners(tx, gpu, job):
            return False
        reclaim = job.reclaims.get(gpu.id)
        free_to = reclaim is None or (reclaim.step is ReclaimStep.TRIM and reclaim.trimmed)
        return free_to and job.trimmed_at.get(gpu.id, float("-inf")) < newest

    return [job for job in _lenders(tx, gpu, claims) if may(job)]


def _listeners(tx: Transaction, gpu: Gpu, job: Job) -> list[Share]:
    return [share for share in tx.state.shares_of(job, gpu.id) if share.trim is not None]


def _in_trim(gpu: Gpu) -> list[Job]:
    """Jobs that may be giving back this very moment."""
    return [
        job for job in _asked(gpu) if job.reclaims[gpu.id].step is ReclaimStep.TRIM and not job.reclaims[gpu.id].trimmed
    ]


def _borrowers(tx: Transaction, gpu: Gpu, jobs: Sequence[Job]) -> list[planner.Borrower]:
    return [borrower(tx, gpu, job) for job in jobs]


def borrower(tx: Transaction, gpu: Gpu, job: Job) -> planner.Borrower:
    """What the planner weighs."""
    state = tx.state
    unsaved = tx.now - max(job.since, job.saved_at)
    idle = tx.now - max(job.since, job.active_at) if gpu.shows_busy else 0.0
    held = sum(state.usage(job, id) for id in job.bounds)
    over_limit = _over_lowered_limit(tx, gpu, job)
    return planner.Borrower(job.id, state.loan(job, gpu.id), held, job.spec.priority, unsaved, idle, over_limit)


# ---- sums ------------------------------------------------------------------------------------------


def _missing(tx: Transaction, gpu: Gpu, claims: Sequence[Ask]) -> int:
    """Bytes that these claims need beyond what is free or surely on its way."""
    state = tx.state
    claimed: dict[str, int] = {}
    for ask in claims:
        claimed[ask.job] = claimed.get(ask.job, 0) + ask.need
    unlent = sum(
        max(0, job.bounds[gpu.id].request - job.committed.get(gpu.id, 0) - claimed.get(job.id, 0))
        for job in state.non_lending.values()
        if gpu.id in job.bounds
    )
    coming = gpu.returning_total + sum(state.usage(job, gpu.id) for job in _killed(tx, gpu))
    return sum(claimed.values()) - gpu.free - coming + unlent


def _feasible(tx: Transaction, gpu: Gpu, claims: Sequence[Ask]) -> tuple[Ask | None, int]:
    """The shortfall of as many claims (in order) as borrowers' loans can cover, and the claim to name for it.

    No claim: not even the first can be covered.
    """
    for count in range(len(claims), 0, -1):
        some = claims[:count]
        shortfall = _missing(tx, gpu, some)
        told = _told(gpu)
        able = {job.id: job for job in (*told, *_in_trim(gpu), *_stoppable(tx, gpu, some))}
        able.update({job.id: job for job in _trimmable(tx, gpu, some)})
        if shortfall <= sum(tx.state.loan(job, gpu.id) for job in able.values()):
            return claims[count - 1], shortfall
    return None, 0


# ---- trim ------------------------------------------------------------------------------------------


def _trimming(tx: Transaction, gpu: Gpu, claims: Sequence[Ask], pursued: Ask, missing: int) -> bool:
    """Whether to wait for trims, having asked for more of them if need be.

    First the few whose loans could cover it, then everybody else: what a cache holds is known when it has been given.
    """
    state = tx.state
    pending = sum(state.loan(job, gpu.id) for job in _in_trim(gpu))
    if pending >= missing:
        return True
    able = _borrowers(tx, gpu, _trimmable(tx, gpu, claims))
    for chosen in planner.plan(missing - pending, able) or able:
        reclaim_steps.trim(tx, gpu, state.jobs[chosen.job], pursued, min(chosen.loan, missing))
        pending += chosen.loan
    if able:
        for ask in claims:
            ask.trim_until = tx.now + tx.policy.trim if ask.trim_until is None else ask.trim_until
    return pending > 0


def _note_end_of_trim(tx: Transaction, gpu: Gpu, job: Job) -> None:
    reclaim = job.reclaims[gpu.id]
    if reclaim.step is not ReclaimStep.TRIM or reclaim.trimmed:
        return
    half_over = tx.now >= reclaim.deadline - tx.policy.trim / 2
    waited_for = [
        share.trim
        for share in _listeners(tx, gpu, job)
        if share.trim is not None and not share.trim.done and (share.trim.begun or not half_over)
    ]
    if not waited_for or tx.now >= reclaim.deadline:
        reclaim_steps.trim_over(tx, gpu, job, answered=not waited_for and not half_over)


# ---- term and kill ---------------------------------------------------------------------------------


def _kill_due(tx: Transaction, gpu: Gpu, victims: list[Job], shortfall: int) -> None:
    """Kill those whose grace is over, as far as the shortfall (bytes) needs them.

    The planner chooses among all who have been told, not only among those whose grace is over: while it is enough to
    wait for one of low priority, one of high priority is not killed. If all of them are not enough, all are needed.
    """
    told = _borrowers(tx, gpu, victims)
    for one in planner.plan(shortfall, told) or told:
        victim = tx.state.jobs[one.job]
        if tx.now >= victim.reclaims[gpu.id].deadline:
            reclaim_steps.kill(tx, gpu, victim)


def _gave_back(tx: Transaction, gpu: Gpu, victim: Job) -> bool:
    """A victim whose loan is gone has done what it was asked: it is no borrower any more."""
    if tx.state.loan(victim, gpu.id) > 0:
        return False
    reclaim_steps.relieve(tx, gpu, victim, "it has given its loan back")
    return True


def _note_unkillable(tx: Transaction, gpu: Gpu) -> None:
    """Once, when a killed job no longer counts as about to give its memory back: others are asked instead."""
    for job in gpu.under_reclaim.values():
        reclaim = job.reclaims[gpu.id]
        late = reclaim.killed_at is not None and tx.now - reclaim.killed_at > tx.policy.unkillable_after
        if late and not reclaim.given_up:
            reclaim.given_up = True
            text = (
                f"was killed, and is still there, with {format_bytes(tx.state.usage(job, gpu.id))} of GPU {gpu.index}"
            )
            tx.record("unkillable", text, job=job, gpu=gpu.id, usage=tx.state.usage(job, gpu.id))


def left_alone(tx: Transaction, event: LeftAlone) -> None:
    """What was to be stopped belongs to another user. Nobody waits for its memory: others are asked instead."""
    job = tx.state.jobs.get(event.job)
    if job is None:
        return
    for pid, process in event.pids.items():
        tx.state.counters.left_alone += 1
        text = f"process {pid} was not signalled: it belongs to another user than the job now"
        tx.record("left_alone", text, job=job, pid=pid)
        if process is not None:
            job.left_alone.add(process)
    if not tx.state.is_left_alone(job):
        return
    for id in list(job.reclaims):
        tx.state.end_reclaim(job, id)


# ---- claims that cannot be met ---------------------------------------------------------------------


def timed_out(tx: Transaction, gpu: Gpu, ask: Ask) -> Reason:
    """A claim that could not be met: counted by what stood in the way."""
    found = blockers.of(tx.state, gpu, ask, tx.now)
    tx.state.counters.violations[found.cause] += 1
    waited = tx.now - ask.since
    facts = (("in the way", found.text), ("waited", format_duration(waited)))
    data = {"asked": ask.wanted, "cause": found.cause, "waited": waited, "job": ask.job}
    what = "open a context" if ask.attach else f"allocate {format_bytes(ask.wanted)}"
    message = f"cannot {what} on GPU {gpu.index}, although it is within this job's request"
    return Reason(Code.CLAIM_TIMED_OUT, message, facts, found.way_out, data)
