"""What each event means for the state. Checks come first: an event that raises has changed nothing that is not undone.

Deciding comes later (decide.py); this only notes what is to be looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gpushare.cluster import ageing
from gpushare.cluster.decide import open_limit, open_shape
from gpushare.cluster.model import (
    Code,
    Event,
    GpuHealth,
    Job,
    JobChanged,
    JobEnded,
    JobRestored,
    JobSubmitted,
    JobWithdrawn,
    NodeAdded,
    NodeLost,
    Place,
    QueueAdded,
    QueueChanged,
    QueueRemoved,
    Reason,
    Stopped,
    TimePassed,
    bad,
    check_job,
    check_node,
    check_queue,
)
from gpushare.cluster.order import is_open
from gpushare.cluster.quantity import format_gpus
from gpushare.cluster.space import BROKEN, NodeState
from gpushare.cluster.state import JobClass, JobState, QueueState, Shape, State
from gpushare.cluster.turn import Turn
from gpushare.errors import NoSuchJob
from gpushare.nearest import did_you_mean


def apply(turn: Turn, event: Event) -> None:
    """Change the state as the event says."""
    handler = HANDLERS.get(type(event))
    if handler is None:
        raise bad("event", f"{type(event).__name__} is unknown", "hand in one of the events of gpushare.cluster.model")
    handler(turn, event)


# ---- nodes -------------------------------------------------------------------------------------------


def _node_added(turn: Turn, event: NodeAdded) -> None:
    turn.state.watch.publish_all()
    state, spec = turn.state, event.node
    check_node(spec)
    known = state.space.by_name.get(spec.name)
    if known is not None and known.alive:
        old = known.spec
        if (old.gpus, old.memory) != (spec.gpus, spec.memory):
            _lose(turn, known)
        else:
            for gpu in range(spec.gpus):
                if (gpu in old.broken) != (gpu in spec.broken):
                    _set_health(turn, known, gpu, gpu not in spec.broken)
            _unlink(state, known)
            state.journal.set(known, "spec", spec)
            _link(state, known)
            _nodes_changed(state)
            return
    number = len(state.space.nodes) if known is None else known.number
    node = NodeState(number, spec)
    if known is None:
        state.space.nodes.append(node)
        state.journal.note(state.space.nodes.pop)
    else:
        state.space.nodes[number] = node
        state.journal.note(state.space.nodes.__setitem__, number, known)
    state.journal.put(state.space.by_name, spec.name, node)
    _link(state, node)
    _nodes_changed(state)


def _link(state: State, node: NodeState) -> None:
    state.space.link(node)
    state.journal.note(state.space.unlink, node)


def _unlink(state: State, node: NodeState) -> None:
    state.space.unlink(node)
    state.journal.note(state.space.link, node)


def _nodes_changed(state: State) -> None:
    """There is more room, or other room: all who wait for room look again; bytes may cost another part of a GPU."""
    state.version += 1
    for shape in state.shapes.values():
        open_shape(state, shape)
        if not _found_possible(state, shape) and shape.by_bytes:
            _estimate_again(state, shape)


def _found_possible(state: State, shape: Shape) -> bool:
    """Whether some node could hold it is looked at again; whether that has changed."""
    possible = state.too_large(shape) is None
    if possible == shape.possible:
        return False
    state.journal.set(shape, "possible", possible)
    for cls in shape.classes:
        state.open(cls)  # it waits for another reason now
    _estimate_again(state, shape)
    return True


def _estimate_again(state: State, shape: Shape) -> None:
    charge, demand = state.least_charge(shape), state.demand_of(shape)
    for cls in shape.classes:
        state.journal.set(shape, "cheapest", charge)
        if cls.charge != charge:
            state.journal.set(cls, "charge", charge)
            state.weigh(cls.queue)
            state.open(cls)
        state.journal.set(cls, "demand", demand)
        for seqs in (cls.pending, cls.running):
            for seq in seqs:
                job = state.by_seq[seq]
                state.ask(job, max(demand, job.charge) - job.demand)


def _node_lost(turn: Turn, event: NodeLost) -> None:
    turn.state.watch.publish_all()
    _lose(turn, _node(turn.state, f"node {event.node}", event.node))


def _node(state: State, place: str, name: str) -> NodeState:
    node = state.space.by_name.get(name)
    if node is None or not node.alive:
        raise bad(
            place,
            f"no node {name!r}",
            f"there are: {_first([one.spec.name for one in state.space.nodes if one.alive])}",
            "no_such_node",
        )
    return node


def _lose(turn: Turn, node: NodeState) -> None:
    state = turn.state
    name = node.spec.name
    for key, places in list(state.leaving.items()):
        _forget_leaving(state, key, tuple(place for place in places if place.node == name))
    for seq in sorted(node.jobs):
        job = state.by_seq[seq]
        _lose_places(turn, job, [place for place in job.ordered if place.node == name], name)
    if state.space.reserved >> node.number & 1:
        ageing.release(turn)
    _unlink(state, node)
    _nodes_are_fewer(turn)


def _nodes_are_fewer(turn: Turn) -> None:
    turn.state.version += 1
    for shape in turn.state.shapes.values():
        _found_possible(turn.state, shape)
    turn.start_claimed()


def _forget_leaving(state: State, key: tuple[str, int], gone: tuple[Place, ...]) -> None:
    """These places of an ending attempt are empty now."""
    if not gone:
        return
    for place in gone:
        state.hold(place, -1)
    rest = tuple(place for place in state.leaving[key] if place not in gone)
    if rest:
        state.journal.put(state.leaving, key, rest)
    else:
        state.journal.drop(state.leaving, key)


def _lose_places(turn: Turn, job: JobState, lost: list[Place], node: str) -> None:
    """Tasks are gone with their node or GPU. A job that has less than its least left is stopped and waits again."""
    reason = Reason(Code.NODE_LOST, {"node": node})
    lost_of = [sum(place.group == index for place in lost) for index in range(len(job.cls.shape.groups))]
    enough = all(job.count(i) - lost_of[i] >= group.least for i, group in enumerate(job.cls.shape.groups))
    if not enough or len(lost) == len(job.places):
        turn.stop(job, reason, again=True, gone=lost)
        turn.state.journal.set(job, "evicted_in", -1)
        return
    turn.unclaim(job, lost)
    for place in lost:
        turn.lift(job, place)
    turn.after_loss(job, reason)


def _gpu_health(turn: Turn, event: GpuHealth) -> None:
    turn.state.watch.publish_all()
    node = _node(turn.state, f"node {event.node}", event.node)
    if not 0 <= event.gpu < len(node.free):
        what = f"GPU {event.gpu} is not one of {len(node.free)}"
        raise bad(f"node {event.node}: gpu", what, "number GPUs from 0")
    _set_health(turn, node, event.gpu, event.healthy)


def _set_health(turn: Turn, node: NodeState, gpu: int, healthy: bool) -> None:
    state = turn.state
    if healthy == (node.free[gpu] != BROKEN):
        return
    name = node.spec.name
    if not healthy:
        for key, places in list(state.leaving.items()):
            _forget_leaving(state, key, tuple(one for one in places if one.node == name and gpu in one.gpus))
        for seq in sorted(node.jobs):
            job = state.by_seq[seq]
            lost = [place for place in job.ordered if place.node == name and gpu in place.gpus]
            if lost:
                _lose_places(turn, job, lost, name)
    broken = node.spec.broken | {gpu} if not healthy else node.spec.broken - {gpu}
    _unlink(state, node)
    free = list(node.free)
    free[gpu] = node.memory if healthy else BROKEN
    state.journal.set(node, "free", free)
    state.journal.set(node, "whole", sum(left == node.memory for left in free))
    state.journal.set(node, "spec", replace(node.spec, broken=frozenset(broken)))
    _link(state, node)
    if healthy:
        _nodes_changed(state)
    else:
        _nodes_are_fewer(turn)


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
    return _first(leaves)


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "none yet"


def _queue_changed(turn: Turn, event: QueueChanged) -> None:
    turn.state.watch.publish_all()
    state, spec = turn.state, event.queue
    check_queue(spec)
    queue = _queue(state, f"queue {spec.name}", spec.name)
    if spec.parent != queue.spec.parent:
        raise bad(f"queue {spec.name}: parent", "it cannot change", "remove the queue and add it elsewhere")
    state.adopt(queue, spec)
    leaves = [queue]
    for one in leaves:
        leaves += one.children.values()
        open_limit(state, one)
        for cls in one.classes.values():
            for seq in cls.running:
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
        state.forget(cls)
    assert queue.parent is not None
    state.journal.drop(queue.parent.children, event.queue)
    state.journal.drop(state.queues, event.queue)
    for key in [key for key in state.watch.listening if key.what is queue]:
        del state.watch.listening[key]  # nobody is left to listen
    for table in (state.watch.leaves, state.watch.changed):
        table.pop(queue, None)
    state.regroup(queue.parent)


# ---- jobs --------------------------------------------------------------------------------------------


def _job_submitted(turn: Turn, event: JobSubmitted) -> None:
    state = turn.state
    job = enter(turn, event.job)
    cls = job.cls
    if cls.gate is not None and not cls.pending:
        state.journal.set(cls, "gate", None)  # what kept the last one of them need not keep this one
    state.enlist(cls.pending, job.seq)
    if is_open(cls):
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
        cls = state.class_of(spec, queue)
    elif not spec.id or spec.min_runtime:
        check_job(spec)
    seq = state.sequence
    state.sequence = seq + 1
    job = JobState(spec, seq, queue, cls, turn.now)
    if state.leaving:
        job.attempt = max((attempt for name, attempt in state.leaving if name == spec.id), default=0)
    state.enter(job, state.demand_of(cls.shape) if cls.shape.by_bytes else cls.demand)
    return job


def _known_class(state: State, queue: QueueState, spec: Job) -> JobClass | None:
    shape_key = (spec.tasks, spec.selector, spec.backfill and spec.preemptible)
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
        if any(node.free[gpu] < amount for gpu in place.gpus):
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
    if any(job.count(index) < group.least for index, group in enumerate(shape.groups)):
        turn.partial.append(job)
    state.enlist(job.cls.pending, job.seq)
    length = len(turn.out)
    turn.begin(job, places, event.rung, Reason(Code.FREE))
    del turn.out[length:]
    job.attempt = event.attempt
    job.since = job.changed = event.since
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
    cls = state.class_of(spec, job.queue)
    if cls is old:
        return
    charge = job.charge
    listed = [name for name in ("pending", "running", "short", "tall") if job.seq in getattr(old, name)]
    state.pay(job, -charge)
    for name in listed:
        state.delist(getattr(old, name), job.seq)
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
    if job.places:
        turn.loosen(job)


def _job_withdrawn(turn: Turn, event: JobWithdrawn) -> None:
    job = known(turn.state, event.job)
    if job.places:
        turn.stop(job, Reason(Code.WITHDRAWN), again=False)
    _remove(turn, job)


def _job_ended(turn: Turn, event: JobEnded) -> None:
    state = turn.state
    job = known(state, event.job)
    places = list(job.places.values())
    turn.unclaim(job, places)
    for place in places:
        turn.lift(job, place)
    for key in [key for key in state.leaving if key[0] == event.job]:
        _forget_leaving(state, key, state.leaving[key])
    _remove(turn, job)
    turn.start_claimed()


def _remove(turn: Turn, job: JobState) -> None:
    """Out of all lists; it holds nothing any more."""
    state, cls = turn.state, job.cls
    for seqs in (cls.pending, cls.running, cls.short):
        if job.seq in seqs:
            state.delist(seqs, job.seq)
    turn.forget_run(job)
    state.ask(job, -job.demand)
    state.journal.drop(state.jobs, job.job.id)
    state.journal.drop(state.by_seq, job.seq)
    if state.reserver is job:
        ageing.release(turn)
    if cls.gate is not None and cls.pending:
        state.open(cls)


def _stopped(turn: Turn, event: Stopped) -> None:
    state = turn.state
    key = (event.job, event.attempt)
    if key in state.leaving:
        _forget_leaving(state, key, state.leaving[key])
        turn.start_claimed()


def _time_passed(turn: Turn, event: TimePassed) -> None:
    """Nothing but time: the turn itself looks at what that changes."""


HANDLERS: dict[type, Callable[[Turn, Any], None]] = {
    NodeAdded: _node_added,
    NodeLost: _node_lost,
    GpuHealth: _gpu_health,
    QueueAdded: _queue_added,
    QueueChanged: _queue_changed,
    QueueRemoved: _queue_removed,
    JobSubmitted: _job_submitted,
    JobRestored: _job_restored,
    JobChanged: _job_changed,
    JobWithdrawn: _job_withdrawn,
    JobEnded: _job_ended,
    Stopped: _stopped,
    TimePassed: _time_passed,
}
