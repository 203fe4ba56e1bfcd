"""What an engine without a queue of its own implements: it runs tasks, and nothing else.

The service keeps the jobs of such an engine (gpushare/cluster/service/book.py): submissions, ids, arrays, holds,
dependencies and results. hosted.py makes an Engine of the two.

A runner keeps the promises of seam.py about tokens, starts and evictions. Tokens grow over restarts of the service.
All methods are called from one thread, but for watch(), which has a thread of its own, and wake(), which any may call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from gpushare.cluster.engines.seam import Answer, Evict, SeenNode, SeenTask, Start, Token
from gpushare.cluster.model import Job, Node

__all__ = ["ENDINGS", "Context", "Record", "Result", "Runner", "outcome"]


@dataclass(frozen=True, slots=True)
class Record:
    """A job as it was submitted."""

    id: str
    """ "17"; of an array "17_0" and so on. Job.id, too."""
    job: Job
    uid: int
    """Of the user who submitted it."""
    gid: int
    user: str
    submitted: float
    """Seconds since 1970."""
    run: Mapping[str, Any]
    """What the engine needs to start it. Neither the service nor the allocator reads it."""
    array: str | None = None
    """ "17" of "17_3"."""
    index: int | None = None
    """3 of "17_3"."""
    requeue: bool = True
    """It waits again when it is evicted."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a job has ended."""

    how: Literal["done", "failed", "cancelled", "evicted"]
    exit: int | None = None
    """As SeenTask.exit."""
    text: str = ""


ENDINGS = {"done": "is done", "failed": "has failed", "cancelled": "was cancelled", "evicted": "was evicted"}
"""Of Result.how, in a sentence about the job."""


class Context(NamedTuple):
    """What a runner is made with."""

    settings: Mapping[str, Any]
    """The table of the settings file that has the engine's name. An unknown key is a UsageError."""
    clock: Callable[[], float]
    """Seconds since 1970."""
    directory: Path
    """Exists, belongs to this runner and is closed to others. It lives as long as the cluster's file."""
    nodes: tuple[Node, ...]
    """Those that the cluster's file has."""
    system: bool
    """It runs jobs of all users, as root; else those of its own user."""
    max_grace: float = inf
    """Seconds: the longest grace that a user other than root may ask for."""


class Runner(Protocol):
    def check(self, record: Record) -> None:
        """UsageError for what can never start here. Asked before the job is queued."""
        ...

    def nodes(self) -> Sequence[SeenNode]:
        """As they are. The service knows by itself which are cordoned."""
        ...

    def tasks(self) -> Mapping[str, Sequence[SeenTask]]:
        """All that exist, by job. What is done or failed stays until collect() or its eviction. Asked in each round, so
        it has to be cheap."""
        ...

    def start(self, record: Record, command: Start, token: Token) -> Answer: ...

    def evict(self, command: Evict, token: Token) -> Answer:
        """Asked again for what stops already, with the same grace or a shorter one, it goes on from there. A task that
        ends because of it is never "done": it goes."""
        ...

    def collect(self, id: str) -> None:
        """The job is over and its result is kept: forget its tasks."""
        ...

    def watch(self, seconds: float) -> None:
        """Wait until something may have changed, at most so long."""
        ...

    def wake(self) -> None:
        """End watch() early."""
        ...

    def close(self) -> None:
        """The service ends. What runs goes on."""
        ...


def outcome(job: Job, tasks: Sequence[SeenTask]) -> Result | None:
    """How a job has ended that has these tasks. None: it has not.

    A task that fails ends its job. Else it ends when all its tasks have, and they are at least as many as it needs."""
    last = max((task.attempt for task in tasks), default=0)
    done = [task for task in tasks if task.attempt == last and task.phase == "done"]
    for task in done:
        if task.exit:
            return Result("failed", task.exit, task.why)
    if not done or any(task.holds for task in tasks):
        return None
    whole = all(sum(task.group == n for task in done) >= group.least for n, group in enumerate(job.tasks))
    return Result("done", 0, done[-1].why) if whole else None
