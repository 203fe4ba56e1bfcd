"""The daemon's HTTP+JSON API as types: what client.py reads and gpushared answers.

All amounts are in bytes. Texts of quantities are as the user wrote them. New versions add fields and never remove or
rename one; readers ignore unknown fields. `check` compares an answer with these types, so that an answer from another
program becomes a clear error.
"""

from __future__ import annotations

import types
import typing
from typing import Any, TypedDict

from gpushare.errors import DaemonUnreachable

__all__ = [
    "Explanation",
    "Gpu",
    "Job",
    "JobGpu",
    "Notice",
    "Outcome",
    "Record",
    "Status",
    "Story",
    "Version",
    "check",
    "fits",
]

PROTOCOL = 1
TOTAL, OUTSIDE = "", "outside"
"""In the place of a job's id, in series of the history: all jobs together; memory that is not in gpushare."""
LEAST_OF_AN_ID = 4
"""Fewest characters of an id that name a job: somebody who types 0 means a GPU."""


class Version(TypedDict):
    version: str
    protocol: int
    pid: int
    driver: str
    scope: str


class _JobGpuLater(TypedDict, total=False):
    """What an older daemon does not say."""

    context: int  # bytes that a context takes: measured, else the usual minimum
    gpu_time: float  # seconds of the GPU's time in which this daemon has seen the job compute, by samples
    suspended: int  # bytes of host memory with what it had on the GPU, while the job is suspended
    turn: str | None  # in computing: holds, leaving, waits, free, suspended, not_held; null: nobody has asked for it
    turn_time: float  # seconds of turns that it has had while others wanted to compute, too
    computing: float | None  # the part of the time, up to 1, at the last sample; None: the driver does not say


class JobGpu(_JobGpuLater):
    uuid: str
    index: int
    name: str  # of the GPU's model
    total: int
    request: int  # what the job is guaranteed
    limit: int  # the most that it may use
    usage: int  # what it uses, with overhead
    accounted: int  # the part of usage that its programs have allocated
    overhead: int  # the part of usage that the driver takes for its processes
    loan: int  # what it uses above its request
    credit: int  # what its processes may use without asking
    peak: int  # the highest usage so far, without a guess of what a context costs
    grantable: int  # what it could get now
    health: str  # of the GPU: ok, degraded, sick, lost


class _ProcessLater(TypedDict, total=False):
    """What an older daemon does not say."""

    driver_copies: int  # further copies of the driver in the process; only one is counted


class JobProcess(_ProcessLater):
    pid: int
    command: str
    gpus: dict[str, int]


class Killed(TypedDict):
    code: str
    claim: str | int | None
    owner: str | None
    owner_user: str | None
    asked: int
    got: int
    loan: int
    usage: int
    request: int
    grace: float
    reason: str
    time: float


class _OutcomeOfLaterVersions(TypedDict, total=False):
    ended: float | None  # when
    seen: bool  # False: no daemon saw the job end; `killed` and `peak` are of the last moment that was written down
    gpu_time: dict[str, float]  # by GPU, seconds in which a daemon has seen it compute


class Outcome(_OutcomeOfLaterVersions):
    exit_code: int | None
    signal: int | None
    killed: Killed | None
    peak: dict[str, int]
    refusals: int
    duration: float


class _JobLater(TypedDict, total=False):
    """What an older daemon does not say."""

    longest_grace: float  # seconds; a longer grace is cut to it
    longest_protection: float  # seconds; claims can fail while a job is protected longer by its min_run_time
    compute: float | None  # the part of a GPU's time that it has asked for
    exclusive: float | None  # seconds that it computes alone at a stretch
    turns: bool  # jobs take turns in computing on this node, for those that ask for it


class Job(_JobLater):
    """`reveal` decides what is shown of another user's job; the rest is `-`."""

    id: str
    name: str
    user: str
    uid: int
    command: list[str]
    state: (
        str  # queued, running, borrowing, idle, trimming, suspending, suspended, resuming, asked_back, waiting, ended
    )
    since: float
    priority: int  # jobs of the lowest are stopped first
    lend: bool  # its unused request is lent to others
    grace: float | None  # seconds between SIGTERM and SIGKILL; null: the daemon's default
    on_reclaim: list[str]  # the reclaim steps that it wants, in their order
    request_source: str | None  # the option, variable or file that the request comes from
    limit_source: str | None
    gpus: list[JobGpu]
    processes: list[JobProcess]
    outcome: Outcome | None


class UnmanagedProcess(TypedDict):
    pid: int
    bytes: int
    command: str
    user: str
    uid: int
    job: str | None  # the job that started it; gpushare does not see its allocations
    reason: str  # not_preloaded, static, setuid, past_the_shim, unknown; observed: with `--mode observe`


class Ailment(TypedDict):
    state: str  # degraded, sick, lost
    cause: str
    text: str
    hint: str
    facts: dict[str, Any]


class Health(TypedDict):
    state: str  # ok, or the severity of the worst health issue
    shortfall: int  # by how much the requests exceed the GPU's usable memory
    ailments: list[Ailment]


class Gpu(TypedDict):
    uuid: str
    index: int
    name: str  # of its model
    total: int
    reserve: int  # that is never promised nor lent
    capacity: int  # that may be promised and lent
    requested: int  # by all jobs
    usage: int  # of all jobs
    lent: int  # of it above requests
    free: int
    unmanaged: int  # in use by programs outside gpushare
    unmanaged_processes: list[UnmanagedProcess]
    returning: int  # of programs that have ended; the driver still shows it
    health: Health


class Notice(TypedDict):
    time: float
    kind: str
    text: str
    facts: dict[str, Any]


class Record(TypedDict):
    name: str | None
    time: float
    event: str
    gpu: str | None
    job: str | None
    text: str
    facts: dict[str, Any]


class Daemon(TypedDict):
    version: str
    uptime: float
    jobs: int


class Jobs(TypedDict):
    jobs: list[Job]


class Status(TypedDict):
    daemon: Daemon
    gpus: list[Gpu]
    jobs: list[Job]


class Waiting(TypedDict):
    """A claim that waits, or a job in the queue. It has the shape of an error, because it may become one."""

    job: str
    name: str
    gpu: str | None  # None: waits for any GPU
    since: float
    until: float  # when it is refused
    code: str  # claim_waits, not_admitted
    message: str
    facts: list[list[str]]
    hint: str | None
    data: dict[str, Any]


class Stopped(TypedDict):
    job: Job
    processes: int  # that were signalled
    spared: int  # that now belong to another user


class Story(TypedDict):
    job: Job
    story: list[Record]
    waiting: list[Waiting]


class Records(TypedDict):
    records: list[Record]


class HistorySeries(TypedDict):
    """Memory of one job on one GPU over time. `job` is empty for all jobs together, "outside" for memory that is not in
    gpushare."""

    gpu: str  # its uuid
    job: str  # its id
    name: str
    user: str
    points: list[list[float]]
    """[time, mean usage, highest usage, request, limit, mean loan, computing]; [time]: nothing from then on.
    `computing` is the part of the time, up to 1, in which it had the GPU compute; an older daemon does not say."""


class History(TypedDict):
    """Each point holds until the next one of its series."""

    kept: bool  # False: the daemon keeps no history, or could not read it
    step: int  # seconds
    cut: bool  # earlier points are left out
    series: list[HistorySeries]


class AmountsNow(TypedDict):
    usage: int
    request: int
    limit: int
    loan: int
    computing: float  # the part of the last 10 s, up to 1, in which the job had the GPU compute


class SeriesNow(TypedDict, total=False):
    gpu: str  # its uuid
    job: str  # as in HistorySeries
    name: str
    user: str
    now: AmountsNow | None  # None: the series has ended


class HistoryLine(TypedDict, total=False):
    """What has changed since the line before; the first line has all."""

    time: float
    series: list[SeriesNow]
    text: str  # where lines are left out, because the reader was too slow
    facts: dict[str, Any]


class Dashboard(TypedDict):
    url: str  # with its token: who has it acts as an administrator


class StallTime(TypedDict):
    avg10: float  # share of the last 10 seconds, 0 to 1
    avg60: float
    avg300: float
    total: float  # seconds


class GpuPressure(TypedDict):
    uuid: str
    index: int
    some: StallTime
    full: StallTime


class Pressure(TypedDict):
    gpus: list[GpuPressure]


class Explanation(TypedDict):
    gpus: list[Gpu]
    waiting: list[Waiting]
    pressure: list[GpuPressure]
    records: list[Record]


class ReservedGpu(TypedDict):
    uuid: str
    index: int
    amount: int
    remainder: int  # what jobs in it have not requested


class Reservation(TypedDict):
    id: str
    name: str
    user: str
    uid: int
    since: float
    until: float | None
    gpus: list[ReservedGpu]
    jobs: list[str]


class Reservations(TypedDict):
    reservations: list[Reservation]


class Placement(TypedDict):
    """A task that an engine has placed here, and what runs of it."""

    id: str
    attempt: int
    state: str
    """placed, or leaving: its engine has ended it, and something of it runs."""
    cgroups: list[str]
    sessions: list[int]
    holders: list[int]
    """When none of these and none of its programs lives, it ends by itself. Empty: only its engine ends it."""
    pids: list[int]
    """Of its programs that have the library in them."""
    job: Job


class Placements(TypedDict):
    placements: list[Placement]


class Change(TypedDict):
    before: Job
    after: Job
    note: str


class Suspending(TypedDict):
    """The answer to a wish to suspend or to resume a job."""

    job: Job
    note: str
    """What happens now."""
    suspender: bool
    """The process that asks the driver is there."""


class SuspendCommand(TypedDict):
    """For a job's suspender (gpushare/suspender.py)."""

    command: str
    """report | suspend | resume"""
    number: int
    pids: list[int]
    within: float
    """Seconds, of suspend and resume; 0.0: no matter."""
    bytes: int
    """That go to host memory."""


class HookCommand(TypedDict):
    """For the process that calls a job's hooks (gpushare/hook_runner.py)."""

    command: str
    """report | relief | resume"""
    number: int
    gpu: str
    bytes: int
    """Of this GPU that are wanted; of resume: that are kept free for the job, on all its GPUs."""
    within: float
    """Seconds."""


class Ended(TypedDict):
    job: Job
    outcome: Outcome


def check(value: object, expected: Any, path: str = "$") -> None:
    """Raise DaemonUnreachable unless `value` (from JSON) has the type `expected`."""
    if expected is Any:
        return
    if typing.is_typeddict(expected):
        _check_fields(value, expected, path)
        return
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin is types.UnionType:
        if not any(fits(value, argument, path) for argument in arguments):
            raise _garbage(path, f"is {value!r:.40}")
    elif origin is list and isinstance(value, list):
        for index, item in enumerate(value):
            check(item, arguments[0], f"{path}[{index}]")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            check(item, arguments[1], f"{path}.{key}")
    elif origin is not None or not _is_a(value, expected):
        raise _garbage(path, f"is {value!r:.40}")


_hints: dict[Any, dict[str, Any]] = {}


def _check_fields(value: object, expected: Any, path: str) -> None:
    if not isinstance(value, dict):
        raise _garbage(path, f"is {value!r:.40}")
    if expected not in _hints:
        _hints[expected] = typing.get_type_hints(expected)
    for name, kind in _hints[expected].items():
        if name in value:
            check(value[name], kind, f"{path}.{name}")
        elif name in expected.__required_keys__:
            raise _garbage(f"{path}.{name}", "is missing")


def fits(value: object, expected: Any, path: str = "$") -> bool:
    """Whether `value` has the type `expected`."""
    try:
        check(value, expected, path)
    except DaemonUnreachable:
        return False
    return True


def _is_a(value: object, expected: Any) -> bool:
    if expected is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, expected)


def _garbage(path: str, what: str) -> DaemonUnreachable:
    return DaemonUnreachable(
        f"the daemon's answer cannot be read: {path} {what}",
        code="garbage",
        hint="is the daemon of the same version as the command? `gpushare doctor` compares them",
    )
