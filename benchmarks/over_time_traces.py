"""Jobs as they come over days and weeks: three generators, each with a seed and a load.

    bursty      four teams that submit in bursts, 1 to 32 GPUs, minutes to hours
    university  a month of eight labs: days, nights and weekends, deadlines, theses that run for days
    philly      sizes, durations and their relation as published for Microsoft's Philly clusters, ten queues

The load is the work of all jobs by the work that the GPUs can do until the last job has come.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
NODE = 8
"""GPUs of a node."""


@dataclass(frozen=True)
class Job:
    name: str
    queue: str
    arrival: float
    """Seconds."""
    tasks: int
    gpus: int
    """Of each task, on one node."""
    work: float
    """Seconds that it has to run."""
    checkpoint: float | None = None
    """Seconds of work after which what has been done is safe; None: a job that is stopped begins again."""

    @property
    def size(self) -> int:
        return self.tasks * self.gpus


@dataclass(frozen=True)
class Trace:
    name: str
    seed: int
    load: float
    nodes: int
    quotas: dict[str, int]
    """GPUs of each queue."""
    jobs: tuple[Job, ...]
    """By arrival."""
    until: float
    """Seconds: when the last job has come."""

    @property
    def capacity(self) -> int:
        return self.nodes * NODE


def job(name: str, queue: str, arrival: float, size: int, work: float) -> Job:
    tasks, gpus = (1, size) if size <= NODE else (size // NODE, NODE)
    return Job(name, queue, arrival, tasks, gpus, work)


def lognormal(random: Random, median: float, sigma: float, least: float, most: float) -> float:
    return min(most, max(least, math.exp(random.gauss(math.log(median), sigma))))


def bursty(seed: int, load: float, jobs: int = 600) -> Trace:
    """64 GPUs; a team is quiet for hours, then submits 5 to 25 jobs within minutes."""
    random = Random(f"bursty {seed}")
    quotas = {"vision": 24, "speech": 16, "robots": 16, "theory": 8}
    sizes, weights = (1, 2, 4, 8, 16, 32), (30, 20, 20, 18, 8, 4)
    clocks = {queue: random.expovariate(1 / (4 * HOUR)) for queue in quotas}
    found: list[Job] = []
    while len(found) < jobs:
        queue = min(clocks, key=clocks.__getitem__)
        at = clocks[queue]
        for _ in range(random.randint(5, 25)):
            size = random.choices(sizes, weights)[0]
            work = lognormal(random, 40 * MINUTE, 1.1, 2 * MINUTE, 12 * HOUR)
            found.append(job(f"{queue}-{len(found)}", queue, at, size, work))
            at += random.expovariate(1 / MINUTE)
        clocks[queue] = at + random.expovariate(quotas[queue] / (64 * HOUR))
    return scaled(("bursty", seed, load), 8, quotas, found[:jobs])


def university(seed: int, load: float, days: int = 28) -> Trace:
    """48 GPUs of eight labs. Small jobs by day, sweeps in the evening, long trainings before a lab's own deadline."""
    random = Random(f"university {seed}")
    quotas = {f"lab-{n}": (10, 8, 8, 6, 6, 4, 4, 2)[n] for n in range(8)}
    deadlines = {queue: random.uniform(5, days) * DAY for queue in quotas}
    found: list[Job] = []
    for day in range(days):
        busy = 0.35 if day % 7 >= 5 else 1.0
        for queue, quota in quotas.items():
            left = (deadlines[queue] - day * DAY) / DAY
            rush = 3.0 if 0 <= left < 5 else 0.3 if -5 < left < 0 else 1.0
            for _ in range(_poisson(random, 3.5 * quota / 6 * busy * rush)):  # notebooks and tests
                at = day * DAY + random.triangular(8, 20, 14) * HOUR
                work = lognormal(random, 40 * MINUTE, 1.0, 2 * MINUTE, 8 * HOUR)
                found.append(job("", queue, at, random.choices((1, 2), (8, 2))[0], work))
            for _ in range(_poisson(random, 0.25 * quota / 6 * busy * rush)):  # sweeps
                at = day * DAY + random.uniform(16, 24) * HOUR
                work = lognormal(random, 3 * HOUR, 0.5, 20 * MINUTE, 12 * HOUR)
                for _ in range(random.randint(4, 16)):
                    found.append(job("", queue, at, 1, work * random.uniform(0.7, 1.4)))
                    at += random.expovariate(1 / 20.0)
            for _ in range(_poisson(random, 1.5 * quota / 6 * rush)):  # trainings
                at = day * DAY + random.uniform(9, 23) * HOUR
                size = random.choices((1, 2, 4, 8, 16, 32), (20, 20, 25, 24, 8, 3))[0]
                found.append(job("", queue, at, size, lognormal(random, 9 * HOUR, 0.9, HOUR, 3 * DAY)))
    found.sort(key=lambda one: one.arrival)
    named = [replace(one, name=f"{one.queue}-{n}") for n, one in enumerate(found)]
    return scaled(("university", seed, load), 6, quotas, named)


def _poisson(random: Random, mean: float) -> int:
    count, left = 0, math.exp(-mean)
    product = random.random()
    while product > left:
        count, product = count + 1, product * random.random()
    return count


# Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019, and its
# trace (github.com/msr-fiddle/philly-traces): 112,956 GPU jobs, mean run time 18,006 s, median 874 s, 1.93 GPUs a job.
# The points are read from the vector figures that compare traces in Hu et al., "Characterization of Large Language
# Model Development in the Datacenter", NSDI 2024 (github.com/InternLM/AcmeTrace, cdf_job_duration_util.pdf and
# cdf_job_gpunum.pdf; CC BY 4.0).
PHILLY_DURATIONS = {
    **{1: 0.0003, 2: 0.0008, 4: 0.0017, 8: 0.0082, 16: 0.0362, 32: 0.0842, 64: 0.1888, 128: 0.2699, 256: 0.315},
    **{512: 0.3628, 1024: 0.5491, 2048: 0.6747, 4096: 0.7928, 8192: 0.846, 16384: 0.9029, 32768: 0.9271},
    **{65536: 0.9486, 131072: 0.9695, 262144: 0.9839},
}
"""Seconds, and the part of jobs that run no longer. The 1.6 % beyond count as the last, three days."""
PHILLY_SIZES = {1: 0.8242, 2: 0.0206, 4: 0.0757, 8: 0.0686, 16: 0.0090, 32: 0.0019}
"""GPUs, and the part of jobs."""
PHILLY_TIME = {1: 0.1643, 2: 0.0297, 4: 0.1877, 8: 0.4986, 16: 0.0917, 32: 0.0280}
"""GPUs, and the part of all GPU time."""


def philly(seed: int, load: float, days: float = 10) -> Trace:
    """64 GPUs of ten queues; larger jobs run longer, so that each size has its published part of the GPU time."""
    random = Random(f"philly {seed}")
    quotas = dict(zip((f"vc-{n}" for n in range(10)), (16, 12, 8, 8, 6, 4, 4, 2, 2, 2), strict=True))
    longer = {size: PHILLY_TIME[size] / (PHILLY_SIZES[size] * size) for size in PHILLY_SIZES}
    base = sum(part * longer[size] for size, part in PHILLY_SIZES.items())
    active = {queue: random.uniform(0.3, 1.7) * quota for queue, quota in quotas.items()}
    found: list[Job] = []
    clock = 0.0
    while clock < days * DAY:
        clock += random.expovariate(1 / (12 * MINUTE)) / (1.5 if 8 <= clock % DAY / HOUR < 20 else 0.6)
        queue = random.choices(list(active), list(active.values()))[0]
        for _ in range(1 if random.random() < 0.85 else random.randint(2, 8)):
            size = random.choices(list(PHILLY_SIZES), list(PHILLY_SIZES.values()))[0]
            work = _philly_duration(random.random()) * longer[size] / base
            found.append(job(f"{queue}-{len(found)}", queue, clock, size, min(3 * DAY, max(10.0, work))))
    return scaled(("philly", seed, load), 8, quotas, found)


def _philly_duration(part: float) -> float:
    seconds, parts = tuple(PHILLY_DURATIONS), tuple(PHILLY_DURATIONS.values())
    index = bisect_left(parts, part)
    if index == len(parts):
        return float(seconds[-1])
    low = parts[index - 1] if index else 0.0
    left = math.log(seconds[index] / 2)
    return math.exp(left + math.log(2) * (part - low) / (parts[index] - low))


def scaled(of: tuple[str, int, float], nodes: int, quotas: dict[str, int], jobs: list[Job]) -> Trace:
    """The same jobs, closer together or further apart, so that the load is what is asked for."""
    name, seed, load = of
    jobs.sort(key=lambda one: one.arrival)
    work = sum(one.size * one.work for one in jobs)
    first, last = jobs[0].arrival, jobs[-1].arrival
    until = work / (load * nodes * NODE)
    stretch = until / (last - first)
    moved = tuple(replace(one, arrival=(one.arrival - first) * stretch) for one in jobs)
    return Trace(name, seed, load, nodes, quotas, moved, until)


def with_checkpoints(trace: Trace, every: float | None) -> Trace:
    return replace(trace, jobs=tuple(replace(one, checkpoint=every) for one in trace.jobs))


GENERATORS: dict[str, Callable[[int, float], Trace]] = {"bursty": bursty, "university": university, "philly": philly}
