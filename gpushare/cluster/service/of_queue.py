"""The service of an engine with a queue of its own, such as Slurm: users submit, hold and cancel there, ask here why.

It has no records of jobs. What the engine shows is all there is, so a service that was killed is simply started again.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpushare.cluster.engines.loop import Loop, start_each
from gpushare.cluster.engines.reconcile import Settings
from gpushare.cluster.engines.seam import (
    Answer,
    Deposed,
    Evict,
    KeepsQueues,
    Observed,
    QueueEngine,
    SeenJob,
    Start,
    Token,
    Unanswered,
    queue_of_user,
)
from gpushare.cluster.model import (
    Action,
    Event,
    JobEnded,
    JobWithdrawn,
    Started,
)
from gpushare.cluster.service.book import Entry
from gpushare.cluster.service.common import Caller, Common, ambiguous, no_such_job
from gpushare.cluster.service.driver import Driver, Options
from gpushare.cluster.service.queue_source import QueueSource
from gpushare.cluster.service.shown import Shown, live_job
from gpushare.cluster.store import Store
from gpushare.errors import NoSuchJob, UsageError

__all__ = ["QueueRounds", "QueueService"]

log = logging.getLogger(__name__)

NOBODY = -1
"""The user id of a job of which only the user's name is known."""


class WithQueues:
    """The engine as the loop sees it: each job has a queue. That is the one that it names, else that of its user in its
    account, or that of its account, if there is one, else its user's own, which is made."""

    def __init__(self, engine: QueueEngine, known: Callable[[str], bool], make: Callable[[str], None]) -> None:
        self._engine = engine
        self._known = known
        self._make = make
        self.jobs: Mapping[str, SeenJob] = {}
        """As the last look showed them."""
        self.wrong: Mapping[str, str] = {}

    def lead(self, holder: str, seconds: float) -> int | None:
        return self._engine.lead(holder, seconds)

    def snapshot(self) -> Observed:
        return self._named(self._engine.snapshot())

    def glance(self, uids: Collection[str]) -> Observed:
        return self._named(self._engine.glance(uids))

    def watch(self, seconds: float) -> None:
        self._engine.watch(seconds)

    def start(self, command: Start, token: Token) -> Answer:
        return self._engine.start(command, token)

    def start_all(self, commands: Iterable[tuple[Start, Token]]) -> Iterator[tuple[Start, Answer | None]]:
        return start_each(self._engine, commands)

    def evict(self, command: Evict, token: Token) -> Answer:
        return self._engine.evict(command, token)

    def annotate(self, uid: str, text: str, token: Token) -> None:
        self._engine.annotate(uid, text, token)

    def _named(self, seen: Observed) -> Observed:
        named = tuple(one if one.job.queue else self._with_queue(one) for one in seen.jobs)
        self.jobs = {one.job.id: one for one in named}
        self.wrong = seen.wrong
        return replace(seen, jobs=named)

    def _with_queue(self, one: SeenJob) -> SeenJob:
        names = (queue_of_user(one.account, one.user), one.account) if one.account else ()
        queue = next((name for name in names if self._known(name)), one.user)
        if not one.ended and not self._known(queue):
            self._make(queue)
        return replace(one, job=replace(one.job, queue=queue))


class QueueRounds(Driver):
    """The rounds of an engine with a queue of its own."""

    def __init__(self, store: Store, engine: QueueEngine, clock: Callable[[], float], options: Options) -> None:
        super().__init__(store, engine, clock)
        self.options = options
        self.seen = WithQueues(engine, self._known, self._make)
        holder = f"{socket.gethostname()}:{store.path}"  # of which one service at most has the file
        settings = Settings(grace=options.grace)
        self.loop = Loop(store, self.seen, clock, holder=holder, settings=settings, tell=self._tell)
        self.source: QueueSource | None = None
        if isinstance(engine, KeepsQueues):
            self.source = QueueSource(engine, store, lambda name: options.own_queue(name).queue)
        self.leads = None

    def round(self) -> None:
        self.wanted, trouble = False, ""
        try:
            if self.source is not None:
                self.source.follow(self.append)
            leads = self.loop.step()
            if self.source is not None and leads:
                self.source.tell(self.clock())
            self.wanted = bool(self.loop.notes.events)
        except Unanswered as error:
            log.warning("this round was not finished: %s", error)
            trouble = str(error)
        except Deposed as error:
            log.warning("%s", error)
            leads = False
        else:
            if leads is not self.leads:
                log.info("this service leads" if leads else "another service leads: this one waits")
            self.leads = leads
        self.count += 1
        self.trouble = trouble

    def _known(self, queue: str) -> bool:
        return queue in self.store.allocator.queues

    def _make(self, queue: str) -> None:
        if self.options.own_queues:
            self.append([self.options.own_queue(queue)])

    def _tell(self, events: Sequence[Event], actions: Sequence[Action]) -> None:
        for event in events:
            if isinstance(event, Started):
                self.notices.add("running", event.job, f"job {event.job} runs")
            elif isinstance(event, JobEnded | JobWithdrawn) and event.job not in self.store.allocator.jobs:
                self.notices.add("ended", event.job, f"job {event.job} has ended")
        super()._tell(events, actions)


class QueueService(Common):
    """Answers questions. Changes of jobs and nodes belong to the engine: they are refused with the engine's command."""

    def __init__(
        self,
        store: Store,
        made: QueueEngine,
        *,
        engine: str,
        clock: Callable[[], float],
        options: Options | None = None,
    ) -> None:
        work = QueueRounds(store, made, clock, options or Options())
        super().__init__(work, engine=engine)
        self.work: QueueRounds = work
        self._hints = made.hints

    @property
    def _jobs(self) -> Mapping[str, SeenJob]:
        return self.work.seen.jobs

    def submit(self, body: object, caller: Caller) -> dict[str, Any]:  # noqa: ARG002
        raise self._elsewhere("jobs are submitted", "submit")

    def cancel(
        self,
        name: str,
        caller: Caller,  # noqa: ARG002
        *,
        now: bool = False,  # noqa: ARG002
        dry_run: bool = False,
    ) -> dict[str, Any]:
        id = self._find(name)
        if dry_run:
            known = [JobWithdrawn(id)] if id in self.store.allocator.jobs else []
            return {"jobs": [id], "would": self._would(known)}
        raise self._elsewhere("jobs are cancelled", "cancel", job=id)

    def hold(self, name: str, caller: Caller) -> dict[str, Any]:  # noqa: ARG002
        raise self._elsewhere("jobs are held", "hold", job=self._find(name))

    def release(self, name: str, caller: Caller) -> dict[str, Any]:  # noqa: ARG002
        raise self._elsewhere("jobs are released", "release", job=self._find(name))

    def cordon(self, node: str, draining: bool | None, caller: Caller) -> dict[str, Any]:  # noqa: ARG002
        what = "uncordon" if draining is None else "drain" if draining else "cordon"
        raise self._elsewhere("nodes are opened and closed", what, node=node)

    def _elsewhere(self, what: str, hint: str, **names: str) -> UsageError:
        return UsageError(
            f"{what} with {self.engine}'s own commands", code="engine_queue", hint=self._hints[hint].format(**names)
        )

    # ---- looking -------------------------------------------------------------------------------------

    def entries(self) -> Mapping[str, Entry]:
        return {id: self._entry(one) for id, one in self._jobs.items() if not one.ended}

    def ids(self, *, queue: str | None = None, user: str | None = None) -> list[str]:
        self._check_queue_name(queue)
        return [
            id
            for id, one in self._jobs.items()
            if not one.ended and user in (None, one.user) and queue in (None, one.job.queue)
        ]

    def shown(self, ids: Iterable[str], *, ended: bool = False) -> list[Shown]:  # noqa: ARG002
        return [self._show(self._jobs[id]) for id in ids if id in self._jobs]

    def shown_ended(self, *, queue: str | None = None, user: str | None = None) -> list[Shown]:  # noqa: ARG002
        return []  # the engine's own history has them

    def show(self, name: str, caller: Caller) -> Shown:  # noqa: ARG002
        return self._show(self._jobs[self._sound(name)])

    def explain(self, name: str) -> dict[str, Any]:
        id = self._sound(name)
        if id in self.store.allocator.jobs:
            return self._explained(id)
        if self._jobs[id].ended:
            raise NoSuchJob(f"job {id} has ended", code="ended")
        why = self.work.loop.notes.wrong.get(id)
        raise UsageError(why[0] if why else f"job {id} is being queued", hint=None if why else "ask again in a moment")

    def _sound(self, name: str) -> str:
        """UsageError for a job whose words make no sense."""
        id = self._find(name)
        if id in self.work.seen.wrong:
            raise UsageError(self.work.seen.wrong[id], hint=self._hints["wrong"].format(job=id))
        return id

    def _find(self, name: str) -> str:
        if name in self._jobs or name in self.work.seen.wrong:
            return name
        named = [id for id, one in self._jobs.items() if name in (one.job.name, id.partition("_")[0]) and not one.ended]
        if len(named) == 1:
            return named[0]
        if named:
            raise ambiguous(name, named)
        raise no_such_job(name)

    def _show(self, one: SeenJob) -> Shown:
        view = self.store.allocator.jobs.get(one.job.id)
        return live_job(self._entry(one), one.job, view, one.tasks)

    def _entry(self, one: SeenJob) -> Entry:
        number, _, index = one.job.id.partition("_")
        return Entry(
            id=one.job.id,
            number=int(number) if number.isdecimal() else 0,
            index=int(index) if index.isdecimal() else None,
            uid=NOBODY,
            user=one.user,
            submitted=one.submitted,
            held=one.held,
            requeue=True,
            after=(),
            started=one.started,
            attempt=one.attempt,
            evictions=one.evictions,
        )
