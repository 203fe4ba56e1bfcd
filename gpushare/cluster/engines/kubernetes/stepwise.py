"""Starts in steps, many at once: between two steps of one come the steps of others that wait."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

from gpushare.cluster.engines.seam import Answer

__all__ = ["Stepwise"]

Steps = Generator[None, None, Answer]


class Stepwise:
    """Each step runs in one of so many threads."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "start")

    def begin(self, steps: Steps) -> Future[Answer]:
        """What the steps return or raise."""
        answer: Future[Answer] = Future()
        self._threads.submit(self._step, steps, answer)
        return answer

    def _step(self, steps: Steps, answer: Future[Answer]) -> None:
        try:
            next(steps)
            self._threads.submit(self._step, steps, answer)
        except StopIteration as end:
            answer.set_result(end.value)
        except BaseException as error:
            answer.set_exception(error)

    def close(self) -> None:
        self._threads.shutdown()
