"""The whole state as text, and back: what a compacted log begins with (store.py).

Kept is what cannot be worked out again: who is where and since when, whom it was decided to stop, why each class waits,
and what is known to be in vain. Free GPUs, sums, shares and lists follow from that. So a state that was written and
read decides as if nothing had happened, which the tests hold on random events.

Times of the allocator are any clock's, and infinity is no JSON: None stands for never.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.codec import decode, encode
from gpushare.cluster.model import ANYWHERE, Job, Node, Place, Policy, Queue, Reason, Selector, Tasks
from gpushare.cluster.reasons import THERE_IS_ROOM
from gpushare.cluster.space import NodeState
from gpushare.cluster.state import FEW_CLASSES, FOREVER, JobClass, JobState, QueueState, Shape, State

__all__ = ["restore", "take"]


@dataclass(frozen=True, slots=True)
class KeptNode:
    node: Node
    alive: bool = True


@dataclass(frozen=True, slots=True)
class KeptQueue:
    queue: Queue
    order: int
    mixed: bool = False
    gated: tuple[int, ...] = ()
    """Classes, by their place in the list of classes."""


@dataclass(frozen=True, slots=True)
class KeptClass:
    queue: str
    priority: int
    preemptible: bool
    tasks: tuple[Tasks, ...]
    charge: int
    demand: int
    selector: Selector = ANYWHERE
    backfill: bool = False
    gate: Reason | None = None
    more_gate: Reason | None = None
    starving: bool = False
    spared: bool = False
    # Of its shape, the same for all classes that share it:
    cheapest: int = 0
    full: bool = False
    full_more: bool = False
    listed: bool = False
    """Among the shapes that are looked at when something is given back."""
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class KeptJob:
    seq: int
    job: Job
    since: float
    changed: float
    demand: int
    attempt: int = 0
    rung: int = 0
    places: tuple[Place, ...] = ()
    unstarted: tuple[tuple[int, int], ...] = ()
    backfill: bool = False
    reason: Reason = THERE_IS_ROOM


@dataclass(frozen=True, slots=True)
class Ending:
    """An attempt that was told to stop and has not."""

    job: str
    attempt: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    now: float
    again: bool
    sequence: int
    nodes: tuple[KeptNode, ...]
    queues: tuple[KeptQueue, ...]
    classes: tuple[KeptClass, ...]
    jobs: tuple[KeptJob, ...]
    leaving: tuple[Ending, ...] = ()
    protected_until: float | None = None
    reserve_at: float | None = None
    tidy_at: int = FEW_CLASSES
    reserver: str | None = None
    reserved: tuple[str, ...] = ()
    """Nodes."""


# ---- writing -----------------------------------------------------------------------------------------


def take(allocator: Allocator) -> str:
    """Between two turns."""
    state = allocator._state
    number = {cls: index for index, cls in enumerate(state.classes.values())}
    queues = sorted(state.queues.values(), key=lambda queue: queue.order)
    return encode(
        Snapshot(
            now=allocator.now,
            again=allocator._again,
            sequence=state.sequence,
            nodes=tuple(KeptNode(node.spec, node.alive) for node in state.space.nodes),
            queues=tuple(
                KeptQueue(queue.spec, queue.order, queue.mixed, tuple(number[cls] for cls in queue.gated))
                for queue in queues
            ),
            classes=tuple(_class(state, cls) for cls in number),
            jobs=tuple(_job(job) for _, job in sorted(state.by_seq.items())),
            leaving=tuple(Ending(job, attempt, places) for (job, attempt), places in state.leaving.items()),
            protected_until=None if state.protected_until == FOREVER else state.protected_until,
            reserve_at=None if state.reserve_at == -FOREVER else state.reserve_at,
            tidy_at=state.tidy_at,
            reserver=state.reserver.job.id if state.reserver else None,
            reserved=tuple(node.spec.name for node in state.space.among(state.space.reserved)),
        ),
        Snapshot,
    )


def _class(state: State, cls: JobClass) -> KeptClass:
    shape = cls.shape
    return KeptClass(
        queue=cls.queue.name,
        priority=cls.priority,
        preemptible=cls.preemptible,
        tasks=shape.asked,
        charge=cls.charge,
        demand=cls.demand,
        selector=shape.selector,
        backfill=shape.backfill,
        gate=cls.gate,
        more_gate=cls.more_gate,
        starving=cls in state.starving,
        spared=cls in state.spared,
        cheapest=shape.cheapest,
        full=shape.full,
        full_more=shape.full_more,
        listed=shape in state.full,
        stuck=shape.stuck == state.version,
    )


def _job(job: JobState) -> KeptJob:
    return KeptJob(
        seq=job.seq,
        job=job.job,
        since=job.since,
        changed=job.changed,
        demand=job.demand,
        attempt=job.attempt,
        rung=job.rung,
        places=tuple(job.ordered),
        unstarted=tuple(sorted(job.unstarted)),
        backfill=job.backfill,
        reason=job.reason,
    )


# ---- reading -----------------------------------------------------------------------------------------


def restore(policy: Policy, text: str) -> Allocator:
    kept = decode(text, Snapshot)
    allocator = Allocator(policy)
    state = allocator._state
    _nodes(state, kept)
    _queues(state, kept)
    shapes = _classes(state, kept)
    for one in kept.jobs:
        _enter(state, one)
    for ending in kept.leaving:
        state.leaving[ending.job, ending.attempt] = ending.places
        for place in ending.places:
            state.hold(place, 1)
    if kept.protected_until is not None:
        state.protected_until = kept.protected_until
    if kept.reserve_at is not None:
        state.reserve_at = kept.reserve_at
    if kept.reserver is not None:
        state.reserver = state.jobs[kept.reserver]
    for name in kept.reserved:
        state.space.reserved |= 1 << state.space.by_name[name].number
    for shape in shapes:
        shape.stuck = state.version
    state.sequence = kept.sequence
    state.settle_shares()
    state.journal.clear()
    allocator._now, allocator._again = kept.now, kept.again
    return allocator


def _nodes(state: State, kept: Snapshot) -> None:
    for number, one in enumerate(kept.nodes):
        node = NodeState(number, one.node)
        node.alive = one.alive
        state.space.nodes.append(node)
        state.space.by_name[one.node.name] = node
        if one.alive:
            state.space.link(node)


def _queues(state: State, kept: Snapshot) -> None:
    for one in kept.queues:
        spec = one.queue
        parent = state.root if spec.parent is None else state.queues[spec.parent]
        queue = QueueState(spec, one.order, parent)
        queue.mixed = one.mixed
        state.queues[spec.name] = parent.children[spec.name] = queue


def _classes(state: State, kept: Snapshot) -> list[Shape]:
    """The shapes for which moving others is known to be in vain."""
    classes = []
    stuck: dict[Shape, None] = {}
    state.tidy_at = max(kept.tidy_at, len(kept.classes))  # none has jobs yet
    for one in kept.classes:
        sample = Job("-", one.queue, one.tasks, one.priority, one.preemptible, 0.0, one.selector, True, one.backfill)
        cls = state.class_of(sample, state.queues[one.queue])
        cls.charge, cls.demand, cls.gate, cls.more_gate = one.charge, one.demand, one.gate, one.more_gate
        shape = cls.shape
        shape.cheapest, shape.full, shape.full_more = one.cheapest, one.full, one.full_more
        if one.listed:
            state.full[shape] = None
        if one.starving:
            state.starving[cls] = None
        if one.spared:
            state.spared[cls] = None
        if one.stuck:
            stuck[shape] = None
        classes.append(cls)
    for queue in kept.queues:
        state.queues[queue.queue.name].gated = {classes[index]: None for index in queue.gated}
    for cls in classes:
        state.weigh(cls.queue)
    return list(stuck)


def _enter(state: State, one: KeptJob) -> None:
    queue = state.queues[one.job.queue]
    cls = state.class_of(one.job, queue)
    job = JobState(one.job, one.seq, queue, cls, one.since)
    job.changed, job.attempt, job.rung = one.changed, one.attempt, one.rung
    job.backfill, job.reason = one.backfill, one.reason
    state.enter(job, one.demand)
    if not one.places:
        cls.pending.add(one.seq)
        return
    cls.running.add(one.seq)
    for place in one.places:
        state.occupy(job, place)
    state.pay(job, sum(place.charge for place in one.places))
    if one.unstarted:
        job.unstarted = {key: job.places[key] for key in one.unstarted}
        for place in job.unstarted.values():
            state.claim(place, 1)
        state.waiting[one.seq] = None
    shape = cls.shape
    if shape.elastic and len(job.places) < sum(group.top for group in shape.groups):
        cls.short.add(one.seq)
    if one.rung < shape.rungs - 1:
        cls.tall.add(one.seq)
        state.tall[cls] = None
    for table, belongs in (
        (state.shrunk, one.rung > 0),
        (state.backfills, one.backfill),
    ):
        if belongs:
            table[one.seq] = None
