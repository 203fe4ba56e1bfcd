"""The service's rounds: what runs is compared with what is decided, results are kept, and what is over is closed.

Nothing that matters is in memory alone, so a service that is killed at any point is simply started again: results are
on disk before anything follows from them, and each step looks at what is, not at what has changed.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from gpushare.cluster.engines.hosted import Hosted
from gpushare.cluster.engines.loop import Loop
from gpushare.cluster.engines.reconcile import BY_ITS_USER, Settings
from gpushare.cluster.engines.runner import ENDINGS, Result, Runner, outcome
from gpushare.cluster.engines.seam import Unanswered
from gpushare.cluster.model import Event, JobHeld, JobReleased, JobWithdrawn
from gpushare.cluster.service.book import Book, Entry
from gpushare.cluster.service.driver import Driver, Options
from gpushare.cluster.store import Store

__all__ = ["Rounds", "waits_for"]

log = logging.getLogger(__name__)


class Rounds(Driver):
    """The rounds of a runner; its jobs are in the service's records."""

    def __init__(self, store: Store, runner: Runner, clock: Callable[[], float], options: Options) -> None:
        super().__init__(store, runner, clock)
        self.runner = runner
        self.book = Book(store)
        self.hosted = Hosted(runner, self.book, self.book.next_term())
        settings = Settings(grace=options.grace, annotate_every=inf)
        self.loop = Loop(store, self.hosted, clock, settings=settings, tell=self._tell)
        self._load()

    def _load(self) -> None:
        self._whole = True
        self._ending = {id for id, entry in self.book.entries.items() if entry.result is not None}
        self.per_user = Counter(entry.uid for entry in self.book.entries.values())
        """Jobs that are not over."""
        self._followers: dict[str, set[str]] = {}
        for entry in self.book.entries.values():
            self.follow(entry)

    def round(self) -> None:
        """Compare what is decided with what runs, and tell the engine. Raises nothing that another round may mend."""
        self.wanted, trouble = False, ""
        try:
            self._results()
            self._not_again()
            if self._whole:
                self._go_on(entry for entry in self.book.entries.values() if entry.after)
            self.loop.step(whole=self._whole)
            self._whole = False
            told = self.store.seq
            self._note_progress()
            self._close()
            # What was decided after that has not been told, and answers that say something new have not been handed in.
            self.wanted = self.store.seq != told or bool(self.loop.notes.events)
        except Unanswered as error:
            log.warning("this round was not finished: %s", error)
            trouble = str(error)
        self.count += 1
        self.trouble = trouble

    def begin_again(self) -> None:
        """After a failure in the middle of something: go back to what the file has."""
        self.book.load()
        self._load()

    def _results(self) -> None:
        """What has ended by itself: its result is on disk before anything follows from it."""
        found: dict[str, Result] = {}
        for id, tasks in self.runner.tasks().items():
            entry = self.book.entries.get(id)
            if entry is None:
                if not any(task.holds for task in tasks):
                    self.runner.collect(id)  # its record is complete, and the service ended before this
            elif entry.result is None and any(task.phase == "done" for task in tasks):
                result = outcome(self.book.job(id), tasks)
                if result is not None:
                    found[id] = result
        if found:
            self.store.write(lambda connection: self._write_results(connection, found))
            self._set_results(found)

    def _write_results(self, connection: sqlite3.Connection, results: Mapping[str, Result]) -> None:
        for id in results:
            self._note_progress_of(self.book.entries[id])
        self.book.set_result(connection, results)
        self.book.set_progress(connection, [self.book.entries[id] for id in results])

    def _not_again(self) -> None:
        """Jobs that were evicted and are not to wait again."""
        ids = self.book.entries if self._whole else self.loop.active
        found = {}
        for id in list(ids):
            entry = self.book.entries.get(id)
            if entry is None or entry.requeue or entry.result is not None:
                continue
            view = self.store.allocator.jobs.get(id)
            if view is not None and view.evictions:
                found[id] = Result("evicted", None, "stopped for others")
        self.end(found)

    def _note_progress(self) -> None:
        for id in self.loop.active:
            entry = self.book.entries.get(id)
            if entry is None or id not in self.store.allocator.jobs:
                continue
            before = entry.started, entry.attempt
            self._note_progress_of(entry)
            if entry.started is not None and (before[0] is None or before[1] != entry.attempt):
                self.notices.add("running", id, f"job {id} runs")

    def _note_progress_of(self, entry: Entry) -> None:
        """Its latest attempt, and when that began: as the engine shows it, else as it is seen first."""
        view, tasks = self.store.allocator.jobs.get(entry.id), self.hosted.tasks.get(entry.id, ())
        attempt = max((task.attempt for task in tasks), default=0)
        if view is not None:
            attempt, entry.evictions = max(attempt, view.attempt), view.evictions
        if attempt > entry.attempt:
            entry.attempt, entry.started = attempt, None
        now = [task for task in tasks if task.attempt == entry.attempt]
        began = [task.began for task in now if task.began is not None]
        if began:
            entry.started = min(began)
        elif entry.started is None and any(task.phase == "running" for task in now):
            entry.started = self.clock()

    def _close(self) -> None:
        """Close jobs of which nothing is left."""
        allocator = self.store.allocator
        leaving = {id for id, _ in allocator.leaving}
        self._ending &= self.book.entries.keys()
        over = []
        for id in self._ending:
            tasks = self.hosted.tasks.get(id, ())
            if id not in allocator.jobs and id not in leaving and not any(task.holds for task in tasks):
                entry = self.book.entries[id]
                self._note_progress_of(entry)
                if entry.started is None and any(task.phase == "done" for task in tasks):
                    entry.started = entry.submitted  # it ran, and nobody looked meanwhile
                over.append(entry)
        if not over:
            return
        over.sort(key=lambda entry: (entry.number, entry.index or 0))
        self.book.close(over, [self._ended(entry) for entry in over])
        for entry in over:
            assert entry.result is not None
            self._ending.discard(entry.id)
            self.per_user[entry.uid] -= 1
            if entry.id in self.hosted.tasks:
                self.runner.collect(entry.id)
            self._said_ended(entry, entry.result)
        self._go_on_after(over)

    def _ended(self, entry: Entry) -> float:
        """When it ended, in seconds since 1970: as the engine shows it, else now."""
        tasks = self.hosted.tasks.get(entry.id, ())
        ended = [task.ended for task in tasks if task.attempt == entry.attempt and task.ended is not None]
        return min(max(ended), self.clock()) if ended else self.clock()

    def _said_ended(self, entry: Entry, result: Result) -> None:
        text = f"job {entry.id} {ENDINGS[result.how]}" + (f": {result.text}" if result.text else "")
        self.notices.add("ended", entry.id, text, how=result.how, exit=result.exit)

    # ---- ends ----------------------------------------------------------------------------------------

    def end(self, results: Mapping[str, Result]) -> None:
        """End jobs in this way: written together with what the allocator decides then."""
        if not results:
            return
        events: list[Event] = [JobWithdrawn(id) for id in results if id in self.store.allocator.jobs]
        for id in results:
            self._note_progress_of(self.book.entries[id])  # which the allocator forgets now
        self.append(events, lambda connection, _: self._write_results(connection, results))
        self._set_results(results)

    def _set_results(self, results: Mapping[str, Result]) -> None:
        for id, result in results.items():
            self.book.entries[id].result = result
            self._ending.add(id)

    # ---- dependencies --------------------------------------------------------------------------------

    def follow(self, entry: Entry) -> None:
        for other in entry.after:
            self._followers.setdefault(other, set()).add(entry.id)

    def _go_on_after(self, ended: Sequence[Entry]) -> None:
        """Jobs are over: let those that follow them start, or cancel them."""
        names = {name for entry in ended for name in (entry.id, entry.array) if name is not None}
        followers = {id for name in names for id in self._followers.get(name, ())}
        if followers:
            self._go_on([entry for id, entry in self.book.entries.items() if id in followers])
            for name in names:
                if not self.book.of(name):
                    self._followers.pop(name, None)

    def _go_on(self, followers: Iterable[Entry]) -> None:
        live = {name for entry in self.book.entries.values() for name in (entry.id, entry.array)}
        after: dict[str, tuple[str, ...]] = {}
        hopeless: dict[str, Result] = {}
        for entry in followers:
            over = [name for name in entry.after if name not in live]
            failed = [name for name in over if not self.succeeded(name)]
            if entry.result is not None or not over:
                continue
            if failed:
                text = f"job {failed[0]}, which it was to follow, has not succeeded"
                hopeless[entry.id] = Result("cancelled", None, text)
            else:
                after[entry.id] = tuple(name for name in entry.after if name in live)
        if after:
            known = [id for id in after if id in self.store.allocator.jobs]
            events = [event for id in known for event in self.holds(self.book.entries[id], after[id])]
            self.append(events, lambda connection, _: self.book.set_after(connection, after))
        for id, names in after.items():
            self.book.entries[id].after = names
        self.end(hopeless)

    def holds(self, entry: Entry, after: Sequence[str], *, held: bool | None = None) -> Iterable[Event]:
        """Hold a job back for what still holds it, and for nothing else. `held`: by its user; None: as it is."""
        yield JobReleased(entry.id)
        if entry.held if held is None else held:
            yield JobHeld(entry.id, BY_ITS_USER)
        elif after:
            yield JobHeld(entry.id, waits_for(after))

    def succeeded(self, name: str) -> bool:
        """Whether a job, or each job of an array, is over and has succeeded."""
        one = self.book.ended(name)
        over = [one] if one is not None else self.book.ended_of(name)
        return bool(over) and all(ended.result.how == "done" for ended in over)


def waits_for(names: Sequence[str]) -> str:
    return f"until job {', '.join(names)} has succeeded"
