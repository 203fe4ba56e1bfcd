"""Accepts connections on a listening socket of the loop, and pauses while the process has no descriptors left."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable

BACKLOG = 256
"""Connections that the kernel keeps until they are accepted. A longer queue would only be a longer wait."""
PAUSE = 0.5
"""Seconds."""
AT_ONCE = 64
"""Connections that are accepted in one pass of the loop."""
USED_UP = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Takes over a bound socket."""

    def __init__(
        self,
        listener: socket.socket,
        on_connection: Callable[[socket.socket], None],
        complain: Callable[[str], None],
    ) -> None:
        """`on_connection` is called with each connection, non-blocking; `complain` with the reason of a pause."""
        self._listener: socket.socket | None = listener
        self._on_connection, self._complain = on_connection, complain
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._resume()

    def _accept_some(self) -> None:
        """Several at once: a pass of the loop may be long, and newcomers should not wait for one each."""
        for _ in range(AT_ONCE):
            sock = self._accept()
            if sock is None:
                return
            self._on_connection(sock)

    def _accept(self) -> socket.socket | None:
        """The next connection; None: none waits, or it pauses."""
        if self._listener is None:
            return None
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return None
        except OSError as error:
            self._pause(error)
            return None
        sock.setblocking(False)
        return sock

    def _pause(self, error: OSError) -> None:
        """The socket stays readable, so look away for a moment instead of spinning."""
        if error.errno not in USED_UP or self._listener is None:
            raise error
        self._complain(os.strerror(error.errno))
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(PAUSE, self._resume)

    def _resume(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener.fileno(), self._accept_some)

    def close(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
