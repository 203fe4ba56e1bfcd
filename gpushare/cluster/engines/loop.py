"""The loop around reconcile.py: observe, note what has happened, let the allocator decide, tell the engine.

It keeps nothing that matters. What was decided is in the ledger (store.py), what runs is in the engine, so it may be
killed between any two steps and started again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.engines.reconcile import (
    Command,
    Note,
    Notes,
    Round,
    Settings,
    adoptable,
    adoption,
    commands,
    job_facts,
    learn,
    node_facts,
)
from gpushare.cluster.engines.seam import Answer, Deposed, Engine, Evict, Observed, Start, Token, Unanswered
from gpushare.cluster.model import Action, Event, JobSubmitted
from gpushare.errors import NoSuchJob, UsageError

__all__ = ["Ledger", "Loop"]

log = logging.getLogger(__name__)

TERM = 15.0
"""Seconds for which the loop leads. It gives no command later than that after it has asked."""
POLL = 10.0
"""Seconds between two rounds in which nothing seems to have changed."""


class Ledger(Protocol):
    """Where events are kept: store.Store."""

    allocator: Allocator

    def append(self, events: Sequence[Event], now: float) -> list[Action]: ...

    def at(self, clock: float) -> float: ...

    def pass_time(self, now: float) -> list[Action]: ...


class Loop:
    """One engine and one ledger. `clock` shows seconds, as time.time() does."""

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        clock: Callable[[], float],
        *,
        holder: str = "gpushare",
        settings: Settings | None = None,
    ) -> None:
        self.ledger = ledger
        self.engine = engine
        self.clock = clock
        self.holder = holder
        self.settings = settings or Settings()
        self.notes = Notes()
        self._number = 0

    def run(self, stopping: Callable[[], bool]) -> None:
        """Round after round, until `stopping` says so."""
        while not stopping():
            try:
                self.step()
            except (Unanswered, Deposed) as error:
                log.warning("this round was not finished: %s", error or type(error).__name__)
            wake, now = self.ledger.allocator.next_wake, self.ledger.at(self.clock())
            self.engine.watch(POLL if wake is None else min(POLL, max(0.0, wake - now)))

    def step(self) -> bool:
        """One round; False while another leads. Raises Unanswered where the engine cannot be observed."""
        asked = self.clock()
        term = self.engine.lead(self.holder, TERM)
        if term is None:
            return False
        seen = self.engine.snapshot()
        self._note(seen)
        for command in list(commands(self._round(seen))):
            if not asked <= self.clock() < asked + TERM:
                break  # another may lead by now
            self._number += 1
            self._tell(command, (term, self._number))
        return True

    # ---- what has happened ---------------------------------------------------------------------------

    def _note(self, seen: Observed) -> None:
        answered, self.notes.events = self.notes.events, []
        for event in answered:
            self._append([event])
        for batch in list(node_facts(self._round(seen))):
            self._append(batch)
        self._adopt(seen)
        for batch in list(job_facts(self._round(seen))):
            self._append(batch)
        self.ledger.pass_time(self.clock())

    def _round(self, seen: Observed) -> Round:
        return Round(self.ledger.allocator, seen, self.notes, self.ledger.at(self.clock()), self.settings)

    def _adopt(self, seen: Observed) -> None:
        """All at once if they fit, else those that do."""
        uids = adoptable(self._round(seen))
        if uids and not self._append(adoption(self._round(seen), uids)):
            for uid in uids:
                if not self._append(adoption(self._round(seen), [uid])):
                    self.notes.unfit.add(uid)

    def _append(self, batch: list[Event]) -> bool:
        """Whether the allocator could take it. What it refuses is told of, and is in nobody's way."""
        now = self.clock()
        try:
            actions = self.ledger.append(batch, now)
        except (UsageError, NoSuchJob) as error:
            log.warning("the allocator refuses what the engine shows: %s", error)
            for event in batch:
                if isinstance(event, JobSubmitted):
                    self.notes.wrong[event.job.id] = error.message, self.ledger.at(now) + self.settings.last_retry
            return False
        for action in actions:
            log.info("%s %s: %s", type(action).__name__.lower(), action.job, action.reason.message)
        return True

    # ---- what to do ----------------------------------------------------------------------------------

    def _tell(self, command: Command, token: Token) -> None:
        answer: Answer | None = None
        try:
            match command:
                case Note(uid=uid, text=text):
                    self.engine.annotate(uid, text, token)
                case Start():
                    answer = self.engine.start(command, token)
                case Evict():
                    answer = self.engine.evict(command, token)
        except Unanswered as error:
            log.warning("no answer to %s of %s: %s", type(command).__name__.lower(), command.uid, error)
        if not isinstance(command, Note):
            learn(self.notes, command, answer, self.ledger.at(self.clock()), self.settings)
