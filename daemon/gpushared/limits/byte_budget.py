"""Bytes that the daemon holds for each user: the text of jobs, requests under way, answers that are not read yet.

They have one sum and one bound. Answers, event streams and bodies of requests wait until there is room; a job whose
text has no room is refused. Other users notice neither.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from gpushare.job_spec import JobSpec

MOST = 16 * 2**20
"""Bytes for one user."""
MOST_OF_JOBS = MOST // 2
"""Bytes for jobs, which come back only when they end. The rest is for everything that can wait."""
AROUND_A_JOB = 4096
"""Bytes."""
WOKEN_AT_ONCE = 8
"""Waiters that are woken when bytes are freed: all at once would make a long pass of the loop."""


class ByteBudget:
    """Bytes by user. Some users (root, the daemon's own) are counted and never bound."""

    def __init__(self, is_bound: Callable[[int], bool]) -> None:
        self._is_bound = is_bound
        self._bytes: dict[int, int] = {}
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}

    def of(self, uid: int) -> int:
        """Bytes."""
        return self._bytes.get(uid, 0)

    def has_room(self, uid: int, more: int = 0) -> bool:
        return self.of(uid) + more <= MOST or not self._is_bound(uid)

    def change(self, uid: int, by: int) -> None:
        """Add bytes to the user's sum, or subtract them."""
        now = self.of(uid) + by
        if now > 0:
            self._bytes[uid] = now
        else:
            self._bytes.pop(uid, None)
        if by < 0:
            self._wake(uid)

    async def room(self, uid: int, more: int = 0) -> None:
        """Wait until there is room for so many bytes more."""
        while not self.has_room(uid, more):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(uid, deque()).append(waiter)
            await waiter

    def _wake(self, uid: int) -> None:
        waiting = self._waiting.get(uid)
        if waiting is None or not self.has_room(uid):
            return
        woken = 0
        while waiting and woken < WOKEN_AT_ONCE:
            waiter = waiting.popleft()
            if not waiter.done():  # otherwise its client has gone
                waiter.set_result(None)
                woken += 1
        if not waiting:
            del self._waiting[uid]

    def look_again(self) -> None:
        """Wake some waiters for which there is room: an earlier one may have gone without using it."""
        for uid in list(self._waiting):
            self._wake(uid)


def bytes_of(spec: JobSpec) -> int:
    """Bytes that a job costs beside its notices: its text here, in the core and in state.json, and its objects."""
    texts = (spec.request_source, spec.limit_source, *spec.command, *(spec.devices or ()))
    return AROUND_A_JOB + 2 * sum(map(len, texts))
