"""The answer of a thread to the loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Reply(Generic[Answer]):
    """Made on the loop for one question; given by the thread that works on it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Answer | None] = self._loop.create_future()

    def give(self, found: Answer | None) -> None:
        """From any thread. None: there is no answer."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._take, found)

    def _take(self, found: Answer | None) -> None:
        if not self._future.done():  # otherwise its caller has gone
            self._future.set_result(found)

    async def wait(self, within: float) -> Answer | None:
        """The answer; None: there is none, or it takes longer than so many seconds."""
        try:
            async with asyncio.timeout(within):
                return await self._future
        except TimeoutError:
            return None
