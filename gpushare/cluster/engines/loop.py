"""The loop around reconcile.py: observe, note what has happened, let the allocator decide, tell the engine.

It keeps nothing that matters. What was decided is in the ledger (store.py), what runs is in the engine, so it may be
killed between any two steps and started again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Protocol

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.engines.reconcile import (
    Command,
    Note,
    Notes,
    Ours,
    Round,
    Settings,
    adoptable,
    adoption,
    commands,
    job_facts,
    learn,
    node_facts,
)
from gpushare.cluster.engines.seam import (
    Answer,
    Deposed,
    Engine,
    Evict,
    Observed,
    Start,
    StartsMany,
    Token,
    Unanswered,
)
from gpushare.cluster.model import (
    Action,
    Event,
    JobSubmitted,
    JobView,
    NodeView,
    Place,
    Refuse,
    StartFailed,
    Wait,
)
from gpushare.errors import NoSuchJob, UsageError

__all__ = ["Ledger", "Loop", "start_each"]

log = logging.getLogger(__name__)

TERM = 15.0
"""Seconds for which the loop leads after it has asked to. After that it gives no command until it has asked again."""
POLL = 10.0
"""Seconds between two rounds if nothing seems to have changed: so a leader asks again before its term is over."""

TOGETHER = 100
"""The most jobs whose facts are handed in at once."""


class Ledger(Protocol):
    """Where events are kept: store.Store."""

    allocator: Allocator

    def append(self, events: Sequence[Event], now: float) -> list[Action]: ...

    def at(self, clock: float) -> float: ...

    def pass_time(self, now: float) -> list[Action]: ...


class Part:
    """The part of the allocator for a round that leaves out most of the waiting jobs: some jobs, and all nodes."""

    def __init__(self, allocator: Allocator, uids: Collection[str]) -> None:
        self._allocator, self._uids = allocator, uids
        self.nodes: Mapping[str, NodeView] = allocator.nodes
        self.jobs: Mapping[str, JobView] = _Some(allocator.jobs, uids)

    @property
    def leaving(self) -> Mapping[tuple[str, int], tuple[Place, ...]]:
        return {which: places for which, places in self._allocator.leaving.items() if which[0] in self._uids}


class _Some(Mapping[str, JobView]):
    def __init__(self, jobs: Mapping[str, JobView], uids: Collection[str]) -> None:
        self._jobs, self._uids = jobs, uids

    def __getitem__(self, uid: str) -> JobView:
        if uid not in self._uids:
            raise KeyError(uid)
        return self._jobs[uid]

    def __iter__(self) -> Iterator[str]:
        return (uid for uid in self._uids if uid in self._jobs)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, uid: object) -> bool:
        return uid in self._uids and uid in self._jobs


def log_each(events: Sequence[Event], actions: Sequence[Action]) -> None:  # noqa: ARG001
    """What a loop does with what has happened, unless it is told otherwise."""
    for action in actions:
        log.info("%s %s: %s", type(action).__name__.lower(), action.job, action.reason.message)


def _failed(event: StartFailed) -> str:
    """For the log."""
    tasks = ", ".join(f"{group}.{task}" for group, task in event.tasks) or "all"
    where = "" if event.node is None else f" on {event.node}"
    return f"job {event.job}, attempt {event.attempt}: these tasks did not start{where}: {tasks}: {event.why}"


def start_each(engine: Engine, commands: Iterable[tuple[Start, Token]]) -> Iterator[tuple[Start, Answer | None]]:
    """All of these, with what an engine can do. Each command with its answer; None: nobody knows. May raise Deposed."""
    if isinstance(engine, StartsMany):
        yield from engine.start_all(commands)
        return
    for command, token in commands:
        try:
            yield command, engine.start(command, token)
        except Unanswered as error:
            log.warning("no answer to the start of %s: %s", command.uid, error)
            yield command, None


class Loop:
    """One engine and one ledger. `clock` shows seconds, as time.time() does.

    `tell` is called with events that are on the ledger and with the actions that followed."""

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        clock: Callable[[], float],
        *,
        holder: str = "gpushare",
        settings: Settings | None = None,
        tell: Callable[[Sequence[Event], Sequence[Action]], None] = log_each,
    ) -> None:
        self.ledger = ledger
        self.engine = engine
        self.clock = clock
        self.holder = holder
        self.settings = settings or Settings()
        self.tell = tell
        self.notes = Notes()
        self.answers: Counter[tuple[str, str]] = Counter()
        """By command and answer."""
        self.active: set[str] = set()
        """Jobs that a round looks at even if it looks at few: those that run, start or stop, and that are new."""
        self._number = 0
        self._shown: frozenset[str] = frozenset()
        self._ours: Ours = ledger.allocator

    def run(self, stopping: Callable[[], bool]) -> None:
        """Round after round, until `stopping` says so."""
        while not stopping():
            try:
                self.step()
            except (Unanswered, Deposed) as error:
                log.warning("this round was not finished: %s", str(error) or type(error).__name__)
            wake, now = self.ledger.allocator.next_wake, self.ledger.at(self.clock())
            self.engine.watch(POLL if wake is None else min(POLL, max(0.0, wake - now)))

    def step(self, *, whole: bool = True) -> bool:
        """One round; False while another leads. Raises Unanswered where the engine cannot be observed.

        Without `whole` it looks only at `active` jobs and at those that the engine shows by itself. All other changes
        have to be given to heed()."""
        asked = self.clock()
        term = self.engine.lead(self.holder, TERM)
        if term is None:
            return False
        seen = self._look(whole=whole)
        self._note(seen)
        if not whole and not self.active <= self._shown:
            seen = self._look(whole=False)  # what was decided meanwhile, too
        said = list(commands(self._round(seen)))
        for starts, some in groupby(said, lambda command: isinstance(command, Start)):
            numbered = self._numbered(some, term, asked)
            self._start(numbered) if starts else self._tell(numbered)
        self._prune()
        return True

    def _numbered(self, said: Iterable[Command], term: int, asked: float) -> Iterator[tuple[Command, Token]]:
        """The commands with their tokens, as long as no other loop may lead."""
        for command in said:
            if not asked <= self.clock() < asked + TERM:
                break
            self._number += 1
            yield command, (term, self._number)

    def heed(self, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """These events are on the ledger, and these actions followed."""
        self.active |= {action.job for action in actions if not isinstance(action, Wait | Refuse)}
        self.tell(events, actions)

    def hurry(self, uids: Collection[str]) -> None:
        """Tasks of these jobs that are to stop, or are stopping already, are killed."""
        self.notes.hurry |= set(uids)
        self.notes.stops = {which: stop for which, stop in self.notes.stops.items() if which[0] not in uids}

    def _look(self, *, whole: bool) -> Observed:
        """What the engine shows of all jobs, or of those that matter; it is compared with the same jobs of ours."""
        allocator = self.ledger.allocator
        if whole:
            self._ours = allocator
            return self.engine.snapshot()
        self.active |= {uid for uid, _ in allocator.leaving}
        seen = self.engine.glance(self.active)
        self._shown = frozenset(self.active) | {one.job.id for one in seen.jobs}
        self._ours = Part(allocator, self._shown)
        return seen

    def _prune(self) -> None:
        """Jobs that only wait matter when something is decided about them."""
        allocator = self.ledger.allocator
        known = self._ours.jobs
        self.active = {uid for uid, view in known.items() if view.places}
        self.active |= {uid for uid, _ in allocator.leaving}

    # ---- what has happened ---------------------------------------------------------------------------

    def _note(self, seen: Observed) -> None:
        answered, self.notes.events = self.notes.events, []
        for event in answered:
            self._append([event])
        for batch in list(node_facts(self._round(seen))):
            self._append(batch)
        self._adopt(seen)
        facts = list(job_facts(self._round(seen)))
        for first in range(0, len(facts), TOGETHER):
            self._append_each(facts[first : first + TOGETHER])
        self.heed((), self.ledger.pass_time(self.clock()))

    def _round(self, seen: Observed) -> Round:
        return Round(self._ours, seen, self.notes, self.ledger.at(self.clock()), self.settings)

    def _adopt(self, seen: Observed) -> None:
        """All at once if they fit, else those that do."""
        uids = adoptable(self._round(seen))
        if uids and not self._append(adoption(self._round(seen), uids)):
            for uid in uids:
                if not self._append(adoption(self._round(seen), [uid])):
                    self.notes.unfit.add(uid)

    def _append_each(self, batches: Sequence[list[Event]]) -> None:
        """Hand them in together, which costs a tenth; if the allocator refuses that, one by one."""
        if len(batches) == 1 or not self._append([event for batch in batches for event in batch], alone=False):
            for batch in batches:
                self._append(batch)

    def _append(self, batch: list[Event], *, alone: bool = True) -> bool:
        """Hand it in. False: the allocator refuses it. If it is `alone`, that is logged, and the round goes on."""
        now = self.clock()
        try:
            actions = self.ledger.append(batch, now)
        except (UsageError, NoSuchJob) as error:
            if not alone:
                return False
            log.warning("the allocator refuses what the engine shows: %s", error)
            for event in batch:
                if isinstance(event, JobSubmitted):
                    words = f"{error.message} ({error.hint})" if error.hint else error.message
                    self.notes.wrong[event.job.id] = words, self.ledger.at(now) + self.settings.last_retry
            return False
        self.heed(batch, actions)
        for event in batch:
            if isinstance(event, StartFailed):
                log.warning("%s", _failed(event))
        return True

    # ---- what to do ----------------------------------------------------------------------------------

    def _start(self, some: Iterable[tuple[Command, Token]]) -> None:
        starts = ((command, token) for command, token in some if isinstance(command, Start))
        for command, answer in start_each(self.engine, starts):
            self._learn(command, answer)

    def _tell(self, some: Iterable[tuple[Command, Token]]) -> None:
        for command, token in some:
            answer: Answer | None = None
            try:
                if isinstance(command, Evict):
                    answer = self.engine.evict(command, token)
                elif isinstance(command, Note):
                    self.engine.annotate(command.uid, command.text, token)
            except Unanswered as error:
                log.warning("no answer to %s of %s: %s", type(command).__name__.lower(), command.uid, error)
            if isinstance(command, Evict):
                self._learn(command, answer)

    def _learn(self, command: Start | Evict, answer: Answer | None) -> None:
        words = "none" if answer is None else type(answer).__name__.lower()
        self.answers[type(command).__name__.lower(), words] += 1
        learn(self.notes, command, answer, self.ledger.at(self.clock()), self.settings)
