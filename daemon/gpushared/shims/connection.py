"""One connection of a shim, and the connections that have not said HELLO."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable

from gpushared.clients.clients import Client
from gpushared.system.epoll import Epoll
from gpushared.system.processes import Process

OUTSTANDING = 256
"""Frames of one connection that are not answered, or whose answers are not sent."""
PENDING_PER_UID = 128
"""Connections of one user that have not said HELLO."""
HELLO_WITHIN = 10.0
"""Seconds."""


class Connection:
    """A socket, its process, and what is not answered yet."""

    def __init__(
        self, sock: socket.socket, peer: Process, uid: int, *, epoll: Epoll, on_closed: Callable[[Connection], None]
    ) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        """-1 once it is closed."""
        self.peer = peer
        self.uid = uid
        self.client: Client | None = None
        """Set by HELLO."""
        self.asks: dict[int, tuple[int, float]] = {}
        """Asks that the core has not answered: the ticket of each, and since when its allocation has waited."""
        self.unsent: deque[bytes] = deque()
        self.outstanding = 0
        self.paused = False
        self.strikes = 0
        self._epoll, self._on_closed = epoll, on_closed
        self._on_readable: Callable[[], None] = lambda: None

    def listen(self, on_readable: Callable[[], None]) -> None:
        """Call `on_readable` while a frame waits to be read."""
        self._on_readable = on_readable
        self._epoll.add_reader(self.fd, on_readable)

    def expect_answer(self) -> None:
        """A frame was received. A client with too many open frames is not read until it has caught up."""
        self.outstanding += 1
        if self.outstanding >= OUTSTANDING and not self.paused:
            self.paused = True
            self._epoll.remove_reader(self.fd)

    def answered(self) -> None:
        """Its answer was sent."""
        self.outstanding -= 1
        if self.paused and self.outstanding < OUTSTANDING // 2 and self.fd >= 0:
            self.paused = False
            self._epoll.add_reader(self.fd, self._on_readable)

    def unsendable(self, frame: bytes, error: int) -> None:
        """An answer could not be sent: it waits if the program is slow to read."""
        if error not in (0, errno.EAGAIN, errno.EINTR):
            self.close()
        elif self.fd >= 0:
            if not self.unsent:
                asyncio.get_running_loop().add_writer(self.fd, self._on_writable)
            self.unsent.append(frame)

    def _on_writable(self) -> None:
        while self.unsent:
            try:
                self.sock.send(self.unsent[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()
                return
            self.unsent.popleft()
            self.answered()
        asyncio.get_running_loop().remove_writer(self.fd)

    def close(self) -> None:
        if self.fd < 0:
            return
        self._epoll.remove_reader(self.fd)
        if self.unsent:
            asyncio.get_running_loop().remove_writer(self.fd)
        self.fd = -1
        self.sock.close()
        self._on_closed(self)


class PendingHandshakes:
    """Connections that have not said HELLO: each user may have a few, for a short time."""

    def __init__(self) -> None:
        self._by_uid: dict[int, dict[Connection, asyncio.TimerHandle | None]] = {}

    def has_room(self, uid: int) -> bool:
        return len(self._by_uid.get(uid, ())) < PENDING_PER_UID

    def add(self, connection: Connection) -> None:
        self._by_uid.setdefault(connection.uid, {})[connection] = None

    def start_timer(self, connection: Connection) -> None:
        """Close the connection if it has not said HELLO in time. Not at once: most have said it already."""
        pending = self._by_uid.get(connection.uid, {})
        if connection in pending:
            pending[connection] = asyncio.get_running_loop().call_later(HELLO_WITHIN, connection.close)

    def end(self, connection: Connection) -> None:
        """It has said HELLO, or is closed."""
        pending = self._by_uid.get(connection.uid, {})
        timer = pending.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if not pending:
            self._by_uid.pop(connection.uid, None)
