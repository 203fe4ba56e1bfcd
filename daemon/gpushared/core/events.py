"""Everything that can happen to a node, as data.

The shell turns what the kernel, NVML, the shim and the command line say into these, and hands them to
`NodeState.handle(event, now)` (node.py), which answers with instructions (instructions.py). Nothing in here
does I/O. Amounts are in bytes, times in seconds of one monotonic clock, a GPU is named by its UUID, a job by
its id (16 hexadecimal digits), a process by the id of its credit page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gpushare.job_spec import JobSpec
from gpushare.quantity import Quantity
from gpushared.core.health_issues import HealthIssue

Whereabouts = Literal["running", "suspended", "failed", "unknown"]
"""Where the driver says that a job is: the same for all its processes, or `failed`."""


class Event:
    """Base of all events."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class GpuFound(Event):
    """The shell found a GPU (or looked at its size again)."""

    gpu: str
    index: int
    name: str
    total: int
    reserved: int = 0
    """What the driver itself keeps (NVML memory info v2)."""


@dataclass(frozen=True, slots=True)
class GpuExamined(Event):
    """The driver was asked about the GPU's health: all issues that it has now, except Xids."""

    gpu: str
    issues: tuple[HealthIssue, ...]
    recovered: bool = False
    """The driver itself says that nothing needs to be done about the GPU (R570 and later)."""


@dataclass(frozen=True, slots=True)
class XidSeen(Event):
    """The driver has reported an Xid (xid_catalog.py)."""

    gpu: str
    xid: int


@dataclass(frozen=True, slots=True)
class JobSubmitted(Event):
    """A job asks for admission. Answered by JobAdmitted or JobRefused; by JobQueued first if it may wait."""

    job: str
    spec: JobSpec
    wait: float | None = None
    """The most seconds to queue from now on; None: it does not queue."""
    age: float = 0.0
    """Seconds for which it has queued already, as far as an earlier core knew."""


class SuspendedBefore(NamedTuple):
    """What a later daemon has to know of a suspension."""

    gpu: str
    age: float
    """Seconds since its suspender was asked."""
    held: bool
    command: int = 0
    """The number of a command that was under way: its memory may be on the GPU. 0: it was in host memory."""
    leaving: bool = False
    """That command was to suspend it, not to resume it."""


class AsleepBefore(NamedTuple):
    """What a later daemon has to know of a job whose relief hook was called."""

    age: float
    """Seconds since then."""
    had: Mapping[str, int]
    """By GPU: bytes that it used then."""
    allocated: Mapping[str, int]
    """By GPU: the part of these bytes that were allocations."""
    gave: Mapping[str, int] | None = None
    """By GPU: bytes that its relief hook gave back; None: it had not ended."""
    command: int = 0
    """The number of a call of a hook that was under way; 0: none was."""
    relief: bool = False
    """That call was of its relief hook."""


@dataclass(frozen=True, slots=True)
class JobRestored(Event):
    """A job that an earlier daemon had admitted, on these GPUs: it keeps its place."""

    job: str
    spec: JobSpec
    gpus: tuple[str, ...]
    age: float
    """Seconds since it was admitted."""
    open: bool = True
    """False: its wrapper has said that it is over, and processes of its own still lived."""
    saved: float | None = None
    """Seconds since it said that its work is saved; None: it never has."""
    suspended: SuspendedBefore | None = None
    """It was suspended, or on the way, when the earlier daemon wrote its notes."""
    asleep: AsleepBefore | None = None
    """Its relief hook had been called and its resume hook had not ended when the earlier daemon wrote its notes."""


@dataclass(frozen=True, slots=True)
class ReservationAsked(Event):
    """A user wants memory kept for jobs to come. Answered by ReservationMade or ReservationRefused."""

    reservation: str
    spec: JobSpec
    """Only its name, user, request, number of GPUs and devices count."""
    lasting: float | None = None
    """Seconds; None: until it is released."""


@dataclass(frozen=True, slots=True)
class ReservationRestored(Event):
    """A reservation that an earlier daemon had made."""

    reservation: str
    spec: JobSpec
    amounts: Mapping[str, int]
    age: float
    left: float | None


@dataclass(frozen=True, slots=True)
class ReservationEnded(Event):
    """Its user has released it."""

    reservation: str


@dataclass(frozen=True, slots=True)
class JobWithdrawn(Event):
    """The submitter of a queued job has gone."""

    job: str


@dataclass(frozen=True, slots=True)
class JobEnded(Event):
    """The job's wrapper says that it is over, or is gone. It stays while processes of its own live."""

    job: str


@dataclass(frozen=True, slots=True)
class ProcessJoined(Event):
    """A process of the job has a page now."""

    process: int
    job: str
    pid: int
    command: str = ""


@dataclass(frozen=True, slots=True)
class ShareSeen:
    """One line of a page that an earlier daemon made."""

    gpu: str
    used: int
    credit: int
    overhead: int


@dataclass(frozen=True, slots=True)
class ProcessRestored(Event):
    """A process found again after a restart of the daemon, with the lines of its page as they are.

    Comes after the GpuFound and JobRestored that it needs.
    """

    process: int
    job: str
    pid: int
    shares: tuple[ShareSeen, ...]
    command: str = ""


@dataclass(frozen=True, slots=True)
class ProcessGone(Event):
    """The process has exited, or has become another program. `used` is what its page last said."""

    process: int
    used: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttachAsked(Event):
    """The process is about to open a context on the GPU. Answered by Attached or Denied with the same ask."""

    ask: int
    process: int
    gpu: str
    waited: float = 0.0
    """Seconds for which it has waited already: an earlier core was asked, and has failed."""
    another: bool = False
    """It has one there already, and each costs as much."""


@dataclass(slots=True)  # not frozen: a frozen one costs five times as much to make, and hundreds come at once
class CreditAsked(Event):
    """The process needs `size` bytes beyond its unused credit. Answered by Granted or Denied."""

    ask: int
    process: int
    gpu: str
    size: int
    driver_failed: bool = False
    """It had the credit, but the driver said out-of-memory."""
    allocation: int = 0
    """What the program wanted to allocate in all, for messages: at least `size`."""
    again: bool = False
    """The driver failed again after NVML was asked: this asks for nothing and reports the failure."""
    waited: float = 0.0
    """Seconds for which this allocation has waited already: it keeps its place and its deadline."""


@dataclass(frozen=True, slots=True)
class AskCancelled(Event):
    """The caller of the ask has gone."""

    ask: int


@dataclass(frozen=True, slots=True)
class Detached(Event):
    """The last context of the process on the GPU is closed; `used` is what its page says."""

    process: int
    gpu: str
    used: int


@dataclass(frozen=True, slots=True)
class TrimSeen:
    """Where a process is with the last trim that was asked of it."""

    begun: bool
    done: bool


@dataclass(frozen=True, slots=True)
class UsedSeen(Event):
    """The answer to LookUsed: `used` of every process on the GPU, read from the pages just now."""

    gpu: str
    used: Mapping[int, int]
    trims: Mapping[int, TrimSeen] = field(default_factory=dict)
    """How far the processes that can be asked to trim are."""
    asking: Mapping[int, int] = field(default_factory=dict)
    """Process -> calls that have asked for credit and have neither used it nor given up."""
    ending: frozenset[int] = frozenset()
    """The processes of NodeState.watched() that have ended or are ending. A ProcessGone follows for each."""
    pinned: Mapping[int, str] = field(default_factory=dict)
    """Processes that hold memory which cannot leave the GPU, and what it is."""
    host_available: int | None = None
    """Bytes of host memory that could be used without swapping; None: not read."""
    moving: frozenset[int] = frozenset()
    """The processes of NodeState.watched() that took or freed memory while the words were read one after the other.
    Memory that one freed and another took may be counted twice."""
    contexts: Mapping[int, int] = field(default_factory=dict)
    """Process -> contexts that it has on the GPU, as its page says. That one of several is closed nobody tells the
    daemon, and the message about the last one may have been lost."""
    stopped: frozenset[int] = frozenset()
    """The processes of NodeState.away() that stand still (gpushare/standstill.py)."""
    releases: Mapping[int, int] = field(default_factory=dict)
    """Process -> a number in its page that changes whenever it frees memory."""


@dataclass(frozen=True, slots=True)
class Revoked(Event):
    """The answer to Revoke: how much unused credit could really be taken."""

    process: int
    gpu: str
    taken: int
    used: int
    """Used of the same word at that moment."""


@dataclass(frozen=True, slots=True)
class Unmet(Event):
    """Calls of the process within its job's request have failed without an answer: no daemon was there to give one."""

    process: int
    gpu: str
    count: int


@dataclass(frozen=True, slots=True)
class Unhooked:
    """A process that belongs to a job and has no page: the library is not in it."""

    job: str
    command: str


@dataclass(frozen=True, slots=True)
class MemorySampled(Event):
    """What NVML says of the GPU."""

    gpu: str
    used: int | None
    """Bytes of the device in use, without the driver's own. None: the driver did not answer, and the other fields mean
    nothing."""
    by_pid: Mapping[int, int] | None
    """By process id in the daemon's namespace; None where NVML cannot attribute memory."""
    steady: Mapping[int, int]
    """Process -> used, for the processes whose word did not change while the sample was taken."""
    unhooked: Mapping[int, Unhooked] = field(default_factory=dict)
    """By process id: those without a page that were started under a job."""
    busy: frozenset[int] | None = None
    """Process ids (the kernel's) that have computed since the sample before; None where NVML cannot tell."""
    begun: float | None = None
    """When NVML was asked, by the clock of the events. None: it did not answer."""
    contexts: Mapping[int, int] = field(default_factory=dict)
    """Process -> contexts that it had on the GPU when NVML was asked, as its page said."""
    releases: Mapping[int, int] = field(default_factory=dict)
    """As in UsedSeen."""


@dataclass(frozen=True, slots=True)
class LeftAlone(Event):
    """Processes that were not signalled: they have executed a setuid program and belong to another user now. By process
    id, with the core's id of the process; None: it has no page."""

    job: str
    pids: Mapping[int, int | None]


@dataclass(frozen=True, slots=True)
class Checkpointed(Event):
    """The job says that its work is saved now: its end would lose less."""

    job: str


@dataclass(frozen=True, slots=True)
class SuspenderAnswered(Event):
    """The process that asks the driver to suspend a job says where the job is now."""

    job: str
    number: int
    """The number of the Suspend or Resume that it answers; 0: it has just come, and was asked nothing."""
    where: Whereabouts
    problem: str = ""
    """Why it did not do what it was asked. If it has just come: why it never can."""
    seconds: float = 0.0
    """How long the driver took."""


@dataclass(frozen=True, slots=True)
class SuspenderGone(Event):
    """The process that asks the driver to suspend a job has ended."""

    job: str


THERE = -1
"""No number of a command."""


@dataclass(frozen=True, slots=True)
class HookAnswered(Event):
    """The process that calls a job's hooks says how a call has ended."""

    job: str
    number: int
    """The number of the CallHook that it answers; 0: it has just come, and runs nothing; THERE: it is there, and what
    it runs is not known."""
    problem: str = ""
    """Why the hook failed, as far as it knows; empty: it ended well. How much it gave is read from the account."""
    seconds: float = 0.0
    """How long the hook took."""
    wakes: bool = False
    """If it has just come: whether there is a resume hook."""


@dataclass(frozen=True, slots=True)
class HookRunnerGone(Event):
    """The process that calls a job's hooks has ended."""

    job: str


@dataclass(frozen=True, slots=True)
class SuspendWanted(Event):
    """The job's user or an administrator wants it suspended, until it is told to resume. Answered by SuspendNoted or
    SuspendRefused."""

    job: str


@dataclass(frozen=True, slots=True)
class ResumeWanted(Event):
    """Its user or an administrator lets it resume. Answered by SuspendNoted or SuspendRefused."""

    job: str


@dataclass(frozen=True, slots=True)
class BudgetChanged(Event):
    """An owner or administrator changes a running job. Answered by BudgetSet or BudgetRefused."""

    job: str
    request: Quantity | None = None
    limit: Quantity | None = None
    priority: int | None = None
    request_source: str = "gpushare set"
    limit_source: str = "gpushare set"


@dataclass(frozen=True, slots=True)
class TimePassed(Event):
    """The moment of an earlier WakeAt has come (or just: look at the clock)."""
