"""The shims' socket: a SOCK_SEQPACKET listener, one frame a packet (shim/wire.h).

server.py      accepts connections and notices their ends
connection.py  one connection
inbox.py       receives frames, many at once
handshake.py   answers HELLO: which job and which page a process has
requests.py    answers all other frames
outbox.py      sends answers, many at once
"""

from __future__ import annotations

import socket
from functools import partial

from gpushared.runtime.shell import Shell
from gpushared.shims.connection import Connection, PendingHandshakes
from gpushared.shims.handshake import Handshake
from gpushared.shims.inbox import Inbox
from gpushared.shims.outbox import Outbox
from gpushared.shims.requests import Requests
from gpushared.system.acceptor import Acceptor
from gpushared.system.processes import Process, peer_credentials

PER_CONNECTION = 2
"""Descriptors: the socket and a pidfd."""


class ShimServer:
    """All connections of shims."""

    def __init__(self, shell: Shell, handshake: Handshake) -> None:
        self.shell = shell
        self.handshake = handshake
        self._connections: set[Connection] = set()
        self._pending = PendingHandshakes()
        self._outbox = Outbox(shell.epoll, shell.limits.time)
        self._requests = Requests(shell, handshake, self._pending, self._outbox)
        self.inbox = Inbox(shell.limits, self._outbox, self._requests.handle)
        shell.epoll.after_round = self.inbox.end_round
        self._acceptor: Acceptor | None = None

    def start(self, listener: socket.socket) -> None:
        """Takes over a bound socket."""
        self._acceptor = Acceptor(listener, self._take_in, self._note_pause)

    def _note_pause(self, error: str) -> None:
        self._requests.complain(-1, f"cannot accept connections: {error}")

    def stop(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()

    def close(self) -> None:
        """The daemon stops: its connections end, and their processes go on."""
        self.stop()
        self._outbox.send()
        for connection in list(self._connections):
            connection.client = None
            connection.close()

    def _take_in(self, sock: socket.socket) -> None:
        _, uid, _ = peer_credentials(sock)
        refusal = self._refusal(uid)
        peer = Process.of_peer(sock) if refusal is None else None
        if peer is None:
            gone = "its process has gone, or is in a PID namespace that this daemon cannot see"
            self._requests.complain(uid, refusal or gone)
            sock.close()
            return
        connection = Connection(sock, peer, uid, epoll=self.shell.epoll, on_closed=self._closed)
        self._connections.add(connection)
        self._pending.add(connection)
        self.shell.limits.users.enter(uid, PER_CONNECTION)
        self.handshake.access.when_met(uid, partial(self.inbox.listen, connection))
        self._pending.start_timer(connection)

    def _refusal(self, uid: int) -> str | None:
        limits = self.shell.limits
        if not limits.users.has_room(uid, PER_CONNECTION) or limits.descriptors.too_many(uid):
            return "too many connections, or descriptors that came along"
        return None if self._pending.has_room(uid) else "too many connections without a HELLO"

    def _closed(self, connection: Connection) -> None:
        """The connection has ended; its process may have ended too, or live on."""
        self._connections.discard(connection)
        self._pending.end(connection)
        self.shell.limits.users.leave(connection.uid, PER_CONNECTION)
        self._requests.cancel_asks(connection)
        client = connection.client
        if client is None:
            connection.peer.close()
        elif client.disconnect == connection.close:  # otherwise the client has a newer connection
            client.disconnect = None
            self.shell.processes.connection_lost(client)
