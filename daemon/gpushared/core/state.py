"""What the node daemon knows: GPUs, jobs, processes and their shares, asks and reclaims. Data and sums, no decisions.

Amounts are bytes. The words are those of DESIGN's vocabulary:

    credit     what a process may use without asking: only the daemon changes it
    used       what its word said when last looked at: the process changes it at any moment
    overhead   what it is charged beside its allocations (contexts, modules), guessed first, then measured
    committed  credit + overhead: what the daemon has given away, used or not
    usage      used + overhead
    idle       credit - used: can be taken back without asking anybody

Sums and lists that every request needs (committed and usage of a GPU, of a job on a GPU, who lends nothing, who is on
a rung) are kept, not computed: a node can have a thousand jobs, a GPU hundreds of processes. So what they are made of
is changed through State's methods alone; `validate()` computes them again and compares.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from gpushare.job_spec import JobSpec
from gpushare.reasons import Reason
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core.events import TrimSeen
from gpushared.core.health_issues import Health
from gpushared.core.instructions import Record
from gpushared.core.pressure import PressureClock

MIB = 2**20
GIB = 2**30
UNIT = 512
"""Credit is counted in units of so many bytes (shim/credit.h)."""
MOST_CALLS = 64
"""Of one process, whose credit is held: a program has about as many threads as cores."""
A_YEAR = 365 * 24 * 3600.0
"""Seconds of --wait from which on a wait has no end."""


def whole_units(amount: int) -> int:
    """Rounded up."""
    return -(-amount // UNIT) * UNIT


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
    provisional: int = -1
    """The most overhead that NVML has shown since `provisional_at`; -1: nothing yet."""
    provisional_at: float = 0.0
    ending: bool = False
    """Its process has ended, or is in its exit: nothing of this is in use much longer."""
    moving: bool = False
    """It took or freed memory while the words were last read: what they say together was never true at once."""
    trim: TrimSeen | None = None
    """As last seen in the page; None: nobody in the process would act on a trim."""
    granted: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_CALLS))
    """What each of its last calls was granted and may not have taken yet: counts while the process is in Gpu.holds."""

    @property
    def committed(self) -> int:
        return self.credit + self.overhead

    @property
    def usage(self) -> int:
        return self.used + self.overhead

    @property
    def idle(self) -> int:
        return max(0, self.credit - self.used)

    @property
    def pending(self) -> int:
        """Of its idle credit, what its calls are about to take, while the process is in Gpu.holds."""
        return min(self.idle, sum(self.granted))


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
    """A job that has been asked (trim, SIGTERM) or made (SIGKILL) to give memory of one GPU back."""

    job: str
    gpu: str
    step: ReclaimStep
    since: float
    deadline: float
    """The end of the trim or of the grace: the next rung after this moment, if the memory is still missing then."""
    reason: Reason
    owner: str
    asked: int
    loan: int
    trimmed: bool = False
    """Its trim is over: it has done what it could, or has not answered."""
    killed_at: float | None = None
    given_up: bool = False
    """Killed, and it does not go: nobody counts on its memory any more."""


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
    usage: dict[str, int] = field(default_factory=dict)
    """Likewise."""
    excess: dict[str, int] = field(default_factory=dict)
    """By how much it is over its limit since the limit was lowered, or its overhead measured: it cannot grow."""
    open: bool = True
    """Its wrapper has not said that it is over."""
    reclaims: dict[str, Reclaim] = field(default_factory=dict)
    """By GPU."""
    killed: Reason | None = None
    trimmed_at: dict[str, float] = field(default_factory=dict)
    """By GPU: when it was last asked to trim."""
    saved_at: float = float("-inf")
    """When it last said that its work is saved."""
    active_at: float = float("-inf")
    """When it was last seen to compute, to allocate or to free."""
    breaches: dict[str, float] = field(default_factory=dict)
    """By GPU: since when it is above its limit by what only NVML sees."""
    observed: dict[str, int] = field(default_factory=dict)
    """By GPU, of a job that is only observed: what the last sample showed of its programs. It is in no sum of ours: it
    counts as used outside gpushare."""
    left_alone: set[int] = field(default_factory=set)
    """Its processes that belong to another user: as long as one of them is there, nobody tries to stop the job."""
    strays_told: dict[str, str] = field(default_factory=dict)
    """DescriptorCloser that it has been told of, and on which GPU."""
    refusals: int = 0
    story: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class Submission:
    """A job that queues for admission."""

    job: str
    spec: JobSpec
    since: float
    until: float

    @property
    def order(self) -> tuple[int, float, str]:
        """Of the queue: by priority, then by arrival."""
        return (-self.spec.priority, self.since, self.job)


@dataclass(slots=True)
class Reservation:
    """Memory that is promised to a user without a job."""

    id: str
    spec: JobSpec
    amounts: dict[str, int]
    """By GPU, bytes."""
    since: float
    until: float | None
    inside: dict[str, int] = field(default_factory=dict)
    """By GPU: the requests of the jobs that have started in it."""
    note: dict[str, object] | None = None
    """What is written down of it: made once (persistence.py)."""


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
    made: float = 0.0
    """When this daemon was asked; the allocation may have waited before, since `since`."""
    sampled: bool = False
    """NVML has been asked since: where the driver failed, or memory of the dead may have come back."""
    looked: bool = False
    """The words have been read since."""
    closely: bool = False
    """It is about to be refused for what the processes of its job are charged: it counts whether they still live."""
    verified: bool = False
    """That has been looked at since."""
    allocation: int = 0
    """What the call is about to use in all, in bytes; 0: not said."""
    claim: bool = False
    """Within the request: it may wait, and others may have to give back for it."""
    above: int = 0
    """By how much its job would be above the request, in bytes, by what is in use now; a claim is not."""
    unsure: int = 0
    """Of `above`, what contexts may cost less that are to be opened, and are only guessed at, in bytes."""
    short: bool = False
    """A claim that neither free memory nor idle credit could meet."""
    trim_until: float | None = None
    """From then on nobody is asked to trim for it any more: set when the first is."""
    step: ReclaimStep = ReclaimStep.REVOKE
    """The highest that anybody stood on for it."""

    @property
    def order(self) -> tuple[int, float, int]:
        """Of claims on one GPU: by priority, then by arrival."""
        return (-self.priority, self.since, self.id)

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
    usage: int = 0
    requested: int = 0
    """Sum of the requests of all admitted jobs."""
    reserved: int = 0
    """Sum of the remainders of all reservations."""
    unmanaged: int = 0
    excess: int = 0
    """By how much measured memory (unmanaged, overheads) has outgrown the capacity: nothing is granted while > 0."""
    overpromised: int = 0
    """By how much the requests exceed the capacity since that has shrunk: nothing is promised while > 0."""
    health: Health = field(default_factory=Health)
    shares: dict[int, Share] = field(default_factory=dict)
    """By process."""
    returning: dict[int, Returning] = field(default_factory=dict)
    """By process."""
    guessed: set[int] = field(default_factory=set)
    """Processes whose context is charged by a guess, until it is measured."""
    asks: dict[int, Ask] = field(default_factory=dict)
    """Unanswered ones, in order of arrival."""
    holds: dict[int, float] = field(default_factory=dict)
    """Process -> when it was last granted credit that its calls may not have taken yet."""
    under_reclaim: dict[str, Job] = field(default_factory=dict)
    """Jobs that have been asked, or made, to give its memory back."""
    looking: bool = False
    """A LookUsed is on its way."""
    sampling: bool = False
    revoking: int = 0
    """Revokes on their way."""
    seen_at: float = -1.0
    """When the words were last read."""
    sampled_at: float = -1.0
    """When NVML was last asked."""
    some: PressureClock = field(default_factory=PressureClock)
    """Runs while a claim waits here,"""
    full: PressureClock = field(default_factory=PressureClock)
    """and while all jobs here have one waiting."""
    shows_busy: bool = False
    """NVML tells which processes compute: only then does a job's silence mean that it is idle."""

    @property
    def capacity(self) -> int:
        return self.total - self.reserve

    @property
    def returning_total(self) -> int:
        return sum(entry.amount for entry in self.returning.values())

    def returning_of(self, job: str) -> int:
        """What the driver holds for the dead of this job."""
        return sum(entry.amount for entry in self.returning.values() if entry.job == job)

    @property
    def free(self) -> int:
        """By the ledger; below zero when measured memory has outgrown the capacity."""
        free = self.capacity - self.committed - self.unmanaged
        return free - self.returning_total if self.returning else free

    @property
    def idle(self) -> int:
        """Credit that nobody uses."""
        return self.committed - self.usage


@dataclass(slots=True)
class Counters:
    """Since the daemon's start, for metrics and tests."""

    grants: int = 0
    denials: Counter[str] = field(default_factory=Counter)
    revoked_bytes: int = 0
    trims: int = 0
    trimmed_bytes: int = 0
    terms: int = 0
    kills: int = 0
    relieved: int = 0
    """Victims that gave back in time, or were no longer needed."""
    claims: int = 0
    """Asks within the request that did not fit at once."""
    claim_seconds: float = 0.0
    claims_met: Counter[str] = field(default_factory=Counter)
    """By the highest rung that it took."""
    breaches: int = 0
    kills_for_breach: int = 0
    left_alone: int = 0
    """Processes that were not signalled, for they had become another user's."""
    violations: Counter[str] = field(default_factory=Counter)
    """Guarantee violations by cause."""


class InvariantError(AssertionError):
    """validate() found the state in contradiction with itself."""


@dataclass(slots=True)
class State:
    """All of it."""

    policy: Policy
    gpus: dict[str, Gpu] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    non_lending: dict[str, Job] = field(default_factory=dict)
    """Those of the jobs that lend nothing."""
    over: set[str] = field(default_factory=set)
    """Jobs with an excess."""
    processes: dict[int, Process] = field(default_factory=dict)
    queue: dict[str, Submission] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    asks: dict[int, Ask] = field(default_factory=dict)
    overheads: dict[str, int] = field(default_factory=dict)
    """Learned cost of a context, by name of the GPU."""
    polled_at: float = 0.0
    """When time last passed."""
    counters: Counters = field(default_factory=Counters)
    records: list[Record] = field(default_factory=list)

    # ---- jobs ----------------------------------------------------------------------------------

    def add_job(self, job: Job) -> None:
        self.jobs[job.id] = job
        if not job.spec.lend:
            self.non_lending[job.id] = job
        for gpu, bounds in job.bounds.items():
            self._request(job, gpu, bounds.request)

    def drop_job(self, job: Job) -> None:
        del self.jobs[job.id]
        self.non_lending.pop(job.id, None)
        self.over.discard(job.id)
        for gpu, bounds in job.bounds.items():
            self._request(job, gpu, -bounds.request)

    def bind(self, job: Job, gpu: str, bounds: Bounds) -> None:
        """Admit the job on the GPU, or change its bounds there."""
        earlier = job.bounds.get(gpu)
        self._request(job, gpu, bounds.request - (earlier.request if earlier else 0))
        job.bounds[gpu] = bounds

    def _request(self, job: Job, gpu: str, more: int) -> None:
        """A job in a reservation takes from that first."""
        self.gpus[gpu].requested += more
        inside = self.reservations.get(job.spec.reservation)
        if inside is not None:
            before = self.remainder(inside, gpu)
            inside.inside[gpu] = inside.inside.get(gpu, 0) + more
            self.gpus[gpu].reserved += self.remainder(inside, gpu) - before

    def add_reservation(self, one: Reservation) -> None:
        """There may be jobs that have started in it, where an earlier daemon had made it."""
        one.inside = self._requests_inside(one)
        self.reservations[one.id] = one
        for gpu in one.amounts:
            self.gpus[gpu].reserved += self.remainder(one, gpu)

    def drop_reservation(self, one: Reservation) -> None:
        del self.reservations[one.id]
        for gpu in one.amounts:
            self.gpus[gpu].reserved -= self.remainder(one, gpu)

    def _requests_inside(self, one: Reservation) -> dict[str, int]:
        requests: dict[str, int] = {}
        for job in self.jobs.values():
            if job.spec.reservation == one.id:
                for gpu, bounds in job.bounds.items():
                    requests[gpu] = requests.get(gpu, 0) + bounds.request
        return requests

    def begin_reclaim(self, job: Job, reclaim: Reclaim) -> None:
        job.reclaims[reclaim.gpu] = reclaim
        self.gpus[reclaim.gpu].under_reclaim[job.id] = job

    def end_reclaim(self, job: Job, gpu: str) -> Reclaim | None:
        """What it stood under, if anything."""
        self.gpus[gpu].under_reclaim.pop(job.id, None)
        return job.reclaims.pop(gpu, None)

    # ---- sums ----------------------------------------------------------------------------------

    def add_share(self, share: Share) -> None:
        self.processes[share.process].shares[share.gpu] = share
        self.gpus[share.gpu].shares[share.process] = share
        job = self.jobs[share.job]
        job.committed.setdefault(share.gpu, 0)
        job.usage.setdefault(share.gpu, 0)
        self._sum(share, share.committed, share.usage)

    def drop_share(self, share: Share) -> None:
        del self.processes[share.process].shares[share.gpu]
        del self.gpus[share.gpu].shares[share.process]
        self.gpus[share.gpu].guessed.discard(share.process)
        self.gpus[share.gpu].holds.pop(share.process, None)
        self._sum(share, -share.committed, -share.usage)

    def change(self, share: Share, *, credit: int = 0, overhead: int = 0) -> None:
        """Add to a share's credit and overhead (either may be negative)."""
        share.credit += credit
        share.overhead += overhead
        self._sum(share, credit + overhead, overhead)

    def see(self, share: Share, used: int) -> bool:
        """Its word has been looked at. Whether it has changed."""
        used = min(used, share.credit)
        if used == share.used:
            return False
        self._sum(share, 0, used - share.used)
        share.used = used
        return True

    def _sum(self, share: Share, committed: int, usage: int) -> None:
        gpu, job = self.gpus[share.gpu], self.jobs[share.job]
        gpu.committed += committed
        gpu.usage += usage
        job.committed[share.gpu] += committed
        job.usage[share.gpu] += usage

    def in_limit(self, job: Job, gpu: Gpu) -> int:
        """What may be given to the job until its limit: the limit is for what the driver shows, so memory of its dead
        counts until it is back."""
        return job.bounds[gpu.id].limit - job.committed.get(gpu.id, 0) - gpu.returning_of(job.id)

    def note_excess(self, job: Job, gpu: str) -> None:
        """After a change that takes nothing away (a lower limit, a measurement), more may be held than is allowed."""
        over = job.committed.get(gpu, 0) - job.bounds[gpu].limit
        if over > 0:
            job.excess[gpu] = over
            self.over.add(job.id)
        self.gpus[gpu].excess = max(0, -self.gpus[gpu].free)

    def work_off_excess(self) -> None:
        """An excess only ever shrinks: what has been given back since is not to be taken again."""
        for gpu in self.gpus.values():
            if gpu.excess:
                gpu.excess = min(gpu.excess, max(0, -gpu.free))
            if gpu.overpromised:
                promised = gpu.requested + self.reserved(gpu.id)
                gpu.overpromised = min(gpu.overpromised, max(0, promised - gpu.capacity))
        for job in [self.jobs[id] for id in self.over]:
            for id in list(job.excess):
                over = job.committed.get(id, 0) - job.bounds[id].limit
                job.excess[id] = min(job.excess[id], over)
                if over <= 0:
                    del job.excess[id]
            if not job.excess:
                self.over.discard(job.id)

    # ---- views ---------------------------------------------------------------------------------

    def shares_of(self, job: Job, gpu: str) -> list[Share]:
        """The job's shares of one GPU."""
        found = (self.processes[process].shares.get(gpu) for process in job.processes)
        return [share for share in found if share is not None]

    def is_left_alone(self, job: Job) -> bool:
        return not job.left_alone.isdisjoint(job.processes)

    def has_share(self, job: Job, gpu: str) -> bool:
        return any(gpu in self.processes[process].shares for process in job.processes)

    def usage(self, job: Job, gpu: str) -> int:
        return job.usage.get(gpu, 0)

    def loan(self, job: Job, gpu: str) -> int:
        bounds = job.bounds.get(gpu)
        return max(0, self.usage(job, gpu) - (bounds.request if bounds else 0))

    def owners(self, gpu: str) -> list[Job]:
        """The jobs that are admitted on a GPU."""
        return [job for job in self.jobs.values() if gpu in job.bounds]

    def unlent(self, gpu: str, but: Job) -> int:
        """Headroom that its owners do not lend: it is in nobody's free memory but their own."""
        if not self.non_lending:
            return 0
        return sum(
            max(0, job.bounds[gpu].request - job.committed.get(gpu, 0))
            for job in self.non_lending.values()
            if job is not but and gpu in job.bounds
        )

    def lendable(self, gpu: Gpu) -> int:
        """Idle credit of all shares that others may have."""
        if not self.non_lending:
            return gpu.idle
        kept = 0
        for job in self.non_lending.values():
            kept += sum(share.idle - self.revocable(share) for share in self.shares_of(job, gpu.id))
        return gpu.idle - kept

    def end_hold(self, share: Share) -> None:
        """Its calls have taken what they were granted, or have had the time to."""
        self.gpus[share.gpu].holds.pop(share.process, None)
        share.granted.clear()

    def held(self, gpu: Gpu, *, against_claims: bool) -> dict[int, int]:
        """Process -> idle credit that its calls were granted and are about to take.

        Nobody takes it from them meanwhile: two programs would otherwise take the same memory from each other in turn.
        Against a claim only what is within the holder's own request is held. That is part of its guarantee, so the
        loans of others always suffice for the claims that wait.
        """
        found = {process: gpu.shares[process].pending for process in gpu.holds}
        if not against_claims:
            return found
        headroom: dict[str, int] = {}
        for process, pending in found.items():
            job = self.jobs[gpu.shares[process].job]
            left = headroom.get(job.id, max(0, job.bounds[gpu.id].request - self.usage(job, gpu.id)))
            found[process] = min(pending, left)
            headroom[job.id] = left - found[process]
        return found

    def revocable(self, share: Share) -> int:
        """Idle credit of a share that others may have: all of it, unless the job lends nothing."""
        job = self.jobs[share.job]
        if job.spec.lend:
            return share.idle
        above = job.committed.get(share.gpu, 0) - job.bounds[share.gpu].request
        return max(0, min(share.idle, above))

    def remainder(self, reservation: Reservation, gpu: str) -> int:
        """What is still promised of it on the GPU, beside the requests of the jobs in it."""
        return max(0, reservation.amounts.get(gpu, 0) - reservation.inside.get(gpu, 0))

    def reserved(self, gpu: str) -> int:
        """Sum of the remainders of all reservations."""
        return self.gpus[gpu].reserved

    # ---- invariants ----------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise InvariantError where the state contradicts itself or DESIGN's invariants."""
        for gpu in self.gpus.values():
            self._validate_gpu(gpu)
        for job in self.jobs.values():
            self._validate_job(job)
        for one in self.reservations.values():
            inside = {gpu: amount for gpu, amount in one.inside.items() if amount}
            expected = {gpu: amount for gpu, amount in self._requests_inside(one).items() if amount}
            _hold(inside == expected, f"reservation {one.id}: the requests inside are out of step")
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
        non_lending = {job.id for job in self.jobs.values() if not job.spec.lend}
        _hold(non_lending == set(self.non_lending), "the list of those who lend nothing is out of step")
        _hold(self.over == {job.id for job in self.jobs.values() if job.excess}, "the list of excesses is out of step")

    def _validate_gpu(self, gpu: Gpu) -> None:
        shares = gpu.shares.values()
        _hold(gpu.committed == sum(share.committed for share in shares), f"{gpu.id}: committed is out of step")
        _hold(gpu.usage == sum(share.usage for share in shares), f"{gpu.id}: usage is out of step")
        owners = self.owners(gpu.id)
        requests = sum(job.bounds[gpu.id].request for job in owners)
        _hold(gpu.requested == requests, f"{gpu.id}: requested is out of step")
        remainders = sum(self.remainder(one, gpu.id) for one in self.reservations.values())
        _hold(gpu.reserved == remainders, f"{gpu.id}: reserved is out of step")
        under_reclaim = {job.id for job in owners if gpu.id in job.reclaims}
        _hold(set(gpu.under_reclaim) == under_reclaim, f"{gpu.id}: the list of jobs on a rung is out of step")
        _hold(
            gpu.committed + gpu.unmanaged + gpu.returning_total <= gpu.capacity + gpu.excess,
            f"{gpu.id}: more is given away than there is",
        )
        # Invariant 1: admission.
        promised = gpu.requested + self.reserved(gpu.id)
        _hold(promised <= gpu.capacity + gpu.overpromised, f"{gpu.id}: requests exceed the capacity")
        worst = max((one.condition for one in gpu.health.issues), default=0)
        _hold(gpu.health.condition == worst, f"{gpu.id}: its condition is not that of its ailments")
        _hold(not (gpu.health.lost and gpu.asks), f"{gpu.id}: somebody waits for a GPU that is lost")
        for process in gpu.holds:
            _hold(process in gpu.shares, f"{gpu.id}: credit is held for a process that is gone")
        # Why two claims cannot starve each other: what is held against a claim is part of its holder's guarantee.
        held: Counter[str] = Counter()
        for process, amount in self.held(gpu, against_claims=True).items():
            held[gpu.shares[process].job] += amount
        for job in owners:
            room = max(0, job.bounds[gpu.id].request - self.usage(job, gpu.id))
            _hold(held[job.id] <= room, f"{gpu.id}: more is held for job {job.id} than its request has room for")
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
            usage = sum(share.usage for share in shares)
            _hold(job.usage[gpu] == usage, f"job {job.id}: usage is out of step")
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
