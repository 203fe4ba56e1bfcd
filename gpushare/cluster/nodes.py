"""What events about nodes and GPUs mean for the state: what comes, goes, is closed, or is used by others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gpushare.cluster import ageing
from gpushare.cluster.checks import MOST_BYTES, bad, check_node, check_number
from gpushare.cluster.classes import weigh
from gpushare.cluster.losses import forget_leaving, give_up, lose_places
from gpushare.cluster.model import (
    Code,
    ForeignUse,
    GpuHealth,
    NodeAdded,
    NodeCordoned,
    NodeDrained,
    NodeLost,
    NodeUncordoned,
    NodeUnknown,
    Reason,
)
from gpushare.cluster.news import open_shape
from gpushare.cluster.shapes import Shape
from gpushare.cluster.space import BROKEN, FOREVER, NodeState
from gpushare.cluster.state import State
from gpushare.cluster.turn import Turn


def node_added(turn: Turn, event: NodeAdded) -> None:
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
                if old.uuids and spec.uuids and old.uuids[gpu] != spec.uuids[gpu]:
                    _set_health(turn, known, gpu, healthy=False)  # that GPU is gone, and another is in its place
                    _set_foreign(turn, known, gpu, 0)
                _set_health(turn, known, gpu, gpu not in spec.broken)
            with _relinked(state, known):
                state.journal.set(known, "spec", spec if spec.uuids else replace(spec, uuids=old.uuids))
                state.journal.set(known, "unknown", False)
            _nodes_changed(state)
            return
    number = len(state.space.nodes) if known is None else known.number
    node = NodeState(number, spec)
    if known is not None:
        node.cordoned = known.cordoned
        node.charged = {} if node.odd else None
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
    possible = shape.too_large(state.space) is None
    if possible == shape.possible:
        return False
    state.journal.set(shape, "possible", possible)
    for cls in shape.classes:
        state.open(cls)  # it waits for another reason now
    _estimate_again(state, shape)
    return True


def _estimate_again(state: State, shape: Shape) -> None:
    charge, demand = shape.least_charge(state.space), shape.demand(state.space)
    for cls in shape.classes:
        state.journal.set(shape, "cheapest", charge)
        if cls.charge != charge:
            state.journal.set(cls, "charge", charge)
            weigh(state, cls.queue)
            state.open(cls)
        state.journal.set(cls, "demand", demand)
        for seq in (*cls.pending, *(run[2] for run in cls.running)):
            job = state.by_seq[seq]
            state.ask(job, max(demand, job.charge) - job.demand)


def node_lost(turn: Turn, event: NodeLost) -> None:
    turn.state.watch.publish_all()
    _lose(turn, find(turn.state, f"node {event.node}", event.node))


def first(names: Sequence[str]) -> str:
    """The first names of many."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "none yet"


def find(state: State, place: str, name: str) -> NodeState:
    node = state.space.by_name.get(name)
    if node is None or not node.alive:
        raise bad(
            place,
            f"no node {name!r}",
            f"there are: {first([one.spec.name for one in state.space.nodes if one.alive])}",
            "no_such_node",
        )
    return node


def _lose(turn: Turn, node: NodeState) -> None:
    state = turn.state
    name = node.spec.name
    gone = Reason(Code.NODE_LOST, {"node": name})
    for key, places in list(state.leaving.items()):
        forget_leaving(state, key, tuple(place for place in places if place.node == name))
    for seq in sorted(node.jobs):
        job = state.by_seq[seq]
        lose_places(turn, job, [place for place in job.ordered if place.node == name], gone)
    if state.space.reserved >> node.number & 1:
        ageing.release(turn)
    _unlink(state, node)
    state.journal.drop(state.resting, node.number)
    _nodes_are_fewer(turn)


def _nodes_are_fewer(turn: Turn) -> None:
    turn.state.version += 1
    for shape in turn.state.shapes.values():
        _found_possible(turn.state, shape)
    turn.start_claimed()


def gpu_health(turn: Turn, event: GpuHealth) -> None:
    turn.state.watch.publish_all()
    node = find(turn.state, f"node {event.node}", event.node)
    check_gpu(node, event.gpu)
    _set_health(turn, node, event.gpu, event.healthy)


def check_gpu(node: NodeState, gpu: int) -> None:
    if not 0 <= gpu < len(node.free):
        raise bad(f"node {node.spec.name}: gpu", f"GPU {gpu} is not one of {len(node.free)}", "number GPUs from 0")


def _set_health(turn: Turn, node: NodeState, gpu: int, healthy: bool) -> None:
    state = turn.state
    """What runs on a GPU that breaks is gone. Nothing if it is so already."""
    if healthy == (node.free[gpu] != BROKEN):
        return
    name = node.spec.name
    if not healthy:
        for key, places in list(state.leaving.items()):
            forget_leaving(state, key, tuple(one for one in places if one.node == name and gpu in one.gpus))
        for seq in sorted(node.jobs):
            job = state.by_seq[seq]
            lost = [place for place in job.ordered if place.node == name and gpu in place.gpus]
            if lost:
                lose_places(turn, job, lost, Reason(Code.NODE_LOST, {"node": name}))
    broken = node.spec.broken | {gpu} if not healthy else node.spec.broken - {gpu}
    with _relinked(state, node):
        _set_free(state, node, gpu, node.memory - node.foreign.get(gpu, 0) if healthy else BROKEN)
        state.journal.set(node, "spec", replace(node.spec, broken=frozenset(broken)))
    if healthy:
        _nodes_changed(state)
    else:
        _nodes_are_fewer(turn)


def _set_free(state: State, node: NodeState, gpu: int, free: int) -> None:
    """Of a node that is out of the index."""
    journal = state.journal
    journal.set(node, "free", [*node.free[:gpu], free, *node.free[gpu + 1 :]])
    journal.set(node, "whole", node.free.count(node.memory))


@contextmanager
def _relinked(state: State, node: NodeState) -> Iterator[None]:
    """It is out of the index while it is changed."""
    _unlink(state, node)
    yield
    odd = node.odd
    if odd != (node.charged is not None):
        state.journal.set(node, "charged", _charged(state, node) if odd else None)
    _link(state, node)


def _charged(state: State, node: NodeState) -> dict[int, int]:
    """What our jobs pay for each GPU of it."""
    charged: dict[int, int] = {}
    for seq in node.jobs:
        for place in state.by_seq[seq].places.values():
            if place.node == node.spec.name:
                for gpu in place.gpus:
                    charged[gpu] = charged.get(gpu, 0) + place.charge // len(place.gpus)
    return charged


# ---- closed and open ---------------------------------------------------------------------------------


def node_unknown(turn: Turn, event: NodeUnknown) -> None:
    close(turn, find(turn.state, f"node {event.node}", event.node), "unknown", True)


def node_cordoned(turn: Turn, event: NodeCordoned) -> None:
    close(turn, find(turn.state, f"node {event.node}", event.node), "cordoned", True)


def node_uncordoned(turn: Turn, event: NodeUncordoned) -> None:
    close(turn, find(turn.state, f"node {event.node}", event.node), "cordoned", False)


def node_drained(turn: Turn, event: NodeDrained) -> None:
    state = turn.state
    node = find(state, f"node {event.node}", event.node)
    close(turn, node, "cordoned", True)
    reason = Reason(Code.DRAINED, {"node": event.node})
    for seq in sorted(node.jobs):
        job = state.by_seq[seq]
        give_up(turn, job, [place for place in job.ordered if place.node == event.node], reason)


def rest(turn: Turn, node: NodeState, until: float) -> None:
    """Nothing starts there until then; -FOREVER: it may."""
    close(turn, node, "until", until)
    if until > -FOREVER:
        turn.state.journal.put(turn.state.resting, node.number, None)
    else:
        turn.state.journal.drop(turn.state.resting, node.number)


def close(turn: Turn, node: NodeState, why: str, value: float) -> None:
    """Change one of the reasons for which nothing starts there."""
    state, was = turn.state, node.closed
    with _relinked(state, node):
        state.journal.set(node, why, value)
    if was and not node.closed:
        state.watch.publish_all()
        _nodes_changed(state)
    elif node.closed and not was:
        state.watch.publish_all()
        state.version += 1
        if state.space.reserved >> node.number & 1:
            ageing.release(turn)
        _take_back(turn, node, None, Reason(Code.CROWDED_OUT, {"node": node.spec.name}))


# ---- programs of others ------------------------------------------------------------------------------


def foreign_use(turn: Turn, event: ForeignUse) -> None:
    state = turn.state
    node = find(state, f"node {event.node}", event.node)
    check_gpu(node, event.gpu)
    check_number(f"node {event.node}: foreign memory", event.memory, 0, MOST_BYTES)
    _set_foreign(turn, node, event.gpu, min(event.memory, node.memory))


def _set_foreign(turn: Turn, node: NodeState, gpu: int, memory: int) -> None:
    state = turn.state
    more = memory - node.foreign.get(gpu, 0)
    if not more:
        return
    others = {one: used for one, used in node.foreign.items() if one != gpu}
    with _relinked(state, node):
        state.journal.set(node, "foreign", {**others, gpu: memory} if memory else others)
        if node.free[gpu] != BROKEN:
            _set_free(state, node, gpu, node.free[gpu] - more)
    state.watch.publish_all()
    if more < 0:
        _nodes_changed(state)
        turn.start_claimed()
    else:
        state.version += 1
        if node.free[gpu] < 0:
            _take_back(turn, node, gpu, Reason(Code.CROWDED_OUT, {"node": node.spec.name, "gpu": gpu}))


def _take_back(turn: Turn, node: NodeState, gpu: int | None, reason: Reason) -> None:
    """What was to start on that node, or on that GPU of it, is not."""
    state, name = turn.state, node.spec.name
    for seq in sorted(seq for seq in node.jobs if seq in state.waiting):
        job = state.by_seq[seq]
        unstarted = [place for place in job.unstarted.values() if place.node == name]
        give_up(turn, job, [place for place in unstarted if gpu is None or gpu in place.gpus], reason)
