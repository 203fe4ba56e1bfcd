"""What happens to the cluster, as it is told to the allocator: about nodes, queues, jobs, attempts, time."""

from __future__ import annotations

from dataclasses import dataclass

from gpushare.cluster.nouns import Job, Node, Place, Queue


@dataclass(frozen=True, slots=True)
class NodeAdded:
    """A new node, or a known one that is back or has changed (then its jobs stay where GPUs remain).

    A cordon outlives it; that the node was unknown does not."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The node and all that runs there are gone."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeUnknown:
    """It does not answer. Nothing starts there; what ran there may still run and keeps its places, so nothing runs
    twice. NodeAdded ends it, or NodeLost."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeCordoned:
    """Nothing starts there any more; what runs stays."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """Cordoned, and what runs there is stopped and waits again."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeUncordoned:
    """Jobs may start there again."""

    node: str


@dataclass(frozen=True, slots=True)
class ForeignUse:
    """So many bytes of a GPU are in use by programs that are no jobs of ours. They belong to no queue, are left alone,
    and nothing starts in their place. 0: no longer."""

    node: str
    gpu: int
    memory: int


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """A GPU broke (what runs on it is gone) or works again."""

    node: str
    gpu: int
    healthy: bool


@dataclass(frozen=True, slots=True)
class QueueAdded:
    """Parents come first. The order in which queues came is the last tie-break."""

    queue: Queue


@dataclass(frozen=True, slots=True)
class QueueChanged:
    """New numbers for a known queue; its parent cannot change."""

    queue: Queue


@dataclass(frozen=True, slots=True)
class QueueRemoved:
    """Only of a queue without jobs and children."""

    queue: str


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    job: Job
    since: float | None = None
    """When it began to wait, if not now."""
    attempt: int = 0
    """The last attempt that it has had: the next start is a later one."""
    evictions: int = 0
    """How often it has been stopped for others."""


@dataclass(frozen=True, slots=True)
class JobRestored:
    """A job that runs already, as an engine found it. The order in which jobs came is their age.

    If only a part of its gang runs, the rest is started, if need be in place of others from whom the job may take; if
    that cannot be, it is stopped and waits.
    """

    job: Job
    places: tuple[Place, ...]
    """amount and charge are computed again; 0 will do. With a ladder, `rung` says where on it the job is."""
    since: float
    attempt: int = 1
    rung: int = 0
    evictions: int = 0


@dataclass(frozen=True, slots=True)
class JobHeld:
    """A job that waits is not started until JobReleased. UsageError for one that runs."""

    job: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class JobReleased:
    """It may start now, whatever held it back: a JobHeld, failed starts."""

    job: str


@dataclass(frozen=True, slots=True)
class JobChanged:
    """Another priority or preemptibility for a job, running or not; None leaves it."""

    job: str
    priority: int | None = None
    preemptible: bool | None = None


@dataclass(frozen=True, slots=True)
class JobWithdrawn:
    """Its user does not want it any more: it is stopped if it runs."""

    job: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """It has finished by itself and holds nothing any more."""

    job: str


# About an attempt. What is said of one that is over, or of a job that is gone, changes nothing. `tasks` are pairs of
# group and task; () are all of them.


@dataclass(frozen=True, slots=True)
class Started:
    """These tasks run."""

    job: str
    attempt: int
    tasks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StartFailed:
    """These tasks do not run, and will not in this attempt. Their places are given up as if they had been told to stop.

    With `node` the node is to blame and rests for a while; else the job does, and is held after Policy.start_tries."""

    job: str
    attempt: int
    tasks: tuple[tuple[int, int], ...] = ()
    node: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class TasksLost:
    """These tasks ran and are gone, though nobody told them to stop, and the job is not done."""

    job: str
    attempt: int
    tasks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Stopped:
    """With Policy.endings == "reported": these tasks of an attempt that was told to stop are gone."""

    job: str
    attempt: int
    tasks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StopRefused:
    """With Policy.endings == "reported": this attempt was told to stop and goes on running, all of it.

    It has its places again, and nothing is taken from it for some time. The job that was to get them waits again."""

    job: str
    attempt: int
    retry_after: float = 60.0
    """Seconds."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing but time: see Allocator.next_wake."""


Event = (
    NodeAdded
    | NodeLost
    | NodeUnknown
    | NodeCordoned
    | NodeDrained
    | NodeUncordoned
    | ForeignUse
    | GpuHealth
    | QueueAdded
    | QueueChanged
    | QueueRemoved
    | JobSubmitted
    | JobRestored
    | JobChanged
    | JobHeld
    | JobReleased
    | JobWithdrawn
    | JobEnded
    | Started
    | StartFailed
    | TasksLost
    | Stopped
    | StopRefused
    | TimePassed
)
