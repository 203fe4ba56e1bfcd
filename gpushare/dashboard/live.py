"""What changes on the node, for the pages that are visible now.

One task reads the daemon for all pages: its stream of records, and its state after each record and once a second. A
page is sent the whole state once and then what differs. While no page is visible the task does not run and the daemon
hears nothing.

Messages, each a server-sent event whose data is JSON:

    state    {time, daemon, gpus, jobs, pressure, reservations}   the whole; replaces what the page had
    change   the same lists with only what differs, and gone: the ids of jobs that are over
    record   something has happened (api.Record)
    away     {message, hint}   no daemon answers; `state` follows when one does
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from gpushare.dashboard.daemon import Daemon
from gpushare.errors import DaemonUnreachable, GpushareError

__all__ = ["Live"]

EVERY = 1.0
"""Seconds between two looks at the state: what a program takes within its credit makes no record."""
AT_MOST_EVERY = 0.1
"""Seconds between two looks while records come."""
AGAIN_AFTER = 1.0
"""Seconds until a daemon that is away is looked for again."""
UNREAD = 500
"""Messages that wait for one page. A page that is slower gets the whole state in their place."""
HEARTBEAT = 15.0
"""Seconds of silence until a comment is sent: the end of a connection is noticed only by writing to it."""

State = dict[str, Any]


class Page:
    """What one page has not read yet."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._more = asyncio.Event()
        self.behind = False
        """It has missed something, and needs the whole state."""

    def put(self, message: bytes) -> None:
        if len(self._waiting) >= UNREAD:
            self._waiting.clear()
            self.behind = True
        self._waiting.append(message)
        self._more.set()

    async def take(self, patience: float) -> bytes:
        """All that waits; nothing if nothing comes in time."""
        try:
            async with asyncio.timeout(patience):
                await self._more.wait()
        except TimeoutError:
            return b""
        self._more.clear()
        found = b"".join(self._waiting)
        self._waiting.clear()
        return found


class Live:
    """Reads the daemon while somebody looks."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._pages: set[Page] = set()
        self._task: asyncio.Task[None] | None = None
        self._state: State | None = None
        self._away: GpushareError | None = None
        self._stale = asyncio.Event()

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events for one page, for as long as it reads them."""
        page = Page()
        self._pages.add(page)
        self._greet(page)
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        try:
            yield b": welcome\n\n"
            while True:
                found = await page.take(HEARTBEAT)
                if page.behind:
                    page.behind = False
                    self._greet(page)
                    continue
                yield found or b": nothing new\n\n"
        finally:
            self._pages.discard(page)
            if not self._pages and self._task is not None:
                self._task.cancel()
                self._task = None
                self._state = self._away = None  # it will be old when the next page comes

    def _greet(self, page: Page) -> None:
        if self._state is not None:
            page.put(event("state", self._state))
        elif self._away is not None:
            page.put(_away(self._away))

    def _tell(self, message: bytes) -> None:
        for page in self._pages:
            page.put(message)

    # ---- the task ----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            error: GpushareError = DaemonUnreachable("the daemon has ended", code="hung_up")
            try:
                await self._follow_daemon()
            except GpushareError as met:
                error = met
            if self._state is not None or self._away is None or self._away.message != error.message:
                self._tell(_away(error))
            self._state, self._away = None, error
            await asyncio.sleep(AGAIN_AFTER)

    async def _follow_daemon(self) -> None:
        """Until it is away. One that restarts ends its stream of records, whatever it answers afterwards."""
        self._stale.set()
        tasks = [asyncio.create_task(one) for one in (self._read_records(), self._read_state())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_records(self) -> None:
        async for record in self._daemon.lines("/v1/events?follow=1&last=0"):
            self._tell(event("record", record))
            self._stale.set()

    async def _read_state(self) -> None:
        while True:
            self._stale.clear()
            status = await self._daemon.get("/v1/status")
            pressure = await self._daemon.get("/v1/pressure")
            reservations = await self._daemon.get("/v1/reservations")
            fresh = {"time": time.time(), **status, "pressure": pressure["gpus"], **reservations}
            if self._state is None:
                self._tell(event("state", fresh))
            else:
                changed = difference(self._state, fresh)
                if changed is not None:
                    self._tell(event("change", changed))
            self._state, self._away = fresh, None
            await asyncio.sleep(AT_MOST_EVERY)
            try:
                async with asyncio.timeout(EVERY - AT_MOST_EVERY):
                    await self._stale.wait()
            except TimeoutError:
                pass


def difference(before: State, after: State) -> State | None:
    """What a page that has `before` must be told to have `after`; None: nothing. Up-time and clock do not count."""
    changed: State = {}
    for name, key in (("gpus", "uuid"), ("jobs", "id"), ("pressure", "uuid")):
        known = {one[key]: one for one in before[name]}
        found = [one for one in after[name] if known.get(one[key]) != one]
        if found:
            changed[name] = found
    living = {one["id"] for one in after["jobs"]}
    gone = [one["id"] for one in before["jobs"] if one["id"] not in living]
    if gone:
        changed["gone"] = gone
    if before["reservations"] != after["reservations"]:
        changed["reservations"] = after["reservations"]
    return {"time": after["time"], **changed} if changed else None


def event(kind: str, data: Mapping[str, object]) -> bytes:
    """JSON has no line breaks of its own, so one line of data is enough."""
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _away(error: GpushareError) -> bytes:
    return event("away", {"message": error.message, "hint": error.hint})
