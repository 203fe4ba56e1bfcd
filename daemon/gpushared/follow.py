"""The stream of records that `gpushare events --follow` reads: one JSON object a line, as they are made.

A reader that does not keep up loses records, never the daemon its memory: a line says how many.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterable

from aiohttp import web

from gpushare import api
from gpushared.instructions import Record

KEPT = 1000
"""Records that wait for one reader."""
HEARTBEAT = 15.0
"""Seconds of silence until an empty line: the end of a reader is noticed only by writing to it."""


class Backlog:
    """What one reader has not read yet."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque()
        self._lost = 0
        self._more = asyncio.Event()

    def put(self, record: Record) -> None:
        if len(self._records) >= KEPT:
            self._records.popleft()
            self._lost += 1
        self._records.append(record)
        self._more.set()

    async def take(self) -> tuple[list[Record], int]:
        """All that is there, as soon as there is some or the heartbeat is due; and how many were lost before."""
        try:
            async with asyncio.timeout(HEARTBEAT):
                await self._more.wait()
        except TimeoutError:
            return [], 0
        self._more.clear()
        records, lost = list(self._records), self._lost
        self._records.clear()
        self._lost = 0
        return records, lost


async def stream(
    request: web.Request,
    followers: set[Callable[[Record], None]],
    first: Iterable[api.Record],
    show: Callable[[list[Record]], Iterable[api.Record]],
) -> web.StreamResponse:
    """Write `first`, then every record as it comes and as `show` has it, until the reader goes."""
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
    backlog = Backlog()
    followers.add(backlog.put)
    try:
        await response.prepare(request)
        await response.write(_lines(first))
        while True:
            records, lost = await backlog.take()
            await response.write(_lines([*_note_of(lost), *show(records)]) or b"\n")
    except ConnectionError:
        pass  # it no longer wants to know
    finally:
        followers.discard(backlog.put)
    return response


def _note_of(lost: int) -> list[api.Record]:
    if not lost:
        return []
    text = f"{lost} records are left out here: the reader was too slow"
    nowhere: dict[str, None] = {"gpu": None, "job": None, "name": None}
    return [{"time": time.time(), "event": "lost", "text": text, "facts": {"lost": lost}, **nowhere}]  # type: ignore[typeddict-item]


def _lines(records: Iterable[api.Record]) -> bytes:
    return b"".join(json.dumps(record, default=str).encode() + b"\n" for record in records)
