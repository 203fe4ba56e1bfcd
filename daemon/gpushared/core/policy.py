"""The numbers that an administrator may change, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from gpushare.reclaim_steps import ReclaimStep

MIB = 2**20


GIB = 2**30


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers that an administrator may change. Bytes and seconds."""

    reserve_share: float = 0.03
    reserve_least: int = 256 * MIB
    chunk: int = 64 * MIB
    """Credit beyond the need, so that growth costs one round trip per chunk."""
    claim_timeout: float = 30.0
    trim: float = 2.0
    """The longest that a claim waits for caches to be given back before anybody is stopped; a process that has not
    begun after half of it is not waited for."""
    grace: float = 5.0
    teardown: float = 2.0
    """What the driver may need to return the memory of the killed: a grace ends so long before the claim's patience."""
    last_step: ReclaimStep = ReclaimStep.KILL
    """How far a reclaim may go."""
    poll: float = 0.02
    """How often words and NVML are looked at while a claim waits."""
    shrink: float = 0.1
    """How often words are looked at while a job has more than its limit, which was lowered."""
    unkillable_after: float = 5.0
    """A killed job whose processes still live then no longer counts as about to return its memory."""
    settling: float = 2.0
    """A context that opens grows for a while: so long what it was charged is the floor of what is measured ..."""
    provisional_apart: float = 0.25
    """... or until two samples so far apart show the same."""
    unattributed_after: float = 2.0
    """Without attribution by NVML, memory of an exited process counts as returned after this time."""
    on_breach: str = "deny"
    """What follows when a job uses memory past its account: warn, deny or kill (overuse.py)."""
    hold: float = 1.0
    """So long, in seconds, credit granted within a request waits for its call to take it. A call needs microseconds;
    this ends the hold of a program that was stopped in between."""
    breach_lasts: float = 1.0
    """So long before a job is stopped for it."""
    breach_least: int = 64 * MIB
    breach_share: float = 0.02
    """The larger of the two is the noise that measuring has."""
    overhead_most: int = 2048 * MIB
    """A context that costs more is its program's own doing: charged to its job, not expected of the next one."""
    overhead_guess: int = 512 * MIB
    """For a context on a type of GPU that this daemon has not measured yet; less on small GPUs, see guess()."""

    @property
    def longest_grace(self) -> float:
        """Seconds: a job's grace is cut to what the claim of an owner can wait."""
        return max(0.0, self.claim_timeout - self.teardown)

    def guess(self, total: int) -> int:
        """Contexts are larger on larger GPUs: a thirty-second of it, at most overhead_guess."""
        return min(self.overhead_guess, total // 32)
