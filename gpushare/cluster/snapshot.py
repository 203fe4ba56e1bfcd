"""The whole state as text, and back: what a compacted log begins with (store.py).

Kept is what cannot be worked out again: who is where and since when, who was told to stop, and what people were told
about why each class waits. Free GPUs, sums, shares and lists follow from that. What is known about failures is not
kept: after reading, all that waits is looked at once, and a state that was written and read decides as if nothing had
happened. The tests hold that on random events, so nothing that the allocator remembers can keep a job waiting.

Times of the allocator are any clock's, and infinity is no JSON: None stands for never.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.classes import class_of, weigh
from gpushare.cluster.codec import decode, encode
from gpushare.cluster.jobs import JobClass, JobState, Stall
from gpushare.cluster.model import ANYWHERE, Job, Node, Place, Policy, Queue, Reason, Selector, Tasks
from gpushare.cluster.queues import QueueState
from gpushare.cluster.reasons import THERE_IS_ROOM
from gpushare.cluster.rules import claims_share_from, guarded_until
from gpushare.cluster.space import FOREVER, NodeState
from gpushare.cluster.state import FEW_CLASSES, State

__all__ = ["restore", "take"]


@dataclass(frozen=True, slots=True)
class KeptNode:
    node: Node
    alive: bool = True
    cordoned: bool = False
    unknown: bool = False
    failures: int = 0
    trouble: str = ""
    until: float | None = None
    foreign: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class KeptQueue:
    queue: Queue
    order: int
    served: float | None = None


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
    seen: tuple[tuple[int, int], ...] = ()
    evictions: int = 0
    disturbed: tuple[float, ...] = ()
    failures: int = 0
    spared: float | None = None
    stall: Stall | None = None
    held: bool = False
    until: float | None = None


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
    tidy_at: int = FEW_CLASSES
    reserver: str | None = None
    reserved: tuple[str, ...] = ()
    """Nodes."""


# ---- writing -----------------------------------------------------------------------------------------


def take(allocator: Allocator) -> str:
    """Between two turns."""
    state = allocator._state
    queues = sorted(state.queues.values(), key=lambda queue: queue.order)
    return encode(
        Snapshot(
            now=allocator.now,
            again=allocator._turns.again,
            sequence=state.sequence,
            nodes=tuple(_node(node) for node in state.space.nodes),
            queues=tuple(KeptQueue(queue.spec, queue.order, _moment(queue.served)) for queue in queues),
            classes=tuple(_class(cls) for cls in state.classes.values()),
            jobs=tuple(_job(job) for _, job in sorted(state.by_seq.items())),
            leaving=tuple(Ending(job, attempt, places) for (job, attempt), places in state.leaving.items()),
            tidy_at=state.tidy_at,
            reserver=state.reserver.job.id if state.reserver else None,
            reserved=tuple(node.spec.name for node in state.space.among(state.space.reserved)),
        ),
        Snapshot,
    )


def _node(node: NodeState) -> KeptNode:
    return KeptNode(
        node=node.spec,
        alive=node.alive,
        cordoned=node.cordoned,
        unknown=node.unknown,
        failures=node.failures,
        trouble=node.trouble,
        until=_moment(node.until),
        foreign=tuple(sorted(node.foreign.items())),
    )


def _moment(time: float) -> float | None:
    """None for never and for always."""
    return time if -FOREVER < time < FOREVER else None


def _class(cls: JobClass) -> KeptClass:
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
        gate=cls.next.gate,
        more_gate=cls.more.gate,
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
        seen=tuple(sorted(job.seen)),
        evictions=job.evictions,
        disturbed=job.disturbed,
        failures=job.failures,
        spared=_moment(job.spared),
        stall=job.stall,
        held=job.until == FOREVER,
        until=_moment(job.until),
    )


# ---- reading -----------------------------------------------------------------------------------------


def restore(policy: Policy, text: str) -> Allocator:
    kept = decode(text, Snapshot)
    allocator = Allocator(policy)
    state = allocator._state
    _nodes(state, kept)
    _queues(state, kept)
    _classes(state, kept)
    for one in kept.jobs:
        _enter(state, one, kept.now)
    for ending in kept.leaving:
        state.leaving[ending.job, ending.attempt] = ending.places
        for place in ending.places:
            state.hold(place, 1)
    if kept.reserver is not None:
        state.reserver = state.jobs[kept.reserver]
    for name in kept.reserved:
        state.space.reserved |= 1 << state.space.by_name[name].number
    state.sequence = kept.sequence
    state.divide_shares()
    state.journal.clear()
    state.watch.clear()
    state.watch.unread = True
    allocator._turns.now, allocator._turns.again = kept.now, kept.again
    return allocator


def _nodes(state: State, kept: Snapshot) -> None:
    for number, one in enumerate(kept.nodes):
        node = NodeState(number, one.node)
        node.alive = one.alive
        node.cordoned, node.unknown = one.cordoned, one.unknown
        node.failures, node.trouble = one.failures, one.trouble
        node.foreign = dict(one.foreign)
        for gpu, used in one.foreign:
            if gpu not in one.node.broken:
                node.free[gpu] -= used
        node.whole = node.free.count(node.memory)
        if one.until is not None:
            node.until = one.until
            if one.alive:
                state.resting[number] = None
        if node.odd:
            node.charged = {}
        state.space.nodes.append(node)
        state.space.by_name[one.node.name] = node
        if one.alive:
            state.space.link(node)


def _queues(state: State, kept: Snapshot) -> None:
    for one in kept.queues:
        spec = one.queue
        parent = state.root if spec.parent is None else state.queues[spec.parent]
        queue = QueueState(spec, one.order, parent)
        queue.served = -FOREVER if one.served is None else one.served
        state.queues[spec.name] = parent.children[spec.name] = queue


def _classes(state: State, kept: Snapshot) -> None:
    state.tidy_at = max(kept.tidy_at, len(kept.classes))  # none has jobs yet
    for one in kept.classes:
        sample = Job("-", one.queue, one.tasks, one.priority, one.preemptible, 0.0, one.selector, True, one.backfill)
        cls = class_of(state, sample, state.queues[one.queue])
        cls.charge, cls.demand, cls.next.gate, cls.more.gate = one.charge, one.demand, one.gate, one.more_gate
        weigh(state, cls.queue)


def _enter(state: State, one: KeptJob, now: float) -> None:
    queue = state.queues[one.job.queue]
    cls = class_of(state, one.job, queue)
    job = JobState(one.job, one.seq, queue, cls, one.since)
    job.changed, job.attempt, job.rung = one.changed, one.attempt, one.rung
    job.backfill, job.reason = one.backfill, one.reason
    job.evictions, job.disturbed, job.failures = one.evictions, one.disturbed, one.failures
    job.spared = -FOREVER if one.spared is None else one.spared
    job.stall = one.stall
    if one.seen:
        job.seen = dict.fromkeys(one.seen)
    state.enter(job, one.demand)
    cls.uneven = cls.uneven or one.job.checkpoint_every is not None or one.evictions > 0
    cls.shape.movable = cls.shape.movable or one.job.movable
    if one.held or one.until is not None:
        job.until = FOREVER if one.until is None else one.until
        state.parked[one.seq] = None
        cls.parked += 1
        return
    if not one.places:
        cls.pending.add(one.seq)
        _note_patience(state, job, False, now)
        return
    cls.running.add(job.run)
    for place in one.places:
        state.occupy(job, place)
    state.pay(job, sum(place.charge for place in one.places))
    if one.unstarted:
        job.unstarted = {key: job.places[key] for key in one.unstarted}
        for place in job.unstarted.values():
            state.claim(place, 1)
        state.waiting[one.seq] = None
    ends = guarded_until(job)
    if ends > now:
        state.guarded[one.seq] = ends
    shape = cls.shape
    if one.stall is not None and one.stall.until > now:
        state.stalled[one.seq] = None
    elif shape.elastic and len(job.places) < shape.top:
        cls.short.add(one.seq)
        _note_patience(state, job, True, now)
    if one.rung < shape.rungs - 1:
        cls.tall.add(one.seq)
        state.tall[cls] = None
    for table, belongs in (
        (state.shrunk, one.rung > 0),
        (state.backfills, one.backfill),
    ):
        if belongs:
            table[one.seq] = None


def _note_patience(state: State, job: JobState, more: bool, now: float) -> None:
    """Of the first of each class: the others wait behind it."""
    due = claims_share_from(job, state.policy)
    if due > now:
        state.patient.setdefault(job.cls.asks[more], due)
