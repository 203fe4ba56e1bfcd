"""The jobs that wait to get memory of a GPU back: they are suspended, or asleep by their hook. Their order, and what is
kept free for the first of them.

What the first one lacks is lent to nobody of its priority or a lower one, as soon as it would fit beside what others
use within their requests. Otherwise jobs that can only be stopped would borrow each byte that is freed: the job that
gave its memory without loss would wait without end, and the next claims would have to stop those jobs. Where owners
leave too little room for it, memory is lent as if nobody waited.

A job of which a program stands still (Ctrl-Z, a debugger) cannot go on, maybe for days. All others come before it, and
nothing is kept for it but its request.
"""

from __future__ import annotations

from typing import NamedTuple

from gpushared.core import hooks
from gpushared.core.model import Gpu, Job
from gpushared.core.sleep import Sleep, SleepState
from gpushared.core.state import State
from gpushared.core.suspension import SuspendState, Suspension


def in_order(state: State, gpu: Gpu) -> list[Job]:
    """The jobs that wait to get memory of this GPU back, the first first."""
    return [job for job, _ in sorted(_unordered(state, gpu), key=lambda one: _place(state, one))]


def _unordered(state: State, gpu: Gpu) -> list[tuple[Job, float]]:
    """The same, each with the moment since when it waits."""
    waiting = [(job, suspension.since) for job, suspension in all_on(state, gpu) if not suspension.held]
    waiting += [
        (job, sleep.since)
        for job, sleep in state.sleeps()
        if sleep.state is SleepState.ASLEEP and job.suspension is None and gpu.id in gpus_of(state, sleep)
    ]
    return waiting


def _place(state: State, waiting: tuple[Job, float]) -> tuple[bool, int, float, str]:
    job, since = waiting
    return stands_still(state, job), -job.spec.priority, since, job.id


def stands_still(state: State, job: Job) -> bool:
    """One of its processes is stopped."""
    return any(state.processes[process].stopped for process in job.processes)


def processes(state: State, gpu: Gpu) -> set[int]:
    """The processes on this GPU of all jobs that are suspended or asleep."""
    jobs = state.suspended.keys() | state.asleep.keys()
    return {process for process, share in gpu.shares.items() if share.job in jobs} if jobs else set()


def all_on(state: State, gpu: Gpu) -> list[tuple[Job, Suspension]]:
    """The suspended jobs of this GPU: in their order, then those that their users hold."""
    found = [one for one in state.suspensions(gpu.id) if one[1].state is SuspendState.SUSPENDED]
    return sorted(found, key=lambda one: (one[1].held, -one[0].spec.priority, one[1].since, one[0].id))


def gpus_of(state: State, sleep: Sleep) -> list[str]:
    """Those on which it had memory; any one, if it had none: its resume hook is called all the same."""
    return [gpu for gpu in sleep.had if gpu in state.gpus] or list(state.gpus)[:1]


def footprint(state: State, job: Job) -> int:
    """Bytes that it will have on its GPU."""
    assert job.suspension is not None
    return sum(share.parked.committed for share in state.shares_of(job, job.suspension.gpu) if share.parked is not None)


def wanted(state: State, gpu: Gpu, job: Job) -> int:
    """Bytes that are to be free for it when it goes on: what it had, and what its programs asked for when it was
    suspended, where both can fit beside what others use within their requests."""
    had = footprint(state, job)
    both = had + sum(ask.need for ask in gpu.asks.values() if ask.job == job.id)
    return both if both <= min(job.bounds[gpu.id].limit, _most(state, gpu, job)) else had


def first(state: State, gpu: Gpu) -> Job | None:
    """The one that goes on next, if nothing is in its way but the room."""
    waiting = _unordered(state, gpu) if state.suspended or state.asleep else []
    found = min(waiting, key=lambda one: _place(state, one))[0] if waiting else None
    return found if found is not None and _can_go_on(state, found) else None


class Kept(NamedTuple):
    """What is kept free for the first that waits, beside what is free of its request (State.unlent)."""

    first: Job | None = None
    size: int = 0
    """Bytes."""

    def against(self, borrower: Job) -> int:
        """Bytes that this job may not borrow."""
        is_behind = self.first is not None and borrower.spec.priority <= self.first.spec.priority
        return self.size if is_behind and borrower is not self.first else 0


NOTHING = Kept()


def kept(state: State, gpu: Gpu) -> Kept:
    """What is kept free on this GPU now."""
    waiting = first(state, gpu)
    if waiting is None:
        return NOTHING
    had = wanted(state, gpu, waiting) if waiting.suspension is not None else hooks.had(waiting, gpu.id)
    if had > _most(state, gpu, waiting):
        return NOTHING
    return Kept(waiting, max(0, had - waiting.committed.get(gpu.id, 0) - waiting.kept(gpu.id)))


def _most(state: State, gpu: Gpu, waiting: Job) -> int:
    """Bytes that it can have beside what others use within their requests, or keep."""
    others = [job for job in state.owners(gpu.id) if job is not waiting]
    theirs = sum(
        job.own(gpu.id) if job.lends_nothing else min(job.own(gpu.id), state.usage(job, gpu.id)) for job in others
    )
    return gpu.capacity - gpu.unmanaged - theirs


def _can_go_on(state: State, job: Job) -> bool:
    """It does not stand still. Who brings it back is there, and has not just failed."""
    if stands_still(state, job):
        return False
    if job.suspension is not None:
        return job.suspender.connected and not job.suspension.failures
    runner = job.hook_runner
    return runner.connected and runner.wakes and job.sleep is not None and not job.sleep.failures
