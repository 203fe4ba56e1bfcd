"""Reclaim: getting a claim's shortfall back from borrowers, by the gentlest step that is enough.

Idle credit is revoked before anything here runs (lending.py). The other reclaim steps, in order:

    trim     the program's allocators give back memory that they only keep; no job loses anything
    hook     a command or URL of the job's user has the program give memory back (hooks.py)
    suspend  the program stops, and all its memory goes to host memory until there is room again (suspend.py)
    term     SIGTERM to all processes of a victim; it may free memory, or write a checkpoint and end
    kill     SIGKILL when its grace is over and the memory is still missing

A job has to choose hook and suspend. It may exclude trim or term (`--on-reclaim`), never kill: otherwise its loan
could never be taken back.

The rules. Each is checked on freshly read page words just before the action:

* There is a shortfall, and borrowers' loans can cover it. Otherwise no job is touched.
* Only borrowers are asked, never the claimant's own job. No job is stopped within its minimum run time.
* What a job has above its request is a loan, whatever its limit is. One with limit = request has a loan if its contexts
  cost more than they were charged at first. The planner takes it last.
* planner.py chooses which jobs to trim, to stop and to kill, each time. A step is for a whole job.
* Jobs that have stepped aside, because they are idle, are the first that are trimmed, called by their hooks or
  suspended (idle.py). Who is stopped depends on how long a job has been idle, not on whether it has stepped aside.
* A gentler step comes before a lower priority: a job of high priority is asked for its caches before a job of low
  priority is stopped.
* Jobs that have been told to stop count first, at any priority: to tell others as well would harm both.
* No job is stopped while a trim may still be enough. No claim waits for trims longer than the trim time.
* No job is suspended or stopped while a hook may still be enough. No claim waits for hooks so long that there is no
  grace left.
* Jobs that can be suspended are suspended first; jobs are stopped only for the rest. Memory that is just leaving counts
  as covered.
* If a job that is protected for a while yet (it has just started or resumed, or its resume hook runs) can give memory
  by its hook or by being suspended in time for the claim, no job is stopped for that amount.
* No job is stopped on an old sample: memory outside gpushare may have come back, or exceed all loans.
* A victim that has given back, or is no longer needed, is not stopped.
* Memory on its way back counts as covered; it counts as free only when NVML shows it free.

reclaim_steps.py carries the steps out.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpushare.quantity import format_bytes, format_duration
from gpushare.reasons import Code, Reason
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import blockers, hook_steps, hooks, idle, planner, reclaim_steps, suspend, unconfirmed
from gpushared.core.events import LeftAlone
from gpushared.core.model import UNIT, Ask, Gpu, Job, Share
from gpushared.core.suspension import SuspendState
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
    shortfall -= sum(tx.state.loan(job, gpu.id) for job in _leaving(tx, gpu))
    if tx.policy.last_step == ReclaimStep.KILL and shortfall > 0:
        _kill_due(tx, gpu, told_to_stop, pursued, shortfall)
    missing = shortfall - sum(tx.state.loan(job, gpu.id) for job in told_to_stop)
    if missing <= 0 or tx.policy.last_step == ReclaimStep.REVOKE:
        return
    if _trimming(tx, gpu, claims, pursued, missing) or _is_stale(tx, gpu):
        return
    missing = _hooking(tx, gpu, claims, pursued, missing)
    if missing <= 0 or tx.policy.last_step <= ReclaimStep.HOOK:
        return
    missing = _suspending(tx, gpu, claims, pursued, missing)
    if missing <= 0 or tx.policy.last_step == ReclaimStep.SUSPEND:
        return
    needed_by = _first_to_fail(tx, gpu, claims[: claims.index(pursued) + 1])
    missing -= _given_later(tx, gpu, claims, needed_by)
    if missing <= 0:
        return
    for victim in planner.plan(missing, _borrowers(tx, gpu, _stoppable(tx, gpu, claims))):
        reclaim_steps.stop(tx, gpu, tx.state.jobs[victim.job], pursued, needed_by)


def _first_to_fail(tx: Transaction, gpu: Gpu, claims: Sequence[Ask]) -> float:
    """The earliest deadline of the claims (in order) that are not covered by the loans of jobs told to stop.

    The last claim may have come much later than another that waits for the same borrower.
    """
    told = sum(tx.state.loan(job, gpu.id) for job in _told(gpu))
    uncovered = (ask for count, ask in enumerate(claims, 1) if _missing(tx, gpu, claims[:count]) > told)
    return min((ask.deadline for ask in uncovered), default=claims[-1].deadline)


def _is_stale(tx: Transaction, gpu: Gpu) -> bool:
    """Whether NVML must be asked before a job is stopped: memory outside gpushare comes and goes between samples."""
    stale = gpu.sampled_at < tx.now - tx.policy.poll / 2
    if stale:
        tx.sample(gpu)
    return stale


# ---- jobs by their step -----------------------------------------------------------------------------


def _asked(gpu: Gpu) -> list[Job]:
    """Jobs that have been asked and not yet killed."""
    return [job for job in gpu.under_reclaim.values() if job.reclaims[gpu.id].killed_at is None]


def _leaving(tx: Transaction, gpu: Gpu) -> list[Job]:
    """Jobs whose memory is leaving the GPU: they are being suspended, or their hooks run."""
    return [*suspend.suspending(tx.state, gpu), *hooks.asked(tx.state, gpu)]


def _told(gpu: Gpu) -> list[Job]:
    """Jobs that have been told to stop and not yet killed."""
    return [job for job in _asked(gpu) if job.reclaims[gpu.id].step is ReclaimStep.TERM]


def _killed(tx: Transaction, gpu: Gpu) -> list[Job]:
    """Killed jobs whose memory is expected back: the kernel is still ending their processes."""
    found = []
    for job in gpu.under_reclaim.values():
        killed_at = job.reclaims[gpu.id].killed_at
        if killed_at is not None and tx.now - killed_at <= tx.policy.unkillable_after:
            found.append(job)
    return found


def _lenders(tx: Transaction, gpu: Gpu, claims: Sequence[Ask]) -> list[Job]:
    """The jobs whose loans could meet these claims, and those that resume just now."""
    claimants = {ask.job for ask in claims}
    return [
        job
        for job in tx.state.owners(gpu.id)
        if job.id not in claimants
        and (job.suspension is None or job.suspension.state is SuspendState.RESUMING)
        # No job is stopped for a context that may cost less than it is charged.
        and tx.state.loan(job, gpu.id) > unconfirmed.contexts(gpu, tx.state.shares_of(job, gpu.id))
    ]


def _over_lowered_limit(tx: Transaction, gpu: Gpu, job: Job) -> bool:
    """It has allocated more than its limit allows now."""
    return sum(share.used for share in tx.state.shares_of(job, gpu.id)) > job.bounds[gpu.id].limit


def _stoppable(tx: Transaction, gpu: Gpu, claims: Sequence[Ask]) -> list[Job]:
    """The jobs that could be stopped for these claims, and have not been told so yet."""
    return [job for job in _untold(tx, gpu, claims) if suspend.free_at(tx.state, job, tx.now) <= tx.now]


def _untold(tx: Transaction, gpu: Gpu, claims: Sequence[Ask]) -> list[Job]:
    """The same with those that are left alone for a while yet."""
    return [
        job
        for job in _lenders(tx, gpu, claims)
        if not job.is_left_alone
        and (not hooks.is_busy(job) or job.wakes_now)
        and (gpu.id not in job.reclaims or job.reclaims[gpu.id].step <= ReclaimStep.HOOK)
    ]


def _trimmable(tx: Transaction, gpu: Gpu, claims: Sequence[Ask]) -> list[Job]:
    """The jobs that could be asked to trim now: each once for a claim, none after the claim's time for trims."""
    fresh = [ask for ask in claims if ask.trim_until is None or tx.now < ask.trim_until]
    newest = max((ask.since for ask in fresh), default=None)
    if newest is None:
        return []

    def may(job: Job) -> bool:
        hears = job.suspension is None and _listeners(tx, gpu, job)
        if ReclaimStep.TRIM not in job.spec.on_reclaim or not hears:
            return False
        reclaim = job.reclaims.get(gpu.id)
        free_to = reclaim is None or (reclaim.step is ReclaimStep.TRIM and reclaim.answered)
        return free_to and job.trimmed_at.get(gpu.id, float("-inf")) < newest

    return [job for job in _lenders(tx, gpu, claims) if may(job)]


def _listeners(tx: Transaction, gpu: Gpu, job: Job) -> list[Share]:
    return [share for share in tx.state.shares_of(job, gpu.id) if share.trim is not None]


def _in_trim(gpu: Gpu) -> list[Job]:
    """Jobs that were asked to trim and have not finished."""
    return [
        job
        for job in _asked(gpu)
        if job.reclaims[gpu.id].step is ReclaimStep.TRIM and not job.reclaims[gpu.id].answered
    ]


def _borrowers(tx: Transaction, gpu: Gpu, jobs: Sequence[Job]) -> list[planner.Borrower]:
    return [borrower(tx, gpu, job) for job in jobs]


def borrower(tx: Transaction, gpu: Gpu, job: Job) -> planner.Borrower:
    """What the planner weighs."""
    state = tx.state
    unsaved = tx.now - max(job.since, job.saved_at)
    quiet = tx.now - idle.idle_since(job) if gpu.shows_busy else 0.0
    if job.sleep is not None:
        quiet = planner.ASLEEP
    held = job.total_usage
    return planner.Borrower(
        job.id,
        state.loan(job, gpu.id),
        held,
        job.spec.priority,
        unsaved,
        quiet,
        over_limit=_over_lowered_limit(tx, gpu, job),
        unwilling=not job.may_borrow(gpu.id),
    )


# ---- sums ------------------------------------------------------------------------------------------


def _missing(tx: Transaction, gpu: Gpu, claims: Sequence[Ask]) -> int:
    """Bytes that these claims need beyond what is free or on its way back."""
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
    """The last claim (in order) up to which borrowers' loans cover all claims, and the shortfall of these in bytes.

    None: the loans do not cover even the first claim.
    """
    for count in range(len(claims), 0, -1):
        some = claims[:count]
        shortfall = _missing(tx, gpu, some)
        told = _told(gpu)
        able = {job.id: job for job in (*told, *_leaving(tx, gpu), *_in_trim(gpu), *_stoppable(tx, gpu, some))}
        able.update({job.id: job for job in _trimmable(tx, gpu, some)})
        if shortfall <= sum(tx.state.loan(job, gpu.id) for job in able.values()):
            return claims[count - 1], shortfall
    return None, 0


# ---- trim ------------------------------------------------------------------------------------------


def _trimming(tx: Transaction, gpu: Gpu, claims: Sequence[Ask], pursued: Ask, missing: int) -> bool:
    """Ask for more trims if they are needed. Returns whether to wait for trims.

    First it asks the few jobs whose loans could cover `missing` (bytes), then all: how much a cache holds is known only
    when it has been given back.
    """
    state = tx.state
    pending = sum(state.loan(job, gpu.id) for job in _in_trim(gpu))
    if pending >= missing:
        return True
    able = _borrowers(tx, gpu, _trimmable(tx, gpu, claims))
    for chosen in idle.spare_the_active(tx, missing - pending, able):
        reclaim_steps.trim(tx, gpu, state.jobs[chosen.job], pursued, min(chosen.loan, missing))
        pending += chosen.loan
    if able:
        for ask in claims:
            ask.trim_until = tx.now + tx.policy.trim if ask.trim_until is None else ask.trim_until
    return pending > 0


def _note_end_of_trim(tx: Transaction, gpu: Gpu, job: Job) -> None:
    reclaim = job.reclaims[gpu.id]
    if reclaim.step is not ReclaimStep.TRIM or reclaim.answered:
        return
    half_over = tx.now >= reclaim.deadline - tx.policy.trim / 2
    undone = [share.trim for share in _listeners(tx, gpu, job) if share.trim is not None and not share.trim.done]
    waited_for = [one for one in undone if one.begun or not half_over]
    if not waited_for or tx.now >= reclaim.deadline:
        reclaim_steps.trim_over(tx, gpu, job, answered=not undone)


# ---- hook ------------------------------------------------------------------------------------------


def _hooking(tx: Transaction, gpu: Gpu, claims: Sequence[Ask], pursued: Ask, missing: int) -> int:
    """Have the hooks called of the jobs whose loans cover `missing` (bytes) with the least harm; if they do not cover
    it, all. Returns what they leave missing, if each gives its whole loan."""
    within = hooks.time_for(tx.state, _first_to_fail(tx, gpu, claims[: claims.index(pursued) + 1]), tx.now)
    if within < hooks.LEAST:
        return missing
    newest = max(ask.since for ask in claims)
    borrowers = _borrowers(tx, gpu, list(hooks.candidates(tx, _stoppable(tx, gpu, claims), newest)))
    for one in idle.spare_the_active(tx, missing, borrowers):
        size = min(one.loan, max(missing, UNIT))
        reclaim_steps.hook(tx, gpu, tx.state.jobs[one.job], pursued, hook_steps.Wish(size, within))
        missing -= one.loan
    return missing


# ---- suspend ---------------------------------------------------------------------------------------


def _suspending(tx: Transaction, gpu: Gpu, claims: Sequence[Ask], pursued: Ask, missing: int) -> int:
    """Suspend the jobs whose loans cover `missing` (bytes) with the least harm; if they do not cover it, all that can
    be. Returns what they leave missing."""
    needed_by = _first_to_fail(tx, gpu, claims[: claims.index(pursued) + 1])
    able = list(suspend.candidates(tx, gpu, _stoppable(tx, gpu, claims), needed_by))
    borrowers = _borrowers(tx, gpu, able)
    for one in idle.spare_the_active(tx, missing, borrowers):
        job = tx.state.jobs[one.job]
        usage = tx.state.usage(job, gpu.id)
        if usage <= suspend.host_room(tx.state):  # another may have taken the room a moment ago
            within = min(suspend.allowed(tx.state, gpu, usage), suspend.time_before(tx.state, needed_by, tx.now))
            reclaim_steps.suspend(tx, gpu, job, pursued, within)
            missing -= one.loan
    return missing


def _given_later(tx: Transaction, gpu: Gpu, claims: Sequence[Ask], needed_by: float) -> int:
    """Bytes that jobs will give without being stopped: they are left alone for a while yet, and their hooks can be
    called, or they can be suspended, when that is over. A grace is left before `needed_by` if it fails."""
    state = tx.state
    spared = [job for job in _untold(tx, gpu, claims) if suspend.free_at(state, job, tx.now) > tx.now]
    newest = max(ask.since for ask in claims)
    found = {
        job.id: job
        for job in hooks.candidates(tx, spared, newest)
        if hooks.time_for(state, needed_by, suspend.free_at(state, job, tx.now)) >= hooks.LEAST
    }
    room = suspend.host_room(state)
    for job in suspend.candidates(tx, gpu, spared, needed_by):
        needs = state.usage(job, gpu.id) if job.suspension is None else 0  # one that resumes has its room
        if needs <= room:
            room -= needs
            found[job.id] = job
    return sum(state.loan(job, gpu.id) for job in found.values())


# ---- term and kill ---------------------------------------------------------------------------------


def _kill_due(tx: Transaction, gpu: Gpu, victims: list[Job], pursued: Ask, shortfall: int) -> None:
    """Kill the victims whose grace is over, if the shortfall (bytes) of the claims up to `pursued` needs them.

    The planner chooses among all victims, not only among those whose grace is over: while waiting for one of low
    priority is enough, one of high priority is not killed. If all of them are not enough, all are needed.
    """
    told = _borrowers(tx, gpu, victims)
    for one in planner.plan(shortfall, told) or told:
        victim = tx.state.jobs[one.job]
        if tx.now >= victim.reclaims[gpu.id].deadline:
            reclaim_steps.kill(tx, gpu, victim, pursued)


def _gave_back(tx: Transaction, gpu: Gpu, victim: Job) -> bool:
    """A victim without a loan has given back all that it borrowed: its reclaim ends."""
    if tx.state.loan(victim, gpu.id) > 0:
        return False
    reclaim_steps.relieve(tx, gpu, victim, "it has given its loan back")
    return True


def _note_unkillable(tx: Transaction, gpu: Gpu) -> None:
    """Record once that a killed job does not end. Its memory is no longer expected back, so others are asked."""
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
    """The processes to be stopped belong to another user now. No claim waits for their memory: others are asked."""
    job = tx.state.jobs.get(event.job)
    if job is None:
        return
    for pid, process in event.pids.items():
        tx.state.counters.left_alone += 1
        text = f"process {pid} was not signalled: it belongs to another user than the job now"
        tx.record("left_alone", text, job=job, pid=pid)
        if process is not None:
            job.left_alone.add(process)
    if not job.is_left_alone:
        return
    for id in list(job.reclaims):
        tx.state.end_reclaim(job, id)


# ---- claims that cannot be met ---------------------------------------------------------------------


def timed_out(tx: Transaction, gpu: Gpu, ask: Ask) -> Reason:
    """Why a claim was not met in time. Counted by its cause."""
    found = blockers.of(tx.state, gpu, ask, tx.now)
    tx.state.counters.violations[found.cause] += 1
    waited = tx.now - ask.since
    facts = (("in the way", found.text), ("waited", format_duration(waited)))
    data = {"asked": ask.wanted, "cause": found.cause, "waited": waited, "job": ask.job}
    what = "open a context" if ask.attach else f"allocate {format_bytes(ask.wanted)}"
    message = f"cannot {what} on GPU {gpu.index}, although it is within this job's request"
    return Reason(Code.CLAIM_TIMED_OUT, message, facts, found.way_out, data)
