"""What callers of the daemon's HTTP+JSON API send: the bodies of its requests, as api.py has its answers.

The daemon takes each field out of a body and refuses the names that are not here. All fields may be left out, where
nothing else is said; null is the same. Amounts of memory are texts, as users write them: "4Gi", "25%".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

__all__ = [
    "KINDS",
    "Exit",
    "HookAnswer",
    "JobChange",
    "Main",
    "NewJob",
    "NewPlacement",
    "NewReservation",
    "Nothing",
    "Stop",
    "SuspendAnswer",
]

KINDS: Mapping[str, Any] = {
    "text": str,
    "texts": list[str],
    "integer": int,
    "seconds": float,
    "share": float,
    "flag": bool,
    "amount": str,
    "steps": str,
}
"""The type of each kind of a job's options (job_spec.py) in a body."""


class Nothing(TypedDict):
    """An empty object."""


class NewJob(TypedDict, total=False):
    """What a submission has beside the options of the job."""

    wait: float  # seconds for which it may wait until it is admitted; left out: it does not
    job: str  # the id that it shall have, or has after a restart of the daemon: 16 hexadecimal digits
    cwd: str  # not used
    mode: str  # enforce, the default, or observe


class JobChange(TypedDict, total=False):
    """At least one of the first three."""

    request: str
    limit: str
    priority: int
    dry_run: bool  # nothing is changed: the answer says what would follow


class Stop(TypedDict, total=False):
    now: bool  # SIGKILL at once


class Main(TypedDict, total=False):
    pid: int  # the caller's, or that of a child of it; must be there


class Exit(TypedDict, total=False):
    exit_code: int
    signal: int


class NewReservation(TypedDict, total=False):
    name: str
    request: str  # on each of its GPUs
    gpus: int  # how many; default 1
    devices: list[str]  # the GPUs to choose from, by number or uuid
    lasting: float  # seconds


class NewPlacement(TypedDict, total=False):
    """`attempt`, `uid`, `gpus` and `request` must be there."""

    attempt: int  # grows with each start of the task
    uid: int  # the user whose programs it runs
    gpus: list[str]  # by number or uuid
    request: str
    limit: str  # default: the request
    priority: int
    grace: float  # seconds
    on_reclaim: str  # reclaim steps: trim,term
    min_run_time: float  # seconds
    lend: bool
    name: str
    job: str  # the id that its job shall have
    cgroup: str  # whose processes belong to it: a path as in /proc/PID/cgroup
    cgroups: list[str]  # several
    session: int  # the pid of a session's leader, whose processes belong to it
    holder: int  # the pid of a process; when no holder and no program of it lives, it ends by itself


class HookAnswer(TypedDict, total=False):
    """`number` must be there."""

    number: int  # of the command
    problem: str  # why the hook failed; left out: it has ended well
    wakes: bool  # there is a resume hook
    milliseconds: int  # that the hook took


class SuspendAnswer(TypedDict, total=False):
    """`number` and `where` must be there."""

    number: int  # of the command
    where: str  # the job's memory now: running, suspended, failed, unknown
    problem: str
    pid: int  # of the suspender
    milliseconds: int  # that the driver took
