"""Places that a job has in the ledger while tasks that were told to stop still hold them (Policy.endings "reported").

A place is *left* from the decision to stop its task until the end is reported, and *claimed* by the job that has it in
the ledger meanwhile. That job is started when none of its places is held by others any more (Turn.start_claimed).
"""

from __future__ import annotations

from collections.abc import Iterable

from gpushare.cluster.jobs import NO_PLACES, JobState
from gpushare.cluster.nouns import Place
from gpushare.cluster.space import NodeState
from gpushare.cluster.state import State

__all__ = ["claim", "leave", "must_wait", "unclaim"]


def must_wait(state: State, job: JobState, places: Iterable[Place]) -> bool:
    if any(name == job.job.id for name, _ in state.leaving):
        return True
    for place in places:
        node = state.space.by_name[place.node]
        if node.leaving:
            for gpu in place.gpus:
                if not _is_empty(node, gpu):
                    return True
    return False


def claim(state: State, job: JobState, places: Iterable[Place]) -> None:
    if job.unstarted is NO_PLACES:
        job.unstarted = {}
    for place in places:
        state.journal.put(job.unstarted, (place.group, place.task), place)
        state.claim(place, 1)
    state.journal.put(state.waiting, job.seq, None)


def unclaim(state: State, job: JobState, places: Iterable[Place]) -> None:
    """Places that were never started are given up."""
    for place in places:
        key = (place.group, place.task)
        if key in job.unstarted:
            state.claim(place, -1)
            state.journal.drop(job.unstarted, key)
    if not job.unstarted:
        state.journal.drop(state.waiting, job.seq)


def leave(state: State, job: JobState, places: Iterable[Place]) -> None:
    """Tasks are told to stop; until that is reported their places are not empty."""
    places = list(places)
    if job.seen:
        for place in places:
            state.journal.drop(job.seen, (place.group, place.task))
    if state.policy.endings != "reported":
        return
    key = (job.job.id, job.attempt)
    running = tuple(place for place in places if (place.group, place.task) not in job.unstarted)
    for place in running:
        state.hold(place, 1)
    if running:
        state.journal.put(state.leaving, key, (*state.leaving.get(key, ()), *running))


def _is_empty(node: NodeState, gpu: int) -> bool:
    """The started tasks and those that leave fit on the GPU, and nobody else is there. (What was just placed waits.)"""
    return node.free[gpu] + node.claimed.get(gpu, 0) - node.leaving.get(gpu, 0) >= 0
