"""The thread that has the cluster: it answers calls one by one, and makes a round when there is something to do.

Another thread only waits for the engine (Runner.watch), and says when something may have changed there.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from gpushare.cluster.engines.loop import POLL
from gpushare.cluster.service.common import Common
from gpushare.cluster.service.compacting import Compacting
from gpushare.errors import GpushareError
from gpushared.system.logs import Sparingly, facts, log

__all__ = ["Writer"]

Answer = TypeVar("Answer")

SOONEST = 0.25
"""Seconds after a round until time alone may cause the next."""
AFTER_A_FAILURE = 2.0
MOST_WAITING = 10_000
"""Calls that wait to be answered."""


class Writer:
    """Of one service. What is called in here runs in its thread."""

    def __init__(self, service: Common) -> None:
        self.service = service
        self._compacting = Compacting(service.store)
        self.errors = 0
        """Calls and rounds that failed, other than with an answer for the caller."""
        self.round_seconds = 0.0
        """In all rounds."""
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_WAITING)
        self._changed = threading.Event()
        self._looked = threading.Event()
        self._stopping = threading.Event()
        self._sparingly = Sparingly()
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._watcher.start()

    def stop(self) -> None:
        """What has been called is answered; nothing more is. Returns when the thread has ended."""
        self._stopping.set()
        self._calls.put(None)
        self.service.work.engine.wake()
        self._thread.join()
        self._compacting.close()

    def call(self, function: Callable[..., Answer], *arguments: Any, **named: Any) -> Future[Answer]:
        """The answer, or the error that it raises. GpushareError if too many wait already."""
        future: Future[Answer] = Future()

        def answer() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*arguments, **named))
            except GpushareError as error:
                future.set_exception(error)
            except BaseException as error:
                self._failed("a call failed", error)
                future.set_exception(error)

        if self._stopping.is_set():
            raise GpushareError("the service is stopping", code="stopping")
        try:
            self._calls.put_nowait(answer)
        except queue.Full:
            raise GpushareError("too many requests wait already", code="busy", hint="try again in a moment") from None
        return future

    # ---- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        seen, next_round = -1, 0.0
        while not self._stopping.is_set():
            wanted = self._changed.is_set() or self.service.work.wanted
            pause = 0.0 if wanted else max(0.0, next_round - time.monotonic())
            try:
                call = self._calls.get(timeout=pause) if pause else self._calls.get_nowait()
            except queue.Empty:
                call = None
            else:
                if call is not None:
                    call()
                    if not self._calls.empty() and time.monotonic() < next_round:
                        continue  # a burst of calls is answered before the next round
            due = time.monotonic() >= next_round
            if due or self._changed.is_set() or self.service.work.wanted or self.service.store.seq != seen:
                next_round = time.monotonic() + self._round()
                seen = self.service.store.seq
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            if call is not None:
                call()

    def _round(self) -> float:
        """Seconds until the next is due."""
        self._changed.clear()
        began = time.monotonic()
        try:
            self.service.work.round()
            self._compacting.go_on()
        except GpushareError as error:  # the file cannot be written, for instance
            self._failed("a round failed", error)
            return AFTER_A_FAILURE
        except Exception as error:
            self._failed("a round failed", error)
            self.service.work.begin_again()
            return AFTER_A_FAILURE
        finally:
            self._looked.set()
            self.round_seconds += time.monotonic() - began
        return min(POLL, max(SOONEST, self.service.work.next_wake - self.service.clock()))

    def _failed(self, what: str, error: BaseException) -> None:
        self.errors += 1
        left_out = self._sparingly.allow((what, type(error)))
        if left_out is not None:
            expected = isinstance(error, GpushareError)
            log.error(what, exc_info=None if expected else error, extra=facts(error=str(error), more=left_out))

    def _watch(self) -> None:
        while not self._stopping.is_set():
            self._looked.clear()
            try:
                self.service.work.engine.watch(POLL)
            except Exception as error:
                self._failed("the engine cannot be watched", error)
                self._stopping.wait(AFTER_A_FAILURE)
            self._changed.set()
            with contextlib.suppress(queue.Full):
                self._calls.put_nowait(None)  # wakes the thread
            self._looked.wait(POLL)
