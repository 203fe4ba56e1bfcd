"""Starting what fits, queue by queue in their order; and what an ask that cannot be met waits for.

Such an ask has a gate: the reason. The room itself is listened to by shapes, for all of their classes at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpushare.cluster import ageing
from gpushare.cluster.jobs import Ask, JobClass, JobState
from gpushare.cluster.model import Code, Place, Reason
from gpushare.cluster.order import ABOVE, Order, is_open
from gpushare.cluster.placement import (
    allowed_nodes,
    forbidden,
    forbidden_reason,
    gang_of,
    next_charge,
    no_space,
    place_all,
    place_within,
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
    while (ask := order.pop(state.root)) is not None:
        if is_open(ask):  # if not, another queue has had the last room
            attempt(turn, ask)
        order.update(ask.cls.queue)
    if highest_tier == ABOVE:
        watch.leaves.clear()


def attempt(turn: Turn, ask: Ask) -> bool:
    """Give the first that asks its place, or set the gate."""
    state, cls, shape = turn.state, ask.cls, ask.cls.shape
    job, charge = state.by_seq[ask.seqs.first], next_charge(state, ask)
    broken = forbidden(cls, charge)
    if broken is not None:
        _close(turn, ask, forbidden_reason(*broken, charge))
        return False
    if ask.more not in shape.full:
        if _start(turn, ask, job):
            return True
        if shape.by_bytes and _for_others(state, ask, job):
            state.journal.set(ask, "priced", True)
        else:
            state.journal.put(shape.full, ask.more, None)
        state.journal.put(state.watch.crowded, shape, None)
    _close(turn, ask, no_space(state, shape) if ask.more else why_no_room(state, cls, job))
    return False


def _start(turn: Turn, ask: Ask, job: JobState) -> bool:
    """Where there is room now: on the largest size that fits, or one more task of the size that the job has."""
    state, cls, more = turn.state, ask.cls, ask.more
    mask, apart, rungs = allowed_nodes(state, job, backfill=not more), spread(cls.queue), cls.shape.rungs
    for rung in (job.rung,) if more else range(rungs):
        if rungs > 1 and not more and forbidden(cls, cls.shape.least_charge(state.space, rung)) is not None:
            continue
        places = place_within(state, job, wants_of(job, rung, more), mask, apart)
        if places is not None:
            if more:
                turn.extend(job, places, THERE_IS_ROOM)
            else:
                reserved = state.space.reserved
                backfill = bool(reserved) and touches(state, places, reserved) and job is not state.reserver
                turn.begin(job, places, rung, THERE_IS_ROOM, backfill)
            return True
    return False


def _for_others(state: State, ask: Ask, job: JobState) -> bool:
    """Is there room for others of the shape, whose queues may pay more for it?"""
    mark, mask = state.mark(), allowed_nodes(state, job, backfill=not ask.more)
    wants = gang_of(state, job, more=ask.more).wants
    found = place_all(state, job, wants, (mask,), spread(ask.cls.queue)) is not None
    state.undo(mark)
    return found


def touches(state: State, places: Iterable[Place], nodes: int) -> bool:
    """Is one of the places on one of these nodes?"""
    return any(nodes >> state.space.by_name[place.node].number & 1 for place in places)


def _close(turn: Turn, ask: Ask, gate: Reason) -> None:
    state = turn.state
    state.journal.set(ask, "gate", gate)
    state.watch.sleep(ask, keys_of_place(state, ask.cls, gate))
    state.watch.woken[ask] = None
    if not ask.more and state.policy.reserve_after is not None:
        due = state.by_seq[ask.seqs.first].since + state.policy.reserve_after
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
        places = place_within(state, job, wants_of(job, rung, False), mask, spread(cls.queue))
        if places is not None:
            turn.begin(job, places, rung, THERE_IS_ROOM)
            ageing.release(turn)
            return True
    if ageing.complete(turn):
        ageing.release(turn)
        return True
    return False
