"""Asks the GPU driver on a thread of its own.

A driver that hangs stops that thread and nothing else: the loop goes on, and the process can end. (Python waits for
threads of concurrent.futures when the process ends, so they are not used.)
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Answered = TypeVar("Answered")


class DriverThread:
    """Asks one question after the other, in their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="questions", daemon=True).start()

    def ask(self, question: Callable[[], Answered]) -> asyncio.Future[Answered]:
        """On the loop. The answer may never come; it is set on the loop, as is what the question raises."""
        future: asyncio.Future[Answered] = self._loop.create_future()
        self._waiting.put((future, question))
        return future

    def close(self) -> None:
        """Ask no further question. The present one is not waited for."""
        with contextlib.suppress(queue.Empty):
            while True:
                asked = self._waiting.get_nowait()
                if asked is not None:
                    asked[0].cancel()
        self._waiting.put(None)

    def _work(self) -> None:
        while (asked := self._waiting.get()) is not None:
            future, question = asked
            try:
                answer, error = question(), None
            except Exception as raised:
                answer, error = None, raised
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(_answer, future, answer, error)


def _answer(future: asyncio.Future[Any], answer: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(answer)
