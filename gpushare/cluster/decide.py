"""What to do now: the order in which the ways to start a job are tried.

    1. Start the entitled jobs that fit: those with which their queues stay within quota or share.
    2. Make room for the entitled jobs that still wait: move others, shrink others, reclaim, preempt.
    3. Start the other jobs that fit: they may use what is idle.
    4. Make room for these: move, shrink, preempt.

Jobs that are not entitled come last, so none of them is started in one step only to be evicted in the next. After each
success the steps begin again, until nothing more can be done. That comes to an end: in one cycle a job is evicted at
most once, a job that was evicted takes nothing from others, and nothing is taken from a job that was given a place.

An ask that cannot be met has a gate: the reason. What must change is kept as keys in watch.py, and only
classes that listen to what has changed are looked at again. So an event costs what it changes and not what there is.
"""

from __future__ import annotations

from gpushare.cluster import ageing, elastic
from gpushare.cluster.candidates import entitled
from gpushare.cluster.jobs import JobState
from gpushare.cluster.model import Code, Place, Reason
from gpushare.cluster.news import hear, settle
from gpushare.cluster.order import ABOVE, WITHIN_SHARE
from gpushare.cluster.placement import (
    allowed_nodes,
    forbidden,
    gang_of,
    place_task,
    wants_of,
)
from gpushare.cluster.room import make_room, mildly, stop_others
from gpushare.cluster.starting import attempt, start, start_reserved
from gpushare.cluster.turn import Turn, spread


def decide(turn: Turn) -> None:
    """Everything that follows from what has changed."""
    watch = turn.state.watch
    _end_waits(turn)
    while True:
        for job in [job for job in turn.partial if not _first_come_others(job)]:
            if complete_gang(turn, job):
                turn.partial.remove(job)
        settle(turn)
        hear(turn)
        if start_reserved(turn):
            continue
        start(turn, WITHIN_SHARE)
        if make_room(turn, rightful=True):
            continue
        start(turn, ABOVE)
        if make_room(turn, rightful=False) or settle(turn):
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
        for ask in cls.asks:
            if ask.seqs:
                mark, length = state.mark(), len(turn.out)
                if attempt(turn, ask):
                    state.undo(mark)
                    turn.take_back(length)


def _end_waits(turn: Turn) -> None:
    """Jobs whose minimum run time is over can be stopped and moved from now on; and who has waited for its patience may
    have others stopped for its queue's share."""
    state = turn.state
    for ask in [ask for ask, due in state.patient.items() if due <= turn.now]:
        state.journal.drop(state.patient, ask)
        state.watch.woken[ask] = None
    for seq in [seq for seq, end in state.guarded.items() if end <= turn.now]:
        state.journal.drop(state.guarded, seq)
        turn.loosen(state.by_seq[seq])


def _first_come_others(job: JobState) -> bool:
    """Does a job of higher priority wait in its queue, for which it might have to go?"""
    return any(cls.priority > job.cls.priority and len(cls.pending) for cls in job.queue.classes.values())


def complete_or_stop(turn: Turn, job: JobState) -> None:
    """A job was found running in part: start what is missing, if need be in place of jobs from which it may take, or
    stop it. It comes last: by then all other jobs have had what they are entitled to."""
    if complete_gang(turn, job):
        return
    gang = gang_of(turn.state, job, more=True)
    if mildly(turn, gang) or stop_others(turn, gang, rightful=entitled(job.cls, gang.charge), outranks=True):
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
    if job.complete and forbidden(job.cls, sum(place.charge for place in placed)) is None:
        turn.extend(job, placed, Reason(Code.INCOMPLETE))
        return True
    state.undo(mark)
    turn.take_back(length)
    return False
