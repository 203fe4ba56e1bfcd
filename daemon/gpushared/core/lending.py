"""Asks: who gets credit now, who waits, who is refused.

A process asks when its credit is used up. In this order, until one is enough:

    1. over the job's limit, even with what its other processes hold idle   refuse
    2. it fits into what is free                                            grant, and a chunk more
    3. idle credit of others covers the rest: revoke it                     grant
    4. the job would be above its request: a loan                           refuse at once (invariant 4),
                                                                            once NVML has been asked about the dead
    5. within its request: a claim. It waits, at most the claim timeout, while reclaim.py works

The words of the processes are read (LookUsed) before anything is taken or refused, never before a plain grant.
What is free is earmarked for waiting claims, in the order of priority and arrival: no loan overtakes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpushare.quantity import format_bytes
from gpushare.reasons import Code, Reason, Words, joined, words
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import blockers, health, reclaim, unconfirmed, visibility
from gpushared.core.events import CreditAsked
from gpushared.core.instructions import Attached, Denied, Granted, Instruction, Publish, Published, Revoke
from gpushared.core.model import UNIT, Ask, Gpu, Job, Share, whole_units
from gpushared.core.policy import MIB
from gpushared.core.state import State
from gpushared.core.transaction import Transaction


def grant_plainly(state: State, event: CreditAsked, now: float) -> list[Instruction] | None:
    """What nearly every ask comes to: nobody waits on the GPU, and it fits. None: there is more to think about.

    answer_asks() would grant the same (a test compares both). No Ask is made, because nothing has to wait: a hundred
    programs may ask in the same moment, and the last of them waits for all the others.
    """
    process = state.processes.get(event.process)
    share = process.shares.get(event.gpu) if process is not None else None
    if share is None or event.driver_failed or event.again:
        return None
    gpu, job = state.gpus[event.gpu], state.jobs[share.job]
    if gpu.asks or gpu.under_reclaim or gpu.returning or not gpu.health.admits:
        return None
    need = whole_units(event.size)
    in_limit = job.bounds[gpu.id].limit - job.committed[gpu.id]
    available = gpu.free - state.unlent(gpu.id, job)
    if need > in_limit or need > available:
        return None
    size = need + min(state.policy.chunk, in_limit - need, available - need) // UNIT * UNIT
    job.active_at = now
    state.counters.grants += 1
    share.granted.append(event.allocation or need)
    gpu.holds[share.process] = now
    state.change(share, credit=size)
    figures = _figures(state, gpu, job, share, available - size + state.lendable(gpu))
    return [Granted(event.ask, event.process, gpu.id, size, figures), Publish(gpu.id)]


def add_ask(tx: Transaction, ask: Ask) -> None:
    gpu = tx.state.gpus[ask.gpu]
    gpu.asks[ask.id] = ask
    tx.state.asks[ask.id] = ask
    answer_asks(tx, gpu)


def drop_ask(tx: Transaction, ask: Ask) -> None:
    tx.state.asks.pop(ask.id, None)
    tx.state.gpus[ask.gpu].asks.pop(ask.id, None)


def answer_asks(tx: Transaction, gpu: Gpu) -> None:
    """Answer what can be answered on this GPU now, and take the next step for the rest."""
    if not gpu.asks and not gpu.under_reclaim:
        return
    earmarked = 0
    waiting: list[Ask] = []
    for ask in _in_order(tx, gpu):
        if _try(tx, gpu, ask, earmarked):
            drop_ask(tx, ask)
        else:
            waiting.append(ask)
            if ask.claim:
                earmarked += ask.need
    claims = [ask for ask in waiting if ask.claim and ask.looked]
    if not gpu.looking and not gpu.revoking and not gpu.sampling:
        reclaim.pursue(tx, gpu, claims)
    for ask in waiting:
        ask.looked = ask.verified = False  # old when the next event comes: nothing is refused or taken on it


def _in_order(tx: Transaction, gpu: Gpu) -> list[Ask]:
    """Claims, then loans; each by priority, then by arrival. Marks what is a claim.

    Of a job whose processes ask side by side, those that came first have the room in its request: else nobody would
    have to give back what together is a loan.
    """
    promised: dict[str, int] = {}
    guessed: dict[str, int] = {}
    asks = sorted(gpu.asks.values(), key=lambda ask: ask.order)
    for ask in asks:
        _mark(tx, gpu, ask, promised.get(ask.job, 0), guessed.get(ask.job, 0))
        if ask.claim:
            guessed[ask.job] = ask.unsure
            promised[ask.job] = promised.get(ask.job, 0) + _growth(gpu, ask)
    return sorted(asks, key=lambda ask: not ask.claim)


def cost_of_a_context(tx: Transaction, gpu: Gpu, job: Job) -> int:
    """As it was learned; else a guess, which must not keep a job out for its limit: NVML will say what it does cost."""
    learned = tx.state.overheads.get(gpu.name)
    if learned is not None:
        return learned
    return min(tx.policy.guess(gpu.total), job.bounds[gpu.id].limit) // UNIT * UNIT


def _mark(tx: Transaction, gpu: Gpu, ask: Ask, promised: int, guessed: int) -> None:
    """A claim is an ask within the request: by the job's usage as last seen, what it is promised, and this.
    `guessed`: how much less the contexts in what it is promised may cost."""
    state = tx.state
    job, request = state.jobs[ask.job], state.jobs[ask.job].bounds[gpu.id].request
    if ask.attach:
        ask.size = cost_of_a_context(tx, gpu, job)  # may have been learned since
    before = state.usage(job, gpu.id) + promised
    ask.above = before + _growth(gpu, ask) - request
    # What a context costs on a type of GPU that has not been measured yet is a guess: it refuses none that may fit.
    own = _own_guess(tx, gpu, ask)
    only_guessed = own > 0 and before < request
    ask.unsure = guessed + own
    # What calls beside it are about to take may leave it above the request: a moment later that is known.
    ask.claim = only_guessed or ask.above + _about_to_be_used(tx, gpu, ask) <= 0


def _own_guess(tx: Transaction, gpu: Gpu, ask: Ask) -> int:
    """How much less the context may cost that is asked for, in bytes: all but a unit, on a type not measured yet."""
    unmeasured = gpu.health.attributed and gpu.name not in tx.state.overheads
    return max(0, ask.size - UNIT) if ask.attach and unmeasured else 0


def measure_asks(tx: Transaction, gpu: Gpu) -> None:
    """What each call lacks now, the words being fresh: other threads of its process have allocated and freed since it
    asked. Of one process the first may use what is idle first."""
    idle: dict[int, int] = {}
    for ask in sorted(gpu.asks.values(), key=lambda ask: ask.order):
        share = gpu.shares.get(ask.process)
        if not ask.allocation or ask.driver_failed or share is None:
            continue
        pending = share.pending if ask.process in gpu.holds and _is_young(tx, ask) else 0
        left = idle.get(ask.process, share.idle - pending)
        ask.size = whole_units(max(0, ask.allocation - left))
        idle[ask.process] = max(0, left - ask.allocation)


def _is_young(tx: Transaction, ask: Ask) -> bool:
    """It gives way to calls of its own job that were answered before. Not for long: in busy programs they come one
    after the other, and this ask is to have its place among them."""
    return tx.now - ask.since < tx.policy.hold


def _about_to_be_used(tx: Transaction, gpu: Gpu, ask: Ask) -> int:
    """Idle credit that calls of its job are about to take. An ask may wait for these, and is never refused for them:
    which of the calls have taken their credit already is not known exactly."""
    if not _is_young(tx, ask):
        return 0
    return sum(gpu.shares[process].pending for process in gpu.holds if gpu.shares[process].job == ask.job)


def _is_anothers(ask: Ask, share: Share) -> bool:
    """Whether what is idle there is not counted in the ask's size already. A context does not use credit."""
    return ask.attach or share.process != ask.process


def _growth(gpu: Gpu, ask: Ask) -> int:
    """By how much usage grows if the ask is granted and used."""
    if ask.driver_failed:
        return 0  # it is charged already
    if ask.attach:
        return ask.need
    if ask.allocation:
        return ask.allocation
    mine = gpu.shares.get(ask.process)
    return (mine.idle if mine else 0) + ask.need


@dataclass(frozen=True, slots=True)
class Room:
    """What an ask meets: all in bytes."""

    need: int
    available: int
    """Free, and neither earmarked nor kept by an owner that lends nothing."""
    in_limit: int
    """Until the job's limit."""


def _room(tx: Transaction, gpu: Gpu, ask: Ask, earmarked: int) -> Room:
    job = tx.state.jobs[ask.job]
    available = gpu.free - earmarked - tx.state.unlent(gpu.id, job)
    in_limit = tx.state.in_limit(job, gpu)
    if tx.now >= ask.deadline:
        in_limit += gpu.returning_of(job.id)  # the driver has had its time: it fails nobody's guarantee
    return Room(ask.need, available, in_limit)


def _try(tx: Transaction, gpu: Gpu, ask: Ask, earmarked: int) -> bool:
    """True if the ask is answered."""
    job = tx.state.jobs[ask.job]
    if not gpu.health.admits:
        if not gpu.health.lost and not ask.looked:
            tx.look(gpu)  # what is a loan is refused, so the words must be fresh
            return False
        refusal = health.refusal(tx, gpu, ask)
        if refusal is not None:
            return _deny(tx, gpu, ask, refusal)
    if ask.driver_failed and not ask.sampled:
        tx.sample(gpu)
        return False
    if not (ask.need or ask.attach or ask.driver_failed):
        _grant(tx, gpu, ask, Room(0, 0, 0))  # its process has freed enough since it asked
        return True
    room = _room(tx, gpu, ask, earmarked)
    if room.need <= room.in_limit and room.need <= room.available:
        _grant(tx, gpu, ask, room)
        return True
    if tx.now >= ask.deadline and ask.claim and ask.looked:
        return _deny(tx, gpu, ask, reclaim.timed_out(tx, gpu, ask))
    if not ask.looked:
        tx.look(gpu)
        return False
    if gpu.revoking:
        return False
    pending = _about_to_be_used(tx, gpu, ask)
    if room.need > room.in_limit:
        siblings = [share for share in tx.state.shares_of(job, gpu.id) if _is_anothers(ask, share)]
        missing = room.need - room.in_limit
        spared = gpu.holds if pending else {}
        takeable = [(share, share.idle - (share.pending if share.process in spared else 0)) for share in siblings]
        idle = sum(amount for _, amount in takeable)
        if missing > idle:
            if missing <= idle + pending:
                return False  # a moment later it is in use, or idle
            coming = gpu.returning_of(job.id) if tx.now < ask.deadline else 0
            if missing <= idle + coming:
                return False  # the driver still holds it for the job's dead, and shows it
            if unconfirmed.may_cover(tx, gpu, ask, missing - idle - coming - _own_guess(tx, gpu, ask)):
                return False
            return _deny(tx, gpu, ask, _over_limit(tx, gpu, ask))
        _revoke(tx, gpu, missing, takeable)
        return False
    if not ask.claim and ask.above <= 0:
        return False
    if not ask.claim and unconfirmed.may_cover(tx, gpu, ask, ask.above - ask.unsure):
        return False
    held = tx.state.held(gpu, against_claims=ask.claim)
    others = [share for share in gpu.shares.values() if _is_anothers(ask, share)]
    takeable = [(share, _takeable(tx.state, share, held)) for share in _idle_first(tx, gpu, ask, others)]
    idle = sum(amount for _, amount in takeable)
    missing = room.need - room.available
    if not ask.claim and idle < missing <= idle + pending:
        return False  # a moment later it is in use, or idle
    if idle and (missing <= idle or ask.claim):
        _revoke(tx, gpu, missing, takeable)
        return False
    if not ask.claim:
        if (gpu.returning or unconfirmed.strays(gpu.shares.values())) and not ask.sampled:
            tx.sample(gpu)  # it may have come back by now, and strays may have gone
            return False
        return _deny(tx, gpu, ask, _not_free(tx, gpu, ask, room))
    if not ask.short:
        ask.short = True
        tx.state.counters.claims += 1
        tx.record_reason("claim_waits", _claim_waits(gpu, ask, room), job=job, gpu=gpu.id)
    return False


def _idle_first(tx: Transaction, gpu: Gpu, ask: Ask, others: list[Share]) -> list[Share]:
    """Whose idle credit goes first: the job's own processes', then borrowers', then the largest."""
    state = tx.state

    def order(share: Share) -> tuple[bool, bool, int, int]:
        job = state.jobs[share.job]
        return (share.job != ask.job, state.loan(job, gpu.id) == 0, -share.idle, share.process)

    return sorted(others, key=order)


def _takeable(state: State, share: Share, held: Mapping[int, int]) -> int:
    """What a claim of another process may take of its idle credit now."""
    return max(0, min(state.revocable(share), share.idle - held.get(share.process, 0)))


def _revoke(tx: Transaction, gpu: Gpu, missing: int, takeable: Iterable[tuple[Share, int]]) -> None:
    """Take `missing` bytes of idle credit, in this order, of each share at most so much.

    This ends: a revocation that brings less than it should have has brought all, and the answer says so.
    """
    for share, most in takeable:
        size = min(missing, most)
        if size <= 0:
            continue
        gpu.revoking += 1
        tx.emit(Revoke(share.process, gpu.id, size))
        missing -= size
        if missing <= 0:
            return


def _grant(tx: Transaction, gpu: Gpu, ask: Ask, room: Room) -> None:
    state = tx.state
    spare = min(tx.policy.chunk, room.in_limit - room.need, room.available - room.need)
    # While others wait, what they lack is known exactly; a chunk for one would be missing for the next.
    spare = max(0, spare) // UNIT * UNIT if gpu.health.admits and len(gpu.asks) == 1 else 0
    state.counters.grants += 1
    share = gpu.shares.get(ask.process)
    if ask.attach:
        if share is None:
            share = Share(ask.process, ask.job, gpu.id, tx.now)
            state.add_share(share)
        share.attached, share.measured, share.since = True, False, tx.now
        share.provisional, share.provisional_at = -1, tx.now
        if gpu.name not in state.overheads:
            gpu.guessed.add(share.process)
        state.change(share, credit=spare, overhead=room.need)
        tx.emit(Attached(ask.id, ask.process, gpu.id, room.need, spare))
        job = state.jobs[ask.job]
        tx.record(
            "attached",
            f"a context opens on GPU {gpu.index} ({format_bytes(room.need)})",
            job=job,
            gpu=gpu.id,
            overhead=room.need,
        )
    else:
        assert share is not None  # node.py takes credit asks of attached processes only
        size = 0 if ask.driver_failed else room.need + spare
        if not ask.driver_failed:
            share.granted.append(ask.allocation or ask.need)
            gpu.holds[share.process] = tx.now
        state.change(share, credit=size)
        drop_ask(tx, ask)  # it waits no more: nothing is earmarked for it in what follows
        figures = published(state, gpu, (ask.process,))[ask.process]
        tx.emit(Granted(ask.id, ask.process, gpu.id, size, figures))
    if ask.short:
        _record_claim(tx, gpu, ask)
    tx.emit(Publish(gpu.id))


def _record_claim(tx: Transaction, gpu: Gpu, ask: Ask) -> None:
    waited = tx.now - ask.since
    tx.state.counters.claim_seconds += waited
    job = tx.state.jobs[ask.job]
    rung = str(ask.step)
    tx.state.counters.claims_met[rung] += 1
    how = "with nobody asked" if ask.step is ReclaimStep.REVOKE else f"by {rung}"
    text = f"claim of {format_bytes(ask.wanted)} on GPU {gpu.index} met after {waited:.2f} s, {how}"
    tx.record("claim_met", text, job=job, gpu=gpu.id, asked=ask.wanted, waited=waited, rung=rung)


def _deny(tx: Transaction, gpu: Gpu, ask: Ask, reason: Reason) -> bool:
    state = tx.state
    job = state.jobs[ask.job]
    job.refusals += 1
    state.counters.denials[reason.code.value] += 1
    tx.emit(Denied(ask.id, ask.process, gpu.id, reason))
    tx.record_reason("denied", reason, job=job, gpu=gpu.id)
    return True


def count_failed_driver(tx: Transaction, event: CreditAsked, job: Job) -> None:
    """The account and NVML agree that there is room, and the driver does not: memory in too small pieces, or a fault of
    its own. Within the request that is a guarantee that was not kept."""
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
    tx.record_reason("denied", reason, job=job, gpu=gpu.id)


# ---- what those who wait, or are refused, read -----------------------------------------------------


def _claim_waits(gpu: Gpu, ask: Ask, room: Room) -> Reason:
    """For its story; who holds what meanwhile is said in wait_report.py."""
    free = max(0, room.available)
    what = f"to open a context ({format_bytes(ask.wanted)})" if ask.attach else f"for {format_bytes(ask.wanted)}"
    text = f"waits {what} on GPU {gpu.index}, which is within its request; {format_bytes(free)} are free"
    return Reason(Code.CLAIM_WAITS, text, data={"asked": ask.wanted, "free": free, "job": ask.job})


def _what(gpu: Gpu, ask: Ask) -> str:
    if ask.attach:
        return f"cannot open a context on GPU {gpu.index} ({format_bytes(ask.wanted)})"
    return f"cannot allocate {format_bytes(ask.wanted)} on GPU {gpu.index}"


def _over_limit(tx: Transaction, gpu: Gpu, ask: Ask) -> Reason:
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
    if bounds.limit >= gpu.capacity:
        hint = f"the limit is all that GPU {gpu.index} can give"
    return Reason(Code.OVER_LIMIT, f"{_what(gpu, ask)}: over this job's limit", facts, hint, data)


def _not_free(tx: Transaction, gpu: Gpu, ask: Ask, room: Room) -> Reason:
    state = tx.state
    job = state.jobs[ask.job]
    bounds, usage = job.bounds[gpu.id], state.usage(job, gpu.id)
    others = [(state.usage(other, gpu.id), other) for other in state.owners(gpu.id) if other is not job]
    holding = sorted((one for one in others if one[0]), key=lambda one: -one[0])
    holders = [words(visibility.who(other.spec), f" {format_bytes(used)}") for used, other in holding[: blockers.NAMED]]
    holders += blockers.and_others([used for used, _ in holding]) + blockers.held_by_no_job(gpu)
    free = max(0, room.available)
    what = f"{_what(gpu, ask)}: it is above this job's request, and only {format_bytes(free)} are free"
    facts: list[tuple[Words, Words]] = [
        ("request", f"{format_bytes(bounds.request)}, in use {format_bytes(usage)}"),
        ("held", joined(" · ", holders) or "nothing by others"),
    ]
    data = {"asked": ask.wanted, "free": free, "request": bounds.request, "usage": usage, "job": job.id}
    hint = "memory above the request is lent only while it is free; ask for more with --request"
    return Reason(Code.NOT_FREE, what, tuple(facts), hint, data)


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


# ---- what jobs could be granted now ----------------------------------------------------------------


def published(state: State, gpu: Gpu, processes: Iterable[int]) -> Mapping[int, Published]:
    """For each of these processes: what a request for more credit would get at this moment."""
    earmarked = sum(ask.need for ask in gpu.asks.values() if ask.claim)
    lendable = state.lendable(gpu)
    lent: dict[str, int] = {}
    found: dict[int, Published] = {}
    for process in processes:
        share = gpu.shares.get(process)
        if share is None:
            continue
        job = state.jobs[share.job]
        if job.id not in lent:
            lent[job.id] = gpu.free - earmarked - state.unlent(gpu.id, job) + lendable
        found[process] = _figures(state, gpu, job, share, lent[job.id])
    return found


def _figures(state: State, gpu: Gpu, job: Job, share: Share, lent: int) -> Published:
    """`lent`: what is free for its job, and what others, or itself, hold idle."""
    bounds, usage, idle = job.bounds[gpu.id], job.usage[gpu.id], share.idle
    committed = usage + idle  # what its siblings hold idle would be taken for it
    lent = lent - (idle if job.spec.lend else state.revocable(share)) if gpu.health.admits else 0
    in_limit = bounds.limit - committed - (gpu.returning_of(job.id) if gpu.returning else 0)
    grantable = 0 if gpu.health.lost else max(0, min(in_limit, max(bounds.request - committed, lent)))
    return Published(grantable, bounds.limit, bounds.request, share.overhead, usage)
