"""The numbers that an administrator may change, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpushare.reclaim_steps import ReclaimStep

if TYPE_CHECKING:
    from gpushare.job_spec import JobSpec
    from gpushared.core.model import Job

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
    """The longest that a claim waits for trims before a job is stopped. After half of it, processes that have not begun
    their trim are not waited for."""
    grace: float = 5.0
    teardown: float = 2.0
    """What the driver may need to free the memory of killed processes: a grace ends so long before the claim's time."""
    last_step: ReclaimStep = ReclaimStep.KILL
    """How far a reclaim may go."""
    suspend_memory: int = 2**60
    """The most host memory that suspended jobs take together."""
    suspend_rate: int = 2 * GIB
    """Bytes a second that leave a GPU, until this daemon has seen it."""
    suspend_least: float = 2.0
    """The least time that a suspender has for its work; more for more memory."""
    suspend_patience: float = 30.0
    """So long after that time its answer is waited for, if no claim needs the memory before."""
    suspend_again: float = 60.0
    """So long a job that could not be suspended is not tried again."""
    hook: float = 20.0
    """The most seconds for a relief hook; less if a claim must be met before."""
    hook_resume: float = 10.0
    """The most seconds for a resume hook: so long what the job had is kept free for it."""
    hook_again: float = 60.0
    """So long a relief hook that gave nothing is not called again."""
    suspender_comes: float = 5.0
    """So long after its start, or the daemon's, a job that may be suspended, or has a hook, is not stopped: the process
    that does it will come."""
    resume_runs: float = 5.0
    """After it has resumed, a job is neither suspended nor stopped for so long."""
    resume_retry: float = 1.0
    """The pause after a failure to resume; it doubles with each, to a minute."""
    poll: float = 0.02
    """How often words and NVML are looked at while a claim waits."""
    shrink: float = 0.1
    """How often words are looked at while a job has more than its limit, which was lowered."""
    unkillable_after: float = 5.0
    """Memory of a killed job whose processes still live after this time is no longer expected back."""
    settling: float = 2.0
    """A context grows while it opens: for so long it is charged at least its first charge ..."""
    provisional_apart: float = 0.25
    """... or until two samples so far apart show the same."""
    unattributed_after: float = 2.0
    """Without attribution by NVML, memory of an exited process counts as returned after this time."""
    on_breach: str = "deny"
    """What follows when a job uses memory past its account: warn, deny or kill (overuse.py)."""
    hold: float = 1.0
    """Seconds for which credit is held for the call that it was granted to. A call needs microseconds; this ends the
    hold of a program that was stopped in between."""
    breach_lasts: float = 1.0
    """Seconds of overuse before a job is stopped for it."""
    breach_least: int = 64 * MIB
    breach_share: float = 0.02
    """The larger of the two is how inexact a measurement may be."""
    overhead_most: int = 2048 * MIB
    """A context that costs more is charged to its job, and not taken as the usual cost: its program made it large."""
    overhead_guess: int = 512 * MIB
    """For a context on a type of GPU that this daemon has not measured yet; less on small GPUs, see guess()."""

    @property
    def longest_grace(self) -> float:
        """Seconds; a longer grace of a job is cut, so that an owner's claim can be met in time."""
        return max(0.0, self.claim_timeout - self.teardown)

    def grace_of(self, spec: JobSpec) -> float:
        """Seconds from SIGTERM to SIGKILL."""
        return self.grace if spec.grace is None else spec.grace

    def helper_due(self, job: Job) -> float:
        """So long the process that suspends the job, or calls its hooks, may still come."""
        return max(job.since, job.restored_at) + self.suspender_comes

    def guess(self, total: int) -> int:
        """Contexts are larger on larger GPUs: a thirty-second of it, at most overhead_guess."""
        return min(self.overhead_guess, total // 32)
