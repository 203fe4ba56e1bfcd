"""What to do now: the order in which the ways to start a job are tried.

    1. Start what fits, queues within quota and share first: they have a right to the room.
    2. For those of them that still wait: move others, shrink others, reclaim, preempt.
    3. Start what fits of the others: idle GPUs are for whoever can use them.
    4. For these: move, shrink, preempt.

Borrowers come after the rightful have had all means, so nothing is started in one step only to be evicted in the
next. After each success gates are opened again and the round begins anew, until nothing more can be done. A job is
evicted at most once in a turn and may not take from others in the turn in which it was, and from what was given a
place in a turn none is taken in it; so a turn ends.

A class whose first job cannot start has a gate: the reason, which is also what must change. Gates of limits and
quotas open when something is given back below that queue, gates of room when so much is free that the shape fits.
Nothing else is tried again, which is why an event costs what it changes and not what there is.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import count

from gpushare.cluster import ageing, elastic
from gpushare.cluster.model import Code, Place, Reason
from gpushare.cluster.moves import consolidate, could_consolidate
from gpushare.cluster.order import ABOVE, ROOM, WITHIN_SHARE, Order, is_more_open, is_open, standing
from gpushare.cluster.placement import (
    allowed_nodes,
    forbidden,
    forbidden_reason,
    more_charge,
    no_space,
    place_task,
    place_within,
    take,
    wants_of,
    why_no_room,
)
from gpushare.cluster.reasons import THERE_IS_ROOM
from gpushare.cluster.state import FOREVER, JobClass, JobState, QueueState, Shape, State
from gpushare.cluster.turn import Turn, spread
from gpushare.cluster.victims import preempt, reclaim


def decide(turn: Turn) -> None:
    """Everything that follows from what has changed."""
    state = turn.state
    if turn.now >= state.protected_until:
        state.journal.set(state, "protected_until", FOREVER)
        state.version += 1  # who could not be moved may be now
        turn.everything = True
    while True:
        for job in [job for job in turn.partial if not _first_come_others(job)]:
            if complete_gang(turn, job):
                turn.partial.remove(job)
        _settle(turn)
        open_gates(turn)
        if start_reserved(turn):
            continue
        start(turn, WITHIN_SHARE)
        if make_room(turn, entitled=True):
            continue
        start(turn, ABOVE)
        if make_room(turn, entitled=False) or _settle(turn):
            continue
        if not turn.everything and elastic.growing(turn):
            turn.everything = True  # first all that wait: room that one of them can use is not for growing
            continue
        elastic.grow(turn)
        if ageing.reserve(turn):
            continue
        if turn.partial:
            complete_or_stop(turn, turn.partial.pop(0))
        elif not state.dirty and not state.freed and not state.dropped:
            break


def _settle(turn: Turn) -> bool:
    """Divide the shares again; whether any has changed."""
    changed = turn.state.settle_shares()
    for queue in changed:
        if queue.children:
            turn.everything = True
        elif queue.allocated < queue.share:
            # What one arrival adds is shared by all queues that want more, and far too little for a job of any.
            least, right = queue.least, queue.allocated + queue.least
            if not least or right <= queue.share or queue.quota is None or right <= queue.quota:
                turn.touched[queue] = None
    return bool(changed)


def _first_come_others(job: JobState) -> bool:
    """Does somebody of higher priority in its queue wait, for whom it might have to go?"""
    return any(cls.priority > job.cls.priority and len(cls.pending) for cls in job.queue.classes.values())


def complete_or_stop(turn: Turn, job: JobState) -> None:
    """A job was found running in part: start what is missing, if need be in place of whom it may take from, or stop
    it. It comes last: by then all others have had what is theirs."""
    cls = job.cls
    if complete_gang(turn, job) or consolidate(turn, cls, job, True) or elastic.shrink(turn, cls, job, True):
        return
    queue = cls.queue
    after = queue.allocated + more_charge(turn.state, cls, wants_of(job, job.rung, True))
    in_right = after <= queue.share or queue.quota is None or after <= queue.quota
    if (in_right and reclaim(turn, cls, job, True)) or preempt(turn, cls, job, True):
        return
    turn.stop(job, Reason(Code.INCOMPLETE), again=True)


def complete_gang(turn: Turn, job: JobState) -> bool:
    """Start what is missing where there is room, or in place of its further tasks; whether no part is missing now."""
    if not job.places:
        return True
    state, shape = turn.state, job.cls.shape
    mask, apart = allowed_nodes(state, job), spread(job.queue)
    length, mark = len(turn.out), state.mark()
    extra = [
        place
        for index, group in enumerate(shape.groups)
        for place in [place for place in job.ordered if place.group == index][group.least :]
    ][::-1]
    placed: list[Place] = []
    for want in wants_of(job, job.rung, True):
        place = place_task(state, job, want, mask, apart)
        while place is None and extra:
            gone = extra.pop(0)
            turn.lift(job, gone)
            turn.evicted(job, [gone], job.job.id, Reason(Code.INCOMPLETE))
            place = place_task(state, job, want, mask, apart)
        if place is not None:
            placed.append(place)
    enough = all(job.count(index) >= group.least for index, group in enumerate(shape.groups))
    if enough and forbidden(job.cls, sum(place.charge for place in placed)) is None:
        turn.extend(job, placed, Reason(Code.INCOMPLETE))
        return True
    state.undo(mark)
    del turn.out[length:]
    return False


# ---- gates -------------------------------------------------------------------------------------------


def open_gates(turn: Turn) -> None:
    """Those that what was given back since the last look may have opened."""
    state = turn.state
    if state.tall and state.freed:
        turn.everything = True
    if state.dropped:
        seen = set()
        for leaf in state.dropped:
            turn.touched[leaf] = None
            for queue in leaf.path:
                if queue not in seen:
                    seen.add(queue)
                    if queue.gated:
                        for cls in list(queue.gated):
                            state.journal.drop(queue.gated, cls)
                            state.open(cls)
        state.dropped.clear()
    if state.freed:
        for node in dict.fromkeys(state.freed):
            for seq in node.jobs:
                queue = state.by_seq[seq].queue
                if queue.mixed:
                    turn.touched[queue] = None
        for shape in list(state.full):
            if could_fit(state, shape):
                open_shape(state, shape)
        state.freed.clear()


def open_shape(state: State, shape: Shape) -> None:
    """There may be room for it."""
    journal = state.journal
    journal.drop(state.full, shape)
    if shape.full:
        journal.set(shape, "full", False)
    if shape.full_more:
        journal.set(shape, "full_more", False)
    state.opened[shape] = None
    for cls in shape.classes:
        seqs = cls.pending  # bool() of it, written out: a thousand queues may wait for such room
        if seqs.head < len(seqs.items) or cls.short:
            state.dirty[cls.queue] = None


def could_fit(state: State, shape: Shape) -> bool:
    """A quick look: False only if there is surely no room."""
    space = state.space
    mask = space.mask(shape.selector)
    if space.reserved and not shape.backfill:
        mask &= ~space.reserved
    if shape.full_more:
        return any(space.holds(group.needs[-1], 1, mask) for group in shape.groups if group.top > group.least)
    return all(space.holds(group.needs[-1], group.least, mask) for group in shape.groups)


# ---- starting where there is room ----------------------------------------------------------------------


def start(turn: Turn, highest_tier: int) -> None:
    """Start what fits, queue by queue in their order."""
    state = turn.state
    if not state.dirty:
        return
    order = Order(state.dirty, highest_tier)
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
        state.dirty.clear()
        state.fresh.clear()
        state.opened.clear()


def all_closed(state: State) -> bool:
    """Is there nothing left to try, in whatever queue?"""
    for shape in state.opened:
        if not shape.full or (shape.elastic and not shape.full_more):
            return False
    fresh = state.fresh
    while fresh:
        cls = next(iter(fresh))
        if (cls.pending and is_open(cls)) or (cls.short and is_more_open(cls)):
            return False
        del fresh[cls]
    return True


def _close(turn: Turn, cls: JobClass, more: bool, gate: Reason, queue: QueueState | None = None) -> None:
    turn.state.set_gate(cls, more, gate, queue)
    turn.blocked[cls] = None


def attempt(turn: Turn, cls: JobClass, more: bool) -> bool:
    """Start the class's next job, or set its gate."""
    state, shape = turn.state, cls.shape
    if more:
        return _attempt_more(turn, cls)
    broken = forbidden(cls, cls.charge)
    if broken is not None:
        _close(turn, cls, False, forbidden_reason(*broken, cls.charge), broken[1])
        return False
    job = state.by_seq[cls.pending.first]
    if not shape.full:
        mask = allowed_nodes(state, job)
        apart = spread(cls.queue)
        for rung in range(shape.rungs):
            if shape.rungs > 1:
                charge = _charge_on(state, shape, rung)
                broken = forbidden(cls, charge)
                if broken is not None:
                    continue
            places = place_within(state, job, rung, mask, apart)
            if isinstance(places, list):
                reserved = state.space.reserved
                backfill = bool(reserved) and _touches(state, places, reserved) and job is not state.reserver
                turn.begin(job, places, rung, THERE_IS_ROOM, backfill)
                return True
            broken = places
        if broken is not None:
            _close(turn, cls, False, forbidden_reason(*broken, cls.charge), broken[1])
            return False
        state.journal.set(shape, "full", True)
        state.journal.put(state.full, shape, None)
    _close(turn, cls, False, why_no_room(state, cls, job))
    return False


def _charge_on(state: State, shape: Shape, rung: int) -> int:
    memories = state.memories(shape)
    return shape.least_charge(memories[-1] if memories else 80 * 2**30, rung)


def _touches(state: State, places: Iterable[object], nodes: int) -> bool:
    return any(nodes >> state.space.by_name[place.node].number & 1 for place in places)  # type: ignore[attr-defined]


def _attempt_more(turn: Turn, cls: JobClass) -> bool:
    """One more task for the first elastic job of the class that has not all."""
    state, shape = turn.state, cls.shape
    job = state.by_seq[cls.short.first]
    wants = wants_of(job, job.rung, True)
    charge = more_charge(state, cls, wants)
    broken = forbidden(cls, charge)
    if broken is None and not shape.full_more and wants:
        mask, apart = allowed_nodes(state, job), spread(cls.queue)
        want = wants[0]
        found = state.space.find(want.need, mask, apart)
        if found is not None:
            mark = state.mark()
            place = take(state, job, want, *found)
            broken = forbidden(cls, place.charge)
            if broken is None:
                turn.extend(job, [place], THERE_IS_ROOM)
                return True
            state.undo(mark)
        else:
            state.journal.set(shape, "full_more", True)
            state.journal.put(state.full, shape, None)
    if broken is not None:
        _close(turn, cls, True, forbidden_reason(*broken, charge), broken[1])
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


# ---- making room ---------------------------------------------------------------------------------------


def make_room(turn: Turn, *, entitled: bool) -> bool:
    """Try to make room for each class that waits, in order; whether anything was started."""
    state = turn.state
    serial = count()
    heap: list[tuple[object, int, JobClass, bool]] = []

    def line_up(cls: JobClass, more: bool) -> bool:
        if not _waits(turn, cls, more) or (entitled and not _entitled(turn, cls, more)):
            return False
        heap.append((_place_in_line(cls, more), next(serial), cls, more))
        return True

    for cls in _to_consider(turn, entitled):
        line_up(cls, False)
        if cls.short:
            line_up(cls, True)
    heapify(heap)
    success = False
    while heap:
        _, _, cls, more = heappop(heap)
        if not more and not _has_means(turn, cls):
            continue  # others of its shape, before it in the line, have used up what moving could bring together
        if turn.failed.get((cls, more)) == turn.situation(cls.queue) or not _waits(turn, cls, more):
            continue
        if success and _has_room(turn, cls, more):
            continue  # others that went have left it: it starts in the next round
        before, turn.again = turn.again, False
        made = make_room_for(turn, cls, more)
        if turn.again and not made:
            state.journal.put(state.spared, cls, None)
        turn.again = turn.again or before
        if made:
            success = True
            _settle(turn)
            if line_up(cls, more):
                heappush(heap, heap.pop())
        else:
            turn.failed[cls, more] = turn.situation(cls.queue)
            if cls not in state.starving and _entitled(turn, cls, more):
                state.journal.put(state.starving, cls, None)
    return success


def _has_room(turn: Turn, cls: JobClass, more: bool) -> bool:
    """Is there a place for the first job of the class, which waits for one? Of gangs nobody can say so quickly."""
    shape, gate, state = cls.shape, cls.more_gate if more else cls.gate, turn.state
    if state.space.capacity == state.root.allocated or (shape.tasks > 1 and not more):
        return False
    if gate is None or gate.code not in ROOM:
        return False
    job = _first(turn, cls, more)
    wants = wants_of(job, job.rung if more else shape.rungs - 1, more)
    return len(wants) == 1 and state.space.find(wants[0].need, allowed_nodes(state, job)) is not None


def _has_means(turn: Turn, cls: JobClass) -> bool:
    """A quick look at make_room_for(): False only if none of its means can bring anything."""
    state = turn.state
    if state.tall or state.space.capacity - state.root.allocated >= cls.charge:
        return True
    return _entitled(turn, cls, False) or _outranks(cls)


def _to_consider(turn: Turn, entitled: bool) -> list[JobClass]:
    """Classes for which room might be made now and could not before this turn; at least those that are in the right.

    These are: what was blocked in this turn; who is in the right and was not served; leaves that this turn has
    touched, whose standing or whose own victims are others now; and shapes for which moving has become possible.
    """
    state = turn.state
    if turn.everything:
        return list(state.classes.values())
    found = dict(turn.blocked)
    rightful: dict[JobClass, None] = {}
    for leaf in turn.touched:
        right = leaf.share if leaf.quota is None or leaf.share > leaf.quota else leaf.quota
        mixed = leaf.mixed
        for cls in leaf.classes.values():
            if cls.shape.elastic and cls.short:
                found[cls] = None
            elif cls.pending.head < len(cls.pending.items):  # bool(), written out
                if leaf.quota is None or leaf.allocated + cls.charge <= right:
                    (found if mixed else rightful)[cls] = None
                elif mixed and not entitled and _has_means(turn, cls):
                    found[cls] = None
    if (rightful or state.starving) and _anyone_over(state):
        found |= rightful
        for cls in list(state.starving):
            if (cls.gate is None or not cls.pending) and (cls.more_gate is None or not cls.short):
                state.journal.drop(state.starving, cls)
            else:
                found[cls] = None
    free = state.space.capacity - state.root.allocated
    if free:
        for shape in sorted(state.full, key=_by_cost):
            if shape.stuck != state.version and shape.cheapest <= free and _movable(turn, shape):
                found |= shape.classes
    return list(found)


def _by_cost(shape: Shape) -> tuple[int, int]:
    """The cheapest first: what is in vain for these is so for many others. Then by age, as tables have no order."""
    return shape.cheapest, min((cls.pending.first for cls in shape.classes if cls.pending), default=0)


def _anyone_over(state: State) -> bool:
    """Is there a queue that holds more than its quota?"""
    return any(queue.quota is not None and queue.allocated > queue.quota for queue in state.leaves())


def _movable(turn: Turn, shape: Shape) -> bool:
    """Could moving others make room for this shape? Tried with one job, for all classes of the shape."""
    for cls in shape.classes:
        if _waits(turn, cls, False) and forbidden(cls, cls.charge) is None:
            return could_consolidate(turn, _first(turn, cls, False))
        if _waits(turn, cls, True):
            return True
    return False


def _first(turn: Turn, cls: JobClass, more: bool) -> JobState:
    return turn.state.by_seq[(cls.short if more else cls.pending).first]


def _waits(turn: Turn, cls: JobClass, more: bool) -> bool:
    """Blocked, and by something that taking from others may change."""
    gate, seqs, full = (
        (cls.more_gate, cls.short, cls.shape.full_more) if more else (cls.gate, cls.pending, cls.shape.full)
    )
    if gate is None or seqs.head >= len(seqs.items):
        return False
    code = gate.code
    if code is Code.QUOTA or code is Code.NO_NODE or (not full and code in ROOM):  # is_open(), written out
        return False
    job = turn.state.by_seq[seqs.items[seqs.head]]
    if job.evicted_in == turn.number:
        turn.again = True
        turn.state.journal.put(turn.state.spared, cls, None)
        return False
    return not job.unstarted


def _charge(turn: Turn, cls: JobClass, more: bool) -> int:
    if not more:
        return cls.charge
    job = _first(turn, cls, more)
    return more_charge(turn.state, cls, wants_of(job, job.rung, True))


def _entitled(turn: Turn, cls: JobClass, more: bool) -> bool:
    queue = cls.queue
    after = queue.allocated + _charge(turn, cls, more)
    return after <= queue.share or queue.quota is None or after <= queue.quota


def _place_in_line(cls: JobClass, more: bool) -> tuple[object, ...]:
    charge = cls.charge
    ranks = tuple(standing(queue, charge) for queue in reversed(cls.queue.path))
    return (*ranks, (-cls.priority, more, (cls.short if more else cls.pending).first))


def make_room_for(turn: Turn, cls: JobClass, more: bool) -> bool:
    """One more job of the class, or one more task of its first elastic job, by the mildest means that works."""
    job = _first(turn, cls, more)
    gate = cls.more_gate if more else cls.gate
    assert gate is not None
    if gate.code in ROOM and (consolidate(turn, cls, job, more) or elastic.shrink(turn, cls, job, more)):
        return True
    if _entitled(turn, cls, more) and reclaim(turn, cls, job, more):
        return True
    return _outranks(cls) and preempt(turn, cls, job, more)


def _outranks(cls: JobClass) -> bool:
    """Does something of lower priority run in its queue?"""
    queue = cls.queue
    return queue.mixed and any(one.priority < cls.priority and one.running for one in queue.classes.values())
