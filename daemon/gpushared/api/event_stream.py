"""Streams over HTTP for clients that follow events: records of the node, notices of a job. One JSON object a line.

backlog.py bounds the items that wait for a slow reader; http_listener.py closes a connection if its client reads
nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from aiohttp import web

from gpushared.limits.backlog import Backlog, Item

HEARTBEAT = 15.0
"""Seconds without an event until an empty line is sent: only writing shows that a reader has gone."""

Line = Mapping[str, object]


async def stream(
    request: web.Request,
    backlog: Backlog[Item],
    readers: set[Backlog[Item]],
    show: Callable[[list[Item], int], Iterable[Line]],
    *,
    room: Callable[[], Awaitable[None]],
    heartbeat: float | None = None,
) -> web.StreamResponse:
    """Write all that is put into the backlog, until it ends or the reader goes. Meanwhile it is among `readers`.

    `show` makes the lines of a few items and of how many were lost before them. `room` waits until the reader's user
    has read enough for more to be written.
    """
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
    readers.add(backlog)
    try:
        await response.prepare(request)
        ended = False
        while not ended:
            await room()
            items, missed, ended = await backlog.take(heartbeat)
            await response.write(_lines(show(items, missed)) or b"\n")
        await response.write_eof()
    except ConnectionError:
        pass  # it no longer wants to know
    finally:
        readers.discard(backlog)
        backlog.close()
    return response


def note_of(lost: int, **more: object) -> list[Line]:
    """The line in the place of lost ones."""
    if not lost:
        return []
    what = "1 line is" if lost == 1 else f"{lost} lines are"
    text = f"{what} left out here: the reader was too slow"
    return [{"time": time.time(), "text": text, "facts": {"lost": lost}, **more}]


def _lines(lines: Iterable[Line]) -> bytes:
    return b"".join(json.dumps(line, default=str).encode() + b"\n" for line in lines)
