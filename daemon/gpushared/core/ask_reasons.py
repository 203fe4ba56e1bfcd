"""Why an ask waits or is refused, as its user reads it."""

from __future__ import annotations

from gpushare.quantity import format_bytes
from gpushare.reasons import Code, Reason, Words, joined, words
from gpushared.core import blockers, visibility, waiters
from gpushared.core.model import Ask, Gpu, Job
from gpushared.core.policy import MIB
from gpushared.core.transaction import Transaction


def claim_waits(gpu: Gpu, ask: Ask, available: int) -> Reason:
    """Why a claim waits, for the story of its job. wait_report.py says which jobs hold the memory. `available`:
    bytes."""
    free = max(0, available)
    what = f"to open a context ({format_bytes(ask.wanted)})" if ask.attach else f"for {format_bytes(ask.wanted)}"
    text = f"waits {what} on GPU {gpu.index}, which is within its request; {format_bytes(free)} are free"
    return Reason(Code.CLAIM_WAITS, text, data={"asked": ask.wanted, "free": free, "job": ask.job})


def over_limit(tx: Transaction, gpu: Gpu, ask: Ask) -> Reason:
    job = tx.state.jobs[ask.job]
    bounds, usage = job.bounds[gpu.id], tx.state.usage(job, gpu.id)
    source = f"   from {job.spec.limit_source}" if job.spec.limit_source else ""
    facts = (
        ("limit", format_bytes(bounds.limit) + source),
        ("in use", f"{format_bytes(usage)}{_by_process(tx, gpu, job)}"),
    )
    data = {"asked": ask.wanted, "limit": bounds.limit, "usage": usage, "job": job.id}
    enough = -(-(usage + ask.wanted) // MIB)
    hint = words("raise it while it runs: `gpushare set ", visibility.name(job.spec), f" --limit {enough}Mi`")
    if usage + ask.wanted > gpu.capacity:
        hint = f"it cannot fit: GPU {gpu.index} can give {format_bytes(gpu.capacity)} in all"
    if bounds.limit >= gpu.capacity:
        hint = f"the limit is all that GPU {gpu.index} can give"
    return Reason(Code.OVER_LIMIT, f"{_what(gpu, ask)}: over this job's limit", facts, hint, data)


def not_free(tx: Transaction, gpu: Gpu, ask: Ask, available: int) -> Reason:
    """Why a loan is refused. `available`: bytes that are free for it."""
    state = tx.state
    job = state.jobs[ask.job]
    bounds, usage = job.bounds[gpu.id], state.usage(job, gpu.id)
    others = [(state.usage(other, gpu.id), other) for other in state.owners(gpu.id) if other is not job]
    holding = sorted((one for one in others if one[0]), key=lambda one: -one[0])
    holders = [words(visibility.who(other.spec), f" {format_bytes(used)}") for used, other in holding[: blockers.NAMED]]
    holders += blockers.and_others([used for used, _ in holding]) + blockers.held_by_no_job(gpu)
    free = max(0, available)
    held_back = max(0, gpu.free - free)
    lent = f"only {format_bytes(free)} are free"
    if held_back:
        part = f"only {format_bytes(free)}" if free else "nothing"
        lent = f"{part} of the {format_bytes(gpu.free)} that are free can be lent"
    # Which call comes first is chance: by itself this one may be within the request.
    ahead = ask.promised if ask.above <= ask.promised else 0
    beside = f" beside {format_bytes(ahead)} that this job waits for already" if ahead else ""
    what = f"{_what(gpu, ask)}{beside}: it is above this job's request, and {lent}"
    facts: list[tuple[Words, Words]] = [
        ("request", f"{format_bytes(bounds.request)}, in use {format_bytes(usage)}"),
        ("held", joined(" · ", holders) or "nothing by others"),
    ]
    facts += _claimed(tx, gpu) + _kept(tx, gpu, job)
    data = {
        "asked": ask.wanted,
        "free": free,
        "held_back": held_back,
        "request": bounds.request,
        "usage": usage,
        "job": job.id,
    }
    hint = "memory above the request is lent only while it is free; ask for more with --request"
    return Reason(Code.NOT_FREE, what, tuple(facts), hint, data)


def _claimed(tx: Transaction, gpu: Gpu) -> list[tuple[Words, Words]]:
    """What waits for this GPU's memory. No loan is given before it."""
    waiting = [ask for ask in gpu.asks.values() if ask.claim and ask.short]
    if not waiting:
        return []
    who = [visibility.who(tx.state.jobs[ask.job].spec) for ask in waiting[: blockers.NAMED]]
    claims = [words(whom, f" {format_bytes(ask.need)}") for whom, ask in zip(who, waiting, strict=False)]
    claims += blockers.and_others([ask.need for ask in waiting])
    return [("claimed", words(joined(" · ", claims), ", within the request"))]


def _kept(tx: Transaction, gpu: Gpu, job: Job) -> list[tuple[Words, Words]]:
    """What is free, and not for this job."""
    state = tx.state
    kept, own = waiters.kept(state, gpu), state.unlent(gpu.id, job)
    parts: list[Words] = [f"{format_bytes(own)} of requests that are not lent"] if own else []
    if kept.first is not None and kept.against(job):
        name = visibility.who(kept.first.spec)
        parts.append(words(f"{format_bytes(kept.size)} for ", name, ", which waits to go on"))
    return [("kept", joined(" · ", parts))] if parts else []


def _what(gpu: Gpu, ask: Ask) -> str:
    if ask.attach:
        return f"cannot open a context on GPU {gpu.index} ({format_bytes(ask.wanted)})"
    return f"cannot allocate {format_bytes(ask.wanted)} on GPU {gpu.index}"


def _by_process(tx: Transaction, gpu: Gpu, job: Job) -> str:
    shares = tx.state.shares_of(job, gpu.id)
    if not shares:
        return ""
    processes = tx.state.processes
    parts = [
        f"{processes[share.process].command or 'pid'}[{processes[share.process].pid}] {format_bytes(share.usage)}"
        for share in sorted(shares, key=lambda share: -share.usage)[:4]
    ]
    return "   " + ", ".join(parts)
