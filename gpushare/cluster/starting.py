"""Starting what fits, queue by queue in their order; and what a class that does not fit waits for.

A class whose first job cannot start has a gate: the reason. The room itself is listened to by shapes, for all of their
classes at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpushare.cluster import ageing
from gpushare.cluster.jobs import JobClass, JobState
from gpushare.cluster.model import Code, Reason
from gpushare.cluster.order import ABOVE, Order, is_more_open, is_open
from gpushare.cluster.placement import (
    affordable,
    allowed_nodes,
    forbidden,
    forbidden_reason,
    more_charge,
    no_space,
    place_gang,
    place_within,
    take,
    wants_of,
    why_no_room,
)
from gpushare.cluster.reasons import THERE_IS_ROOM
from gpushare.cluster.state import State
from gpushare.cluster.turn import Turn, spread
from gpushare.cluster.watch import About, Key

BY_LIMIT = frozenset({Code.LIMIT, Code.QUOTA})


def start(turn: Turn, highest_tier: int) -> None:
    """Start what fits, queue by queue in their order."""
    state, watch = turn.state, turn.state.watch
    if not watch.leaves:
        return
    order = Order(watch.leaves, highest_tier)
    root = state.root
    while (head := order.pop(root)) is not None:
        cls, more = head
        if not (is_more_open(cls) if more else is_open(cls)):
            if all_closed(state):
                break
            order.update(cls.queue)  # another queue has had the last room
            continue
        if not attempt(turn, cls, more) and all_closed(state):
            break
        order.update(cls.queue)
        if not turn.hypothetical:
            state.journal.clear()  # it stands: events are checked before anything is decided
    if highest_tier == ABOVE:
        watch.leaves.clear()
        watch.classes.clear()
        watch.shapes.clear()


def all_closed(state: State) -> bool:
    """Is there nothing left to try, in whatever queue?"""
    for shape in state.watch.shapes:
        if not shape.full or (shape.elastic and not shape.full_more):
            return False
    classes = state.watch.classes
    while classes:
        cls = next(iter(classes))
        if (cls.pending and is_open(cls)) or (cls.short and is_more_open(cls)):
            return False
        del classes[cls]
    return True


def _close(turn: Turn, cls: JobClass, more: bool, gate: Reason) -> None:
    state = turn.state
    state.set_gate(cls, more, gate)
    state.watch.sleep((cls, more), keys_of_place(state, cls, gate))
    state.watch.woken[cls, more] = None
    if not more and state.policy.reserve_after is not None:
        due = state.by_seq[cls.pending.first].since + state.policy.reserve_after
        if due < state.reserve_at:
            state.journal.set(state, "reserve_at", due)


def keys_of_place(state: State, cls: JobClass, gate: Reason) -> tuple[Key, ...]:
    """What could make room for it, or lift the limit, by itself. Room is listened to by its shape."""
    if gate.code in BY_LIMIT:
        return (Key(About.LIMIT, state.queues[gate.data["queue"]]),)
    if cls.shape.by_bytes:
        quotas = not cls.preemptible
        capped = [one for one in cls.queue.path if one.cap is not None or (quotas and one.quota is not None)]
        return tuple([Key(About.LIMIT, queue) for queue in capped])
    return ()


def attempt(turn: Turn, cls: JobClass, more: bool) -> bool:
    """Start the class's next job, or set its gate."""
    state, shape = turn.state, cls.shape
    if more:
        return _attempt_more(turn, cls)
    broken = forbidden(cls, cls.charge)
    if broken is not None:
        _close(turn, cls, False, forbidden_reason(*broken, cls.charge))
        return False
    job = state.by_seq[cls.pending.first]
    if not shape.full:
        mask = allowed_nodes(state, job, backfill=True)
        apart = spread(cls.queue)
        for rung in range(shape.rungs):
            if shape.rungs > 1 and forbidden(cls, shape.least_charge(state.space, rung)) is not None:
                continue
            places = place_within(state, job, rung, mask, apart)
            if places is not None:
                reserved = state.space.reserved
                backfill = bool(reserved) and touches(state, places, reserved) and job is not state.reserver
                turn.begin(job, places, rung, THERE_IS_ROOM, backfill)
                return True
        if shape.by_bytes and _for_others(state, cls, job, mask):
            state.journal.set(cls, "priced", True)
        else:
            state.journal.set(shape, "full", True)
        state.journal.put(state.watch.crowded, shape, None)
    _close(turn, cls, False, why_no_room(state, cls, job))
    return False


def _for_others(state: State, cls: JobClass, job: JobState, mask: int) -> bool:
    """Is there room for others of the shape, whose queues may pay more for it?"""
    mark = state.mark()
    found = place_gang(state, job, cls.shape.rungs - 1, (mask,), spread(cls.queue)) is not None
    state.undo(mark)
    return found


def touches(state: State, places: Iterable[object], nodes: int) -> bool:
    """Is one of the places on one of these nodes?"""
    return any(nodes >> state.space.by_name[place.node].number & 1 for place in places)  # type: ignore[attr-defined]


def _attempt_more(turn: Turn, cls: JobClass) -> bool:
    """One more task for the first elastic job of the class that has not all."""
    state, shape = turn.state, cls.shape
    job = state.by_seq[cls.short.first]
    wants = wants_of(job, job.rung, True)
    charge = more_charge(state, cls, wants)
    broken = forbidden(cls, charge)
    if broken is None and not shape.full_more and wants:
        mask, apart = affordable(state, cls, wants, allowed_nodes(state, job)), spread(cls.queue)
        want = wants[0]
        found = state.space.find(want.need, mask, apart)
        if found is not None:
            place = take(state, job, want, *found)
            turn.extend(job, [place], THERE_IS_ROOM)
            return True
        if shape.by_bytes and state.space.find(want.need, allowed_nodes(state, job), apart) is not None:
            state.journal.set(cls, "more_priced", True)
        else:
            state.journal.set(shape, "full_more", True)
        state.journal.put(state.watch.crowded, shape, None)
    if broken is not None:
        _close(turn, cls, True, forbidden_reason(*broken, charge))
    else:
        _close(turn, cls, True, no_space(state, shape))
    return False


def start_reserved(turn: Turn) -> bool:
    """The holder of the reservation comes first on its nodes, backfilling jobs or not."""
    state = turn.state
    job = state.reserver
    if job is None or job.places:
        return False
    cls = job.cls
    if forbidden(cls, cls.charge) is not None:
        return False
    mask = state.space.mask(cls.shape.selector)
    for rung in range(cls.shape.rungs):
        places = place_within(state, job, rung, mask, spread(cls.queue))
        if isinstance(places, list):
            turn.begin(job, places, rung, THERE_IS_ROOM)
            ageing.release(turn)
            return True
    if ageing.complete(turn):
        ageing.release(turn)
        return True
    return False
