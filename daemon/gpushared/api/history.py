"""GET /v1/history: how much memory jobs used over time; of the past, or followed live.

It shows what /v1/jobs shows: amounts to all users, names and users as `reveal` says.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from aiohttp import web

from gpushare import api
from gpushared.api import event_stream
from gpushared.api.calls import call
from gpushared.api.history_question import QUERY, HistoryQuestion, point
from gpushared.core.visibility import Viewer
from gpushared.history.gpu_time import GpuTime
from gpushared.history.levels import OUTSIDE, TOTAL, WHOLE, Amounts, Found, SeriesKey, Who
from gpushared.history.usage import Change, UsageHistory
from gpushared.limits.backlog import Backlog
from gpushared.runtime.shell import Shell

EVERY, WHILE_FOLLOWED = 1.0, 0.5
"""Seconds between two looks."""
NOBODYS = Who("", "", -1)


class HistoryHandler:
    """The handler, and what is sampled for it."""

    def __init__(
        self,
        shell: Shell,
        usage: UsageHistory,
        viewer_of: Callable[[web.Request], Viewer],
        send: Callable[..., Awaitable[web.StreamResponse]],
    ) -> None:
        self._shell = shell
        self._usage = usage
        self._viewer_of = viewer_of
        self._send = send
        self._gpu_time = GpuTime()
        self._asking: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By user: each has one answer in memory at a time, even if it reads slowly."""

    def look(self) -> float:
        """Sample the memory now. Returns the seconds until the next sample: fewer while a client follows."""
        found = seen(self._shell)
        for key, computing in self._gpu_time.means(gpu_time(self._shell), time.monotonic()).items():
            if key in found and computing:
                found[key] = found[key]._replace(computing=computing)
        self._usage.look(found, self._whose, time.time())
        return WHILE_FOLLOWED if self._usage.followers else EVERY

    def _whose(self, key: SeriesKey) -> Who:
        if key.job in (TOTAL, OUTSIDE):
            return NOBODYS
        spec = self._shell.core.jobs[key.job].spec
        return Who(spec.name, spec.user, spec.uid)

    @call(
        "GET",
        "/v1/history",
        api.History,
        line=api.HistoryLine,
        query={**QUERY, "job": "Only this job, by its id.", "gpu": "Only this GPU, by its uuid."},
    )
    async def get(self, request: web.Request) -> web.StreamResponse:
        """The memory of jobs and GPUs over time. Amounts are shown to all users, names as `reveal` says."""
        viewer = self._viewer_of(request)
        if request.query.get("follow") == "1":
            return await self._follow(request, viewer)
        asked = HistoryQuestion(request, time.time(), job=request.query.get("job"), gpu=request.query.get("gpu"))
        async with self._asking[viewer.uid]:
            found = await self._usage.ask(asked.read)
            series, cut = found or ([], False)
            return await self._send(
                request,
                kept=found is not None,
                step=asked.step,
                cut=cut,
                series=(_series(one, viewer) for one in series),
            )

    async def _follow(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        def show(changes: list[Change], lost: int) -> Iterable[event_stream.Line]:
            return [*event_stream.note_of(lost), *(_line(one, viewer) for one in changes)]

        return await event_stream.stream(
            request,
            Backlog([self._usage.now()]),
            self._usage.followers,
            show,
            room=partial(self._shell.limits.bytes.room, viewer.uid),
            heartbeat=event_stream.HEARTBEAT,
        )


def seen(shell: Shell) -> dict[SeriesKey, Amounts]:
    """The present memory of each job and each GPU, by the words in the pages."""
    found: dict[SeriesKey, Amounts] = {}
    jobs = shell.core.jobs.values()
    for gpu in shell.core.gpus.values():
        by_job = shell.credit.usage_by_job(gpu)
        lent = 0
        for job in jobs:
            bounds = job.bounds.get(gpu.id)
            if bounds is None:
                continue
            usage = by_job.get(job.id, 0) + job.observed.get(gpu.id, 0)
            loan = 0 if job.spec.observe else max(0, usage - bounds.request)
            lent += loan
            found[SeriesKey(gpu.id, job.id)] = Amounts(usage, bounds.request, bounds.limit, loan)
        requested = shell.core.requested(gpu)
        found[SeriesKey(gpu.id, TOTAL)] = Amounts(sum(by_job.values()), requested, gpu.capacity, lent)
        found[SeriesKey(gpu.id, OUTSIDE)] = Amounts(gpu.unmanaged, 0, 0, 0)
    return found


def gpu_time(shell: Shell) -> dict[SeriesKey, float]:
    """Seconds in which each job has had each of its GPUs compute so far, and all jobs together."""
    found: dict[SeriesKey, float] = {}
    together: dict[str, float] = defaultdict(float)
    for record in shell.registry.live():
        for gpu, seconds in record.totals.gpu_time.items():
            found[SeriesKey(gpu, record.id)] = seconds
            together[gpu] += seconds
    return found | {SeriesKey(gpu, TOTAL): seconds for gpu, seconds in together.items()}


def _series(found: Found, viewer: Viewer) -> dict[str, object]:
    return {**_named(found.key, found.who, viewer), "points": [point(one) for one in found.points]}


def _named(key: SeriesKey, who: Who, viewer: Viewer) -> dict[str, object]:
    name, user, uid = who
    return {
        "gpu": key.gpu,
        "job": key.job,
        "name": name if uid < 0 or viewer.sees_name(uid) else "-",
        "user": user if uid < 0 or viewer.sees_user(uid) else "-",
    }


def _line(change: Change, viewer: Viewer) -> event_stream.Line:
    """The changes of one second. A series that has ended has no amounts."""
    series = [
        {"gpu": key.gpu, "job": key.job, "now": None}
        if amounts is None
        else {
            **_named(key, change.who[key], viewer),
            "now": {**amounts._asdict(), "computing": amounts.computing / WHOLE},
        }
        for key, amounts in change.changed.items()
    ]
    return {"time": change.time / 1000, "series": series}
