"""What the node daemon knows: GPUs, jobs, processes and their shares, asks and reclaims. Data and sums, no decisions.

Amounts are bytes. The words are those of DESIGN's vocabulary:

    credit     what a process may use without asking: only the daemon changes it
    used       what its word said when last looked at: the process changes it at any moment
    overhead   what it is charged beside its allocations (contexts, modules), guessed first, then measured
    committed  credit + overhead: what the daemon has given away, used or not
    usage      used + overhead
    idle       credit - used: can be taken back without asking anybody

Sums that every request needs (committed of a GPU, of a job on a GPU) are kept, not computed: a GPU can have
hundreds of processes. `validate()` computes them again and compares.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpushare.reasons import Reason
from gpushared.events import JobSpec
from gpushared.instructions import Record

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
    grace: float = 5.0
    last_rung: str = "kill"
    """How far a reclaim may go: revoke, trim, term or kill."""
    poll: float = 0.02
    """How often words and NVML are looked at while a claim waits."""
    unkillable_after: float = 5.0
    """A killed job whose processes still live then no longer counts as about to return its memory."""
    settling: float = 2.0
    """A context that opens grows for a while: so long what it was charged is the floor of what is measured ..."""
    glimpses_apart: float = 0.25
    """... or until two samples so far apart show the same."""
    unattributed_after: float = 2.0
    """Without attribution by NVML, memory of an exited process counts as returned after this time."""
    overhead_guess: int = 512 * MIB
    """For a context on a type of GPU that this daemon has not measured yet; less on small GPUs, see guess()."""

    def guess(self, total: int) -> int:
        """Contexts are larger on larger GPUs: a thirty-second of it, at most overhead_guess."""
        return min(self.overhead_guess, total // 32)


@dataclass(frozen=True, slots=True)
class Bounds:
    """A job's request and limit on one GPU, resolved."""

    request: int
    limit: int


@dataclass(slots=True)
class Share:
    """A process's part of one GPU."""

    process: int
    job: str
    gpu: str
    since: float
    credit: int = 0
    used: int = 0
    overhead: int = 0
    attached: bool = True
    """It has, or is about to open, a context."""
    measured: bool = False
    """Its overhead is what NVML shows, not what was expected."""
    glimpse: int = -1
    """The overhead that NVML last showed while it was not settled, and since when."""
    glimpsed_at: float = 0.0

    @property
    def committed(self) -> int:
        return self.credit + self.overhead

    @property
    def usage(self) -> int:
        return self.used + self.overhead

    @property
    def idle(self) -> int:
        return max(0, self.credit - self.used)


@dataclass(slots=True)
class Process:
    """One program with a credit page."""

    id: int
    job: str
    pid: int
    command: str
    since: float
    shares: dict[str, Share] = field(default_factory=dict)


@dataclass(slots=True)
class Reclaim:
    """A job that has been asked (SIGTERM) or made (SIGKILL) to give memory of one GPU back."""

    job: str
    gpu: str
    since: float
    deadline: float
    """SIGKILL after this moment, if the memory is still missing then."""
    reason: Reason
    owner: str
    asked: int
    loan: int
    killed_at: float | None = None


@dataclass(slots=True)
class Job:
    """What owns a budget and is stopped as one."""

    id: str
    spec: JobSpec
    since: float
    bounds: dict[str, Bounds] = field(default_factory=dict)
    processes: set[int] = field(default_factory=set)
    committed: dict[str, int] = field(default_factory=dict)
    """Sum over its processes, by GPU."""
    excess: dict[str, int] = field(default_factory=dict)
    """By how much it is over its limit since the limit was lowered, or its overhead measured: it cannot grow."""
    open: bool = True
    """Its wrapper has not said that it is over."""
    reclaims: dict[str, Reclaim] = field(default_factory=dict)
    """By GPU."""
    killed: Reason | None = None
    refusals: int = 0
    story: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class Submission:
    """A job that queues for admission."""

    job: str
    spec: JobSpec
    since: float
    until: float


@dataclass(slots=True)
class Ask:
    """A process that waits for credit (or, with attach, for leave to open a context)."""

    id: int
    process: int
    job: str
    gpu: str
    size: int
    since: float
    deadline: float = 0.0
    priority: int = 0
    attach: bool = False
    driver_failed: bool = False
    sampled: bool = False
    """NVML has been asked since (only for driver_failed)."""
    looked: bool = False
    """The words have been read since."""
    allocation: int = 0
    claim: bool = False
    """Within the request: it may wait, and others may have to give back for it."""
    short: bool = False
    """A claim that neither free memory nor idle credit could meet."""

    @property
    def wanted(self) -> int:
        """What the program is waiting for, as it would say it."""
        return max(self.size, self.allocation)

    @property
    def need(self) -> int:
        """Credit that is missing: none where the driver failed although the credit was there."""
        return 0 if self.driver_failed else self.size


@dataclass(slots=True)
class Returning:
    """Memory of a process that has gone (or has closed its contexts), until NVML no longer shows it."""

    pid: int
    job: str
    amount: int
    since: float


@dataclass(slots=True)
class Gpu:
    """One GPU (or MIG instance) and what is promised of it."""

    id: str
    index: int
    name: str
    total: int
    reserve: int
    committed: int = 0
    unmanaged: int = 0
    excess: int = 0
    """By how much measured memory (unmanaged, overheads) has outgrown the capacity: nothing is granted while > 0."""
    shares: dict[int, Share] = field(default_factory=dict)
    """By process."""
    returning: dict[int, Returning] = field(default_factory=dict)
    """By process."""
    guessed: set[int] = field(default_factory=set)
    """Processes whose context is charged by a guess, until it is measured."""
    asks: dict[int, Ask] = field(default_factory=dict)
    """Unanswered ones, in order of arrival."""
    looking: bool = False
    """A LookUsed is on its way."""
    sampling: bool = False
    revoking: int = 0
    """Revokes on their way."""
    seen_at: float = -1.0
    """When the words were last read."""
    sampled_at: float = -1.0
    """When NVML was last asked."""

    @property
    def capacity(self) -> int:
        return self.total - self.reserve

    @property
    def returning_total(self) -> int:
        return sum(entry.amount for entry in self.returning.values())

    @property
    def free(self) -> int:
        """By the ledger; below zero when measured memory has outgrown the capacity."""
        free = self.capacity - self.committed - self.unmanaged
        return free - self.returning_total if self.returning else free


@dataclass(slots=True)
class Counters:
    """Since the daemon's start, for metrics and tests."""

    grants: int = 0
    denials: dict[str, int] = field(default_factory=dict)
    revoked_bytes: int = 0
    terms: int = 0
    kills: int = 0
    relieved: int = 0
    """Victims that gave back in time, or were no longer needed."""
    claims: int = 0
    """Asks within the request that did not fit at once."""
    claim_seconds: float = 0.0
    violations: dict[str, int] = field(default_factory=dict)
    """Guarantee violations by cause."""


class InvariantError(AssertionError):
    """validate() found the state in contradiction with itself."""


@dataclass(slots=True)
class State:
    """All of it."""

    policy: Policy
    gpus: dict[str, Gpu] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    queue: dict[str, Submission] = field(default_factory=dict)
    asks: dict[int, Ask] = field(default_factory=dict)
    overheads: dict[str, int] = field(default_factory=dict)
    """Learned cost of a context, by name of the GPU."""
    polled_at: float = 0.0
    """When time last passed."""
    counters: Counters = field(default_factory=Counters)
    records: list[Record] = field(default_factory=list)

    # ---- sums ----------------------------------------------------------------------------------

    def add_share(self, share: Share) -> None:
        self.processes[share.process].shares[share.gpu] = share
        self.gpus[share.gpu].shares[share.process] = share
        self._commit(share, share.committed)

    def drop_share(self, share: Share) -> None:
        del self.processes[share.process].shares[share.gpu]
        del self.gpus[share.gpu].shares[share.process]
        self.gpus[share.gpu].guessed.discard(share.process)
        self._commit(share, -share.committed)

    def change(self, share: Share, *, credit: int = 0, overhead: int = 0) -> None:
        """Add to a share's credit and overhead (either may be negative)."""
        share.credit += credit
        share.overhead += overhead
        self._commit(share, credit + overhead)

    def _commit(self, share: Share, amount: int) -> None:
        self.gpus[share.gpu].committed += amount
        committed = self.jobs[share.job].committed
        committed[share.gpu] = committed.get(share.gpu, 0) + amount

    def note_excess(self, job: Job, gpu: str) -> None:
        """After a change that takes nothing away (a lower limit, a measurement), more may be held than is allowed."""
        over = job.committed.get(gpu, 0) - job.bounds[gpu].limit
        if over > 0:
            job.excess[gpu] = over
        self.gpus[gpu].excess = max(0, -self.gpus[gpu].free)

    def work_off_excess(self) -> None:
        """An excess only ever shrinks: what has been given back since is not to be taken again."""
        for gpu in self.gpus.values():
            if gpu.excess:
                gpu.excess = min(gpu.excess, max(0, -gpu.free))
        for job in self.jobs.values():
            for id in list(job.excess):
                over = job.committed.get(id, 0) - job.bounds[id].limit
                job.excess[id] = min(job.excess[id], over)
                if over <= 0:
                    del job.excess[id]

    # ---- views ---------------------------------------------------------------------------------

    def shares_of(self, job: Job, gpu: str) -> list[Share]:
        """The job's shares of one GPU."""
        found = (self.processes[process].shares.get(gpu) for process in job.processes)
        return [share for share in found if share is not None]

    def usage(self, job: Job, gpu: str) -> int:
        return sum(share.usage for share in self.shares_of(job, gpu))

    def loan(self, job: Job, gpu: str) -> int:
        bounds = job.bounds.get(gpu)
        return max(0, self.usage(job, gpu) - (bounds.request if bounds else 0))

    def requested(self, gpu: str) -> int:
        """Sum of requests on a GPU, of all admitted jobs."""
        return sum(job.bounds[gpu].request for job in self.jobs.values() if gpu in job.bounds)

    def owners(self, gpu: str) -> list[Job]:
        """The jobs that are admitted on a GPU."""
        return [job for job in self.jobs.values() if gpu in job.bounds]

    def unlent(self, gpu: str, but: Job) -> int:
        """Headroom that its owners do not lend: it is in nobody's free memory but their own."""
        return sum(
            max(0, job.bounds[gpu].request - job.committed.get(gpu, 0))
            for job in self.jobs.values()
            if not job.spec.lend and job is not but and gpu in job.bounds
        )

    def revocable(self, share: Share) -> int:
        """Idle credit of a share that others may have: all of it, unless the job lends nothing."""
        job = self.jobs[share.job]
        if job.spec.lend:
            return share.idle
        above = job.committed.get(share.gpu, 0) - job.bounds[share.gpu].request
        return max(0, min(share.idle, above))

    # ---- invariants ----------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise InvariantError where the state contradicts itself or DESIGN's invariants."""
        for gpu in self.gpus.values():
            self._validate_gpu(gpu)
        for job in self.jobs.values():
            self._validate_job(job)
        for process in self.processes.values():
            _hold(process.job in self.jobs, f"process {process.id:x} belongs to a job that is not there")
            _hold(
                process.id in self.jobs[process.job].processes,
                f"job {process.job} does not know {process.id:x}",
            )
        waiting = {ask for gpu in self.gpus.values() for ask in gpu.asks}
        _hold(waiting == set(self.asks), "an ask is known to a GPU or to the node, but not to both")
        for ask in self.asks.values():
            _hold(ask.process in self.processes, f"ask {ask.id} of a process that is gone")

    def _validate_gpu(self, gpu: Gpu) -> None:
        shares = gpu.shares.values()
        _hold(gpu.committed == sum(share.committed for share in shares), f"{gpu.id}: committed is out of step")
        _hold(
            gpu.committed + gpu.unmanaged + gpu.returning_total <= gpu.capacity + gpu.excess,
            f"{gpu.id}: more is given away than there is",
        )
        # Invariant 1: admission.
        _hold(self.requested(gpu.id) <= gpu.capacity, f"{gpu.id}: requests exceed the capacity")
        for share in shares:
            _hold(share.credit >= 0 and share.overhead >= 0 and share.used >= 0, f"{gpu.id}: a share below zero")
            _hold(share.used <= share.credit, f"{gpu.id}: process {share.process:x} uses more than its credit")
            _hold(self.processes[share.process].shares.get(gpu.id) is share, f"{gpu.id}: a share of nobody")

    def _validate_job(self, job: Job) -> None:
        for process in job.processes:
            _hold(process in self.processes, f"job {job.id} has a process that is gone")
        for gpu, committed in job.committed.items():
            shares = self.shares_of(job, gpu)
            _hold(
                committed == sum(share.committed for share in shares),
                f"job {job.id}: committed is out of step",
            )
            if gpu not in job.bounds:
                _hold(committed == 0, f"job {job.id} holds memory on a GPU where it was not admitted")
                continue
            # Invariant 2: the cap.
            limit = job.bounds[gpu].limit + job.excess.get(gpu, 0)
            _hold(committed <= limit, f"job {job.id} has more than its limit")
        for bounds in job.bounds.values():
            _hold(0 <= bounds.request <= bounds.limit, f"job {job.id}: request above limit")
        for reclaim in job.reclaims.values():
            # Invariant 5: a job that never borrows is never a victim.
            bounds = job.bounds[reclaim.gpu]
            _hold(reclaim.loan > 0, f"job {job.id} is a victim without a loan")
            _hold(reclaim.owner != job.id, f"job {job.id} is the victim of its own claim")


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)
