"""Publishes in the pages how much could be granted: in rounds, a few processes at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from gpushared.clients.credit import CreditPages
from gpushared.core import instructions as do
from gpushared.core.node import NodeState

PUBLISH_EVERY = 0.005
"""Seconds between two rounds, so that a burst of asks costs one. With hundreds of processes it is more: see
PUBLISH_SHARE."""
PUBLISH_SHARE = 0.05
"""The part of the daemon's time that rounds may take."""
PUBLISH_AT_ONCE = 32
"""Processes in a row, so that no answer waits for a whole round."""


class Publisher:
    """The rounds."""

    def __init__(self, core: Callable[[], NodeState], credit: CreditPages) -> None:
        self._core = core
        self._credit = credit
        self._loop = asyncio.get_running_loop()
        self._wanted: set[str] = set()
        self._in_round = False
        self._not_before = 0.0
        self._left: deque[tuple[str, list[int]]] = deque()

    def publish_soon(self, wish: do.Publish) -> None:
        self._wanted.add(wish.gpu)
        if not self._in_round:
            self._in_round = True
            # Not at once: many programs may ask in the same moment, and the last of them should not wait for this.
            self._loop.call_at(max(self._not_before, self._loop.time() + PUBLISH_EVERY), self._begin_round)

    def publish(self, gpu: str, processes: Sequence[int]) -> None:
        """Now, for these processes."""
        for process, figures in self._core().published(gpu, processes).items():
            self._credit.publish(process, gpu, figures)

    def _begin_round(self) -> None:
        gpus, self._wanted = self._wanted, set()
        for gpu in gpus:
            processes = list(self._core().gpus[gpu].shares)
            for start in range(0, len(processes), PUBLISH_AT_ONCE):
                self._left.append((gpu, processes[start : start + PUBLISH_AT_ONCE]))
        self._go_on(0.0)

    def _go_on(self, cost: float) -> None:
        """Continue the round, which has taken `cost` seconds. GPUs that change meanwhile are for the next round."""
        started = self._loop.time()
        try:
            if self._left:
                self.publish(*self._left.popleft())
        finally:
            ended = self._loop.time()
            cost += ended - started
            if self._left:
                self._loop.call_soon(self._go_on, cost)
            else:
                self._in_round = False
                self._not_before = ended + cost / PUBLISH_SHARE
                for gpu in self._wanted:
                    self.publish_soon(do.Publish(gpu))
