"""What people may ask of the service. One thread calls all of it: the only one that writes to the file.

What is answered has been written before, in one transaction with what the allocator has decided about it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpushare.cluster.codec import plain
from gpushare.cluster.engines.reconcile import BY_ITS_USER
from gpushare.cluster.engines.runner import Record, Result, Runner
from gpushare.cluster.engines.seam import SeenTask
from gpushare.cluster.model import (
    Action,
    Event,
    Job,
    JobHeld,
    JobSubmitted,
    JobWithdrawn,
    NodeCordoned,
    NodeDrained,
    NodeUncordoned,
    Refuse,
    Wait,
)
from gpushare.cluster.service import submission
from gpushare.cluster.service.book import Entry
from gpushare.cluster.service.common import Caller, Common, ambiguous, no_such_job
from gpushare.cluster.service.driver import Options
from gpushare.cluster.service.rounds import Rounds, waits_for
from gpushare.cluster.service.shown import Shown, ended_job, live_job
from gpushare.cluster.store import Store
from gpushare.errors import NoSuchJob, NotPermitted, Refused, UsageError
from gpushare.nearest import what_there_is
from gpushare.quantity import count, format_duration

__all__ = ["Service"]

log = logging.getLogger(__name__)

SHOWN_ENDED = 1000


class Service(Common):
    """Of an engine that only runs tasks: the jobs are in the service's records."""

    def __init__(
        self, store: Store, runner: Runner, *, engine: str, clock: Callable[[], float], options: Options | None = None
    ) -> None:
        """The store is open for writing, and nobody else writes to it."""
        self.options = options or Options()
        work = Rounds(store, runner, clock, self.options)
        super().__init__(work, engine=engine)
        self.work: Rounds = work
        self.book = work.book

    # ---- submitting ----------------------------------------------------------------------------------

    def submit(self, body: object, caller: Caller) -> dict[str, Any]:
        """{"id", "jobs", "actions"}. UsageError, NotPermitted, Refused, NoSuchJob (of `after`)."""
        wanted = submission.read(body)
        events: list[Event] = []
        queue = wanted.job.queue or self._own_queue(caller, events)
        self._check_queue(queue, caller)
        self._check_min_run_time(wanted.job, caller)
        count = 1 if wanted.array is None else wanted.array
        self._check_number(count, caller)
        after = self._after(wanted.after)
        number, now = self.book.number(), self.clock()
        ids = [str(number)] if wanted.array is None else [f"{number}_{index}" for index in range(wanted.array)]
        records, entries = [], []
        for index, id in enumerate(ids):
            place = None if wanted.array is None else index
            job = replace(wanted.job, id=id, queue=queue)
            array = None if place is None else str(number)
            records.append(
                Record(id, job, *caller[:2], caller.user, now, wanted.run, array, place, requeue=wanted.requeue)
            )
            entry = Entry(id, number, place, caller.uid, caller.user, now, wanted.hold, wanted.requeue, after)
            entries.append(entry)
            events.append(JobSubmitted(job))
            if wanted.hold or after:
                events.append(JobHeld(id, BY_ITS_USER if wanted.hold else waits_for(after)))
        self.work.runner.check(records[0])
        own = queue if not wanted.job.queue and queue not in self.store.allocator.queues else None

        def also(connection: sqlite3.Connection, actions: list[Action]) -> None:
            refused = {action.job for action in actions if isinstance(action, Refuse)}
            self.book.insert(
                connection, number, [one for one in zip(records, entries, strict=True) if one[0].id not in refused]
            )
            if own is not None:
                self.book.insert_queue(connection, own, caller.uid)

        actions = self.work.append(events, also)
        if own is not None:
            self.book.own_queues[own] = caller.uid
        refused = {action.job: action for action in actions if isinstance(action, Refuse)}
        if len(refused) == count:
            raise _refused(refused[ids[0]])
        entries = [entry for entry in entries if entry.id not in refused]
        for entry in entries:
            self.book.entries[entry.id] = entry
            self.work.follow(entry)
        self.work.per_user[caller.uid] += len(entries)
        self.work.counts["submitted"] += len(entries)
        what = f"job {number}" if wanted.array is None else f"array {number} of {count} jobs"
        self.notices.add("submitted", str(number), f"{caller.user} submitted {what} to {queue}", jobs=count)
        waits = {action.job: action.reason for action in actions if isinstance(action, Wait)}
        known = ids[0] in waits and not self.work.trouble  # while the engine does not answer, nobody knows its nodes
        never = self.store.allocator.never([records[0].job]) if known else {}
        return {
            "id": str(number),
            "jobs": [entry.id for entry in entries],
            "actions": [plain(action) for action in actions],
            "never": {id: plain(reason) for id, reason in never.items()},
        }

    def _own_queue(self, caller: Caller, events: list[Event]) -> str:
        queues = self.store.allocator.queues
        if caller.user in queues:
            return caller.user
        if not self.options.own_queues:
            raise UsageError("no queue is named", hint=f"name a queue: {', '.join(list(queues)[:8])}")
        below = self.options.queues_below
        if below and below not in queues:
            raise Refused(
                f"queues of users are made below {below!r}, and there is no such queue",
                code="no_such_queue",
                hint="name another queue, or ask an administrator: `queues_below` in the service's settings says so",
            )
        events.append(self.options.own_queue(caller.user))
        return caller.user

    def _check_number(self, more: int, caller: Caller) -> None:
        had, most = self.work.per_user[caller.uid], self.options.most_jobs
        if had + more > most:
            raise Refused(
                f"{caller.user} has {count(had, 'job')} and may have {most}: {more} more are too many",
                code="too_many_jobs",
                hint="cancel some, or wait until some have ended" if more <= most else f"submit {most} at most",
            )

    def _check_queue(self, queue: str, caller: Caller) -> None:
        owner = self.book.own_queues.get(queue)
        if owner is not None and not caller.may_change(owner):
            raise NotPermitted(f"queue {queue} belongs to its user", hint="leave the queue out: your own is used")

    def _check_min_run_time(self, job: Job, caller: Caller) -> None:
        most = self.options.max_min_run_time
        if job.min_runtime > most and not caller.admin:
            raise UsageError(
                f"a minimum run time of {format_duration(job.min_runtime)} is more than {format_duration(most)}, the "
                "most here",
                hint="ask for less, or ask an administrator: `max_min_run_time` in the service's settings",
            )

    def _after(self, names: Sequence[str]) -> tuple[str, ...]:
        """Jobs to follow that are not over. NoSuchJob; UsageError for one that has failed: nothing follows it."""
        left = []
        for name in names:
            if self.book.of(name):
                left.append(name)
            elif self.book.ended(name) is None and not self.book.ended_of(name):
                raise self._no_such(name)
            elif not self.work.succeeded(name):
                raise UsageError(f"job {name}, which this is to follow, has not succeeded", hint="leave --after out")
        return tuple(left)

    # ---- jobs ----------------------------------------------------------------------------------------

    def cancel(self, name: str, caller: Caller, *, now: bool = False, dry_run: bool = False) -> dict[str, Any]:
        """Take back a job, or all jobs of an array. A job is over when none of its tasks runs. `now`: without grace.
        `dry_run`: nothing happens, and {"would"} says what would follow."""
        entries = self._own(name, caller)
        if dry_run:
            known = [entry.id for entry in entries if entry.id in self.store.allocator.jobs]
            return {"jobs": [entry.id for entry in entries], "would": self._would([JobWithdrawn(id) for id in known])}
        results = {
            entry.id: Result("cancelled", None, f"by {caller.user}") for entry in entries if entry.result is None
        }
        self.work.end(results)
        if now:
            self.work.loop.hurry({entry.id for entry in entries})
            self.work.wanted = True
        for id in results:
            self.notices.add("cancelled", id, f"{caller.user} cancelled job {id}")
        return {"jobs": [entry.id for entry in entries]}

    def hold(self, name: str, caller: Caller) -> dict[str, Any]:
        """Keep waiting jobs from starting until release(). UsageError if one of them runs."""
        entries = [entry for entry in self._own(name, caller) if entry.result is None]
        for entry in entries:
            view = self.store.allocator.jobs.get(entry.id)
            if view is not None and view.places:
                raise UsageError(
                    f"job {entry.id} runs already", code="runs", hint=f"cancel it: `gpushare cancel {entry.id}`"
                )
        return self._set_held([entry for entry in entries if not entry.held], entries, held=True)

    def release(self, name: str, caller: Caller) -> dict[str, Any]:
        """Let jobs start that hold() or failed starts keep back. Jobs that they follow keep them back as before."""
        entries = [entry for entry in self._own(name, caller) if entry.result is None]
        return self._set_held(entries, entries, held=False)

    def _set_held(self, changed: Sequence[Entry], named: Sequence[Entry], *, held: bool) -> dict[str, Any]:
        known = [entry for entry in changed if entry.id in self.store.allocator.jobs]
        events = [event for entry in known for event in self.work.holds(entry, entry.after, held=held)]
        ids = [entry.id for entry in changed]
        if ids:
            self.work.append(events, lambda connection, _: self.book.set_held(connection, ids, held=held))
        for entry in changed:
            entry.held = held
            self.notices.add("held" if held else "released", entry.id, f"job {entry.id} is {_held(held)}")
        return {"jobs": [entry.id for entry in named]}

    def ids(self, *, queue: str | None = None, user: str | None = None) -> list[str]:
        """Ids of the jobs that are not over, in the order in which they came."""
        self._check_queue_name(queue)
        return [
            id
            for id, entry in self.book.entries.items()
            if user in (None, entry.user) and (queue is None or self.book.job(id).queue == queue)
        ]

    def shown(self, ids: Iterable[str], *, ended: bool = False) -> list[Shown]:
        jobs = self.store.allocator.jobs
        found = []
        for id in ids:
            entry = self.book.entries.get(id)
            if entry is not None:
                view = jobs.get(id)
                job = view.job if view is not None else self.book.job(id)
                found.append(live_job(entry, job, view, self._tasks(id)))
            elif ended and (over := self.book.ended(id)) is not None:
                found.append(ended_job(over))
        return found

    def shown_ended(self, *, queue: str | None = None, user: str | None = None) -> list[Shown]:
        """What is shown of the latest jobs that are over."""
        return [
            ended_job(one)
            for one in self.book.last_ended(SHOWN_ENDED)
            if user in (None, one.user) and queue in (None, one.job.queue)
        ]

    def show(self, name: str, caller: Caller) -> Shown:
        """One job, over or not; with what it is run with, if it is the caller's."""
        found = self.find(name)
        if isinstance(found, Entry):
            (shown,) = self.shown([found.id])
        else:
            ended = self.book.ended(found)
            assert ended is not None
            shown = ended_job(ended)
        if caller.may_change(shown["uid"]):
            record = self.book.record(shown["id"])
            shown["run"] = {} if record is None else dict(record.run)
        return shown

    def explain(self, name: str) -> dict[str, Any]:
        """Why a job waits or runs, and the smallest change that would start it."""
        found = self.find(name)
        allocator = self.store.allocator
        if not isinstance(found, Entry) or found.id not in allocator.jobs:
            id = found.id if isinstance(found, Entry) else found
            raise self._over(id)
        return self._explained(found.id)

    def find(self, name: str) -> Entry | str:
        """The job with this id, or the only one with this name that is not over. Else the id of the one that is over:
        with this id, or the latest with this name."""
        entry = self.book.entries.get(name)
        if entry is not None:
            return entry
        if self.book.ended(name) is not None:
            return name
        named = [one for one in self.book.entries.values() if self.book.job(one.id).name == name]
        if len(named) == 1:
            return named[0]
        if named or self.book.of(name):
            raise ambiguous(name, [one.id for one in (named or self.book.of(name))])
        ended = self.book.ended_named(name)
        if ended is None:
            raise self._no_such(name)
        return ended

    def _own(self, name: str, caller: Caller) -> list[Entry]:
        entries = self.book.of(name)
        if not entries:
            found = self.find(name)
            if not isinstance(found, Entry):
                raise self._over(name)
            entries = [found]
        for entry in entries:
            if not caller.may_change(entry.uid):
                raise NotPermitted(
                    f"job {entry.id} belongs to {entry.user}", hint="its user or an administrator may change it"
                )
        return entries

    def _no_such(self, name: str) -> NoSuchJob:
        if self.book.ended_of(name):
            return self._over(name)  # all jobs of an array
        return no_such_job(name)

    def _over(self, id: str) -> NoSuchJob:
        return NoSuchJob(f"job {id} has ended", hint="`gpushare queue --all` says how", code="ended")

    def _tasks(self, id: str) -> Sequence[SeenTask]:
        return self.work.hosted.tasks.get(id, ())

    # ---- the cluster ---------------------------------------------------------------------------------

    def entries(self) -> Mapping[str, Entry]:
        return self.book.entries

    def cordon(self, node: str, draining: bool | None, caller: Caller) -> dict[str, Any]:
        """Start nothing more on the node; `draining`: also stop what runs there. None: jobs may start there again."""
        self._administrator(caller, "nodes")
        nodes = self.store.allocator.nodes
        if node not in nodes:
            raise UsageError(f"no node {node[:60]!r}", hint=what_there_is(node, nodes))
        event = NodeUncordoned(node) if draining is None else NodeDrained(node) if draining else NodeCordoned(node)
        self.work.append([event], lambda connection, _: self.book.set_cordon(connection, node, draining))
        self.book.cordons.pop(node, None)
        if draining is not None:
            self.book.cordons[node] = draining
        what = "open again" if draining is None else "drained" if draining else "cordoned"
        self.notices.add("node", None, f"{node} is {what}, by {caller.user}", node=node)
        return {"node": node}


def _refused(action: Refuse) -> Refused:
    return Refused(
        f"there is no room for it now: {action.reason.message}",
        code="no_room",
        hint=f"try again in {action.retry_after:g} s, or let it wait",
    )


def _held(held: bool) -> str:
    return "held" if held else "released"
