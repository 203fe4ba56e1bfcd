"""What the pages say to programs: how much a process could allocate at this moment, and its job's bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpushared.core import waiters
from gpushared.core.instructions import Published
from gpushared.core.model import Gpu, Job, Share
from gpushared.core.state import State


def published(state: State, gpu: Gpu, processes: Iterable[int]) -> Mapping[int, Published]:
    """The figures for the page of each of these processes, in bytes."""
    earmarked = sum(ask.need for ask in gpu.asks.values() if ask.claim)
    lendable = state.lendable(gpu)
    kept = waiters.kept(state, gpu)
    lent: dict[str, int] = {}
    found: dict[int, Published] = {}
    for process in processes:
        share = gpu.shares.get(process)
        if share is None:
            continue
        job = state.jobs[share.job]
        if job.id not in lent:
            lent[job.id] = gpu.free - earmarked - state.unlent(gpu.id, job) - kept.against(job) + lendable
        found[process] = figures(state, gpu, job, share, lent[job.id])
        if share.parked is not None:
            found[process].overhead = share.parked.overhead  # a later daemon reads it in the page
    return found


def figures(state: State, gpu: Gpu, job: Job, share: Share, lent: int) -> Published:
    """`lent`: bytes that are free for its job, or idle in any share of the GPU."""
    id, idle, health = gpu.id, share.idle, gpu.health
    bounds, usage = job.bounds[id], job.usage[id]
    committed = usage + idle  # idle credit of the job's other processes would be taken for it
    lent = lent - (state.revocable(share) if state.non_lending else idle) if health.admits else 0
    in_limit = bounds.limit - committed - (gpu.returning_of(job.id) if gpu.returning else 0)
    grantable = 0 if health.lost else max(0, min(in_limit, max(bounds.request - committed, lent)))
    return Published(grantable, bounds.limit, bounds.request, share.overhead, usage)
