"""Receives the frames of all readable connections, many with one system call.

asyncio has no protocol classes for packet sockets. In a round of our epoll each readable connection adds itself to
`ready`; at the end of the round one frame of each is received and handled, and the answers are sent together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpushare._layout import ffi, lib
from gpushared.limits.limits import Limits
from gpushared.shims.connection import Connection
from gpushared.shims.frames import AT_ONCE, FrameBatch
from gpushared.shims.outbox import Outbox


class Inbox:
    """The connections with a frame to read."""

    def __init__(
        self, limits: Limits, outbox: Outbox, handle: Callable[[Connection, Any, int, list[int]], None]
    ) -> None:
        """`handle(connection, frame, size, descriptors)` must not raise."""
        self.ready: list[Connection] = []
        self._limits = limits
        self._outbox = outbox
        self._handle = handle
        self._batch = FrameBatch()
        self._descriptors = ffi.new("int[]", int(lib.GS_MOST_DESCRIPTORS))
        self._descriptor_count = ffi.new("int *")

    def listen(self, connection: Connection) -> None:
        """Receive its frames from now on. A shim says HELLO at once, so its first frame is nearly always here."""
        self._receive([connection])
        if connection.fd >= 0:
            connection.listen(partial(self.ready.append, connection))

    def end_round(self) -> None:
        ready = self.ready[:]
        self.ready.clear()
        self._receive(ready)
        self._outbox.send()

    def _receive(self, ready: Sequence[Connection]) -> None:
        """One frame of each. A connection with more of them is readable in the next pass of the loop, too; so is one
        whose user has no time left."""
        may = self._limits.time.may
        for start in range(0, len(ready), AT_ONCE):
            some = [one for one in ready[start : start + AT_ONCE] if one.fd >= 0 and may(one.uid)]
            while some:
                some = some[self._receive_some(some) :]

    def _receive_some(self, some: Sequence[Connection]) -> int:
        """How many of these were looked at: up to the first that sent descriptors."""
        batch, spend = self._batch, self._limits.time.spend
        then = time.perf_counter()
        for number, connection in enumerate(some):
            batch.sockets[number] = connection.fd
        count: int = lib.gs_receive_frames(
            batch.sockets, len(some), batch.frames, batch.results, self._descriptors, self._descriptor_count
        )
        descriptors: list[int] = list(self._descriptors[0 : self._descriptor_count[0]])
        try:
            for number in range(count):
                connection, size = some[number], batch.results[number]
                if size == 0:
                    connection.close()
                elif size > 0 and connection.fd >= 0:
                    self._handle(connection, batch.each[number], size, descriptors if number == count - 1 else [])
                now = time.perf_counter()
                spend(connection.uid, now - then)
                then = time.perf_counter() if self._outbox.send_if_due(now) else now
        finally:
            self._limits.descriptors.take(some[count - 1].uid, descriptors)
        return count
