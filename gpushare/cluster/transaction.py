"""One turn as a transaction: events are applied and all that follows is decided, or nothing has changed.

The allocator keeps a turn, or undoes one that raised an error. Explanations and what-ifs try out changes with the same
code, and undo them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gpushare.cluster import views
from gpushare.cluster.apply import apply
from gpushare.cluster.attempts import wake
from gpushare.cluster.decide import decide, learn
from gpushare.cluster.model import Event, JobWithdrawn, Refuse, Wait
from gpushare.cluster.state import State
from gpushare.cluster.turn import Turn
from gpushare.cluster.watch import NEXT


class Transactions:
    """The turns of one state, one after another."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.now = 0.0
        """Seconds: the largest that was handed in."""
        self.again = False
        """What the last turn started may be stopped or moved in the next, and somebody waits for that."""

    def keep(self, events: Iterable[Event], now: float) -> Turn:
        """What follows from these events, which come together. If one is wrong, its error is raised and none counts."""
        before = self.now
        self.now = max(self.now, now)
        kept = self._marks()
        try:
            turn = self._run(events)
        except BaseException:
            self.now = before
            self._undo(kept)
            raise
        self.again = turn.again
        self.state.watch.unread = False
        self.state.journal.clear()
        return turn

    @contextmanager
    def tried(self, events: Iterable[Event]) -> Iterator[Turn]:
        """The state as it would be after these events, and the turn that led there; then it is as before."""
        kept = self._marks()
        try:
            yield self._run(events)
        finally:
            self._undo(kept)

    def _marks(self) -> tuple[int, int]:
        return self.state.sequence, self.state.version

    def _undo(self, kept: tuple[int, int]) -> None:
        state = self.state
        state.journal.undo(0)
        state.watch.clear()
        state.sequence = kept[0]
        state.return_to(kept[1])

    def _run(self, events: Iterable[Event]) -> Turn:
        """A turn makes no reference cycles, so the collector would go through a million jobs and find nothing."""
        collects = gc.isenabled()
        gc.disable()
        try:
            return self._decided(events)
        finally:
            if collects:
                gc.enable()

    def _decided(self, events: Iterable[Event]) -> Turn:
        state = self.state
        turn = Turn(state, self.now)
        if state.watch.unread:
            learn(turn)
        if self.again:
            state.version += 1  # what has just started may move now
            state.watch.loose = True
            state.watch.publish(NEXT)
        wake(turn)
        for event in events:
            apply(turn, event)
        decide(turn)
        _answer(turn)
        turn.lines.clear()  # they hold the turn
        return turn


def _answer(turn: Turn) -> None:
    """Tell those who came and did not start; forget those who do not want to wait."""
    state = turn.state
    refused = []
    for job in turn.arrived:
        if job.places or job.job.id not in state.jobs:
            continue
        reason = views.job(job).reason
        if job.job.wait:
            turn.out.append(Wait(job.job.id, reason))
        else:
            turn.out.append(Refuse(job.job.id, state.policy.retry_after, reason))
            refused.append(job)
    if refused:
        for job in refused:
            apply(turn, JobWithdrawn(job.job.id))
        decide(turn)
