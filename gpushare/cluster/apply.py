"""What each event means for the state. Checks come first: an event that raises has changed nothing that is not undone.

Nodes and attempts have files of their own (nodes.py, attempts.py).

Deciding comes later (decide.py); this only notes what is to be looked at again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpushare.cluster import ageing, attempts, nodes
from gpushare.cluster.attempts import forget_parked, go_on, park, unpark
from gpushare.cluster.checks import bad, check_job, check_moment, check_number, check_queue
from gpushare.cluster.claimed import unclaim
from gpushare.cluster.classes import class_of, forget
from gpushare.cluster.jobs import JobClass, JobState
from gpushare.cluster.losses import drop, forget_leaving
from gpushare.cluster.model import (
    Code,
    Event,
    ForeignUse,
    GpuHealth,
    Job,
    JobChanged,
    JobEnded,
    JobHeld,
    JobReleased,
    JobRestored,
    JobSubmitted,
    JobWithdrawn,
    NodeAdded,
    NodeCordoned,
    NodeDrained,
    NodeLost,
    NodeUncordoned,
    NodeUnknown,
    Place,
    QueueAdded,
    QueueChanged,
    QueueRemoved,
    Reason,
    Started,
    StartFailed,
    Stopped,
    StopRefused,
    TasksLost,
    TimePassed,
)
from gpushare.cluster.news import open_limit
from gpushare.cluster.nodes import first
from gpushare.cluster.order import is_open
from gpushare.cluster.quantity import format_gpus
from gpushare.cluster.queues import QueueState
from gpushare.cluster.rules import may_backfill
from gpushare.cluster.space import FOREVER
from gpushare.cluster.state import State
from gpushare.cluster.turn import Turn
from gpushare.errors import NoSuchJob
from gpushare.nearest import did_you_mean


def apply(turn: Turn, event: Event) -> None:
    """Change the state as the event says."""
    handler = HANDLERS.get(type(event))
    if handler is None:
        raise bad("event", f"{type(event).__name__} is unknown", "hand in one of the events of gpushare.cluster.model")
    handler(turn, event)


# ---- queues ------------------------------------------------------------------------------------------


def _queue_added(turn: Turn, event: QueueAdded) -> None:
    state, spec = turn.state, event.queue
    check_queue(spec)
    at = f"queue {spec.name}"
    if spec.name in state.queues:
        raise bad(at, "there is one of this name", "choose another name, or change that queue", "duplicate")
    if spec.parent == spec.name:
        raise bad(f"{at}: parent", "a queue cannot be its own parent", "name another parent, or none", "cycle")
    parent = state.root if spec.parent is None else state.queues.get(spec.parent)
    if parent is None:
        hint = "add the parent first; parents that name each other are a cycle"
        raise bad(f"{at}: parent", f"no queue {spec.parent!r}", hint, "no_such_queue")
    if any(cls.busy for cls in parent.classes.values()):
        hint = "give jobs a queue of their own below it"
        raise bad(f"{at}: parent", f"{parent.name} has jobs, so it cannot have children", hint)
    queue = QueueState(spec, state.sequence, parent)
    state.sequence += 1
    state.journal.put(state.queues, spec.name, queue)
    state.journal.put(parent.children, spec.name, queue)
    state.regroup(parent)


def _queue(state: State, at: str, name: str) -> QueueState:
    queue = state.queues.get(name)
    if queue is None:
        hint = did_you_mean(name, state.queues) or f"add it, or use one of: {_some(state)}"
        raise bad(at, f"no queue {name!r}", hint, "no_such_queue")
    return queue


def _some(state: State) -> str:
    leaves = [name for name, queue in state.queues.items() if not queue.children]
    return first(leaves)


def _queue_changed(turn: Turn, event: QueueChanged) -> None:
    turn.state.watch.publish_all()
    state, spec = turn.state, event.queue
    check_queue(spec)
    queue = _queue(state, f"queue {spec.name}", spec.name)
    if spec.parent != queue.spec.parent:
        raise bad(f"queue {spec.name}: parent", "it cannot change", "remove the queue and add it elsewhere")
    state.adopt(queue, spec)
    state.version += 1  # with another minimum run time jobs may move that could not
    leaves = [queue]
    for one in leaves:
        leaves += one.children.values()
        open_limit(state, one)
        for cls in one.classes.values():
            for _, _, seq in cls.running:
                turn.guard(state.by_seq[seq])


def _queue_removed(turn: Turn, event: QueueRemoved) -> None:
    state = turn.state
    at = f"queue {event.queue}"
    queue = _queue(state, at, event.queue)
    if queue.children:
        raise bad(at, f"it has children: {', '.join(sorted(queue.children)[:5])}", "remove them first")
    if any(cls.busy for cls in queue.classes.values()):
        raise bad(at, "it has jobs", "wait until they have ended, or withdraw them: `gpushare cluster cancel`")
    for cls in list(queue.classes.values()):
        forget(state, cls)
    assert queue.parent is not None
    state.journal.drop(queue.parent.children, event.queue)
    state.journal.drop(state.queues, event.queue)
    for key in [key for key in state.watch.listening if key.what is queue]:
        del state.watch.listening[key]  # nobody is left to listen
    for table in (state.watch.leaves, state.watch.changed):
        table.pop(queue, None)
    state.regroup(queue.parent)


# ---- jobs --------------------------------------------------------------------------------------------


MOST_COUNT = 2**53
"""Of attempts: what JSON carries exactly."""


def _job_submitted(turn: Turn, event: JobSubmitted) -> None:
    state = turn.state
    at = f"job {event.job.id}"
    if event.since is not None:
        check_moment(f"{at}: since", event.since)
    check_number(f"{at}: attempt", event.attempt, 0, MOST_COUNT)
    check_number(f"{at}: evictions", event.evictions, 0, MOST_COUNT)
    job = enter(turn, event.job)
    if event.since is not None:
        job.since = min(event.since, turn.now)
    job.attempt = max(job.attempt, event.attempt)
    job.evictions = event.evictions
    cls = job.cls
    if cls.next.gate is not None and not cls.pending:
        state.journal.set(cls.next, "gate", None)  # what kept the last one of them need not keep this one
    state.enlist(cls.pending, job.seq)
    if is_open(cls.next):
        state.to_try(cls)
    turn.arrived.append(job)


def enter(turn: Turn, spec: Job) -> JobState:
    """A new job, in no list yet."""
    state = turn.state
    if spec.id in state.jobs:
        raise bad(f"job {spec.id}", "there is one of this name", "choose another name", "duplicate")
    queue = state.queues.get(spec.queue)
    if queue is None or queue.children:
        check_job(spec)
        queue = _queue(state, f"job {spec.id}: queue", spec.queue)
        hint = f"submit to one of: {', '.join(sorted(queue.children)[:5])}"
        raise bad(f"job {spec.id}: queue", f"{queue.name} has children, and only leaves take jobs", hint)
    cls = _known_class(state, queue, spec)
    if cls is None:
        check_job(spec)
        _check_limits(spec, queue)
        cls = class_of(state, spec, queue)
    elif not spec.id or spec.min_runtime or spec.checkpoint_every is not None:
        check_job(spec)
    seq = state.sequence
    state.sequence = seq + 1
    job = JobState(spec, seq, queue, cls, turn.now)
    if spec.checkpoint_every is not None:
        state.journal.set(cls, "uneven", True)
    if spec.movable and not cls.shape.movable:
        state.journal.set(cls.shape, "movable", True)
    if state.leaving:
        job.attempt = max((attempt for name, attempt in state.leaving if name == spec.id), default=0)
    state.enter(job, cls.shape.demand(state.space) if cls.shape.by_bytes else cls.demand)
    return job


def _known_class(state: State, queue: QueueState, spec: Job) -> JobClass | None:
    shape_key = (spec.tasks, spec.selector, may_backfill(spec.preemptible, spec.backfill, spec.min_runtime))
    try:
        return state.classes.get((queue.name, spec.priority, spec.preemptible, shape_key))
    except TypeError:
        return None


def _check_limits(spec: Job, queue: QueueState) -> None:
    for one in queue.path:
        most = one.spec.max_limit
        for index, tasks in enumerate(spec.tasks):
            if most is not None and tasks.memory is None and max(tasks.limit or 0, tasks.rungs[0]) > most:
                at = f"job {spec.id}: tasks[{index}].limit"
                asked = format_gpus(max(tasks.limit or 0, tasks.rungs[0]))
                what = f"{asked} of a GPU is above what queue {one.name} allows"
                raise bad(at, what, f"ask for at most {format_gpus(most)}", "over_limit")


def _job_restored(turn: Turn, event: JobRestored) -> None:
    state = turn.state
    at = f"job {event.job.id}: places"
    job = enter(turn, event.job)
    job.evictions = event.evictions
    if job.evictions:
        state.journal.set(job.cls, "uneven", True)
    shape = job.cls.shape
    if not 0 <= event.rung < shape.rungs:
        raise bad(f"job {event.job.id}: rung", f"{event.rung} is not one of {shape.rungs}", "number rungs from 0")
    if event.attempt < 1:
        raise bad(f"job {event.job.id}: attempt", f"{event.attempt} is not from 1 on", "number attempts from 1")
    places: list[Place] = []
    for index, place in enumerate(event.places):
        where = f"{at}[{index}]"
        if not 0 <= place.group < len(shape.groups) or not 0 <= place.task < shape.groups[place.group].top:
            raise bad(where, f"the job has no task {place.task} in group {place.group}", "correct group and task")
        node = state.space.by_name.get(place.node)
        if node is None or not node.alive:
            raise bad(f"{where}.node", f"no node {place.node!r}", "add it first", "no_such_node")
        need = shape.groups[place.group].needs[event.rung]
        amount = need.on(node.memory)
        if len(set(place.gpus)) != need.gpus or any(not 0 <= gpu < len(node.free) for gpu in place.gpus):
            raise bad(
                f"{where}.gpus", f"{list(place.gpus)} are not {need.gpus} GPUs of the node", "correct the indices"
            )
        held = [node.leaving.get(gpu, 0) - node.claimed.get(gpu, 0) for gpu in place.gpus]
        if any(node.free[gpu] - max(0, more) < amount for gpu, more in zip(place.gpus, held, strict=True)):
            raise bad(
                f"{where}.gpus",
                f"{list(place.gpus)} of {place.node} are taken by others",
                "restore jobs where they are",
            )
        if (place.group, place.task) in job.places:
            raise bad(where, f"task {place.task} of group {place.group} is there twice", "name each task once")
        taken = Place(place.group, place.task, place.node, tuple(place.gpus), amount, need.charge(node.memory))
        state.occupy(job, taken)
        places.append(taken)
    if not places:
        raise bad(at, "there are none", "submit the job instead")
    if not job.complete:
        turn.partial.append(job)
    state.enlist(job.cls.pending, job.seq)
    length = len(turn.out)
    turn.begin(job, places, event.rung, Reason(Code.FREE))
    unclaim(turn.state, job, places)  # they run already
    turn.take_back(length)
    job.attempt = event.attempt
    turn.runs_since(job, event.since)
    job.changed = event.since
    job.given_in = -1
    if turn.partial[-1:] == [job] and job.seq in job.cls.short:
        state.delist(job.cls.short, job.seq)  # what its gang lacks comes together or not at all
    turn.guard(job)
    state.to_try(job.cls)


def known(state: State, name: str) -> JobState:
    job = state.jobs.get(name)
    if job is None:
        raise NoSuchJob(f"no job {name!r}", hint="`gpushare cluster jobs` lists them")
    return job


def _job_changed(turn: Turn, event: JobChanged) -> None:
    state = turn.state
    job = known(state, event.job)
    old = job.cls
    spec = replace(
        job.job,
        priority=old.priority if event.priority is None else event.priority,
        preemptible=old.preemptible if event.preemptible is None else event.preemptible,
    )
    check_job(spec)
    cls = class_of(state, spec, job.queue)
    if cls is old:
        return
    charge = job.charge
    listed = [name for name in ("pending", "short", "tall") if job.seq in getattr(old, name)]
    state.pay(job, -charge)
    for name in listed:
        state.delist(getattr(old, name), job.seq)
    if job.places:
        state.delist(old.running, job.run)
        state.enlist(cls.running, job.run)
    if old.uneven:
        state.journal.set(cls, "uneven", True)
    if old.shape.movable:
        state.journal.set(cls.shape, "movable", True)
    state.journal.set(job, "cls", cls)
    state.journal.set(job, "job", spec)
    for name in listed:
        state.enlist(getattr(cls, name), job.seq)
    if "tall" in listed:
        state.journal.put(state.tall, cls, None)
        if not old.tall:
            state.journal.drop(state.tall, old)
    state.pay(job, charge)
    state.open(old)
    state.open(cls)
    state.watch.publish_all()
    if job.seq in state.parked:
        state.journal.set(old, "parked", old.parked - 1)
        state.journal.set(cls, "parked", cls.parked + 1)
    if job.places:
        turn.loosen(job)


def _job_held(turn: Turn, event: JobHeld) -> None:
    job = known(turn.state, event.job)
    if job.places:
        raise bad(f"job {event.job}", "it runs, and only what waits can be held", "withdraw it, or let it end")
    park(turn, job, FOREVER, Reason(Code.HELD, {"why": event.why} if event.why else {}))


def _job_released(turn: Turn, event: JobReleased) -> None:
    job = known(turn.state, event.job)
    turn.state.journal.set(job, "failures", 0)
    if job.seq in turn.state.parked:
        unpark(turn, job)
    go_on(turn, job)


def _job_withdrawn(turn: Turn, event: JobWithdrawn) -> None:
    job = known(turn.state, event.job)
    if job.places:
        turn.stop(job, Reason(Code.WITHDRAWN), again=False)
    _remove(turn, job)


def _job_ended(turn: Turn, event: JobEnded) -> None:
    state = turn.state
    job = known(state, event.job)
    drop(turn, job, list(job.places.values()))
    for key in [key for key in state.leaving if key[0] == event.job]:
        forget_leaving(state, key, state.leaving[key])
    _remove(turn, job)
    turn.start_claimed()


def _remove(turn: Turn, job: JobState) -> None:
    """Out of all lists; it holds nothing any more."""
    state, cls = turn.state, job.cls
    for seqs in (cls.pending, cls.short):
        if job.seq in seqs:
            state.delist(seqs, job.seq)
    if job.run in cls.running:
        state.delist(cls.running, job.run)
    forget_parked(state, job)
    turn.forget_run(job)
    state.ask(job, -job.demand)
    state.journal.drop(state.jobs, job.job.id)
    state.journal.drop(state.by_seq, job.seq)
    if state.reserver is job:
        ageing.release(turn)
    if cls.next.gate is not None and cls.pending:
        state.open(cls)


def _time_passed(turn: Turn, event: TimePassed) -> None:
    """Nothing but time: the turn itself looks at what that changes."""


HANDLERS: dict[type, Callable[[Turn, Any], None]] = {
    NodeAdded: nodes.node_added,
    NodeLost: nodes.node_lost,
    NodeUnknown: nodes.node_unknown,
    NodeCordoned: nodes.node_cordoned,
    NodeDrained: nodes.node_drained,
    NodeUncordoned: nodes.node_uncordoned,
    ForeignUse: nodes.foreign_use,
    GpuHealth: nodes.gpu_health,
    QueueAdded: _queue_added,
    QueueChanged: _queue_changed,
    QueueRemoved: _queue_removed,
    JobSubmitted: _job_submitted,
    JobRestored: _job_restored,
    JobChanged: _job_changed,
    JobHeld: _job_held,
    JobReleased: _job_released,
    JobWithdrawn: _job_withdrawn,
    JobEnded: _job_ended,
    Started: attempts.started,
    StartFailed: attempts.start_failed,
    TasksLost: attempts.tasks_lost,
    Stopped: attempts.stopped,
    StopRefused: attempts.stop_refused,
    TimePassed: _time_passed,
}
