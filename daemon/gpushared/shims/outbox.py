"""Answers to shims, sent together.

To send wakes a program up, which takes as long as making several answers. The programs that ask in the same moment
would wait for all of it, so the answers of a round are sent with one system call.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

from gpushare._layout import ffi, lib
from gpushared.clients.pages import Page, cut
from gpushared.limits.fair_share import FairShare
from gpushared.shims.connection import Connection
from gpushared.shims.frames import ANSWER, AT_ONCE, NO_BODY, TEXT_BYTES, FrameBatch
from gpushared.system.epoll import Epoll

TOGETHER = 0.0005
"""Seconds that an answer may wait for others, to be sent with them."""


class Outbox:
    """The answers that are not sent yet."""

    def __init__(self, epoll: Epoll, time_of_users: FairShare) -> None:
        self._epoll, self._time_of_users = epoll, time_of_users
        self._batch = FrameBatch()
        self._answered: list[Connection] = []
        """The connections whose answers are in the batch, in its order."""
        self._send_by = 0.0
        self._texts: list[int] = []
        """The frames in the batch that have a text: it must not stay there for the next answer."""

    def reply(
        self,
        connection: Connection,
        seq: int,
        status: int,
        *,
        line: int = 0,
        granted: int = 0,
        text: str = "",
        node_number: int = 0,
    ) -> None:
        body = self.next(connection, ANSWER, seq, text=bool(text)).u.answer
        body.status, body.line, body.granted, body.node_number = status, line, granted, node_number
        if text:
            body.text = cut(text, TEXT_BYTES - 1)

    def next(self, connection: Connection, kind: int, seq: int, *, text: bool) -> Any:
        """The next frame of the batch, for the caller to fill at once. `text`: its body will hold a text."""
        number = len(self._answered)
        if number == AT_ONCE:
            self.send()
            number = 0
        if number == 0:
            self._send_by = time.perf_counter() + TOGETHER
            if not self._epoll.in_round:
                asyncio.get_running_loop().call_soon(self.send)
        self._answered.append(connection)
        if text:
            self._texts.append(number)
        out = self._batch.each[number]
        out.type, out.seq = kind, seq
        return out

    def send_if_due(self, now: float) -> bool:
        """Whether the first answer had waited long enough, and all were sent. `now`: time.perf_counter()."""
        due = bool(self._answered) and now >= self._send_by
        if due:
            self.send()
        return due

    def send(self) -> None:
        answered, self._answered = self._answered, []
        if not answered:
            return
        batch = self._batch
        started = time.perf_counter()
        for number, connection in enumerate(answered):
            batch.sockets[number] = -1 if connection.unsent else connection.fd
        failed = lib.gs_send_frames(batch.sockets, len(answered), batch.frames, batch.results)
        each = (time.perf_counter() - started) / len(answered)
        unsent = []
        for number, connection in enumerate(answered):
            self._time_of_users.spend(connection.uid, each)
            if failed and batch.results[number]:
                error = 0 if connection.unsent else batch.results[number]
                unsent.append((connection, bytes(ffi.buffer(batch.each[number])), error))
            else:
                connection.answered()
        while self._texts:
            ffi.memmove(batch.each[self._texts.pop()].u.bytes, NO_BODY, len(NO_BODY))
        # Last: closing a connection may add answers for others to the batch.
        for connection, frame, error in unsent:
            connection.unsendable(frame, error)


def send_with_page(connection: Connection, frame: Any, page: Page) -> None:
    """Send one frame with the page's descriptor, at once. The first packet of a connection always fits its buffer."""
    try:
        with page.for_its_process() as fd:
            socket.send_fds(connection.sock, [bytes(ffi.buffer(frame))], [fd])
    except OSError:
        connection.close()
    else:
        connection.answered()
