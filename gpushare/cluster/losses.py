"""Places that jobs lose: with what was there, or because they are told to leave."""

from __future__ import annotations

from collections.abc import Sequence

from gpushare.cluster.claimed import unclaim
from gpushare.cluster.jobs import JobState
from gpushare.cluster.model import Place, Reason
from gpushare.cluster.state import State
from gpushare.cluster.turn import Turn


def forget_leaving(state: State, key: tuple[str, int], gone: tuple[Place, ...]) -> None:
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


def drop(turn: Turn, job: JobState, places: Sequence[Place]) -> None:
    """The job has these no more, whether they were started or not."""
    unclaim(turn.state, job, places)
    for place in places:
        turn.lift(job, place)


def lose_places(turn: Turn, job: JobState, lost: Sequence[Place], reason: Reason) -> None:
    """Tasks are gone, and hold nothing. A job that has less than its least left is stopped and waits again."""
    if not job.complete_without(lost):
        turn.stop(job, reason, again=True, gone=lost)
        turn.state.journal.set(job, "evicted_in", -1)
        return
    drop(turn, job, lost)
    for place in lost:
        turn.state.journal.drop(job.seen, (place.group, place.task))
    turn.after_loss(job, reason)


def give_up(turn: Turn, job: JobState, places: Sequence[Place], reason: Reason) -> None:
    """These of its places are given up: what runs there is told to stop. With less than its least all of it is, and
    waits again."""
    if not places:
        return
    if job.complete_without(places):
        started = [place for place in places if (place.group, place.task) not in job.unstarted]
        drop(turn, job, places)
        if started:
            turn.evicted(job, started, job.job.id, reason)
        else:
            turn.after_loss(job, reason)
    else:
        turn.stop(job, reason, again=True)
        turn.state.journal.set(job, "evicted_in", -1)
