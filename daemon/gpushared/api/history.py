"""GET /v1/history: how much memory jobs used over time; of the past, or followed live.

It shows what /v1/jobs shows: amounts to all users, names and users as `reveal` says.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from gpushare.errors import UsageError
from gpushared.api import event_stream
from gpushared.core.visibility import Viewer
from gpushared.history.levels import LEVELS, OUTSIDE, TOTAL, Amounts, Found, Point, SeriesKey, Who, level_for
from gpushared.history.usage import Change, UsageHistory
from gpushared.limits.backlog import Backlog
from gpushared.runtime.shell import Shell
from gpushared.system.processes import printable

if TYPE_CHECKING:
    from gpushared.history.file import File  # SQLite is for the history's thread

EVERY, WHILE_FOLLOWED = 1.0, 0.5
"""Seconds between two looks."""
RANGE = 600.0
"""Seconds, unless the query says otherwise."""
LONGEST = 400 * 24 * 3600.0
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
        self._asking: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By user: each has one answer in memory at a time, even if it reads slowly."""

    def look(self) -> float:
        """Sample the memory now. Returns the seconds until the next sample: fewer while a client follows."""
        self._usage.look(seen(self._shell), self._whose, time.time())
        return WHILE_FOLLOWED if self._usage.followers else EVERY

    def _whose(self, key: SeriesKey) -> Who:
        if key.job in (TOTAL, OUTSIDE):
            return NOBODYS
        spec = self._shell.core.jobs[key.job].spec
        return Who(spec.name, spec.user, spec.uid)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """?since&until&step, in seconds, and perhaps ?job and ?gpu; with ?follow=1 the present and each change."""
        viewer = self._viewer_of(request)
        if request.query.get("follow") == "1":
            return await self._follow(request, viewer)
        asked = Asked(request, time.time())
        async with self._asking[viewer.uid]:
            found = await self._usage.ask(asked.read)
            series, cut = found or ([], False)
            return await self._send(
                request,
                kept=found is not None,
                step=LEVELS[asked.level].step,
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


class Asked:
    """A question, from the query of its request."""

    def __init__(self, request: web.Request, now: float) -> None:
        self._until = _number(request, "until", now)
        self._since = _number(request, "since", max(0.0, self._until - RANGE))
        if not 0.0 <= self._until - self._since <= LONGEST:
            raise UsageError("since is after until, or too long before it", code="bad_request")
        self.level = level_for(_number(request, "step", 1.0), max(0.0, now - self._since))
        self._job, self._gpu = request.query.get("job"), request.query.get("gpu")

    def read(self, file: File) -> tuple[list[Found], bool]:
        """On the history's thread."""
        return file.read(self.level, int(self._since * 1000), int(self._until * 1000), self._job, self._gpu)


def _number(request: web.Request, name: str, default: float) -> float:
    text = request.query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1e12:  # nan is not, either
        raise UsageError(f"{name}={printable(text, 20)} is not a number", code="bad_request")
    return value


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
        found[SeriesKey(gpu.id, OUTSIDE)] = Amounts(gpu.unmanaged + gpu.returning_total, 0, 0, 0)
    return found


def _series(found: Found, viewer: Viewer) -> dict[str, object]:
    return {**_named(found.key, found.who, viewer), "points": [_point(one) for one in found.points]}


def _named(key: SeriesKey, who: Who, viewer: Viewer) -> dict[str, object]:
    name, user, uid = who
    return {
        "gpu": key.gpu,
        "job": key.job,
        "name": name if uid < 0 or viewer.sees_name(uid) else "-",
        "user": user if uid < 0 or viewer.sees_user(uid) else "-",
    }


def _point(one: Point) -> list[float | None]:
    """[time, usage, most, request, limit, loan]; only the time if there is no value from then on."""
    if one.amounts is None:
        return [one.time / 1000]
    usage, request, limit, loan = one.amounts
    return [one.time / 1000, usage, one.most, request, limit, loan]


def _line(change: Change, viewer: Viewer) -> event_stream.Line:
    """The changes of one second. A series that has ended has no amounts."""
    series = [
        {"gpu": key.gpu, "job": key.job, "now": None}
        if amounts is None
        else {**_named(key, change.who[key], viewer), "now": amounts._asdict()}
        for key, amounts in change.changed.items()
    ]
    return {"time": change.time / 1000, "series": series}
