"""What to do now: the order in which the ways to start a job are tried.

    1. Start what fits, queues within quota and share first: they have a right to the room.
    2. For those of them that still wait: move others, shrink others, reclaim, preempt.
    3. Start what fits of the others: idle GPUs are for whoever can use them.
    4. For these: move, shrink, preempt.

Borrowers come after the rightful have had all means, so nothing is started in one step only to be evicted in the
next. After each success gates are opened again and the round begins anew, until nothing more can be done. A job is
evicted at most once in a turn and may not take from others in the turn in which it was, and from what was given a
place in a turn none is taken in it; so a turn ends.

A class whose first job cannot start has a gate: the reason. What must change is kept as keys in watch.py, and only
those who listen to what has changed are looked at again, which is why an event costs what it changes and not what
there is.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import count

from gpushare.cluster import ageing, elastic
from gpushare.cluster.candidates import entitled
from gpushare.cluster.model import USUAL_MEMORY, Code, Place, Reason
from gpushare.cluster.moves import consolidate, could_consolidate
from gpushare.cluster.order import ABOVE, ROOM, WITHIN_SHARE, Order, is_more_open, is_open, standing
from gpushare.cluster.placement import (
    affordable,
    allowed_nodes,
    forbidden,
    forbidden_reason,
    more_charge,
    next_charge,
    no_space,
    place_gang,
    place_task,
    place_within,
    take,
    wants_of,
    why_no_room,
)
from gpushare.cluster.reasons import THERE_IS_ROOM
from gpushare.cluster.state import JobClass, JobState, QueueState, Shape, State
from gpushare.cluster.turn import Turn, spread
from gpushare.cluster.victims import commit, preempt, reclaim
from gpushare.cluster.watch import FREED, NEXT, OVER, About, Ask, Key

BY_LIMIT = frozenset({Code.LIMIT, Code.QUOTA})


def decide(turn: Turn) -> None:
    """Everything that follows from what has changed."""
    watch = turn.state.watch
    _end_protections(turn)
    while True:
        for job in [job for job in turn.partial if not _first_come_others(job)]:
            if complete_gang(turn, job):
                turn.partial.remove(job)
        _settle(turn)
        hear(turn)
        if start_reserved(turn):
            continue
        start(turn, WITHIN_SHARE)
        if make_room(turn, rightful=True):
            continue
        start(turn, ABOVE)
        if make_room(turn, rightful=False) or _settle(turn):
            continue
        elastic.grow(turn)
        if ageing.reserve(turn):
            continue
        if turn.partial:
            complete_or_stop(turn, turn.partial.pop(0))
        elif watch.quiet():
            break


def learn(turn: Turn) -> None:
    """After a state was read: why each class waits, before anything else happens. Nothing is started."""
    state = turn.state
    for cls in state.classes.values():
        state.open(cls)
    for cls in state.classes.values():
        for more in (False, True):
            if cls.short if more else cls.pending:
                mark, length = state.mark(), len(turn.out)
                if attempt(turn, cls, more):
                    state.undo(mark)
                    turn.take_back(length)


def _end_protections(turn: Turn) -> None:
    """Jobs whose minimum run time is over can be stopped and moved from now on."""
    state = turn.state
    for seq in [seq for seq, end in state.guarded.items() if end <= turn.now]:
        state.journal.drop(state.guarded, seq)
        turn.loosen(state.by_seq[seq])


def _settle(turn: Turn) -> bool:
    """Divide the shares again; whether any has changed."""
    state, watch = turn.state, turn.state.watch
    changed = state.settle_shares()
    for queue in changed:
        if not queue.children and queue.allocated < queue.share:
            # What one arrival adds is shared by all queues that want more, and far too little for a job of any.
            least, right = queue.least, queue.allocated + queue.least
            if not least or right <= queue.share or queue.quota is None or right <= queue.quota:
                watch.changed[queue] = None
        elif queue.quota is not None and queue.allocated > queue.quota:
            watch.publish(OVER)
        if queue.children:
            watch.publish(OVER)
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
    if stop_others(turn, cls, job, True, rightful=in_right, outranks=True):
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
    turn.take_back(length)
    return False


# ---- news ----------------------------------------------------------------------------------------------


def hear(turn: Turn) -> None:
    """Wake those for whom something has changed since this was last asked."""
    state, watch = turn.state, turn.state.watch
    over = freed = False
    if watch.dropped:
        over = True
        seen: set[QueueState] = set()
        for leaf in watch.dropped:
            watch.changed[leaf] = None
            for queue in leaf.path:
                if queue not in seen:
                    seen.add(queue)
                    open_limit(state, queue)
        watch.dropped.clear()
    if watch.freed:
        if state.tall:
            watch.publish_all()
        for node in dict.fromkeys(watch.freed):
            if any(left > 0 for left in node.free):
                over = watch.loose = freed = True
                for seq in node.jobs:
                    queue = state.by_seq[seq].queue
                    if queue.mixed:
                        watch.changed[queue] = None
        for shape in list(watch.crowded):
            if could_fit(state, shape):
                open_shape(state, shape)
        watch.freed.clear()
    if watch.changed and state.several and _any_takes_several(state):
        watch.loose = True
    for leaf in watch.changed:
        watch.publish(Key(About.QUEUE, leaf))
        over = over or any(queue.quota is not None and queue.allocated > queue.quota for queue in leaf.path)
    watch.changed.clear()
    if freed:
        watch.publish(FREED)
    if over and watch.heard(OVER) and _any_over(state):
        watch.publish(OVER)


def _any_takes_several(state: State) -> bool:
    """Takes a task of some job parts of several GPUs?"""
    return any(shape.several and any(cls.busy for cls in shape.classes) for shape in state.shapes.values())


def open_limit(state: State, queue: QueueState) -> None:
    """Something was given back below the queue, or its numbers are others."""
    for cls, _ in list(state.watch.heard(Key(About.LIMIT, queue))):
        state.open(cls)


def open_shape(state: State, shape: Shape) -> None:
    """There may be room for it."""
    journal, watch = state.journal, state.watch
    journal.drop(watch.crowded, shape)
    if shape.full:
        journal.set(shape, "full", False)
    if shape.full_more:
        journal.set(shape, "full_more", False)
    watch.shapes[shape] = None
    for cls in shape.classes:
        if cls.priced or cls.more_priced:
            state.open(cls)
        seqs = cls.pending  # bool() of it, written out: a thousand queues may wait for such room
        if seqs.head < len(seqs.items) or cls.short:
            watch.leaves[cls.queue] = None


def could_fit(state: State, shape: Shape) -> bool:
    """A quick look: False only if there is surely no room."""
    space = state.space
    mask = space.mask(shape.selector)
    if space.reserved and not shape.backfill:
        mask &= ~space.reserved
    if all(space.holds(group.needs[-1], group.least, mask) for group in shape.groups):
        return True
    return shape.elastic and any(
        space.holds(group.needs[-1], 1, mask) for group in shape.groups if group.top > group.least
    )


# ---- starting where there is room ----------------------------------------------------------------------


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
    state.watch.sleep((cls, more), _keys_of_place(state, cls, gate))
    state.watch.woken[cls, more] = None
    if not more and state.policy.reserve_after is not None:
        due = state.by_seq[cls.pending.first].since + state.policy.reserve_after
        if due < state.reserve_at:
            state.journal.set(state, "reserve_at", due)


def _keys_of_place(state: State, cls: JobClass, gate: Reason) -> tuple[Key, ...]:
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
            if shape.rungs > 1 and forbidden(cls, _charge_on(state, shape, rung)) is not None:
                continue
            places = place_within(state, job, rung, mask, apart)
            if places is not None:
                reserved = state.space.reserved
                backfill = bool(reserved) and _touches(state, places, reserved) and job is not state.reserver
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
    found = place_gang(state, job, cls.shape.rungs - 1, mask, spread(cls.queue)) is not None
    state.undo(mark)
    return found


def _charge_on(state: State, shape: Shape, rung: int) -> int:
    memories = state.memories(shape)
    return shape.least_charge(memories[-1] if memories else USUAL_MEMORY, rung)


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


# ---- making room ---------------------------------------------------------------------------------------


def make_room(turn: Turn, *, rightful: bool) -> bool:
    """Try to make room for each ask that was woken, in order; whether anything was started."""
    watch = turn.state.watch
    _wake_for_moves(turn)
    if not watch.woken:
        return False
    serial = count()
    heap: list[tuple[object, int, JobClass, bool]] = []

    def line_up(ask: Ask) -> bool:
        cls, more = ask
        if not _waits(turn, cls, more):
            return False
        if rightful and not _entitled(turn, cls, more):
            return False
        heap.append((_place_in_line(cls, more), next(serial), cls, more))
        return True

    for ask in list(watch.woken):
        line_up(ask)
    heapify(heap)
    success = False
    while heap:
        _, _, cls, more = heappop(heap)
        ask = (cls, more)
        if not _waits(turn, cls, more):
            continue
        if success and _has_room(turn, cls, more):
            continue  # others that went have left it: it starts in the next round
        watch.woken.pop(ask, None)
        if _make_room_for(turn, cls, more):
            success = True
            _settle(turn)
            if line_up(ask):
                heappush(heap, heap.pop())
            # Its further tasks come before those who have just lost their places: these would lose them again.
            if not more and cls.short and _lacks_room(turn, cls):
                attempt(turn, cls, True)
                if line_up((cls, True)):
                    heappush(heap, heap.pop())
    return success


def _lacks_room(turn: Turn, cls: JobClass) -> bool:
    """Is there no place for the next task of the class's first elastic job?"""
    job = _first(turn, cls, True)
    wants = wants_of(job, job.rung, True)
    return bool(wants) and turn.state.space.find(wants[0].need, allowed_nodes(turn.state, job)) is None


def _make_room_for(turn: Turn, cls: JobClass, more: bool) -> bool:
    """One more job of the class, or one more task of its first elastic job; else it waits for what could help."""
    if not more and not _has_means(turn, cls):
        again = False
    else:
        before, turn.again = turn.again, False
        made = _by_some_means(turn, cls, more)
        again, turn.again = turn.again, turn.again or before
        if made:
            return True
    _sleep(turn, cls, more, again=again)
    return False


def _sleep(turn: Turn, cls: JobClass, more: bool, *, again: bool = False) -> None:
    """No room could be made: what could change that?"""
    state = turn.state
    gate = cls.more_gate if more else cls.gate
    assert gate is not None
    keys = [*_keys_of_place(state, cls, gate), Key(About.QUEUE, cls.queue)]
    if _entitled(turn, cls, more):
        keys.append(OVER)
    if (cls.shape.tasks > 1 or gate.code in BY_LIMIT) and _outranks(cls):
        keys.append(FREED)  # what is free elsewhere and what its own queue's jobs would leave may be enough together
    if again:
        keys.append(NEXT)
    state.watch.sleep((cls, more), tuple(keys))


def _wake_for_moves(turn: Turn) -> None:
    """Those for whom others could be moved now, and could not before."""
    state, watch = turn.state, turn.state.watch
    if not watch.loose:
        return
    watch.loose = False
    free = state.space.capacity - state.root.allocated
    if free:
        for shape in sorted(watch.crowded, key=_by_cost):
            if shape.stuck != state.version and (shape.elastic or shape.cheapest <= free) and _movable(turn, shape):
                for cls in shape.classes:
                    watch.woken[cls, False] = watch.woken[cls, True] = None


def _has_room(turn: Turn, cls: JobClass, more: bool) -> bool:
    """Is there a place for the first job of the class, which waits for one? Of gangs nobody can say so quickly."""
    shape, gate, state = cls.shape, cls.more_gate if more else cls.gate, turn.state
    if state.space.capacity == state.root.allocated or (shape.tasks > 1 and not more):
        return False
    if gate is None or gate.code not in ROOM:
        return False
    job = _first(turn, cls, more)
    wants = wants_of(job, job.rung if more else shape.rungs - 1, more)
    if len(wants) != 1:
        return False
    return state.space.find(wants[0].need, allowed_nodes(state, job, backfill=not more)) is not None


def _has_means(turn: Turn, cls: JobClass) -> bool:
    """A quick look at make_room_for(): False only if none of its means can bring anything."""
    state = turn.state
    if state.tall or state.space.capacity - state.root.allocated >= cls.charge:
        return True
    return _entitled(turn, cls, False) or _outranks(cls)


def _by_cost(shape: Shape) -> tuple[int, int]:
    """The cheapest first: what is in vain for these is so for many others. Then by age, as tables have no order."""
    return shape.cheapest, min((cls.pending.first for cls in shape.classes if cls.pending), default=0)


def _any_over(state: State) -> bool:
    """Is there a queue that holds more than its quota?"""
    return any(queue.quota is not None and queue.allocated > queue.quota for queue in state.leaves())


def _movable(turn: Turn, shape: Shape) -> bool:
    """Could moving others make room for this shape? Tried with one job, for all classes of the shape."""
    # By age: in which order classes were made depends on which were forgotten in between.
    for cls in sorted(shape.classes, key=lambda cls: cls.pending.first if cls.pending else turn.state.sequence):
        if turn.state.reserver is not None and turn.state.reserver.cls is cls:
            return True  # it may use nodes that the others may not
        if (cls.priced and cls.pending) or (cls.more_priced and cls.short):
            return True  # others of the shape may pay more, so nobody can say it for all
        if _waits(turn, cls, False) and forbidden(cls, cls.charge) is None:
            return could_consolidate(turn, _first(turn, cls, False))
        if _waits(turn, cls, True):
            return True
    return False


def _first(turn: Turn, cls: JobClass, more: bool) -> JobState:
    return turn.state.by_seq[(cls.short if more else cls.pending).first]


def _waits(turn: Turn, cls: JobClass, more: bool) -> bool:
    """Blocked, and by something that taking from others may change. If not, it is not looked at any more."""
    ask, woken = (cls, more), turn.state.watch.woken
    gate, seqs, full = (
        (cls.more_gate, cls.short, cls.shape.full_more or cls.more_priced)
        if more
        else (cls.gate, cls.pending, cls.shape.full or cls.priced)
    )
    if gate is None or seqs.head >= len(seqs.items):
        turn.state.watch.forget(ask)
        woken.pop(ask, None)
        return False
    code = gate.code
    if not full and code in ROOM:  # is_open(), written out
        turn.state.to_try(cls)  # first where there is room now; others may have taken that by then
        return False
    if code is Code.QUOTA or not (more or cls.shape.possible):
        woken.pop(ask, None)
        return False
    job = turn.state.by_seq[seqs.items[seqs.head]]
    if job.evicted_in == turn.number:
        turn.again = True
        woken.pop(ask, None)
        _sleep(turn, cls, more, again=True)
        return False
    if job.unstarted:
        woken.pop(ask, None)
        _sleep(turn, cls, more)
        return False
    return True


def _entitled(turn: Turn, cls: JobClass, more: bool) -> bool:
    return entitled(cls, next_charge(turn.state, cls, more))


def _place_in_line(cls: JobClass, more: bool) -> tuple[object, ...]:
    charge = cls.charge
    ranks = tuple(standing(queue, charge) for queue in reversed(cls.queue.path))
    return (*ranks, (-cls.priority, more, (cls.short if more else cls.pending).first))


def _by_some_means(turn: Turn, cls: JobClass, more: bool) -> bool:
    """By the mildest means that works."""
    job = _first(turn, cls, more)
    gate = cls.more_gate if more else cls.gate
    assert gate is not None
    if gate.code in ROOM and (consolidate(turn, cls, job, more) or elastic.shrink(turn, cls, job, more)):
        return True
    return stop_others(turn, cls, job, more, rightful=_entitled(turn, cls, more), outranks=_outranks(cls))


def stop_others(turn: Turn, cls: JobClass, job: JobState, more: bool, *, rightful: bool, outranks: bool) -> bool:
    """Start the job, or one more of its tasks, in place of others; or where idle GPUs are reserved, if it could stop
    others and fits there: then nobody is stopped, and the reservation is made again."""
    places = _on_reserved(turn, job, more)
    plan = (reclaim(turn, cls, job, more) if rightful else None) or (
        preempt(turn, cls, job, more) if outranks else None
    )
    if plan is None:
        return False
    if places is None:
        commit(turn, plan)
        return True
    state = turn.state
    state.undo(plan.mark)
    for place in places:
        state.occupy(job, place)
    if more:
        turn.extend(job, places, THERE_IS_ROOM)
    else:
        turn.begin(job, places, plan.rung, THERE_IS_ROOM)
    ageing.release(turn)
    return True


def _on_reserved(turn: Turn, job: JobState, more: bool) -> list[Place] | None:
    """Idle places for it, on nodes that are reserved for another."""
    state, shape = turn.state, job.cls.shape
    if not state.space.reserved or job is state.reserver:
        return None
    mark, apart = state.mark(), spread(job.queue)
    wants = wants_of(job, job.rung if more else shape.rungs - 1, more)
    mask = affordable(state, job.cls, wants, state.space.mask(shape.selector))
    places = [place_task(state, job, want, mask, apart) for want in wants]
    state.undo(mark)
    found = sorted(place for place in places if place is not None)
    allowed = forbidden(job.cls, sum(place.charge for place in found)) is None
    return found if allowed and len(found) == len(wants) else None


def _outranks(cls: JobClass) -> bool:
    """Does something of lower priority run in its queue?"""
    queue = cls.queue
    return queue.mixed and any(one.priority < cls.priority and one.running for one in queue.classes.values())
