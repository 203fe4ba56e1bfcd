"""What the harness knows of who holds what, and from when to when: nothing in here was told by the daemon's core.

A program that is told to allocate does so at some moment between the order and its answer, and one that is killed is
gone at some moment until the kernel says so. So every amount is a span with four times, and a question about a moment
has two answers: what was surely held then, and what may have been. Times are of the monotonic clock, amounts bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf


@dataclass(slots=True, eq=False)
class Span:
    """Memory of one process on one GPU. `job` is None for programs outside gpushare."""

    job: str | None
    process: int
    gpu: int
    size: int
    up_from: float
    up_by: float
    down_from: float = inf
    down_by: float = inf
    cache: bool = False
    """Kept by a pool and not used: a trim gives it back."""

    def surely(self, time: float) -> bool:
        return self.up_by <= time < self.down_from

    def maybe(self, time: float) -> bool:
        return self.up_from <= time < self.down_by


@dataclass(slots=True, eq=False)
class Ask:
    """One order to allocate (or to open a context), from the order to its answer."""

    job: str
    process: int
    gpu: int
    size: int
    began: float
    context: bool = False
    ended: float = inf
    ok: bool | None = None
    """None: not answered (yet, or because the process ended)."""

    def pending(self, time: float) -> bool:
        return self.began <= time <= self.ended


@dataclass(slots=True, eq=False)
class Job:
    """What was promised to a job, by GPU: (request, limit)."""

    name: str
    bounds: dict[int, tuple[int, int]]
    priority: int = 0
    grace: float = 0.0
    rungs: tuple[str, ...] = ("trim", "term", "kill")
    lend: bool = True
    protected: float = 0.0
    """Its minimum run time."""
    since: float = 0.0
    saved: float = 0.0
    changed: float = -inf
    """When its budget or priority was last changed."""
    away: list[tuple[float, float]] = field(default_factory=list)
    """From when to when it was suspended."""
    resumed: float = -inf
    """When it last went on."""
    at_first: tuple[dict[int, tuple[int, int]], int] = field(init=False)
    """Its bounds and its priority before anybody changed them."""

    def __post_init__(self) -> None:
        self.at_first = self.bounds, self.priority

    @property
    def is_soft(self) -> bool:
        """It may be suspended, or has a hook: whether it can be stopped at a moment is not known for sure."""
        return "suspend" in self.rungs or "hook" in self.rungs

    @property
    def may_borrow(self) -> bool:
        return any(limit > request for request, limit in self.bounds.values())

    def borrows_on(self, gpu: int) -> bool:
        request, limit = self.bounds.get(gpu, (0, 0))
        return limit > request


@dataclass(slots=True)
class Truth:
    """All of it."""

    capacity: dict[int, int]
    longest_grace: float = inf
    """So long after a claim began every grace for it is over: then the driver has 2 s to return the memory in time."""
    spans: list[Span] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)

    def add(self, span: Span) -> Span:
        self.spans.append(span)
        return span

    def forget_before(self, time: float) -> None:
        self.spans = [span for span in self.spans if span.down_by >= time]
        self.asks = [ask for ask in self.asks if ask.ended >= time]

    # ---- sums: (surely, perhaps) -------------------------------------------------------------------

    def _sum(self, spans: Iterable[Span], time: float) -> tuple[int, int]:
        least = most = 0
        for span in spans:
            least += span.size if span.surely(time) else 0
            most += span.size if span.maybe(time) else 0
        return least, most

    def usage(self, job: str, gpu: int, time: float) -> tuple[int, int]:
        return self._sum((span for span in self.spans if span.job == job and span.gpu == gpu), time)

    def most_during(self, job: str, gpu: int, since: float, until: float) -> int:
        """What the job may have held at the same time at some moment of this stretch: never too little."""
        mine = (span for span in self.spans if span.job == job and span.gpu == gpu)
        return sum(span.size for span in mine if span.up_from <= until and span.down_by > since)

    def least_during(self, job: str, gpu: int, since: float, until: float) -> int:
        """What the job surely held at every moment of this stretch."""
        mine = (span for span in self.spans if span.job == job and span.gpu == gpu)
        return sum(span.size for span in mine if span.up_by <= since and span.down_from >= until)

    def unmanaged(self, gpu: int, time: float) -> tuple[int, int]:
        return self._sum((span for span in self.spans if span.job is None and span.gpu == gpu), time)

    def unmanaged_during(self, gpu: int, since: float, until: float) -> bool:
        outside = (span for span in self.spans if span.job is None and span.gpu == gpu)
        return any(span.up_from <= until and span.down_by > since for span in outside)

    def cache(self, job: str, gpu: int, time: float) -> tuple[int, int]:
        kept = (span for span in self.spans if span.cache and span.job == job and span.gpu == gpu)
        return self._sum(kept, time)

    def loan(self, job: str, gpu: int, time: float) -> tuple[int, int]:
        request = self.jobs[job].bounds.get(gpu, (0, 0))[0]
        least, most = self.usage(job, gpu, time)
        return max(0, least - request), max(0, most - request)

    # ---- claims ------------------------------------------------------------------------------------

    def claims(self, gpu: int, time: float) -> list[Ask]:
        """Asks that may have been waiting then, within their jobs' requests."""
        return [ask for ask in self.asks if ask.gpu == gpu and ask.pending(time) and self._within(ask, time)]

    def _within(self, ask: Ask, time: float) -> bool:
        job = self.jobs.get(ask.job)
        if job is None or ask.gpu not in job.bounds:
            return False
        return self.usage(ask.job, ask.gpu, time)[0] + ask.size <= job.bounds[ask.gpu][0]

    def shortfall(self, gpu: int, time: float) -> tuple[int, int]:
        """What the claims of that moment lacked if all memory of the dead and all unused credit were theirs.

        The most: all claims, everybody else as large as they can have been. The least: the smallest claim alone,
        everybody as small as they can have been.
        """
        claims = self.claims(gpu, time)
        if not claims:
            return 0, 0
        granted = {(ask.process, ask.began) for ask in claims}
        others = [
            span
            for span in self.spans
            # What a claim was waiting for then is in its ask already.
            if span.gpu == gpu and (span.process, span.up_from) not in granted
        ]
        least, most = self._sum(others, time)
        wanted: dict[str, int] = {}
        for ask in claims:
            wanted[ask.job] = wanted.get(ask.job, 0) + ask.size
        kept = self.headroom_kept(gpu, time, wanted)
        free = self.capacity[gpu]
        smallest = min(ask.size for ask in claims)
        return smallest + least - free, sum(wanted.values()) + most + kept - free

    def describe(self, gpu: int, time: float) -> str:
        """Who held what, in MiB."""

        def mib(amounts: tuple[int, int]) -> str:
            least, most = amounts[0] >> 20, amounts[1] >> 20
            return f"{least}" if least == most else f"{least}..{most}"

        parts = [
            f"{name} {mib(self.usage(name, gpu, time))} of {job.bounds[gpu][0] >> 20}..{job.bounds[gpu][1] >> 20}"
            for name, job in self.jobs.items()
            if gpu in job.bounds
        ]
        gone = {span.job for span in self.spans if span.job is not None} - set(self.jobs)
        parts += [f"{name} {mib(held)} (over)" for name in sorted(gone) if (held := self.usage(name, gpu, time))[1]]
        parts.append(f"outside {mib(self.unmanaged(gpu, time))}")
        parts += [f"claim of {ask.job} {ask.size >> 20}" for ask in self.claims(gpu, time)]
        return f"{self.capacity[gpu] >> 20}: " + ", ".join(parts)

    def headroom_kept(self, gpu: int, time: float, wanted: dict[str, int]) -> int:
        """What jobs that lend nothing keep back, at the most; their own claims are met from it. Who may be suspended or
        asleep may be one of them."""
        kept = 0
        for job in self.jobs.values():
            if not (job.lend and not job.is_soft) and gpu in job.bounds:
                headroom = job.bounds[gpu][0] - self.usage(job.name, gpu, time)[0]
                kept += max(0, headroom - wanted.get(job.name, 0))
        return kept
