"""The answers of the service's HTTP+JSON API as types. Nouns of the model are in them with all their fields;
Annotated[NOUN, MORE] is a noun that has the fields of MORE, too.

Amounts of GPUs are in millionths of a GPU, amounts of memory in bytes, times in seconds since 1970.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from gpushare.cluster.answers import Loan, NodeView, QueueView, Share
from gpushare.cluster.nouns import Place, Queue, Tasks

__all__ = [
    "Changed",
    "Chosen",
    "ClusterState",
    "Cordoned",
    "EventLine",
    "Events",
    "Explained",
    "History",
    "HistoryLine",
    "Jobs",
    "NewChange",
    "Nodes",
    "Overview",
    "Queues",
    "ShownJob",
    "Status",
    "Submission",
    "Submitted",
    "Version",
]


class Reason(TypedDict):
    """Why something is as it is."""

    code: str
    message: str
    data: dict[str, Any]


class Version(TypedDict):
    version: str
    pid: int
    engine: str


class Status(TypedDict):
    engine: str
    jobs: int  # that are not over
    running: int
    waiting: int
    nodes: int
    rounds: int  # in which decisions were compared with what runs
    trouble: str | None  # what the engine does not answer
    seq: int  # of the latest event
    store: str  # the cluster's file
    version: str
    pid: int
    errors: int  # of the service; see its log


class Submission(TypedDict, total=False):
    job: dict[str, Any]  # the words of a job in a cluster's file, and `request`
    array: int  # so many of it
    after: list[str]  # jobs that must have succeeded before
    hold: bool  # it is not started before it is released
    requeue: bool  # it waits again after it was stopped for others; default true
    run: dict[str, Any]  # what the engine runs


class Submitted(TypedDict):
    id: str  # of the job, or of the array
    jobs: list[str]
    actions: list[dict[str, Any]]  # what was decided
    never: dict[str, Reason]  # by id: no node here could ever run it


class TaskShown(TypedDict):
    """A task as the engine sees it."""

    attempt: int
    group: int
    task: int
    node: str
    gpus: list[int]
    phase: str
    exit: int | None
    why: str


class ResultShown(TypedDict):
    how: str  # succeeded, failed, cancelled
    exit: int | None
    text: str


class _OfItsUser(TypedDict, total=False):
    run: dict[str, Any]  # what it is run with; only in the answer to its user and administrators


class ShownJob(_OfItsUser):
    id: str
    name: str
    user: str
    uid: int
    queue: str
    priority: int
    preemptible: bool
    asks: list[Tasks]
    submitted: float | None
    array: str | None  # the array that it is of
    index: int | None  # in it
    requeue: bool
    state: str  # pending, held, starting, running, stopping, ended
    reason: Reason | None
    started: float | None
    ended: float | None
    attempt: int
    evictions: int
    after: list[str]
    places: list[Place]
    tasks: list[TaskShown]
    result: ResultShown | None


class Jobs(TypedDict):
    jobs: list[ShownJob]


class _Would(TypedDict, total=False):
    would: list[str]  # with dry_run: what would follow, a line each; nothing has happened


class Chosen(_Would):
    jobs: list[str]  # ids


class Explained(TypedDict):
    job: str
    state: str
    reason: Reason
    who: list[str]  # whom it could take from and why it does not, or what stands in the way
    changes: list[dict[str, Any]]  # the smallest change that would start it, as events for /v1/changes
    change: str  # the same in words
    others: list[list[Any]]  # further changes, each of which would start it too: words and events
    by_itself: float | None  # seconds until it starts without a change; null: nobody knows
    never: bool  # no node here could ever run it


class ItsShare(TypedDict):
    share: Share  # the sum that its fair share comes from


class Queues(TypedDict):
    queues: list[Annotated[QueueView, ItsShare]]
    loans: list[Loan]


class Nodes(TypedDict):
    nodes: list[NodeView]


class Cordoned(TypedDict):
    node: str


class NewChange(TypedDict, total=False):
    events: list[dict[str, Any]]  # QueueAdded, QueueChanged, QueueRemoved, JobChanged, as the cluster's log has them
    dry_run: bool


class Changed(_Would, total=False):
    actions: list[dict[str, Any]]  # what was decided


class ClusterState(TypedDict):
    now: float  # by the cluster's clock
    policy: str
    state: str  # text that `gpushare cluster` reads


class ItsNumbers(TypedDict):
    held: int
    share: int
    sum: str  # that the share comes from
    demand: int
    waiting: int
    running: int


class GpuAtAGlance(TypedDict):
    broken: bool
    held: int  # bytes
    foreign: int  # bytes that programs outside of gpushare use


class NodeAtAGlance(TypedDict):
    name: str
    type: str
    memory: int
    state: str  # ready, cordoned, unknown, lost
    gpus: list[GpuAtAGlance]


class JobAtAGlance(TypedDict):
    id: str
    name: str
    queue: str
    user: str
    uid: int
    state: str
    priority: int
    preemptible: bool
    gpus: int
    since: float
    evictions: int
    reason: str
    places: list[list[Any]]  # [node, [numbers of GPUs]]


class You(TypedDict):
    uid: int
    user: str
    admin: bool


class Overview(TypedDict):
    time: float
    capacity: int  # GPUs that work
    queues: list[Annotated[Queue, ItsNumbers]]
    loans: list[Loan]
    nodes: list[NodeAtAGlance]
    jobs: list[JobAtAGlance]  # the first of them; each queue has the number
    engine: str
    you: You


class QueueSeries(TypedDict):
    queue: str  # empty: all together
    points: list[list[float]]  # [time, mean held, most held, share, quota, demand]; [time]: nothing from then on


class History(TypedDict):
    """Each point holds until the next one of its series."""

    kept: bool  # False: the service keeps no history, or could not read it
    step: int  # seconds
    cut: bool  # earlier points are left out
    series: list[QueueSeries]


class QueueNumbers(TypedDict):
    held: int
    share: int
    quota: int
    demand: int


class QueueNow(TypedDict):
    queue: str
    now: QueueNumbers | None  # None: it was removed


class HistoryLine(TypedDict, total=False):
    """What has changed since the line before; the first line has all."""

    time: float
    queues: list[QueueNow]
    text: str  # where lines are left out, because the reader was too slow
    facts: dict[str, Any]


class EventLine(TypedDict):
    seq: int
    time: float
    job: str | None
    event: str
    text: str
    facts: dict[str, Any]


class Events(TypedDict):
    events: list[EventLine]
    seq: int  # of the latest
