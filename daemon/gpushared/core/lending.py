"""Asks: who gets credit now, who waits, who is refused.

A process asks when its credit is used up. In this order, until one is enough:

    1. over the job's limit, even with what its other processes hold idle   refuse
    2. it fits into what is free                                            grant, and a chunk more
    3. idle credit of others covers the rest: revoke it                     grant
    4. the job would be above its request: a loan                           refuse: a loan never waits for others to
                                                                            give back; NVML is asked first whether
                                                                            memory of ended processes is free again.
                                                                            It waits while its own job may be suspended
                                                                            for a claim
    5. within its request: a claim                                          it waits, at most the claim timeout, while
                                                                            reclaim.py works

The `used` words are read (LookUsed) before anything is taken or refused, never before a plain grant. Free memory is
earmarked for waiting claims, in the order of priority and arrival: no loan overtakes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpushare.quantity import format_bytes
from gpushare.reasons import Code, Reason, words
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core import ask_reasons, claims, health, reclaim, suspend, unconfirmed, waiters
from gpushared.core.events import CreditAsked
from gpushared.core.histogram import Histogram
from gpushared.core.instructions import Attached, Denied, Granted, Instruction, Publish, Revoke
from gpushared.core.model import UNIT, Ask, Gpu, Job, Share, whole_units
from gpushared.core.published import figures, published
from gpushared.core.state import State
from gpushared.core.transaction import Transaction


def grant_plainly(state: State, event: CreditAsked, now: float) -> list[Instruction] | None:
    """The short way for nearly every ask: no ask waits on the GPU, and this one fits. None: take the long way.

    answer_asks() would grant the same (a test compares both). No Ask is made, because nothing has to wait: a hundred
    programs may ask in the same moment, and the last of them waits for all the others.
    """
    id = event.gpu
    process = state.processes.get(event.process)
    share = process.shares.get(id) if process is not None else None
    if share is None or event.driver_failed or event.again:
        return None
    gpu, job = state.gpus[id], state.jobs[share.job]
    if gpu.asks or gpu.under_reclaim or gpu.returning or not gpu.health.admits or job.suspension is not None:
        return None
    need = whole_units(event.size)
    in_limit = job.bounds[id].limit - job.committed[id]
    kept_back = state.non_lending
    if kept_back and state.asleep:
        return None  # what is kept for a job that wakes counts for it, too; and one that sleeps may be looked at now
    available = gpu.free - (state.unlent(id, job) + waiters.kept(state, gpu).against(job) if kept_back else 0)
    if need > in_limit or need > available:
        return None
    size = need + min(state.policy.chunk, in_limit - need, available - need) // UNIT * UNIT
    job.active_at = now
    if job.aside is not None:
        job.aside.asked = True
    state.counters.grants += 1
    share.granted.append(event.allocation or need)
    gpu.holds[share.process] = now
    state.change(share, credit=size)
    lent = available - size + (state.lendable(gpu) if kept_back else gpu.idle)
    shown = figures(state, gpu, job, share, lent)
    return [Granted(event.ask, event.process, id, size, shown), Publish(id)]


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
    for ask in claims.in_order(tx, gpu):
        if _try(tx, gpu, ask, earmarked):
            drop_ask(tx, ask)
        else:
            waiting.append(ask)
            if ask.claim:
                earmarked += ask.need
    waiting_claims = [ask for ask in waiting if ask.claim and ask.looked]
    if not gpu.looking and not gpu.revoking and not gpu.sampling:
        reclaim.pursue(tx, gpu, waiting_claims)
    for ask in waiting:
        ask.looked = ask.verified = False  # too old for the next event: nothing is refused or taken on it


@dataclass(frozen=True, slots=True)
class Room:
    """What an ask meets: all in bytes."""

    need: int
    available: int
    """Free, and neither earmarked nor kept by an owner that lends nothing."""
    in_limit: int
    """Bytes until the job's limit."""
    lent: int = 0
    """The part of `available` beyond what is kept for a job that waits for its memory."""


def _room(tx: Transaction, gpu: Gpu, ask: Ask, earmarked: int) -> Room:
    job = tx.state.jobs[ask.job]
    available = gpu.free - earmarked - tx.state.unlent(gpu.id, job)
    lent = available - waiters.kept(tx.state, gpu).against(job)
    if job.wakes_now:
        available = max(available, min(gpu.free, job.kept(gpu.id)))  # it is not there for claims
        lent = available
    in_limit = tx.state.in_limit(job, gpu)
    if tx.now >= ask.deadline:
        in_limit += gpu.returning_of(job.id)  # a driver that is slow to free breaks no guarantee
    return Room(ask.need, available if ask.claim or job.wakes_now else lent, in_limit, lent)


def _try(tx: Transaction, gpu: Gpu, ask: Ask, earmarked: int) -> bool:
    """Take the next step for the ask. True: it is answered."""
    if not gpu.health.admits:
        if not gpu.health.lost and not ask.looked:
            tx.look(gpu)  # a loan is refused here: whether it is one needs fresh words
            return False
        refusal = health.refusal(tx, gpu, ask)
        if refusal is not None:
            return _deny(tx, gpu, ask, refusal)
    if (ask.driver_failed or gpu.back_since is not None) and not ask.sampled:
        tx.sample(gpu)
        return False
    if not (ask.need or ask.attach or ask.driver_failed):
        return _grant(tx, gpu, ask, Room(0, 0, 0))  # its process has freed enough since it asked
    room = _room(tx, gpu, ask, earmarked)
    if room.need <= room.in_limit and room.need <= room.available:
        return _grant(tx, gpu, ask, room)
    if tx.now >= ask.deadline and ask.claim and ask.looked:
        return _deny(tx, gpu, ask, reclaim.timed_out(tx, gpu, ask))
    if not ask.looked:
        tx.look(gpu)
        return False
    if gpu.revoking:
        return False
    if room.need > room.in_limit:
        return _make_room_in_limit(tx, gpu, ask, room.need - room.in_limit)
    return _make_room_on_gpu(tx, gpu, ask, room)


def _make_room_in_limit(tx: Transaction, gpu: Gpu, ask: Ask, missing: int) -> bool:
    """The job would be over its limit by `missing` bytes: take idle credit of its other processes, or refuse."""
    job = tx.state.jobs[ask.job]
    pending = claims.about_to_be_used(tx, gpu, ask)
    siblings = [share for share in tx.state.shares_of(job, gpu.id) if claims.is_anothers(ask, share)]
    spared = gpu.holds if pending else {}
    takeable = [(share, share.idle - (share.pending if share.process in spared else 0)) for share in siblings]
    idle = sum(amount for _, amount in takeable)
    if missing <= idle:
        _revoke(tx, gpu, missing, takeable)
        return False
    coming = gpu.returning_of(job.id) if tx.now < ask.deadline else 0
    if missing <= idle + pending + coming:
        return False  # a moment later it is in use, or idle; or the driver frees it: a process of the job has ended
    unsure = claims.guess_of_own_context(tx, gpu, ask)
    if unconfirmed.may_cover(tx, gpu, ask, missing - idle - pending - coming - unsure):
        return False
    return _deny(tx, gpu, ask, ask_reasons.over_limit(tx, gpu, ask))


def _make_room_on_gpu(tx: Transaction, gpu: Gpu, ask: Ask, room: Room) -> bool:
    """Too little is free on the GPU: take idle credit of others; else refuse a loan, and let a claim wait."""
    if not ask.claim and (ask.above <= 0 or unconfirmed.may_cover(tx, gpu, ask, ask.above - ask.unsure)):
        return False  # it may turn out to be a claim
    held = tx.state.held(gpu, against_claims=ask.claim)
    others = [share for share in gpu.shares.values() if claims.is_anothers(ask, share)]
    takeable = _takeable(tx.state, gpu, _idle_first(tx, gpu, ask, others), held, ask.job)
    idle = sum(amount for _, amount in takeable)
    missing = room.need - room.available
    if not ask.claim and idle < missing <= idle + claims.about_to_be_used(tx, gpu, ask):
        return False  # a moment later it is in use, or idle
    if idle and (missing <= idle or ask.claim):
        _revoke(tx, gpu, missing, takeable)
        return False
    if not ask.claim:
        if (gpu.returning or unconfirmed.unhooked(gpu.shares.values())) and not ask.sampled:
            tx.sample(gpu)  # ended processes may have left free memory since
            return False
        if suspend.is_near(tx.state, gpu, ask, tx.now):
            return False
        return _deny(tx, gpu, ask, ask_reasons.not_free(tx, gpu, ask, room.available))
    if not ask.short:
        ask.short = True
        tx.state.counters.claims += 1
        reason = ask_reasons.claim_waits(gpu, ask, room.available)
        tx.record_reason("claim_waits", reason, job=tx.state.jobs[ask.job], gpu=gpu.id)
    return False


def _idle_first(tx: Transaction, gpu: Gpu, ask: Ask, others: list[Share]) -> list[Share]:
    """The shares in the order in which idle credit is taken: first of the job's own processes, then of borrowers; of
    these the largest first."""
    state = tx.state

    def order(share: Share) -> tuple[bool, bool, int, int]:
        job = state.jobs[share.job]
        return (share.job != ask.job, state.loan(job, gpu.id) == 0, -share.idle, share.process)

    return sorted(others, key=order)


def _takeable(
    state: State, gpu: Gpu, shares: Iterable[Share], held: Mapping[int, int], taker: str
) -> list[tuple[Share, int]]:
    """What this job may take of the idle credit of each of these shares now. The shares of another job that lends
    nothing give together what is above its request."""
    lends_nothing = [job for job in state.non_lending.values() if gpu.id in job.bounds and job.id != taker]
    above = {job.id: job.above_own(gpu.id) for job in lends_nothing}
    found = []
    for share in shares:
        most = max(0, share.idle - held.get(share.process, 0))
        if share.job in above:
            most = min(most, above[share.job])
            above[share.job] -= most
        found.append((share, most))
    return found


def _revoke(tx: Transaction, gpu: Gpu, missing: int, takeable: Iterable[tuple[Share, int]]) -> None:
    """Take `missing` bytes of idle credit, in this order, of each share at most so much.

    This comes to an end: if a revocation brings less than was asked for, its share has no more idle credit, and the
    answer says so.
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


def _grant(tx: Transaction, gpu: Gpu, ask: Ask, room: Room) -> bool:
    spare = min(tx.policy.chunk, room.in_limit - room.need, room.lent - room.need)
    # While others wait, what they lack is known exactly; a chunk for one would be missing for the next.
    spare = max(0, spare) // UNIT * UNIT if gpu.health.admits and len(gpu.asks) == 1 else 0
    tx.state.counters.grants += 1
    if ask.attach:
        _grant_context(tx, gpu, ask, room.need, spare)
    else:
        _grant_credit(tx, gpu, ask, 0 if ask.driver_failed else room.need + spare)
    if ask.short:
        _record_claim(tx, gpu, ask)
    tx.emit(Publish(gpu.id))
    return True


def _grant_context(tx: Transaction, gpu: Gpu, ask: Ask, overhead: int, credit: int) -> None:
    state = tx.state
    share = gpu.shares.get(ask.process)
    if share is None:
        share = Share(ask.process, ask.job, gpu.id, tx.now, attached=False)
        state.add_share(share)
    share.contexts = share.contexts + 1 if share.attached else 1
    share.attached, share.measured, share.all_open, share.since = True, False, False, tx.now
    share.provisional, share.provisional_at = -1, tx.now
    if gpu.name not in state.overheads:
        gpu.guessed.add(share.process)
    state.change(share, credit=credit, overhead=overhead)
    tx.emit(Attached(ask.id, ask.process, gpu.id, share.overhead, credit))
    text = f"a context opens on GPU {gpu.index} ({format_bytes(overhead)})"
    tx.record("attached", text, job=state.jobs[ask.job], gpu=gpu.id, overhead=overhead)


def _grant_credit(tx: Transaction, gpu: Gpu, ask: Ask, size: int) -> None:
    share = gpu.shares[ask.process]  # ask_events.py takes credit asks of attached processes only
    if not ask.driver_failed:
        share.granted.append(ask.allocation or ask.need)
        gpu.holds[share.process] = tx.now
    tx.state.change(share, credit=size)
    drop_ask(tx, ask)  # before the figures are made: nothing is earmarked for it any more
    shown = published(tx.state, gpu, (ask.process,))[ask.process]
    tx.emit(Granted(ask.id, ask.process, gpu.id, size, shown))


def _record_claim(tx: Transaction, gpu: Gpu, ask: Ask) -> None:
    waited = tx.now - ask.since
    tx.state.counters.claim_waits.setdefault(ask.step, Histogram()).add(waited)
    job = tx.state.jobs[ask.job]
    rung = str(ask.step)
    how = "with nobody asked" if ask.step is ReclaimStep.REVOKE else f"by {rung}"
    text = f"claim of {format_bytes(ask.wanted)} on GPU {gpu.index} met after {waited:.2f} s, {how}"
    tx.record("claim_met", text, job=job, gpu=gpu.id, asked=ask.wanted, waited=waited, rung=rung)


def take_idle(tx: Transaction, gpu: Gpu, job: Job, missing: int) -> None:
    """Revoke so many bytes of others' idle credit, if there are as many: for a job that resumes."""
    takeable = idle_of_others(tx.state, gpu, job)
    if missing <= sum(amount for _, amount in takeable):
        _revoke(tx, gpu, missing, takeable)


def idle_of_others(state: State, gpu: Gpu, job: Job) -> list[tuple[Share, int]]:
    """The idle credit of each other share that no call is about to use: bytes that the job may take to resume."""
    others = [share for share in gpu.shares.values() if share.job != job.id]
    return _takeable(state, gpu, others, state.held(gpu, against_claims=False), job.id)


def _deny(tx: Transaction, gpu: Gpu, ask: Ask, reason: Reason) -> bool:
    state = tx.state
    job = state.jobs[ask.job]
    state.counters.denials[reason.code.value] += 1
    tx.emit(Denied(ask.id, ask.process, gpu.id, reason))
    record_denial(tx, gpu, job, reason)
    return True


def record_denial(tx: Transaction, gpu: Gpu, job: Job, reason: Reason) -> None:
    """For the job's story. A program may try for a loan, or for more than its limit, as often as it likes."""
    if reason.code not in (Code.NOT_FREE, Code.OVER_LIMIT):
        tx.record_reason("denied", reason, job=job, gpu=gpu.id)
        return
    more = job.refusals.left_out((reason.code, gpu.id, reason.data.get("asked")), tx.now)
    if more is not None:
        text = words(reason.message, f" (and {more} more like it)") if more else ""
        tx.record_reason("denied", reason, text, job=job, gpu=gpu.id)
