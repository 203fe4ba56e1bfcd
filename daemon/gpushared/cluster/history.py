"""GPUs of each queue over time: sampled from the allocator, kept as the node keeps its jobs' memory, asked by GET
/v1/history.

A queue is a series of the history (history/levels.py). Its amounts are micro-GPUs, in the columns that a job has:

    usage    held          request  the fair share
    limit    the quota     loan     the demand: what its jobs ask for, running and waiting

The series TOTAL has all queues together, with all GPUs that work as its limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from functools import partial

from aiohttp import web

from gpushare.cluster import amounts
from gpushare.cluster.allocator import Allocator
from gpushare.errors import GpushareError
from gpushared.api import event_stream
from gpushared.api.history_question import HistoryQuestion, point
from gpushared.cluster.writer import Writer
from gpushared.history.levels import TOTAL, Amounts, SeriesKey, Who
from gpushared.history.usage import Change, UsageHistory
from gpushared.limits.backlog import Backlog
from gpushared.limits.limits import Limits

__all__ = ["QueueHistory", "sample"]

EVERY = 1.0
"""Seconds between two looks. The file learns by each that the service lives."""

AMOUNTS = 6
"""Numbers of a point: all but how much of the time something computes."""

Sample = Mapping[SeriesKey, Amounts]


class QueueHistory:
    """Samples for as long as it runs, and answers."""

    def __init__(self, writer: Writer, usage: UsageHistory, limits: Limits) -> None:
        self._writer = writer
        self._usage = usage
        self._limits = limits
        self._sampled: tuple[int, Sample] = (-1, {})
        """The last sample, and the number of the event after which it was taken."""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Take a sample if something has happened since the last one, which holds otherwise."""
        seq = self._writer.service.store.seq
        if seq != self._sampled[0]:
            try:
                seen = await asyncio.wrap_future(self._writer.call(sample, self._writer.service.store.allocator))
            except GpushareError:
                return  # too many calls wait: the next look is soon
            self._sampled = seq, seen
        self._usage.look(self._sampled[1], _whose, time.time())

    async def get(self, request: web.Request, uid: int) -> web.StreamResponse:
        """?since&until&step, in seconds, and perhaps ?queue; with ?follow=1 the present and each change."""
        if request.query.get("follow") == "1":
            return await event_stream.stream(
                request,
                Backlog([self._usage.now()]),
                self._usage.followers,
                _lines,
                room=partial(self._limits.bytes.room, uid),
                heartbeat=event_stream.HEARTBEAT,
            )
        asked = HistoryQuestion(request, time.time(), job=request.query.get("queue"))
        found = await self._usage.ask(asked.read)
        series, cut = found or ([], False)
        shown = [{"queue": one.key.job, "points": [point(each)[:AMOUNTS] for each in one.points]} for one in series]
        return web.json_response({"kept": found is not None, "step": asked.step, "cut": cut, "series": shown})


def sample(allocator: Allocator) -> Sample:
    """In the writer's thread."""
    queues = dict(amounts.of_queues(allocator))
    found = {SeriesKey("", name): Amounts(one.held, one.share, one.quota, one.demand) for name, one in queues.items()}
    tops = [queues[name] for name, view in allocator.queues.items() if view.queue.parent is None]
    held, demand = sum(one.held for one in tops), sum(one.demand for one in tops)
    found[SeriesKey("", TOTAL)] = Amounts(held, 0, amounts.capacity(allocator), demand)
    return found


def _whose(key: SeriesKey) -> Who:
    return Who(key.job, "", -1)


def _lines(changes: Iterable[Change], lost: int) -> list[event_stream.Line]:
    """The changes of one look. A queue that was removed has no amounts."""
    return [*event_stream.note_of(lost), *map(_line, changes)]


def _line(change: Change) -> event_stream.Line:
    queues = [{"queue": key.job, "now": None if now is None else _named(now)} for key, now in change.changed.items()]
    return {"time": change.time / 1000, "queues": queues}


def _named(one: Amounts) -> dict[str, int]:
    return {"held": one.usage, "share": one.request, "quota": one.limit, "demand": one.loan}
