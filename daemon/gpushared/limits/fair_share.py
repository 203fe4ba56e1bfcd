"""FairShare: after a short time of the event loop a user waits for the next pass. So one user with thousands of busy
connections makes a pass longer by one slice only, and a user alone on the node loses nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

SLICE = 0.004
"""Seconds for one user; work that has begun is not interrupted."""


class FairShare:
    """The time that each user has had. It is cleared after a full slice, not in each pass, which would cost a callback
    a pass."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._spent: dict[int, float] = {}
        self._waiting: dict[int, deque[Callable[[], None]]] = {}
        self._next_is_set = False

    def may(self, uid: int) -> bool:
        """Whether there is time left. A reader's callback just returns if not: the next pass calls it again."""
        return self._spent.get(uid, 0.0) < SLICE

    def spend(self, uid: int, seconds: float) -> None:
        spent = self._spent[uid] = self._spent.get(uid, 0.0) + seconds
        if spent >= SLICE:
            self._set_next()

    def wait(self, uid: int, then: Callable[[], None]) -> None:
        """Call when the user has time again, in the order of arrival."""
        self._waiting.setdefault(uid, deque()).append(then)
        self._set_next()

    async def enter(self, uid: int) -> None:
        """Wait until work of unknown length may begin: each user begins one piece a pass."""
        if not self.may(uid) or uid in self._waiting:
            begun: asyncio.Future[None] = self._loop.create_future()

            def begin() -> None:
                if not begun.done():  # otherwise its client has gone meanwhile
                    self.spend(uid, SLICE)
                    begun.set_result(None)

            self.wait(uid, begin)
            await begun
        else:
            self.spend(uid, SLICE)

    def _set_next(self) -> None:
        if not self._next_is_set:
            self._next_is_set = True
            self._loop.call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._next_is_set = False
        self._spent.clear()
        for uid, waiting in list(self._waiting.items()):
            while waiting and self.may(uid):
                waiting.popleft()()
            if not waiting:
                del self._waiting[uid]
        if self._waiting:
            self._set_next()
