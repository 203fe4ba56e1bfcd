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
    """The longest that a claim waits for trims before a job is stopped. A process that has not begun its trim after
    half of this time is not waited for."""
    grace: float = 5.0
    teardown: float = 2.0
    """The time that the driver may need to free the memory of killed processes. A grace ends this long before the
    claim's time is over."""
    last_step: ReclaimStep = ReclaimStep.KILL
    """How far a reclaim may go."""
    suspend_memory: int = 2**60
    """The most host memory that suspended jobs take together."""
    suspend_rate: int = 2 * GIB
    """Bytes a second that leave a GPU, until this daemon has seen it."""
    suspend_least: float = 2.0
    """The least time that a suspender gets for its work. It gets more for more memory."""
    suspend_patience: float = 30.0
    """How long the daemon waits for a suspender's answer after that time, unless a claim needs the memory earlier."""
    suspend_again: float = 60.0
    """The pause after a failure to suspend a job."""
    hook: float = 20.0
    """The most seconds for a relief hook. It gets fewer if a claim must be met earlier."""
    hook_resume: float = 10.0
    """The most seconds for a resume hook. Meanwhile the memory that the job had is kept free for it."""
    hook_again: float = 60.0
    """The pause after a relief hook that gave nothing."""
    suspender_comes: float = 5.0
    """Seconds after the start of the job or of the daemon, or after that process has gone, in which a job that may be
    suspended, or has a hook, is not stopped: the process that suspends it or calls the hook may not be there yet."""
    resume_runs: float = 5.0
    """Seconds in which a job that has resumed is neither suspended nor stopped."""
    resume_retry: float = 1.0
    """The pause after a failure to resume. It doubles with each failure, up to a minute."""
    poll: float = 0.02
    """The time between two looks at words and NVML while a claim waits."""
    shrink: float = 0.1
    """The time between two looks at words while a job is above a lowered limit."""
    resume_poll: float = 0.04
    """The time between two looks at words while a suspended job waits for room: programs free memory without a word to
    the daemon."""
    unkillable_after: float = 5.0
    """Memory of a killed job whose processes still live after this time is no longer expected back."""
    settling: float = 2.0
    """A new context keeps its first charge for this time while NVML does not show it yet: it may still be opening."""
    opening: float = 10.0
    """The same while its page says that it is not open: on a machine with many GPUs that may take long."""
    provisional_apart: float = 0.25
    """The time for which NVML must show a lower cost of a context before that cost is charged."""
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
    """A measurement may be wrong by this share of the GPU or by `breach_least`, whichever is larger."""
    overhead_most: int = 2048 * MIB
    """A context that costs more is charged to its job, but is not taken as the usual cost: its program made it
    large."""
    overhead_guess: int = 640 * MIB
    """For a context on a type of GPU that this daemon has not measured yet; less on small GPUs, see guess(). On an
    H200 a bare one took 526 MiB, and one with PyTorch's code 618 (benchmarks/RESULTS.md)."""

    @property
    def longest_grace(self) -> float:
        """Seconds; a longer grace of a job is cut, so that an owner's claim can be met in time."""
        return max(0.0, self.claim_timeout - self.teardown)

    @property
    def longest_protection(self) -> float:
        """Seconds after its start: an owner's claim cannot be met in time by a job that is protected for longer."""
        return max(0.0, self.claim_timeout - self.trim - self.teardown)

    def grace_of(self, spec: JobSpec) -> float:
        """Seconds from SIGTERM to SIGKILL."""
        return self.grace if spec.grace is None else spec.grace

    def helper_due(self, job: Job) -> float:
        """Until this time the process that suspends the job, or calls its hooks, may still come."""
        return max(job.since, job.restored_at) + self.suspender_comes

    def guess(self, total: int) -> int:
        """Contexts are larger on larger GPUs: a thirty-second of it, at most overhead_guess."""
        return min(self.overhead_guess, total // 32)
