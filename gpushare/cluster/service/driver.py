"""What drives a loop in the service: rounds, what has happened in them, and when the next is due."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple, Protocol

from gpushare.cluster.engines.loop import Loop
from gpushare.cluster.model import Action, Event, Preempt, Queue, QueueAdded, Wait
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.service.notices import Notices
from gpushare.cluster.store import Store

__all__ = ["Driver", "Options", "Watched"]


class Options(NamedTuple):
    """What an administrator may set."""

    grace: float = 30.0
    """Seconds between being asked to stop and being killed."""
    own_queues: bool = True
    """A user who names no queue gets one of the user's name. All of these have the same share."""
    queues_below: str = ""
    """The queue below which these are made; empty: they are at the top."""
    most_jobs: int = 20_000
    """Of one user that are not over."""
    max_grace: float = 600.0
    """Seconds. The most that a user other than an administrator may ask for; so a job cannot keep what it borrowed."""
    max_min_run_time: float = 3600.0
    """Likewise."""

    def own_queue(self, user: str) -> QueueAdded:
        """A user's own queue. It has no quota: such queues share equally what others leave."""
        return QueueAdded(Queue(user, self.queues_below or None, quota=0, weight=MICRO))


class Watched(Protocol):
    """The part of an engine that the service waits for and closes."""

    def watch(self, seconds: float) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


class Driver(ABC):
    """Drives the service of one store. The store is open for writing, and nobody else writes to it."""

    loop: Loop
    leads: bool | None = True
    """Whether this service acts; None: nobody knows yet."""

    def __init__(self, store: Store, engine: Watched, clock: Callable[[], float]) -> None:
        self.store = store
        self.engine = engine
        self.clock = clock
        if store.policy.endings != "reported":
            store.compact(replace(store.policy, endings="reported"))
        self.notices = Notices(clock)
        self.count = 0
        """Rounds so far."""
        self.trouble = ""
        """Why the last round was not finished: what the engine did not answer. Nothing starts meanwhile."""
        self.wanted = True
        """A round has something to do, whatever the store says."""
        self.counts: Counter[str] = Counter()
        """Of actions, by kind, and of submitted jobs."""

    @abstractmethod
    def round(self) -> None:
        """Compare what is decided with what runs, and tell the engine. Raises nothing that another round may mend."""

    def begin_again(self) -> None:  # noqa: B027  a driver that keeps nothing beside the file has nothing to do
        """After a failure in the middle of something: go back to what the file has."""

    @property
    def next_wake(self) -> float:
        """Seconds since 1970: a round is due then, if nothing happens before."""
        wake = self.store.allocator.next_wake
        due = inf if wake is None else self.clock() + max(0.0, wake - self.store.at(self.clock()))
        patience = self.loop.notes
        waits = [one.next for notes in (patience.starts, patience.stops) for one in notes.values()]
        return min([due, *(self.clock() + max(0.0, at - self.store.at(self.clock())) for at in waits)])

    def append(
        self,
        events: Sequence[Event],
        also: Callable[[sqlite3.Connection, list[Action]], None] | None = None,
    ) -> list[Action]:
        actions = self.store.append(events, self.clock(), also)
        self.loop.heed(events, actions)
        return actions

    def _tell(self, events: Sequence[Event], actions: Sequence[Action]) -> None:  # noqa: ARG002
        for action in actions:
            kind = type(action).__name__.lower()
            self.counts[kind] += 1
            if not isinstance(action, Wait):
                self.notices.add(
                    "evict" if isinstance(action, Preempt) else kind,
                    action.job,
                    f"{kind} {action.job}: {action.reason.message}",
                    reason=action.reason.code.value,
                )
