"""Reclaim: getting a claim's shortfall back from borrowers, by the gentlest step that is enough.

Idle credit has been revoked before anything here runs (lending.py). What is left of the ladder:

    term   SIGTERM to all processes of a victim; it may free memory, or write a checkpoint and go
    kill   SIGKILL when its grace is over and the memory is still missing

(A rung between, trim, will ask the program's own allocators to give back their caches.)

Rules, each held at the moment of action and on words read at that moment:

* there is a shortfall, and borrowers' loans can cover it: else nobody is touched (invariant 6)
* only borrowers are victims, never the claimant's own job, never within a protected start (5)
* the victims are planner.py's; those already on a rung count first (7); a job is on a rung as a whole (8)
* a victim that has given back, or is no longer needed, is left in peace
* memory that is on its way back counts as covered, and as free only when NVML says so (9)
"""

from __future__ import annotations

from collections.abc import Sequence

from gpushare.quantity import format_bytes, format_duration
from gpushare.reasons import Code, Reason
from gpushared import planner
from gpushared.instructions import Kill, Notify, Terminate
from gpushared.state import Ask, Gpu, Job, Reclaim
from gpushared.turn import Turn


def active(turn: Turn, gpu: Gpu) -> bool:
    """Somebody is on a rung for memory of this GPU."""
    return any(gpu.id in job.reclaims for job in turn.state.jobs.values())


def pursue(turn: Turn, gpu: Gpu, claims: Sequence[Ask]) -> None:
    """Take the next step for the claims that wait, if there is one to take now."""
    victims = _victims(turn, gpu)
    if not claims:
        for victim in victims:
            _relieve(turn, gpu, victim, "the memory is no longer needed")
        return
    fresh = turn.now - turn.policy.poll / 2
    if gpu.seen_at < fresh:
        turn.look(gpu)
        return
    if gpu.returning and gpu.sampled_at < fresh:
        turn.sample(gpu)
        return
    pursued, shortfall = _feasible(turn, gpu, claims, victims)
    if pursued is None or shortfall <= 0:
        why = "it would not be enough" if pursued is None else "the memory came from elsewhere"
        for victim in victims:
            _relieve(turn, gpu, victim, why)
        return
    victims = [victim for victim in victims if not _gave_back(turn, gpu, victim)]
    if turn.policy.last_rung == "kill":
        _kill_due(turn, gpu, victims, shortfall)
    if turn.policy.last_rung not in ("term", "kill"):
        return
    covered = sum(turn.state.loan(victim, gpu.id) for victim in victims)
    for borrower in planner.plan(shortfall - covered, _borrowers(turn, gpu, claims)):
        _terminate(turn, gpu, turn.state.jobs[borrower.job], pursued)


# ---- sums ------------------------------------------------------------------------------------------


def _victims(turn: Turn, gpu: Gpu) -> list[Job]:
    """Jobs that have been asked and not yet killed."""
    jobs = turn.state.jobs.values()
    return [job for job in jobs if gpu.id in job.reclaims and job.reclaims[gpu.id].killed_at is None]


def _killed(turn: Turn, gpu: Gpu) -> list[Job]:
    """Killed jobs whose memory may be counted on: the kernel is still at it."""
    found = []
    for job in turn.state.jobs.values():
        reclaim = job.reclaims.get(gpu.id)
        if reclaim is None or reclaim.killed_at is None:
            continue
        if turn.now - reclaim.killed_at <= turn.policy.unkillable_after:
            found.append(job)
    return found


def _missing(turn: Turn, gpu: Gpu, claims: Sequence[Ask]) -> int:
    """Bytes that these claims need beyond what is free or surely on its way."""
    state = turn.state
    claimed: dict[str, int] = {}
    for ask in claims:
        claimed[ask.job] = claimed.get(ask.job, 0) + ask.need
    unlent = sum(
        max(0, job.bounds[gpu.id].request - job.committed.get(gpu.id, 0) - claimed.get(job.id, 0))
        for job in state.owners(gpu.id)
        if not job.spec.lend
    )
    coming = gpu.returning_total + sum(state.usage(job, gpu.id) for job in _killed(turn, gpu))
    return sum(claimed.values()) - gpu.free - coming + unlent


def _feasible(turn: Turn, gpu: Gpu, claims: Sequence[Ask], victims: list[Job]) -> tuple[Ask | None, int]:
    """The shortfall of as many claims (in order) as borrowers' loans can cover, and the claim to name for it.

    No claim: not even the first can be covered.
    """
    on_rung = sum(turn.state.loan(victim, gpu.id) for victim in victims)
    for count in range(len(claims), 0, -1):
        shortfall = _missing(turn, gpu, claims[:count])
        more = sum(borrower.loan for borrower in _borrowers(turn, gpu, claims[:count]))
        if shortfall <= on_rung + more:
            return claims[count - 1], shortfall
    return None, 0


def _borrowers(turn: Turn, gpu: Gpu, claims: Sequence[Ask]) -> list[planner.Borrower]:
    """Who could be a victim for these claims, and is not yet one."""
    state = turn.state
    claimants = {ask.job for ask in claims}
    found = []
    for job in state.owners(gpu.id):
        bounds, loan, running = job.bounds[gpu.id], state.loan(job, gpu.id), turn.now - job.since
        if loan <= 0 or job.id in claimants or gpu.id in job.reclaims or running < job.spec.min_run_time:
            continue
        if bounds.limit == bounds.request:
            continue  # it never borrows; what it is above its request, NVML has found, not the job
        found.append(planner.Borrower(job.id, loan, state.usage(job, gpu.id), job.spec.priority, running))
    return found


# ---- rungs -----------------------------------------------------------------------------------------


def _terminate(turn: Turn, gpu: Gpu, victim: Job, claim: Ask) -> None:
    grace = victim.spec.grace if victim.spec.grace is not None else turn.policy.grace
    loan = turn.state.loan(victim, gpu.id)
    reason = _why(turn, gpu, victim, claim, grace)
    already = next(iter(victim.reclaims.values()), None)
    deadline = already.deadline if already else turn.now + grace
    victim.reclaims[gpu.id] = Reclaim(victim.id, gpu.id, turn.now, deadline, reason, claim.job, claim.wanted, loan)
    if already is None:
        turn.state.counters.terms += 1
        turn.emit(Terminate(victim.id, tuple(sorted(victim.processes)), grace, reason))
    owner = turn.state.jobs[claim.job].spec.name
    text = f"asked with SIGTERM to give back: {owner} wants {format_bytes(claim.wanted)} of GPU {gpu.index}"
    turn.record_reason("term", reason, text, job=victim, gpu=gpu.id)


def _kill_due(turn: Turn, gpu: Gpu, victims: list[Job], shortfall: int) -> None:
    """Kill as many of those whose grace is over as are still needed."""
    due = [victim for victim in victims if turn.now >= victim.reclaims[gpu.id].deadline]
    if not due:
        return
    loans = {victim.id: turn.state.loan(victim, gpu.id) for victim in victims}
    in_grace = sum(loans[victim.id] for victim in victims if victim not in due)
    needed = shortfall - in_grace
    ranked = [
        planner.Borrower(job.id, loans[job.id], turn.state.usage(job, gpu.id), job.spec.priority, turn.now - job.since)
        for job in due
    ]
    chosen = planner.plan(needed, ranked) if needed <= sum(loans[job.id] for job in due) else tuple(ranked)
    for borrower in chosen:
        victim = turn.state.jobs[borrower.job]
        _kill(turn, gpu, victim)


def _kill(turn: Turn, gpu: Gpu, victim: Job) -> None:
    reason = victim.reclaims[gpu.id].reason
    for reclaim in victim.reclaims.values():
        reclaim.killed_at = turn.now
    victim.killed = reason
    turn.state.counters.kills += 1
    turn.emit(Kill(victim.id, tuple(sorted(victim.processes)), reason))
    text = f"killed: its grace is over, and {format_bytes(turn.state.loan(victim, gpu.id))} of its loan are needed"
    turn.record_reason("kill", reason, text, job=victim, gpu=gpu.id)


def _gave_back(turn: Turn, gpu: Gpu, victim: Job) -> bool:
    """A victim whose loan is gone has done what it was asked: it is no borrower any more."""
    if turn.state.loan(victim, gpu.id) > 0:
        return False
    _relieve(turn, gpu, victim, "it has given its loan back")
    return True


def _relieve(turn: Turn, gpu: Gpu, victim: Job, why: str) -> None:
    reclaim = victim.reclaims.pop(gpu.id)
    got = max(0, reclaim.loan - turn.state.loan(victim, gpu.id))
    turn.state.counters.relieved += 1
    text = f"gave {format_bytes(got)} of GPU {gpu.index} back and runs on: {why}"
    turn.record("relieved", text, job=victim, gpu=gpu.id, got=got, owner=reclaim.owner, rung="term")
    reason = Reason(Code.RECLAIM, f"nothing more is asked back: {why}", data={"got": got})
    turn.emit(Notify(victim.id, "relieved", reason))


def victim_gone(turn: Turn, gpu: Gpu, victim: Job) -> None:
    """The last process of a victim has left the GPU."""
    reclaim = victim.reclaims.pop(gpu.id, None)
    if reclaim is None:
        return
    rung = "term" if reclaim.killed_at is None else "kill"
    text = f"{format_bytes(reclaim.loan)} on loan came back by {rung}"
    seconds = turn.now - reclaim.since
    turn.record(
        "reclaimed",
        text,
        job=victim,
        gpu=gpu.id,
        rung=rung,
        got=reclaim.loan,
        owner=reclaim.owner,
        seconds=seconds,
    )


def timed_out(turn: Turn, gpu: Gpu, ask: Ask) -> Reason:
    """A claim that could not be met: counted by what stood in the way."""
    cause, text = _obstacle(turn, gpu)
    violations = turn.state.counters.violations
    violations[cause] = violations.get(cause, 0) + 1
    waited = turn.now - ask.since
    facts = (("in the way", text), ("waited", format_duration(waited)))
    data = {"asked": ask.wanted, "cause": cause, "waited": waited, "job": ask.job}
    what = f"cannot allocate {format_bytes(ask.wanted)} on GPU {gpu.index}, although it is within this job's request"
    return Reason(Code.CLAIM_TIMED_OUT, what, facts, "see `gpushare status` and `gpushare doctor`", data)


def _obstacle(turn: Turn, gpu: Gpu) -> tuple[str, str]:
    killed = [job for job in turn.state.jobs.values() if gpu.id in job.reclaims and job.reclaims[gpu.id].killed_at]
    if killed:
        return "unkillable", f"{killed[0].spec.name} was killed and does not go"
    if gpu.returning:
        return (
            "returning",
            f"{format_bytes(gpu.returning_total)} of exited programs that the driver has not returned",
        )
    if gpu.unmanaged:
        return "unmanaged", f"{format_bytes(gpu.unmanaged)} used outside gpushare"
    waiting = [job for job in turn.state.owners(gpu.id) if turn.now - job.since < job.spec.min_run_time]
    if waiting:
        return "protected", f"{waiting[0].spec.name} is within its minimum run time"
    if turn.policy.last_rung != "kill":
        return "policy", f"the settings of this node, by which a reclaim ends with {turn.policy.last_rung}"
    return "grace", "borrowers that are still within their grace"


# ---- what the victim reads -------------------------------------------------------------------------


def _why(turn: Turn, gpu: Gpu, victim: Job, claim: Ask, grace: float) -> Reason:
    state = turn.state
    owner = state.jobs[claim.job]
    usage, loan = state.usage(victim, gpu.id), state.loan(victim, gpu.id)
    request = victim.bounds[gpu.id].request
    facts = (
        ("owed", f"{format_bytes(claim.wanted)} to {owner.spec.name} ({owner.spec.user}), within its request"),
        (
            "used",
            f"{format_bytes(usage)}, of which {format_bytes(request)} guaranteed and {format_bytes(loan)} on loan",
        ),
        ("grace", format_duration(grace)),
    )
    data = {
        "owner": owner.id,
        "owner_name": owner.spec.name,
        "owner_user": owner.spec.user,
        "victim": victim.id,
        "gpu": gpu.id,
        "asked": claim.wanted,
        "usage": usage,
        "request": request,
        "loan": loan,
        "grace": grace,
    }
    message = f"borrowed memory of GPU {gpu.index} is wanted back by its owner"
    hint = "ask for more with --request, or free memory on SIGTERM to go on"
    return Reason(Code.RECLAIM, message, facts, hint, data)
