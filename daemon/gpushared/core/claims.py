"""Which asks are claims: a claim is an ask within its job's request, so it may wait and others give back for it.

The sums are by the `used` words as last read. Contexts on a type of GPU that has not been measured yet are guesses
(measure.py); a guess alone makes no ask a loan.
"""

from __future__ import annotations

from gpushared.core import suspend
from gpushared.core.model import UNIT, Ask, Gpu, Job, Share, whole_units
from gpushared.core.transaction import Transaction


def in_order(tx: Transaction, gpu: Gpu) -> list[Ask]:
    """The GPU's asks: claims, then loans; each by priority, then by arrival. Marks what is a claim.

    If processes of one job ask side by side, the first have the room in its request. Otherwise each would count as
    within it, and others would give back for what together is a loan.
    """
    promised: dict[str, int] = {}
    guessed: dict[str, int] = {}
    waiting = (ask for ask in gpu.asks.values() if not suspend.is_held_back(tx.state, ask))
    asks = sorted(waiting, key=lambda ask: ask.order)
    for ask in asks:
        _mark(tx, gpu, ask, promised.get(ask.job, 0), guessed.get(ask.job, 0))
        if ask.claim:
            guessed[ask.job] = ask.unsure
            promised[ask.job] = promised.get(ask.job, 0) + _growth(gpu, ask)
    return sorted(asks, key=lambda ask: not ask.claim)


def _mark(tx: Transaction, gpu: Gpu, ask: Ask, promised: int, guessed: int) -> None:
    """`promised`: bytes for earlier asks of its job; `guessed`: how much less their contexts may cost."""
    state = tx.state
    job, request = state.jobs[ask.job], state.jobs[ask.job].bounds[gpu.id].request
    if ask.attach:
        ask.size = cost_of_a_context(tx, gpu, job)  # may have been learned since
    before = state.usage(job, gpu.id) + promised
    ask.promised = promised
    ask.above = before + _growth(gpu, ask) - request
    own = guess_of_own_context(tx, gpu, ask)
    only_guessed = own > 0 and before < request
    ask.unsure = guessed + own
    # Calls of the same job that are about to use their credit may leave this ask above the request.
    ask.claim = only_guessed or ask.above + about_to_be_used(tx, gpu, ask) <= 0


def cost_of_a_context(tx: Transaction, gpu: Gpu, job: Job) -> int:
    """Bytes: what NVML has shown on this type of GPU, else a guess. The guess is at most the job's limit: NVML may show
    less, so it must not keep the job out."""
    learned = tx.state.overheads.get(gpu.name)
    if learned is not None:
        return learned
    return min(tx.policy.guess(gpu.total), job.bounds[gpu.id].limit) // UNIT * UNIT


def guess_of_own_context(tx: Transaction, gpu: Gpu, ask: Ask) -> int:
    """How much less the context may cost that is asked for, in bytes: all but a unit, on a type not measured yet."""
    unmeasured = gpu.health.attributed and gpu.name not in tx.state.overheads
    return max(0, ask.size - UNIT) if ask.attach and unmeasured else 0


def measure_asks(tx: Transaction, gpu: Gpu) -> None:
    """Compute again what each ask lacks, after the words were read: other threads of its process have allocated and
    freed since. The first ask of a process may use the process's idle credit first."""
    idle: dict[int, int] = {}
    for ask in sorted(gpu.asks.values(), key=lambda ask: ask.order):
        share = gpu.shares.get(ask.process)
        if not ask.allocation or ask.driver_failed or share is None:
            continue
        pending = share.pending if ask.process in gpu.holds and _is_young(tx, ask) else 0
        left = idle.get(ask.process, share.idle - pending)
        ask.size = whole_units(max(0, ask.allocation - left))
        idle[ask.process] = max(0, left - ask.allocation)


def about_to_be_used(tx: Transaction, gpu: Gpu, ask: Ask) -> int:
    """Bytes of idle credit that other calls of its job were granted and are about to use.

    An ask may wait for these calls, and is never refused for them: which of them have used their credit already is not
    known exactly.
    """
    if not _is_young(tx, ask):
        return 0
    return sum(gpu.shares[process].pending for process in gpu.holds if gpu.shares[process].job == ask.job)


def is_anothers(ask: Ask, share: Share) -> bool:
    """Whether the ask may take the share's idle credit. The ask's size is what its own process lacks, so that process's
    idle credit counts already, except for a context, which uses no credit."""
    return ask.attach or share.process != ask.process


def _is_young(tx: Transaction, ask: Ask) -> bool:
    """A young ask lets calls of its job that were answered before go first. In a busy program such calls follow each
    other without end, so an older ask no longer does."""
    return tx.now - ask.since < tx.policy.hold


def _growth(gpu: Gpu, ask: Ask) -> int:
    """By how many bytes usage grows if the ask is granted and used."""
    if ask.driver_failed:
        return 0  # it is charged already
    if ask.attach:
        return ask.need
    if ask.allocation:
        return ask.allocation
    mine = gpu.shares.get(ask.process)
    return (mine.idle if mine else 0) + ask.need
