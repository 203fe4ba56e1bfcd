"""The seam between the allocator and whatever runs jobs: what an engine shows, what it is told, what it answers.

An engine owns the jobs: users submit to it, it keeps each job's specification, attempts and result, and it outlives
the loop that drives it (loop.py). The allocator's id of a job is the engine's uid.

What an engine promises:

* A snapshot shows the effect of every command that was answered before, and all of its jobs and nodes.
* Every command has a token: (term of the leader, number). For each task the engine obeys a command once, and none that
  is older than the last one that it obeyed, however late it comes. So after evict() an older start() is void.
* start() of a task that exists already starts nothing: in the same place it takes over the amounts, elsewhere it is
  refused. start() of a job that has ended is Gone; while an earlier attempt still runs it is Busy.
* start() of what does not fit is refused. The loop does not ask for that; commands that are late may.
* evict() of a task that does not exist is Gone, or Accepted. A task that was evicted is in the snapshots until nothing
  of it runs. What only is a record ("done", "failed") goes with its eviction.
* A node is "lost" only when nothing runs there any more. While nobody knows, it is "unknown".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from gpushare.cluster.model import Job, Node, Place, Queue

__all__ = [
    "Accepted",
    "Answer",
    "Busy",
    "Deposed",
    "Engine",
    "Evict",
    "Gone",
    "KeepsQueues",
    "Measure",
    "Measured",
    "Observed",
    "QueueEngine",
    "QueueTold",
    "Refused",
    "SeenJob",
    "SeenNode",
    "SeenTask",
    "Start",
    "StartsMany",
    "Token",
    "Unanswered",
    "queue_of_user",
]

Token = tuple[int, int]
"""The term of the leader, which grows with each new leader, and the number of the command in it."""


# ---- what is observed --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeenTask:
    """A task of a job that exists in the engine."""

    attempt: int
    group: int
    task: int
    node: str
    gpus: tuple[int, ...]
    amount: int
    """Bytes of each of these GPUs."""
    phase: Literal["starting", "running", "stopping", "done", "failed"]
    """The last two hold no GPU. "failed": it did not start."""
    why: str = ""
    """Of a failed one; of one that is done, if there is something to say."""
    node_to_blame: bool = False
    exit: int | None = None
    """Of one that is done: its exit status, or the signal that ended it as a negative number. None: nobody knows."""
    began: float | None = None
    """When its program began to run, and when it ended, in seconds since 1970. None: nobody knows, or it has not."""
    ended: float | None = None

    @property
    def holds(self) -> bool:
        return self.phase in ("starting", "running", "stopping")

    @property
    def where(self) -> tuple[int, int, int, str, tuple[int, ...]]:
        return self.attempt, self.group, self.task, self.node, self.gpus


@dataclass(frozen=True, slots=True)
class SeenJob:
    job: Job
    """Its id is the engine's uid."""
    submitted: float
    attempt: int = 0
    """The highest that any of its tasks ever had."""
    evictions: int = 0
    rung: int = 0
    held: bool = False
    """Its user does not want it to start yet."""
    changes: bool = False
    """What it asks for may be another thing from look to look while it waits: then the newest counts."""
    tasks: tuple[SeenTask, ...] = ()
    ended: bool = False
    """It has its result and does not run again."""
    note: str = ""
    """What annotate() last said."""
    user: str = ""
    """Who submitted it, where the engine knows. One whose job names no queue uses the user's own."""
    account: str = ""
    """Whose queue it uses, if the job names none: that of its user in this account, else that of the account."""
    started: float | None = None
    """Since when it runs, where the engine knows (seconds since 1970)."""


def queue_of_user(account: str, user: str) -> str:
    """The queue of a user's own part of what an account has, where there is one. No name of either has a colon."""
    return f"{account}:{user}"


@dataclass(frozen=True, slots=True)
class SeenNode:
    node: Node
    state: Literal["ready", "unknown", "lost"] = "ready"
    cordoned: bool = False
    draining: bool = False
    foreign: tuple[tuple[int, int], ...] = ()
    """GPU and bytes in use by programs that are no jobs of this engine."""


@dataclass(frozen=True, slots=True)
class Observed:
    nodes: tuple[SeenNode, ...] = ()
    jobs: tuple[SeenJob, ...] = ()
    wrong: Mapping[str, str] = field(default_factory=dict)
    """Jobs whose words make no sense, or that cannot wait for GPUs yet, by uid or another name that users know, and
    why. They are none of `jobs`."""


# ---- commands and answers ----------------------------------------------------------------------------


class Start(NamedTuple):
    """Start these tasks of an attempt, or give those that exist these amounts."""

    uid: str
    attempt: int
    places: tuple[Place, ...]
    rung: int


class Evict(NamedTuple):
    """Stop these tasks of an attempt: ask, and after `grace` seconds kill."""

    uid: str
    attempt: int
    tasks: tuple[tuple[int, int], ...]
    grace: float
    again: bool
    """The job waits again, or goes on with other tasks. False: nobody wants it any more."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """It is done, or will be, whatever happens to the engine."""


@dataclass(frozen=True, slots=True)
class Refused:
    why: str
    node: str | None = None
    """Of a start: the node to blame, None: the job."""
    retry_after: float = 60.0
    """Of an eviction (seconds)."""


@dataclass(frozen=True, slots=True)
class Gone:
    """There is nothing to do it to."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Not now. Asked again later it may be accepted."""


Answer = Accepted | Refused | Gone | Busy


class Unanswered(Exception):
    """Nobody knows whether it was done, or will be."""


class Deposed(Exception):
    """Another leads."""


class Engine(Protocol):
    """Each method may raise Unanswered, and those with a token Deposed."""

    def lead(self, holder: str, seconds: float) -> int | None:
        """Lead, or go on leading, for so long. The term; None while another leads."""
        ...

    def snapshot(self) -> Observed:
        """Everything, as it is."""
        ...

    def glance(self, uids: Collection[str]) -> Observed:
        """All nodes, and of the jobs at least these, those that have tasks, and those that have changed by themselves.

        For a round that does not look at thousands of jobs that wait."""
        ...

    def watch(self, seconds: float) -> None:
        """Wait until something may have changed, at most so long."""
        ...

    def start(self, command: Start, token: Token) -> Answer: ...

    def evict(self, command: Evict, token: Token) -> Answer: ...

    def annotate(self, uid: str, text: str, token: Token) -> None:
        """Show the user why the job waits."""
        ...


class Measure(NamedTuple):
    """A metric of an engine, beside those that all have."""

    name: str
    """After the prefix that all of the service have. Of what only grows it ends in _total."""
    text: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]
    """By the labels' values."""


@runtime_checkable
class Measured(Protocol):
    """An engine with metrics of its own."""

    def measures(self) -> Iterable[Measure]: ...


@runtime_checkable
class StartsMany(Protocol):
    """An engine whose starts overlap. It promises of each what start() does."""

    def start_all(self, commands: Iterable[tuple[Start, Token]]) -> Iterator[tuple[Start, Answer | None]]:
        """Each command with its answer; None: nobody knows. It takes the next command when it can begin with it. May
        raise Deposed."""
        ...


class QueueEngine(Engine, Protocol):
    """An engine with a queue of its own, as the service drives it: users submit, cancel and hold there.

    The queue of a job that names none is "". Called from one thread, but for watch(), which has a thread of its own,
    and wake(), which any may call."""

    @property
    def hints(self) -> Mapping[str, str]:
        """What people type instead of `gpushare`, for submit, cancel, hold, release, cordon, drain, uncordon. {job} and
        {node} stand for their names."""
        ...

    def wake(self) -> None:
        """End watch() early."""
        ...

    def close(self) -> None:
        """The service ends. What runs goes on."""
        ...


class QueueTold(NamedTuple):
    """What is said of a queue to those who look at it in the engine."""

    held: int
    """Micro-GPUs that its jobs hold."""
    share: int
    """Micro-GPUs that it may hold now."""
    waiting: int
    """Jobs."""
    running: int
    wrong: str = ""
    """Why what its administrator says of it does not count; "": it does."""


@runtime_checkable
class KeepsQueues(Protocol):
    """An engine in which administrators say what queues have, too. Each method may raise Unanswered."""

    def queues(self) -> Mapping[str, Queue | str] | None:
        """All; of one that makes no sense, why. None: this cluster keeps no queues."""
        ...

    def tell_queues(self, told: Mapping[str, QueueTold]) -> None:
        """Asked of the leader alone."""
        ...
