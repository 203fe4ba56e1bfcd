"""What changes on the node or in the cluster, for the pages that are visible now.

One task reads the daemon for all pages: its two streams, of records and of changed amounts, and its state after each
line of them (feed.py says where they are). Of the state it reads the jobs that the lines are about. Now and then it
reads the whole, for what no line tells: how long somebody waits, or how much he could have. A page is sent the whole
state once and then what differs. While no page is visible the task does not run and the daemon hears nothing.

Messages, each a server-sent event whose data is JSON:

    state    the whole; replaces what the page had
    change   the same lists with only what differs, and gone: the ids of jobs that are over
    record   something has happened
    away     {message, hint}   no daemon answers; `state` follows when one does
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping

from gpushare.dashboard.daemon import Daemon
from gpushare.dashboard.feed import NODE, Feed, State, difference, jobs_of, joined, lost
from gpushare.errors import DaemonUnreachable, GpushareError

__all__ = ["Live"]

EVERY = 10.0
"""Seconds between two looks at the state while nothing happens: a program that is paused makes no line."""
WHOLE_EVERY = 5.0
"""Seconds between two looks at the whole state while lines come."""
MOST_JOBS = 100
"""Of more jobs the whole state costs less, and an address has not the room."""
COSTS_AT_MOST = 0.01
"""The part of the time that a daemon may spend on its state for pages, as long as LATEST allows."""
LATEST = 0.7
"""Seconds between two looks at the state, at most, while lines come: a page shows what happens within a second."""
AGAIN_AFTER = 1.0
"""Seconds until a daemon that is away is looked for again."""
UNREAD = 500
"""Messages that wait for one page. A page that is slower gets the whole state in their place."""
HEARTBEAT = 15.0
"""Seconds of silence until a comment is sent: the end of a connection is noticed only by writing to it."""


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
        """All events that wait; none if none comes in time."""
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

    def __init__(self, daemon: Daemon, feed: Feed = NODE) -> None:
        self._daemon = daemon
        self._feed = feed
        self._pages: set[Page] = set()
        self._task: asyncio.Task[None] | None = None
        self._state: State | None = None
        self._away: GpushareError | None = None
        self._stale = asyncio.Event()
        self._changed: set[str] | None = None
        """The jobs that lines were about since the last look. None: the whole state has to be read."""

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events for one page, for as long as it reads them."""
        page = Page()
        self._pages.add(page)
        self._greet(page)
        task = self._task = self._task or asyncio.create_task(self._watch())
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
            if not self._pages:
                task.cancel()
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
        """Follow the daemon until it is away. A daemon that restarts ends its stream of records."""
        self._note(None)
        tasks = [asyncio.create_task(one) for one in (self._read_records(), self._read_changes(), self._read_state())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_records(self) -> None:
        async for record in self._daemon.lines(self._feed.records):
            self._tell(event("record", record))
            self._note(jobs_of(record))

    async def _read_changes(self) -> None:
        async for line in self._daemon.lines(self._feed.changes):
            self._note(jobs_of(line))

    def _note(self, jobs: set[str] | None) -> None:
        """Note that these jobs, or all, have changed."""
        if self._changed is not None:
            self._changed = None if jobs is None else self._changed | jobs
        self._stale.set()

    async def _read_state(self) -> None:
        whole_at = float("-inf")
        while True:
            self._stale.clear()
            changed, self._changed = self._changed, set()
            asked = time.monotonic()
            fresh = await self._read_part(changed) if changed and asked < whole_at + WHOLE_EVERY else None
            only_part = fresh is not None
            if fresh is None:
                fresh, whole_at = await self._feed.read(self._daemon), asked
            pause = max(self._feed.pause, min(LATEST, (time.monotonic() - asked) / COSTS_AT_MOST))
            if self._state is None or lost(self._state, fresh, self._feed):
                self._tell(event("state", fresh))
            else:
                told = difference(self._state, fresh, self._feed)
                if told is not None:
                    self._tell(event("change", told))
            self._state, self._away = fresh, None
            await asyncio.sleep(pause)
            try:
                async with asyncio.timeout((WHOLE_EVERY if only_part else EVERY) - pause):
                    await self._stale.wait()
            except TimeoutError:
                pass

    async def _read_part(self, jobs: set[str]) -> State | None:
        """The state with these jobs read again. None: it has to be read as a whole."""
        if self._state is None or self._feed.read_jobs is None or len(jobs) > MOST_JOBS:
            return None
        return joined(self._state, await self._feed.read_jobs(self._daemon, jobs), jobs)


def event(kind: str, data: Mapping[str, object]) -> bytes:
    """JSON has no line breaks of its own, so one line of data is enough."""
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _away(error: GpushareError) -> bytes:
    return event("away", {"message": error.message, "hint": error.hint})
