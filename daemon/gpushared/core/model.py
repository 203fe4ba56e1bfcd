"""What the state is made of: GPUs, jobs, processes, shares, asks, reclaims, reservations. Data, no decisions.

Amounts are bytes. Share has the words: credit, used, overhead, committed, usage, idle.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from gpushare.job_spec import JobSpec
from gpushare.quantity import UNIT_BYTES
from gpushare.reasons import Reason
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core.aside import Aside
from gpushared.core.events import TrimSeen
from gpushared.core.health_issues import Health
from gpushared.core.histogram import Histogram
from gpushared.core.instructions import Record
from gpushared.core.links import HookRunnerLink, SuspenderLink
from gpushared.core.pressure import PressureClock
from gpushared.core.repeats import Repeats
from gpushared.core.sleep import Sleep, SleepState
from gpushared.core.suspension import Parked, Suspension

UNIT = UNIT_BYTES
"""Bytes in which credit is counted."""

MOST_CALLS = 64
"""The most calls of one process for which credit is held. A program has about as many threads as the machine has
cores."""

A_YEAR = 365 * 24 * 3600.0
"""Seconds. A longer --wait counts as one without an end."""


def whole_units(amount: int) -> int:
    """Rounded up."""
    return -(-amount // UNIT) * UNIT


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
    """Its overhead was measured by NVML, not guessed."""
    contexts: int = 1
    """That have been charged since it attached."""
    provisional: int = -1
    """The most overhead that NVML has shown since `provisional_at`; -1: nothing yet."""
    provisional_at: float = 0.0
    ending: bool = False
    """Its process has ended or is in its exit. Its memory will soon be free."""
    moving: bool = False
    """It took or freed memory while the words were last read: their sum may be wrong."""
    open_contexts: int = -1
    """As its page last said; -1: it has not. Nobody tells the daemon that one of several is closed."""
    all_open: bool = False
    """Its page has said that all of `contexts` are open, since the last one was charged."""
    trim: TrimSeen | None = None
    """As last seen in the page; None: the process cannot be asked to trim."""
    pinned: str = ""
    """As last seen in the page: memory that cannot leave the GPU, so that the process cannot be suspended."""
    releases: int | None = None
    """As last seen in the page: it changes whenever the process frees memory. None: not seen yet."""
    parked: Parked | None = None
    """Its job is suspended: it has nothing on the GPU now, and this is what it had."""
    granted: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_CALLS))
    """What each of its last calls was granted and may not have taken yet. It counts while the process is in
    Gpu.holds."""

    @property
    def committed(self) -> int:
        return self.credit + self.overhead

    @property
    def some_closed(self) -> bool:
        """Fewer are open than are charged: some are closed, or one is about to open."""
        return 0 < self.open_contexts < self.contexts

    @property
    def opening(self) -> bool:
        """As far as its page says, one is about to open."""
        return not self.all_open and 0 <= self.open_contexts < self.contexts

    @property
    def usage(self) -> int:
        return self.used + self.overhead

    @property
    def idle(self) -> int:
        return max(0, self.credit - self.used)

    @property
    def pending(self) -> int:
        """The part of its idle credit that its calls are about to take, while the process is in Gpu.holds."""
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
    stopped: bool = False
    """Of a job that waits to get its memory back: the process stands still (gpushare/standstill.py), as last seen."""


@dataclass(slots=True)
class Reclaim:
    """A job that has been asked (trim, hook, SIGTERM) or made (SIGKILL) to give memory of one GPU back."""

    job: str
    gpu: str
    step: ReclaimStep
    since: float
    deadline: float
    """The end of the trim, of the hook or of the grace. The next step follows if the memory is still missing then."""
    reason: Reason
    owner: str
    asked: int
    loan: int
    answered: bool = False
    """Its trim or hook is over: the program has given what it could, or has not answered."""
    killed_at: float | None = None
    given_up: bool = False
    """Killed, and it does not end: its memory is no longer expected back."""


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
    """Sum over its processes, by GPU."""
    excess: dict[str, int] = field(default_factory=dict)
    """By GPU: by how much it is over its limit since the limit was lowered or its overhead was measured. Meanwhile it
    cannot grow."""
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
    """By GPU: since when it is above its limit by memory that only NVML shows."""
    observed: dict[str, int] = field(default_factory=dict)
    """By GPU, of a job that is only observed: what its programs used in the last sample. It counts as used outside
    gpushare."""
    left_alone: set[int] = field(default_factory=set)
    """Its processes that belong to another user. As long as one of them lives, the job is not stopped."""
    unhooked_told: dict[str, str] = field(default_factory=dict)
    """Processes without a page that its user has been told of -> the GPU."""
    suspension: Suspension | None = None
    suspender: SuspenderLink = field(default_factory=SuspenderLink)
    resumed_at: float = float("-inf")
    sleep: Sleep | None = None
    hook_runner: HookRunnerLink = field(default_factory=HookRunnerLink)
    aside: Aside | None = None
    """It is idle for longer than its policy lets it."""
    restored_at: float = float("-inf")
    """When this daemon has taken it over from an earlier one."""
    story: list[Record] = field(default_factory=list)
    refusals: Repeats = field(default_factory=Repeats)

    @property
    def lends_nothing(self) -> bool:
        """Its user wants so, it is suspended, or its relief hook was called. What is free of its request is kept for
        it."""
        return not self.spec.lend or self.suspension is not None or self.sleep is not None

    @property
    def is_left_alone(self) -> bool:
        return not self.left_alone.isdisjoint(self.processes)

    @property
    def wakes_now(self) -> bool:
        """Its resume hook runs."""
        return self.sleep is not None and self.sleep.state is SleepState.WAKING

    def own(self, gpu: str) -> int:
        """Bytes of the GPU that are its own now: its request; while its resume hook runs, all that it had."""
        bounds = self.bounds[gpu]
        had = self.sleep.had.get(gpu, 0) if self.sleep is not None and self.wakes_now else 0
        return max(bounds.request, min(had, bounds.limit))

    def may_borrow(self, gpu: str) -> bool:
        """Its limit is above its request."""
        return self.bounds[gpu].limit > self.bounds[gpu].request

    def kept(self, gpu: str) -> int:
        """Bytes of its own that it has not taken. If it lends nothing, no other job may take them."""
        return max(0, self.own(gpu) - self.committed.get(gpu, 0))

    def above_own(self, gpu: str) -> int:
        """Bytes that are committed to it there beyond its own."""
        return max(0, self.committed.get(gpu, 0) - self.own(gpu))

    @property
    def total_usage(self) -> int:
        """Bytes, on all its GPUs."""
        return sum(self.usage.get(id, 0) for id in self.bounds)


@dataclass(slots=True)
class Submission:
    """A job that queues for admission."""

    job: str
    spec: JobSpec
    since: float
    until: float

    @property
    def order(self) -> tuple[int, float, str]:
        """The order of the queue: by priority, then by arrival."""
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
    """Its entry in the state file, made once (persistence.py)."""


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
    """NVML has been asked since, because the driver failed or because memory of ended processes may be free again."""
    looked: bool = False
    """The words have been read since."""
    closely: bool = False
    """It is about to be refused for memory that other processes of its job are charged. First they are checked for
    life."""
    verified: bool = False
    """They have been checked since."""
    allocation: int = 0
    """Bytes that the call is about to use in all; 0: it did not say."""
    claim: bool = False
    """Within the request: it may wait, and others may have to give back for it."""
    above: int = 0
    """By how many bytes its job would be above the request, as memory is in use now; 0 or less for a claim."""
    promised: int = 0
    """Bytes within the request for which earlier asks of its job wait. They count before this one."""
    unsure: int = 0
    """By how many bytes `above` may be too large: contexts that are about to open are charged by a guess."""
    short: bool = False
    """A claim that neither free memory nor idle credit could meet."""
    trim_until: float | None = None
    """After this time no job is asked to trim for it; set when the first one is."""
    step: ReclaimStep = ReclaimStep.REVOKE
    """The highest step that was taken for it."""

    @property
    def order(self) -> tuple[int, float, int]:
        """The order of claims on one GPU: by priority, then by arrival."""
        return (-self.priority, self.since, self.id)

    @property
    def wanted(self) -> int:
        """What the program asked for, in bytes."""
        return max(self.size, self.allocation)

    @property
    def need(self) -> int:
        """Bytes of credit that are missing; 0 if the driver failed although the credit was there."""
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
    back_since: float | None = None
    """When it came back after it was lost. Only a sample that began later tells what is in use on it."""
    some: PressureClock = field(default_factory=PressureClock)
    """Runs while a claim waits here."""
    full: PressureClock = field(default_factory=PressureClock)
    """Runs while all jobs here have a claim that waits."""
    shows_busy: bool = False
    """NVML tells which processes compute. Otherwise a job that is not seen to compute may compute all the same."""

    @property
    def capacity(self) -> int:
        return self.total - self.reserve

    @property
    def returning_total(self) -> int:
        return sum(entry.amount for entry in self.returning.values())

    def returning_of(self, job: str) -> int:
        """Bytes that the driver has not freed yet of ended processes of this job."""
        return sum(entry.amount for entry in self.returning.values() if entry.job == job)

    @property
    def free(self) -> int:
        """By the ledger. Below zero if measured memory has outgrown the capacity; at most 0 while that is unknown."""
        free = self.capacity - self.committed - self.unmanaged
        if self.returning:
            free -= self.returning_total
        return free if self.back_since is None else min(free, 0)

    @property
    def idle(self) -> int:
        """Credit that is not used."""
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
    suspends: int = 0
    suspended_bytes: int = 0
    """Bytes that suspending has taken from GPUs."""
    resumes: int = 0
    suspend_failures: Counter[str] = field(default_factory=Counter)
    """By what failed: suspend or resume."""
    hooks: int = 0
    """Calls of relief hooks."""
    hook_bytes: int = 0
    """Bytes that relief hooks have given back."""
    wakes: int = 0
    """Jobs whose resume hook has ended well."""
    hook_failures: Counter[str] = field(default_factory=Counter)
    """By hook: relief or resume."""
    idle_bytes: int = 0
    """Bytes that jobs have given back because they were idle."""
    relieved: int = 0
    """Victims that gave back in time, or were no longer needed."""
    claims: int = 0
    """Asks within the request that did not fit at once."""
    claim_waits: dict[ReclaimStep, Histogram] = field(default_factory=dict)
    """How long claims that were met had waited, by the highest reclaim step that was taken for them."""
    breaches: int = 0
    kills_for_breach: int = 0
    left_alone: int = 0
    """Processes that were not signalled because they belonged to another user by then."""
    violations: Counter[str] = field(default_factory=Counter)
    """Guarantee violations by cause."""
