"""What a job is charged and may not have: contexts that are not measured yet, memory of processes that end, and memory
that one process has freed and another has taken while their words were read.

An ask that only such amounts put above the request or the limit may be within it. It is refused on facts that are newer
than itself, never because a time is over: the words are read, and of the job's other processes it is looked whether
they still live, and NVML is asked. Until these facts are there it waits, at most as long as a claim.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpushared.core import measure
from gpushared.core.model import Ask, Gpu, Job, Share
from gpushared.core.state import State
from gpushared.core.transaction import Transaction


def amount(state: State, gpu: Gpu, job: Job) -> int:
    """In bytes."""
    return sum(_of(gpu, share) for share in state.shares_of(job, gpu.id))


def _of(gpu: Gpu, share: Share) -> int:
    return share.usage if share.ending or share.moving else contexts(gpu, [share])


def contexts(gpu: Gpu, shares: Iterable[Share]) -> int:
    """Of the charges for contexts that are not measured yet, what NVML has not shown. Bytes."""
    if not gpu.health.attributed:
        return 0
    return sum(
        max(0, share.overhead - max(0, share.provisional)) for share in shares if share.attached and not share.measured
    )


def strays(shares: Iterable[Share]) -> int:
    """What programs without a page hold: only a sample tells that one of them has gone (overuse.py). Bytes."""
    return sum(share.overhead for share in shares if share.process < 0)


def may_cover(tx: Transaction, gpu: Gpu, ask: Ask, lacking: int) -> bool:
    """Whether so many bytes, which an ask lacks by what its job is charged, may be there after all: then it is not
    refused yet, and what is not known is asked for."""
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
    if lacking <= open_ + strays(shares) and not ask.sampled:
        tx.sample(gpu)
        return True
    return False


def watched(gpu: Gpu) -> set[int]:
    """Processes of which it is decisive whether they still live, and what they have at one moment: those of a job that
    may be refused something for what they are charged."""
    jobs = {ask.job for ask in gpu.asks.values() if ask.closely}
    return {process for process, share in gpu.shares.items() if process > 0 and share.job in jobs}
