"""Making room for those who wait: each is tried once by the mildest means that works, and then sleeps on its keys."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from gpushare.cluster import ageing, elastic
from gpushare.cluster.candidates import entitled
from gpushare.cluster.jobs import Ask, JobClass, JobState
from gpushare.cluster.model import Code, Place
from gpushare.cluster.moves import consolidate, could_move
from gpushare.cluster.news import settle
from gpushare.cluster.order import ROOM, is_open, standing
from gpushare.cluster.placement import (
    Gang,
    affordable,
    allowed_nodes,
    forbidden,
    gang_of,
    next_charge,
    place_all,
    wants_of,
)
from gpushare.cluster.queues import QueueState
from gpushare.cluster.reasons import THERE_IS_ROOM
from gpushare.cluster.rules import claims_share_from
from gpushare.cluster.search import commit, give
from gpushare.cluster.starting import attempt, keys_of_place, touches
from gpushare.cluster.turn import Turn, spread
from gpushare.cluster.victims import preempt, reclaim
from gpushare.cluster.watch import ANY, FREED, NEXT, OVER, About, Key


def make_room(turn: Turn, *, rightful: bool) -> bool:
    """Try to make room for each ask that was woken, in order; whether anything was started."""
    watch = turn.state.watch
    _wake_for_moves(turn)
    if not watch.woken:
        return False
    serial = count()
    heap: list[tuple[object, int, Ask]] = []

    def line_up(ask: Ask) -> bool:
        if not _waits(turn, ask) or (rightful and not _entitled(turn, ask)):
            return False
        heap.append((_place_in_line(ask), next(serial), ask))
        return True

    for ask in list(watch.woken):
        line_up(ask)
    heapify(heap)
    success, free = False, _free(turn)
    while heap:
        if _free(turn) > free:
            break  # those who went have left more than was needed: what fits there starts first
        _, _, ask = heappop(heap)
        if not _waits(turn, ask):
            continue
        watch.woken.pop(ask, None)
        if _make_room_for(turn, ask):
            success = True
            settle(turn)
            watch.woken[ask] = None
            if line_up(ask):
                heappush(heap, heap.pop())
            # Its further tasks come before those who have just lost their places: these would lose them again.
            more = ask.cls.more
            if ask is not more and more.seqs and _lacks_room(turn, more):
                attempt(turn, more)
                watch.woken[more] = None
                if line_up(more):
                    heappush(heap, heap.pop())
    return success


def _free(turn: Turn) -> int:
    return turn.state.space.capacity - turn.state.root.allocated


def _lacks_room(turn: Turn, ask: Ask) -> bool:
    """Is there no place for the next task?"""
    job = _first(turn, ask)
    wants = wants_of(job, job.rung, True)
    return bool(wants) and turn.state.space.find(wants[0].need, allowed_nodes(turn.state, job)) is None


def _make_room_for(turn: Turn, ask: Ask) -> bool:
    """For the first that asks; else the ask waits for what could help."""
    before, turn.again, turn.spent = turn.again, False, False
    made = _by_some_means(turn, ask)
    again, turn.again = turn.again, turn.again or before
    if not made:
        _sleep(turn, ask, again=again)
    return made


def _sleep(turn: Turn, ask: Ask, *, again: bool = False) -> None:
    """No room could be made: what could change that?"""
    state, cls, gate = turn.state, ask.cls, ask.gate
    assert gate is not None
    keys = [*keys_of_place(state, cls, gate), Key(About.QUEUE, cls.queue)]
    if _entitled(turn, ask):
        keys.append(OVER)
        due = claims_share_from(_first(turn, ask), state.policy)
        if due > turn.now:
            state.journal.put(state.patient, ask, due)
    if _may_preempt(cls):
        broken = _limit_without_its_queue(turn, ask)
        # Once the limit holds, jobs of its own queue may make way for it. What is free and what they would leave may be
        # enough together.
        keys.append(FREED if broken is None else Key(About.LIMIT, broken[1]))
    if again:
        keys.append(NEXT)
    if turn.spent:
        keys.append(ANY)
    state.watch.sleep(ask, tuple(keys))


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
                    for ask in cls.asks:
                        watch.woken[ask] = None


def _first(turn: Turn, ask: Ask) -> JobState:
    return turn.state.by_seq[ask.seqs.first]


def _gang(turn: Turn, ask: Ask) -> Gang:
    return gang_of(turn.state, _first(turn, ask), more=ask.more)


def _waits(turn: Turn, ask: Ask) -> bool:
    """Blocked, and by something that taking from others may change. If not, it is not looked at any more."""
    woken, gate = turn.state.watch.woken, ask.gate
    if gate is None or not ask.seqs:
        turn.state.watch.forget(ask)
        woken.pop(ask, None)
        return False
    if is_open(ask):
        turn.state.to_try(ask.cls)  # first where there is room now; others may have taken that by then
        return False
    if gate.code is Code.QUOTA or not (ask.more or ask.cls.shape.possible):
        woken.pop(ask, None)
        return False
    job = _first(turn, ask)
    evicted = job.evicted_in == turn.number
    if evicted or job.unstarted:
        turn.again = turn.again or evicted
        woken.pop(ask, None)
        _sleep(turn, ask, again=evicted)
        return False
    return True


def _entitled(turn: Turn, ask: Ask) -> bool:
    return entitled(ask.cls, next_charge(turn.state, ask))


def _place_in_line(ask: Ask) -> tuple[object, ...]:
    cls = ask.cls
    ranks = tuple(standing(queue, cls.charge) for queue in reversed(cls.queue.path))
    return (*ranks, (-cls.priority, ask.more, ask.seqs.first))


def _by_some_means(turn: Turn, ask: Ask) -> bool:
    """By the mildest means that works."""
    gang = _gang(turn, ask)
    assert ask.gate is not None
    if ask.gate.code in ROOM and mildly(turn, gang):
        return True
    rightful, outranks = _entitled(turn, ask), _outranks(turn, ask)
    return (rightful or outranks) and stop_others(turn, gang, rightful=rightful, outranks=outranks)


def mildly(turn: Turn, gang: Gang) -> bool:
    """Give the gang its places where others move or shrink for it."""
    found = consolidate(turn, gang) or elastic.shrink(turn, gang)
    if found is not None:
        commit(turn, found)
    return found is not None


def stop_others(turn: Turn, gang: Gang, *, rightful: bool, outranks: bool) -> bool:
    """Give the gang the places of others; or idle ones on reserved GPUs, if it could stop others and fits there: then
    nobody is stopped. Where it starts on reserved nodes the reservation is made again."""
    state, job = turn.state, gang.job
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
    mark = state.mark()
    mask = affordable(state, job.cls, wants, state.space.mask(job.cls.shape.selector))
    places = place_all(state, job, wants, (mask,), spread(job.queue))
    state.undo(mark)
    if places is None or forbidden(job.cls, sum(place.charge for place in places)) is not None:
        return None
    return places


def _outranks(turn: Turn, ask: Ask) -> bool:
    """Does something of lower priority run in its queue, and would its limits hold if all of the queue stopped?"""
    return _may_preempt(ask.cls) and _limit_without_its_queue(turn, ask) is None


def _may_preempt(cls: JobClass) -> bool:
    queue = cls.queue
    return queue.mixed and any(one.priority < cls.priority and one.running for one in queue.classes.values())


def _limit_without_its_queue(turn: Turn, ask: Ask) -> tuple[Code, QueueState] | None:
    """What would still forbid the job if all jobs of its queue stopped."""
    return forbidden(ask.cls, next_charge(turn.state, ask) - ask.cls.queue.allocated)
