"""Making room for those who wait: each is tried once by the mildest means that works, and then sleeps on its keys."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from gpushare.cluster import ageing, elastic
from gpushare.cluster.candidates import entitled
from gpushare.cluster.jobs import JobClass, JobState
from gpushare.cluster.model import Code, Place
from gpushare.cluster.moves import consolidate, could_move
from gpushare.cluster.news import settle
from gpushare.cluster.order import ROOM, standing
from gpushare.cluster.placement import (
    Gang,
    affordable,
    allowed_nodes,
    forbidden,
    gang_of,
    next_charge,
    place_task,
    wants_of,
)
from gpushare.cluster.queues import QueueState
from gpushare.cluster.reasons import THERE_IS_ROOM
from gpushare.cluster.rules import claims_share_from
from gpushare.cluster.search import commit, give
from gpushare.cluster.starting import BY_LIMIT, attempt, keys_of_place, touches
from gpushare.cluster.turn import Turn, spread
from gpushare.cluster.victims import preempt, reclaim
from gpushare.cluster.watch import ANY, BY_MOVES, FREED, NEXT, OVER, About, Ask, Key


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
    success, free = False, _free(turn)
    while heap:
        if _free(turn) > free:
            break  # those who went have left more than was needed: what fits there starts first
        _, _, cls, more = heappop(heap)
        ask = (cls, more)
        if not _waits(turn, cls, more):
            continue
        if success and _has_room(turn, cls, more):
            continue  # others that went have left it: it starts in the next round
        by_moves = watch.woken.pop(ask, None) is BY_MOVES
        if _move_for(turn, cls, more) if by_moves else _make_room_for(turn, cls, more):
            success = True
            settle(turn)
            watch.woken[ask] = None
            if line_up(ask):
                heappush(heap, heap.pop())
            # Its further tasks come before those who have just lost their places: these would lose them again.
            if not more and cls.short and _lacks_room(turn, cls):
                attempt(turn, cls, True)
                watch.woken[cls, True] = None
                if line_up((cls, True)):
                    heappush(heap, heap.pop())
    return success


def _free(turn: Turn) -> int:
    return turn.state.space.capacity - turn.state.root.allocated


def _lacks_room(turn: Turn, cls: JobClass) -> bool:
    """Is there no place for the next task of the class's first elastic job?"""
    job = _first(turn, cls, True)
    wants = wants_of(job, job.rung, True)
    return bool(wants) and turn.state.space.find(wants[0].need, allowed_nodes(turn.state, job)) is None


def _make_room_for(turn: Turn, cls: JobClass, more: bool) -> bool:
    """One more job of the class, or one more task of its first elastic job; else it waits for what could help."""
    turn.spent = again = False
    if more or _has_means(turn, cls):
        before, turn.again = turn.again, False
        made = _by_some_means(turn, cls, more)
        again, turn.again = turn.again, turn.again or before
        if made:
            return True
    _sleep(turn, cls, more, again=again)
    return False


def _move_for(turn: Turn, cls: JobClass, more: bool) -> bool:
    """The same by moves alone: whatever else could help was tried, and is still listened to."""
    gate = cls.more_gate if more else cls.gate
    if gate is None or gate.code not in ROOM:
        return False
    turn.spent = False
    found = consolidate(turn, cls, _first(turn, cls, more), more)
    if found is not None:
        commit(turn, found)
    elif turn.spent:
        watch = turn.state.watch
        keys = watch.keys.get((cls, more), ())
        watch.sleep((cls, more), (*(key for key in keys if key != ANY), ANY))
    return found is not None


def _sleep(turn: Turn, cls: JobClass, more: bool, *, again: bool = False) -> None:
    """No room could be made: what could change that?"""
    state = turn.state
    gate = cls.more_gate if more else cls.gate
    assert gate is not None
    keys = [*keys_of_place(state, cls, gate), Key(About.QUEUE, cls.queue)]
    if _entitled(turn, cls, more):
        keys.append(OVER)
        due = claims_share_from(_first(turn, cls, more), state.policy)
        if due > turn.now:
            state.journal.put(state.patient, (cls, more), due)
    if _may_preempt(cls):
        broken = _limit_without_its_queue(turn, cls, more)
        if broken is not None:
            keys.append(Key(About.LIMIT, broken[1]))  # once that holds, jobs of its own queue may make way for it
        elif cls.shape.tasks > 1 or gate.code in BY_LIMIT:
            keys.append(FREED)  # what is free elsewhere and what these jobs would leave may be enough together
    if again:
        keys.append(NEXT)
    if turn.spent:
        keys.append(ANY)
    state.watch.sleep((cls, more), tuple(keys))


def _wake_for_moves(turn: Turn) -> None:
    """Those for whom others could be moved now, and could not before."""
    state, watch = turn.state, turn.state.watch
    if not watch.loose:
        return
    watch.loose = False
    free = _free(turn)
    if free:
        for shape in watch.crowded:
            if (shape.elastic or shape.cheapest <= free) and could_move(state, shape):
                for cls in shape.classes:
                    for more in (False, True):
                        watch.woken.setdefault((cls, more), BY_MOVES)


def _has_room(turn: Turn, cls: JobClass, more: bool) -> bool:
    """Is there a place now for the first job of the class, and does no limit forbid it? Of gangs nobody can say so
    quickly."""
    shape, gate, state = cls.shape, cls.more_gate if more else cls.gate, turn.state
    if state.space.capacity == state.root.allocated or (shape.tasks > 1 and not more):
        return False
    if gate is None:
        return False
    if gate.code in BY_LIMIT:
        if forbidden(cls, next_charge(state, cls, more)) is not None:
            return False
    elif gate.code not in ROOM:
        return False
    job = _first(turn, cls, more)
    wants = wants_of(job, job.rung if more else shape.rungs - 1, more)
    if len(wants) != 1:
        return False
    return state.space.find(wants[0].need, allowed_nodes(state, job, backfill=not more)) is not None


def _has_means(turn: Turn, cls: JobClass) -> bool:
    """A quick look at make_room_for(): False only if none of its means can bring anything."""
    state = turn.state
    if state.tall or _free(turn) >= cls.charge:
        return True
    return _entitled(turn, cls, False) or _outranks(turn, cls, False)


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
    if gate.code in ROOM and mildly(turn, cls, job, more):
        return True
    rightful, outranks = _entitled(turn, cls, more), _outranks(turn, cls, more)
    return (rightful or outranks) and stop_others(turn, cls, job, more, rightful=rightful, outranks=outranks)


def mildly(turn: Turn, cls: JobClass, job: JobState, more: bool) -> bool:
    """Start the job, or one more of its tasks, where others move or shrink for it."""
    found = consolidate(turn, cls, job, more) or elastic.shrink(turn, cls, job, more)
    if found is not None:
        commit(turn, found)
    return found is not None


def stop_others(turn: Turn, cls: JobClass, job: JobState, more: bool, *, rightful: bool, outranks: bool) -> bool:
    """Start the job, or one more of its tasks, in place of others; or where idle GPUs are reserved, if it could stop
    others and fits there: then nobody is stopped. Where it starts on reserved nodes the reservation is made again."""
    state = turn.state
    gang = gang_of(state, cls, job, more=more)
    places = _on_reserved(turn, gang)
    found = reclaim(turn, gang, reserved=places is None) if rightful else None
    found = found or (preempt(turn, gang) if outranks else None)
    if found is None:
        return False
    if places is None:
        commit(turn, found)
        if job is not state.reserver and touches(state, found.placed, state.space.reserved):
            ageing.release(turn)
        return True
    state.undo(found.mark)
    for place in places:
        state.occupy(job, place)
    give(turn, gang, places, THERE_IS_ROOM)
    ageing.release(turn)
    return True


def _on_reserved(turn: Turn, gang: Gang) -> list[Place] | None:
    """Idle places for it, on nodes that are reserved for another."""
    state, job, wants = turn.state, gang.job, gang.wants
    if not state.space.reserved or job is state.reserver:
        return None
    mark, apart = state.mark(), spread(job.queue)
    mask = affordable(state, job.cls, wants, state.space.mask(job.cls.shape.selector))
    places = [place_task(state, job, want, mask, apart) for want in wants]
    state.undo(mark)
    found = sorted(place for place in places if place is not None)
    allowed = forbidden(job.cls, sum(place.charge for place in found)) is None
    return found if allowed and len(found) == len(wants) else None


def _outranks(turn: Turn, cls: JobClass, more: bool) -> bool:
    """Does something of lower priority run in its queue, and would its limits hold if all of the queue stopped?"""
    return _may_preempt(cls) and _limit_without_its_queue(turn, cls, more) is None


def _may_preempt(cls: JobClass) -> bool:
    queue = cls.queue
    return queue.mixed and any(one.priority < cls.priority and one.running for one in queue.classes.values())


def _limit_without_its_queue(turn: Turn, cls: JobClass, more: bool) -> tuple[Code, QueueState] | None:
    """What would still forbid the job if all jobs of its queue stopped."""
    return forbidden(cls, next_charge(turn.state, cls, more) - cls.queue.allocated)
