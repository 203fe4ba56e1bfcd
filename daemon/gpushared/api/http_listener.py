"""Between the HTTP sockets and aiohttp: bounds the connections of each user and their time of the loop.

aiohttp parses all that has arrived at once, and waits for slow clients without end. The listener reads a connection in
small pieces, within its user's share of the loop (fair_share.py). It closes a connection that does not send a whole
request in time, or does not read its answers. It also bounds the connections of one user.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

from aiohttp import web

from gpushared.limits.limits import Limits
from gpushared.system.acceptor import Acceptor
from gpushared.system.descriptors import CarefulSocket
from gpushared.system.logs import Sparingly, facts, log
from gpushared.system.processes import peer_credentials

PIECE = 4096
"""Bytes that are parsed at once: a request has a few hundred, and a small one costs twenty microseconds."""
READ_AT_ONCE = 16 * 1024
LINGERS = 1.0
"""Seconds in which the rest of a request may come that was answered before its end; aiohttp allows 10."""
MOST_UNPARSED = 256 * 1024
REQUEST_WITHIN = 10.0
"""Seconds for the whole head of a request, and between requests."""
UNREAD_WITHIN = 30.0
"""Seconds in which a client must have read some of its waiting answers."""
NOBODY = -2
"""The user of connections over TCP: unknown."""
NOBODYS_CONNECTIONS = 64


class CountingTransport:
    """The transport that aiohttp sees. It counts what aiohttp writes, and when aiohttp pauses reading, the
    HttpConnection holds the rest back. Both pause the same transport: with one flag, the first to resume would undo the
    other's pause."""

    def __init__(self, connection: HttpConnection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data)
        self._connection.note_unread()

    def writelines(self, parts: Iterable[bytes]) -> None:
        self._transport.writelines(parts)
        self._connection.note_unread()

    def pause_reading(self) -> None:
        self._connection.hold_back(held=True)

    def resume_reading(self) -> None:
        self._connection.hold_back(held=False)


class HttpConnection(asyncio.Protocol):
    """One connection: passes everything on to aiohttp's protocol, bit by bit."""

    def __init__(self, listener: HttpListener, inner: web.RequestHandler, uid: int) -> None:
        self._listener = listener
        self.inner = inner
        self.uid = uid
        self._unparsed = bytearray()
        self._waits = False
        self._held_back = False
        self._ended = False
        self._unread = (0, 0.0)
        self._counted = 0
        self.transport: asyncio.Transport | None = None
        self.busy = 0
        """Requests whose heads have come and that are not answered yet."""
        self.idle_since = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.inner.connection_made(cast(asyncio.Transport, CountingTransport(self, self.transport)))

    def data_received(self, data: bytes) -> None:
        self._unparsed += data
        if len(self._unparsed) > MOST_UNPARSED:
            self._open.abort()
        elif not self._waits:
            self._parse()

    @property
    def _open(self) -> asyncio.Transport:
        assert self.transport is not None
        return self.transport

    def _parse(self) -> None:
        share, transport, paused = self._listener.fair_share, self._open, self._waits
        self._waits = False
        while self._unparsed and not self._held_back and share.may(self.uid) and not transport.is_closing():
            piece = bytes(self._unparsed[:PIECE])
            del self._unparsed[:PIECE]
            started = time.perf_counter()
            self.inner.data_received(piece)
            share.spend(self.uid, time.perf_counter() - started)
        if transport.is_closing():
            return
        if self._held_back:
            transport.pause_reading()
        elif self._unparsed:
            self._waits = True
            transport.pause_reading()
            share.wait(self.uid, self._parse)
        elif self._ended:
            transport.close()
        elif paused:
            transport.resume_reading()

    def hold_back(self, *, held: bool) -> None:
        """`held`: aiohttp wants no more data for now."""
        if held == self._held_back or self._open.is_closing():
            return
        self._held_back = held
        if held:
            self._open.pause_reading()
        elif not self._waits:
            self._waits = True
            self._listener.fair_share.wait(
                self.uid, self._parse
            )  # not within aiohttp's call: it may be in the middle of a change

    def note_unread(self) -> None:
        """Bytes that were written and not read count for the user."""
        unread = self._open.get_write_buffer_size()
        self._listener.byte_budget.change(self.uid, unread - self._counted)
        self._counted = unread

    def eof_received(self) -> bool:
        """The client sends no more: close the connection when all that it sent is handled."""
        self._ended = True
        if not self._unparsed:
            self.inner.eof_received()
        return bool(self._unparsed)

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.note_unread()
        self.inner.resume_writing()

    def connection_lost(self, error: BaseException | None) -> None:
        self._unparsed.clear()
        self._listener.byte_budget.change(self.uid, -self._counted)
        self._counted = 0
        self._listener.left(self)
        self.inner.connection_lost(error)

    def check(self, now: float) -> None:
        """Close it if its client is too slow."""
        if self.transport is None:
            return  # it is just being made
        if not self.busy and now - self.idle_since > REQUEST_WITHIN:
            self.transport.abort()
            return
        self.note_unread()
        unread, since = self._counted, self._unread[1]
        if unread == 0 or unread < self._unread[0] or self._unread[0] == 0:
            since = now
        elif now - since > UNREAD_WITHIN:
            self.transport.abort()
        self._unread = (unread, since)


class HttpListener:
    """One listening socket and its connections."""

    def __init__(self, server: Callable[[], web.RequestHandler], limits: Limits) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._user_limits = limits.users
        self._descriptors = limits.descriptors
        self._acceptor: Acceptor | None = None
        self._connections: dict[web.RequestHandler, HttpConnection] = {}
        self._by_uid: dict[int, int] = {}
        self._beginning: set[asyncio.Task[object]] = set()
        self._sparingly = Sparingly()
        self._checking: asyncio.TimerHandle | None = None
        self.fair_share = limits.time
        self.byte_budget = limits.bytes

    def start(self, listener: socket.socket) -> None:
        """Takes over a bound socket."""
        self._acceptor = Acceptor(listener, self._take_in, self._note_pause)
        self._check()

    def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
        if self._acceptor is not None:
            self._acceptor.close()

    def _note_pause(self, error: str) -> None:
        log.warning("cannot accept connections", extra=facts(error=error))

    def connection_of(self, inner: web.RequestHandler) -> HttpConnection | None:
        return self._connections.get(inner)

    def left(self, connection: HttpConnection) -> None:
        if self._connections.pop(connection.inner, None) is connection:
            self._user_limits.leave(connection.uid, 1)
            self._by_uid[connection.uid] -= 1
            if not self._by_uid[connection.uid]:
                del self._by_uid[connection.uid]

    def _check(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections.values()):
            connection.check(now)
        self.byte_budget.look_again()
        self._checking = self._loop.call_later(1.0, self._check)

    def _take_in(self, sock: socket.socket) -> None:
        uid = peer_credentials(sock)[1] if sock.family == socket.AF_UNIX else NOBODY
        most = NOBODYS_CONNECTIONS if uid == NOBODY else self._user_limits.most_api_connections(uid)
        full = most is not None and self._by_uid.get(uid, 0) >= most
        if full or not self._user_limits.has_room(uid, 1) or self._descriptors.too_many(uid):
            self._refuse(sock, uid)
            return
        inner = self._server()
        connection = HttpConnection(self, inner, uid)
        self._connections[inner] = connection
        self._by_uid[uid] = self._by_uid.get(uid, 0) + 1
        self._user_limits.enter(uid, 1)
        careful = CarefulSocket(sock, self._descriptors, uid, READ_AT_ONCE) if sock.family == socket.AF_UNIX else sock
        task: asyncio.Task[object] = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: connection, careful)
        )
        self._beginning.add(task)
        task.add_done_callback(lambda done: self._begun(done, connection))

    def _begun(self, done: asyncio.Task[object], connection: HttpConnection) -> None:
        self._beginning.discard(done)
        if done.cancelled() or done.exception() is not None:
            self.left(connection)

    def _refuse(self, sock: socket.socket, uid: int) -> None:
        left_out = self._sparingly.allow(uid)
        if left_out is not None:
            log.warning("too many connections of one user", extra=facts(uid=uid, more=left_out))
        error = {
            "code": "too_many_connections",
            "message": "this user has too many connections to the daemon already",
            "facts": [],
            "hint": "see `gpushare ps` for jobs that are not needed any more",
        }
        body = json.dumps({"error": error}).encode()
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close"
        with contextlib.suppress(OSError):  # it need not know
            sock.send(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        sock.close()


def listener_options() -> dict[str, Any]:
    """Options for aiohttp: do not unpack bodies, which could become any size, and read little ahead."""
    return {"access_log": None, "auto_decompress": False, "read_bufsize": READ_AT_ONCE, "lingering_time": LINGERS}
