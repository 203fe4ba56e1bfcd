"""Waits for readable descriptors: sockets of programs, and pidfds of processes that have ended.

This is an epoll below that of asyncio. asyncio costs a callback object, a context and a selector key per descriptor,
and a context switch per event. A program that starts waits for two events, and a hundred programs that ask wait for
each other's.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

AT_ONCE = 128
"""Callbacks in one round, before the API and timers are served."""


class Epoll:
    """Like the methods of an event loop with the same names."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self.in_round = False
        self.after_round: Callable[[], None] = lambda: None
        """Called after the callbacks of a round: for work that they do together."""
        loop.add_reader(self._epoll.fileno(), self._on_ready)

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def remove_reader(self, fd: int) -> bool:
        """Call it before the descriptor is closed. False: it was not there."""
        if self._callbacks.pop(fd, None) is None:
            return False
        self._epoll.unregister(fd)
        return True

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._callbacks.clear()
        self._epoll.close()

    def _on_ready(self) -> None:
        known = self._callbacks
        ready = [(fd, known.get(fd)) for fd, _ in self._epoll.poll(0, AT_ONCE)]
        self.in_round = True
        try:
            for fd, callback in ready:
                # An earlier callback may have removed it, and the number may belong to another descriptor now.
                if callback is not None and known.get(fd) is callback:
                    callback()
        finally:
            try:
                self.after_round()
            finally:
                self.in_round = False
