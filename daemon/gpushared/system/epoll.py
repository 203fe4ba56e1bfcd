"""Whose descriptor is readable: sockets of programs, and pidfds of processes that have ended.

An epoll below that of asyncio, which costs a callback object, a context and a selector's key per descriptor and a
context switch of its own per event: a program that starts waits for two of them, and a hundred that ask wait for each
other's.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

AT_ONCE = 128
"""So many callbacks, one each, until others (the API, timers) have their turn."""


class Epoll:
    """Like the methods of an event loop with the same names."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self.in_round = False
        self.after_round: Callable[[], None] = lambda: None
        """What the callbacks have left to be done together, once each has had its turn."""
        loop.add_reader(self._epoll.fileno(), self._on_ready)

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def remove_reader(self, fd: int) -> bool:
        """Before it is closed. False: it was not there."""
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
                # One that an earlier callback has removed may be another's number by now.
                if callback is not None and known.get(fd) is callback:
                    callback()
        finally:
            try:
                self.after_round()
            finally:
                self.in_round = False
