"""Everything the node core can tell the shell to do, as data.

`NodeState.handle(event, now)` returns a list of these; the shell carries them out in order. Two of them are
questions (LookUsed, SampleMemory) and one is an attempt (Revoke): the shell answers each with its event
(UsedSeen, MemorySampled, Revoked) before it takes the next thing from its queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpushare.reasons import Reason, Words


class Instruction:
    """Base of all instructions."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JobAdmitted(Instruction):
    """Tell the submitter: the job has a place on these GPUs."""

    job: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobRefused(Instruction):
    """Tell the submitter: there is no room, and why. The job is forgotten."""

    job: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class JobQueued(Instruction):
    """The submitter waits; a JobAdmitted or JobRefused follows later."""

    job: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class ReservationMade(Instruction):
    """Answer ReservationAsked: the memory is kept on these GPUs."""

    reservation: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReservationRefused(Instruction):
    """Answer ReservationAsked: there is no room, and why."""

    reservation: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class JobClosed(Instruction):
    """The job has ended and all its processes are gone: forget what belongs to it."""

    job: str


@dataclass(frozen=True, slots=True)
class Attached(Instruction):
    """Open a line for the process: charge it `overhead` in all, give it `credit`, answer the ask.

    No overhead and no credit: it has what it needs already.
    """

    ask: int
    process: int
    gpu: str
    overhead: int
    credit: int


@dataclass(slots=True)  # not frozen, as CreditAsked is not
class Published:
    """What a process's line says for its program to read, in bytes."""

    grantable: int
    limit: int
    request: int
    overhead: int
    job_usage: int


@dataclass(slots=True)  # likewise
class Granted(Instruction):
    """Add `size` bytes (>= what was asked) to the credit in the process's word, then answer the ask."""

    ask: int
    process: int
    gpu: str
    size: int
    figures: Published
    """Figures for the process's page. Write them before the credit."""


@dataclass(frozen=True, slots=True)
class Denied(Instruction):
    """Answer the ask: out of memory, and why. reason.code tells the wire status."""

    ask: int
    process: int
    gpu: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Revoke(Instruction):
    """Take up to `size` bytes of unused credit out of the word; answer with Revoked."""

    process: int
    gpu: str
    size: int


@dataclass(frozen=True, slots=True)
class LookUsed(Instruction):
    """Read the words of all processes on the GPU; answer with UsedSeen."""

    gpu: str


@dataclass(frozen=True, slots=True)
class SampleMemory(Instruction):
    """Ask NVML about the GPU now; answer with MemorySampled."""

    gpu: str


@dataclass(frozen=True, slots=True)
class Publish(Instruction):
    """What jobs could be granted on the GPU has changed: write NodeState.published(gpu) to the pages, soon."""

    gpu: str


@dataclass(frozen=True, slots=True)
class Trim(Instruction):
    """Ask these processes of the job to free what their allocators only keep: `size` bytes of this GPU in all."""

    job: str
    processes: tuple[int, ...]
    gpu: str
    size: int
    within: float
    """Seconds."""
    reason: Reason


@dataclass(frozen=True, slots=True)
class Suspend(Instruction):
    """Have the job's suspender take the memory of these processes from the GPU; answer with SuspenderAnswered."""

    job: str
    number: int
    processes: tuple[int, ...]
    size: int
    """Bytes."""
    within: float
    """Seconds. After that the suspender must have undone what it has begun."""


@dataclass(frozen=True, slots=True)
class Resume(Instruction):
    """Have the job's suspender put the memory back; answer with SuspenderAnswered."""

    job: str
    number: int
    processes: tuple[int, ...]
    size: int
    within: float


@dataclass(frozen=True, slots=True)
class CallHook(Instruction):
    """Have the process that runs the job's hooks call one; answer with HookAnswered."""

    job: str
    number: int
    hook: Literal["relief", "resume"]
    gpu: str
    size: int
    """Bytes. For relief: what is wanted of the GPU. For resume: what is kept free for the job, on all its GPUs."""
    within: float
    """Seconds. After that the hook must have ended or been ended."""


@dataclass(frozen=True, slots=True)
class OpenGate(Instruction):
    """The job runs again: let calls of these processes go on."""

    job: str
    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SuspendNoted(Instruction):
    """Answer SuspendWanted or ResumeWanted: what happens now."""

    job: str
    note: Words


@dataclass(frozen=True, slots=True)
class SuspendRefused(Instruction):
    """Answer SuspendWanted or ResumeWanted: it cannot be done, and why."""

    job: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Terminate(Instruction):
    """SIGTERM to these processes of the job (its processes on GPUs), and tell its wrapper why."""

    job: str
    processes: tuple[int, ...]
    grace: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class Kill(Instruction):
    """SIGKILL to these processes of the job and to its main process, and tell its wrapper why."""

    job: str
    processes: tuple[int, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Notify(Instruction):
    """Tell the job's wrapper something that its user should read.

    kind: waiting | denied | changed | relieved | suspended | not_suspended | resumed | hook | hook_failed | awake |
    idle, or the state that a GPU of it has come to: gpu_ok | gpu_degraded | gpu_sick | gpu_lost.
    """

    job: str
    kind: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class BudgetSet(Instruction):
    """Answer BudgetChanged: the budget is changed."""

    job: str
    note: str


@dataclass(frozen=True, slots=True)
class BudgetRefused(Instruction):
    """Answer BudgetChanged: the job keeps its budget, and why."""

    job: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Persist(Instruction):
    """The admitted or queued jobs, the reservations or the learned overheads have changed: write them to disk, soon."""


@dataclass(frozen=True, slots=True)
class Log(Instruction):
    """One line for the daemon's log; the same record is kept for `gpushare explain`."""

    record: Record


@dataclass(frozen=True, slots=True)
class WakeAt(Instruction):
    """Send TimePassed at this time (or soon after). Replaces an earlier wish; a past time means at once."""

    time: float


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a story: what happened, to whom, with the numbers."""

    time: float
    event: str
    gpu: str | None
    text: Words
    facts: Mapping[str, object] = field(default_factory=dict)
    job: str | None = None
    name: str | None = None
    """The job's name. The job may have ended when this is read, so its user's id is kept, too."""
    uid: int | None = None
