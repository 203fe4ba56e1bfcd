"""What could be reached at best, by who knows every arrival and duration in advance.

ceiling   no schedule at all does more useful work: GPUs are counted without nodes, work is fluid, nothing is lost.
          Until any moment t no job can have done more than its size times the time since its arrival, and after t
          all GPUs together no more than all the time
kept      the same for all schedules without checkpoints that keep the guarantee: each job starts no later than GRACE
          after it would on GPUs of its queue's own, as many as its quota. So some jobs surely run at some times, and a
          job larger than its quota cannot begin before so many GPUs are left for as long as it runs
foreseen  not a bound, but a schedule that nothing but knowledge of all arrivals allows: it stops nobody and keeps the
          guarantee without GRACE. A job borrows only where it ends before the GPUs are needed. GPUs are counted
          without nodes
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

from over_time_traces import MINUTE, Job, Trace
from over_time_world import EDGE, high, mean

PASSES = 2
GRACE = 15 * MINUTE

Figures = dict[str, Any]


class Profile:
    """Free GPUs over time."""

    def __init__(self, capacity: int) -> None:
        self.times = [0.0]
        self.free = [capacity]

    def add(self, begin: float, end: float, size: int) -> None:
        for index in range(self._cut(begin), self._cut(end)):
            self.free[index] += size

    def _cut(self, time: float) -> int:
        index = bisect_right(self.times, time) - 1
        if self.times[index] != time:
            index += 1
            self.times.insert(index, time)
            self.free.insert(index, self.free[index - 1])
        return index

    def earliest(self, after: float, size: int, length: float) -> float:
        """When so many GPUs are free for so long. There is such a time: in the end all are free."""
        index = bisect_right(self.times, after) - 1
        begin = after
        while True:
            while self.free[index] < size:
                index += 1
                begin = self.times[index]
            ahead = index + 1
            while ahead < len(self.times) and self.times[ahead] < begin + length - EDGE and self.free[ahead] >= size:
                ahead += 1
            if ahead == len(self.times) or self.times[ahead] >= begin + length - EDGE:
                return begin
            index = ahead


def ceiling(trace: Trace, earliest: Mapping[str, float] | None = None) -> float:
    """The part of the GPU time until the last arrival that no schedule exceeds in which no job starts before its
    arrival, or before `earliest`."""
    total = trace.capacity * trace.until
    begins = [(job, job.arrival if earliest is None else earliest[job.name]) for job in trace.jobs]
    best = float(total)
    for cut in [trace.until, *(begin for _, begin in begins if begin < trace.until)]:
        before = sum(job.size * min(job.work, cut - begin) for job, begin in begins if begin < cut)
        best = min(best, before + trace.capacity * (trace.until - cut))
    return best / total


def kept(trace: Trace) -> float:
    """The same of the schedules that keep the guarantee; without checkpoints, so the last run of a job is whole."""
    own, sure = own_starts(trace), Profile(trace.capacity)
    for job in trace.jobs:
        if job.name in own and own[job.name] + GRACE < job.arrival + job.work:
            sure.add(own[job.name] + GRACE, job.arrival + job.work, -job.size)
    earliest = {
        job.name: job.arrival if job.name in own else sure.earliest(job.arrival, job.size, job.work)
        for job in trace.jobs
    }
    return ceiling(trace, earliest)


def own_starts(trace: Trace) -> dict[str, float]:
    """When each job would start on its queue's own GPUs, in the order of arrival; none for those above the quota."""
    starts = {}
    for queue, quota in trace.quotas.items():
        profile = Profile(quota)
        for job in trace.jobs:
            if job.queue == queue and job.size <= quota:
                starts[job.name] = begin = profile.earliest(job.arrival, job.size, job.work)
                profile.add(begin, begin + job.work, -job.size)
    return starts


ORDERS: tuple[Callable[[Job], float], ...] = (
    lambda job: job.arrival,
    lambda job: -job.work,
    lambda job: -job.size,
    lambda job: -job.size * job.work,
)
"""In which jobs are moved to an earlier start; that of the most useful work counts."""


def foreseen(trace: Trace) -> Figures:
    """Figures like those of over_time_world.figures(), of the schedule of who knows everything."""
    assert sum(trace.quotas.values()) <= trace.capacity, "all quotas can be met at once"
    return max((_figures(trace, _improved(trace, order)) for order in ORDERS), key=lambda found: found["useful"])


def _improved(trace: Trace, order: Callable[[Job], float]) -> dict[str, float]:
    """Starts, each as early as all others allow."""
    starts = own_starts(trace)
    profile = Profile(trace.capacity)
    for job in trace.jobs:
        if job.name in starts:
            profile.add(starts[job.name], starts[job.name] + job.work, -job.size)
    for _ in range(PASSES):
        for job in sorted(trace.jobs, key=lambda one: (order(one), one.arrival)):
            begin = starts.get(job.name)
            if begin is not None:
                profile.add(begin, begin + job.work, job.size)
            earliest = profile.earliest(job.arrival, job.size, job.work)
            assert begin is None or earliest <= begin + EDGE, f"{job.name} would start later than on its own GPUs"
            starts[job.name] = earliest
            profile.add(earliest, earliest + job.work, -job.size)
    assert min(profile.free) >= 0, "more GPUs are used than there are"
    return starts


def _figures(trace: Trace, starts: dict[str, float]) -> Figures:
    def waited(jobs: list[Job]) -> dict[str, float]:
        found = [starts[job.name] - job.arrival for job in jobs]
        return {"jobs": len(found), "mean": mean(found), "p95": high(found)}

    useful = sum(
        job.size * max(0.0, min(starts[job.name] + job.work, trace.until) - starts[job.name]) for job in trace.jobs
    )
    sizes = sorted({job.size for job in trace.jobs})
    return {
        "useful": useful / (trace.capacity * trace.until),
        "delay": waited(list(trace.jobs)),
        "delay_by_size": {str(size): waited([job for job in trace.jobs if job.size == size]) for size in sizes},
    }
