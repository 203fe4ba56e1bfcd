"""Amounts that a job is charged but may not use: contexts that are not measured yet, or are closed by now, memory of
ending processes, and memory that one process freed and another took while their words were read.

An ask that only these amounts push above the request or the limit may still fit. It is refused on newer facts only:
the words are read again, the job's other processes are checked for life, and NVML is asked. Until then it waits, at
most as long as a claim.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpushared.core import measure
from gpushared.core.model import Ask, Gpu, Job, Share
from gpushared.core.state import State
from gpushared.core.transaction import Transaction


def amount(state: State, gpu: Gpu, job: Job) -> int:
    """Bytes that the job is charged and may not use."""
    return sum(_of(gpu, share) for share in state.shares_of(job, gpu.id))


def _of(gpu: Gpu, share: Share) -> int:
    return share.usage if share.ending or share.moving else contexts(gpu, [share])


def contexts(gpu: Gpu, shares: Iterable[Share]) -> int:
    """Bytes charged for contexts that are not measured yet, beyond what NVML has shown, or may be closed by now."""
    if not gpu.health.attributed:
        return 0
    return sum(
        share.overhead if share.some_closed else max(0, share.overhead - max(0, share.provisional))
        for share in shares
        if share.attached and (share.some_closed or not share.measured)
    )


def guessed(gpu: Gpu, share: Share) -> int:
    """Bytes of the guess that its context is charged, beyond what NVML has shown."""
    return max(0, share.overhead - max(0, share.provisional)) if share.process in gpu.guessed else 0


def unhooked(shares: Iterable[Share]) -> int:
    """Bytes held by programs without a page: only a sample shows that one of them has ended (overuse.py)."""
    return sum(share.overhead for share in shares if share.process < 0)


def closed(shares: Iterable[Share]) -> int:
    """Bytes charged for contexts that their processes say they have closed. Nobody told the daemon: their connection to
    it was lost, and they have not needed another since."""
    return sum(share.overhead for share in shares if share.open_contexts == 0)


def may_cover(tx: Transaction, gpu: Gpu, ask: Ask, lacking: int) -> bool:
    """Whether unconfirmed charges may be as large as the bytes that the ask lacks. If so it is not refused yet, and the
    missing facts are asked for."""
    job = tx.state.jobs[ask.job]
    shares = tx.state.shares_of(job, gpu.id)
    others = [share for share in shares if share.process != ask.process]
    if lacking > (sum(share.usage for share in shares) if others else contexts(gpu, shares)):
        return False
    if tx.now >= ask.deadline:
        measure.take_for_measured(gpu, shares)
        return False
    if not ask.verified and any(share.process > 0 for share in others):
        ask.closely = True
        tx.look(gpu)
        return True
    open_ = amount(tx.state, gpu, job)
    if lacking <= open_:
        if tx.now - gpu.sampled_at >= tx.policy.provisional_apart:
            tx.sample(gpu)
        return True
    if lacking <= open_ + unhooked(shares) + closed(shares) and not ask.sampled:
        tx.sample(gpu)
        return True
    return False


def watched(gpu: Gpu) -> set[int]:
    """Processes that must be checked for life, with their words read at one moment: those of jobs whose ask may be
    refused for what these processes are charged."""
    jobs = {ask.job for ask in gpu.asks.values() if ask.closely}
    return {process for process, share in gpu.shares.items() if process > 0 and share.job in jobs}
