"""Items of a stream (records of the node, notices of a job) that one reader has not read yet.

A reader that does not keep up loses the oldest items, so that the daemon's memory stays bounded. The reader is told how
many it lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

UNREAD = 1000
"""Items that wait for one reader. They are shared: all readers of a stream have the same ones."""
AT_ONCE = 64
"""Items that become text in one piece and wait in a connection's buffer."""

Item = TypeVar("Item")


class Batch(NamedTuple, Generic[Item]):
    items: list[Item]
    lost: int
    """Left out before the first of these."""
    ended: bool
    """There will be no more."""


class Backlog(Generic[Item]):
    """What one reader has not read yet."""

    def __init__(
        self,
        first: Iterable[Item] = (),
        wanted: Callable[[Item], bool] = lambda _: True,
        count: Callable[[Item, int], bool] = lambda _item, _sign: True,
    ) -> None:
        """`count` is told of each item that comes (1) and goes (-1), and says whether there is room for one more. It is
        for items that are kept for this reader alone."""
        self._items: deque[Item] = deque()
        self._wanted = wanted
        self._count = count
        self._room = True
        self._lost = 0
        self._ended = False
        self._more = asyncio.Event()
        for item in first:
            self.put(item)

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> None:
        """Items that this reader does not want, others' for instance, cannot displace those that it wants."""
        if self._ended or not self._wanted(item):
            return
        if self._items and (len(self._items) >= UNREAD or not self._room):
            self._take()
            self._lost += 1
        self._items.append(item)
        self._room = self._count(item, 1)
        self._more.set()

    def _take(self) -> Item:
        item = self._items.popleft()
        self._room = self._count(item, -1)
        return item

    def close(self) -> None:
        """Its reader has gone."""
        while self._items:
            self._take()

    def end(self) -> None:
        self._ended = True
        self._more.set()

    async def take(self, patience: float | None) -> Batch[Item]:
        """The next few items, as soon as there are some; none after `patience` seconds."""
        try:
            async with asyncio.timeout(patience):
                await self._more.wait()
        except TimeoutError:
            return Batch([], 0, ended=False)
        items = [self._take() for _ in range(min(AT_ONCE, len(self._items)))]
        batch = Batch(items, self._lost, self._ended and not self._items)
        self._lost = 0
        if not self._items and not self._ended:
            self._more.clear()
        return batch
