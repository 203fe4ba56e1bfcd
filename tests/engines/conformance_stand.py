"""What the conformance suite needs of an engine: a stand on which jobs are submitted, commands given and parts killed.

An engine joins with a class here or beside it: of Queued if it has a queue of its own, of Served if it is a Runner. It
goes into STANDS of test_engine_conformance.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpushare.cluster.engines.loop import Loop, start_each
from gpushare.cluster.engines.reconcile import Settings
from gpushare.cluster.engines.runner import Runner
from gpushare.cluster.engines.seam import (
    Answer,
    Deposed,
    Engine,
    Evict,
    Observed,
    SeenJob,
    SeenNode,
    SeenTask,
    Start,
    Token,
    Unanswered,
)
from gpushare.cluster.model import Job, JobView, Place, Policy, Queue, QueueAdded, Tasks
from gpushare.cluster.quantity import MICRO, gpus
from gpushare.cluster.service.common import Caller
from gpushare.cluster.service.driver import Options
from gpushare.cluster.service.lock import Lock
from gpushare.cluster.service.service import Service
from gpushare.cluster.store import Store, StoreError

COMMANDS = ("start", "evict")
STEPS = ("lead", "snapshot", "glance", "start", "evict", "annotate", "append")
"""What a loop does to the world: it may be killed before and after each."""


@dataclass(frozen=True)
class Work:
    """What a job's program does."""

    seconds: float | None = None
    """It ends by itself after so long; None: never."""
    exit: int = 0
    signal: int = 0
    """It ends itself with this one."""
    stubborn: bool = False
    """It ignores SIGTERM."""
    broken: bool = False
    """It cannot be started."""
    child: bool = False
    """It leaves a process behind when it is asked to stop."""
    grace: float = 20.0
    script: str | None = None
    """This instead, for a shell."""
    endless: bool = False
    """The script does not end by itself."""
    env: Mapping[str, str] | None = None


What = str | Callable[[], str]
"""What did not happen, if it does not."""
RUNS = Work()
SHORT = Work(seconds=0.1)


class Killed(BaseException):
    """The allocator's process is gone."""


class Between:
    """An engine or a ledger with something that happens between it and its loop."""

    def __init__(self, thing: Any, call: Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]) -> None:
        self._thing = thing
        self._call = call

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if name not in STEPS:
            return found
        return lambda *arguments: self._call(name, found, arguments)

    def start_all(self, commands: Iterable[tuple[Start, Token]]) -> Iterator[tuple[Start, Answer | None]]:
        """One by one, so that something may happen between any two."""

        def start(command: Start, token: Token) -> Answer:
            ((_, answer),) = start_each(self._thing, [(command, token)])
            if answer is None:
                raise Unanswered
            return answer

        for command, token in commands:
            try:
                yield command, self._call("start", start, (command, token))
            except Unanswered:
                yield command, None


class Stand:
    """One engine with two nodes or one, two GPUs each, and queues `a` and `b` with a quota of half of them."""

    name: str
    cannot: Mapping[str, str]
    ground: Callable[[Path, Any], Any] | None = None
    """Makes what all stands of one engine share, which is given to each and has stop()."""
    about = ""
    """With which servers, where there is a choice."""
    engine: Engine
    loop: Loop
    shift = 0.0
    """Seconds that the allocator's clock is ahead."""
    within = 30.0
    """Seconds that something may take."""
    step = 0.05
    """Seconds between two looks."""
    policy = Policy(endings="reported", reserve_after=None, protect=0.0, back_off=0.2)
    settings = Settings(grace=5.0, start_within=30.0, stop_within=15.0, last_retry=2.0, annotate_every=0.1)

    # ---- what each engine has of its own ---------------------------------------------------------------

    def submit(
        self,
        work: Work = RUNS,
        *,
        queue: str = "a",
        gpus: int = 1,
        tasks: int = 1,
        share: float | None = None,
        limit: float | None = None,
        priority: int = 50,
        held: bool = False,
    ) -> str:
        """As a user does. Its id."""
        raise NotImplementedError

    def submit_array(self, count: int, work: Work = RUNS, *, queue: str = "a") -> list[str]:
        raise NotImplementedError

    def cancel(self, uid: str) -> None:
        raise NotImplementedError

    def cancel_each(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self.cancel(uid)

    def release(self, uid: str) -> None:
        raise NotImplementedError

    def cordon(self, node: str, *, draining: bool = False) -> None:
        raise NotImplementedError

    def uncordon(self, node: str) -> None:
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        raise NotImplementedError

    def clock(self) -> float:
        raise NotImplementedError

    def began(self, uid: str) -> int:
        """How often a program of it has begun to run, as seen from outside of the engine."""
        raise NotImplementedError

    def alive(self, uid: str) -> int:
        """Programs of it that run, as seen from outside of the engine."""
        raise NotImplementedError

    def result(self, uid: str) -> tuple[str, int | None] | None:
        """("done", 0), ("failed", 3), ("cancelled", None) and so on; None: it has not ended."""
        raise NotImplementedError

    def evictions(self, uid: str) -> int:
        """As the engine, or the service in its place, has counted them."""
        raise NotImplementedError

    def evictions_of(self, uids: Iterable[str]) -> dict[str, int]:
        return {uid: self.evictions(uid) for uid in uids}

    def why(self, uid: str) -> str:
        """What its user is told about why it waits."""
        raise NotImplementedError

    def output(self, uid: str) -> str:
        """What its program has written."""
        raise NotImplementedError

    def foreign(self, node: str, gpu: int, amount: int) -> None:
        """A program of others takes so much of a GPU; 0: it is gone."""
        raise NotImplementedError

    def silence(self, node: str) -> None:
        """It does not answer. What runs there goes on."""
        raise NotImplementedError

    def lose(self, node: str) -> None:
        """It is off, with all that ran there."""
        raise NotImplementedError

    def bring_back(self, node: str) -> None:
        raise NotImplementedError

    def kill_engine(self) -> None:
        """Its processes are killed, but not those of its jobs, and started again."""
        raise NotImplementedError

    def revive(self) -> None:
        """The allocator's process is gone; another one starts on the same records."""
        raise NotImplementedError

    def rival(self) -> bool:
        """Another allocator tries to act at the same time. Whether it did."""
        raise NotImplementedError

    def clear(self) -> None:
        """Nothing is left of what was started."""
        raise NotImplementedError

    # ---- observing -------------------------------------------------------------------------------------

    def look(self) -> Observed:
        return self.engine.snapshot()

    def nodes(self) -> list[SeenNode]:
        return list(self.look().nodes)

    @property
    def node(self) -> str:
        return self.nodes()[0].node.name

    @property
    def total(self) -> int:
        """GPUs in all."""
        return sum(one.node.gpus for one in self.nodes())

    def seen(self, uid: str) -> SeenJob | None:
        return next((one for one in self.look().jobs if one.job.id == uid), None)

    def tasks(self, uid: str) -> tuple[SeenTask, ...]:
        seen = self.seen(uid)
        return () if seen is None else seen.tasks

    def task(self, uid: str) -> SeenTask | None:
        found = self.tasks(uid)
        assert len(found) <= 1, found
        return found[0] if found else None

    def phase(self, uid: str) -> str:
        found = {task.phase for task in self.tasks(uid)}
        return "+".join(sorted(found)) or "nothing"

    def runs(self, uid: str, times: int | None = None) -> bool:
        """The engine says so, and programs of it have begun: exactly so often in all, if `times` is given.

        A real engine says it a moment before the first program begins.
        """
        began = self.began(uid)
        return self.phase(uid) == "running" and (began == times if times is not None else began > 0)

    def holds(self, uid: str) -> bool:
        return any(task.holds for task in self.tasks(uid))

    def until(self, true: Callable[[], Any], what: What = "") -> Any:
        """Without rounds of the allocator."""
        return self._until(true, what, lambda: None)

    def go(self, true: Callable[[], Any], what: What = "") -> Any:
        """Round after round of the allocator."""
        return self._until(true, what, self.round)

    def _until(self, true: Callable[[], Any], what: What, each: Callable[[], None]) -> Any:
        began, deadline = time.monotonic(), self.clock() + self.within
        while not (found := true()):
            late = self.clock() >= deadline or time.monotonic() >= began + 4 * self.within
            assert not late, ((what() if callable(what) else what) or "it did not happen", self.seen_of_all())
            each()
            self.wait(self.step)
        return found

    def seen_of_all(self) -> str:
        return "\n".join(f"{one.job.id}: {one}" for one in self.look().jobs if not one.ended)

    # ---- commands --------------------------------------------------------------------------------------

    term = 0
    number = 0

    def token(self) -> Token:
        if not self.number:
            self.term = self.engine.lead("the test", 1000.0) or 0
        self.number += 1
        return self.term, self.number

    def place(
        self, *gpus: int, node: str | None = None, amount: int | None = None, share: float = 1.0, task: int = 0
    ) -> Place:
        found = next(one.node for one in self.nodes() if node in (None, one.node.name))
        amount = int(found.memory * share) if amount is None else amount
        return Place(0, task, node or found.name, gpus or (0,), amount, 0)

    def start(self, uid: str, *places: Place, attempt: int = 1, token: Token | None = None) -> Answer:
        return self.engine.start(Start(uid, attempt, places or (self.place(),), 0), token or self.token())

    def evict(
        self,
        uid: str,
        *,
        attempt: int = 1,
        grace: float = 5.0,
        tasks: Sequence[int] = (0,),
        again: bool = True,
        token: Token | None = None,
    ) -> Answer:
        command = Evict(uid, attempt, tuple((0, task) for task in tasks), grace, again)
        return self.engine.evict(command, token or self.token())

    def running(self, work: Work = RUNS, *places: Place, tasks: int = 1, **more: Any) -> str:
        """A job that was started by command, and runs."""
        uid = self.submit(work, tasks=tasks, **more)
        self.start(uid, *places)
        self.until(lambda: self.phase(uid) == "running" and self.began(uid) >= tasks, f"{uid} runs")
        return uid

    # ---- the allocator ---------------------------------------------------------------------------------

    def round(self) -> None:
        """One round of the allocator. If it is killed in the middle, another starts."""
        try:
            self._round()
        except (Unanswered, Deposed):
            pass
        except Killed:
            self.revive()

    def _round(self) -> None:
        self.loop.step()

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.round()
            self.wait(self.step)

    def between(self, call: Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]) -> None:
        """From now on `call` stands between the loop and engine and ledger: it makes each call, or does not."""
        self.loop.engine = Between(self.loop.engine, call)
        self.loop.ledger = Between(self.loop.ledger, call)

    @property
    def store(self) -> Store:
        raise NotImplementedError

    def view(self, uid: str) -> JobView | None:
        return self.store.allocator.jobs.get(uid)

    def over(self, uid: str) -> bool:
        """The job is over, nothing of it runs, and the allocator has forgotten it."""
        return self.result(uid) is not None and not self.holds(uid) and self.view(uid) is None

    def fill(self, queue: str = "a", work: Work = RUNS, **more: Any) -> list[str]:
        """A job on each GPU; they run."""
        uids = [self.submit(work, queue=queue, **more) for _ in range(self.total)]
        self.go(lambda: all(self.runs(uid) for uid in uids), "all GPUs are taken")
        return uids

    def queues(self) -> list[QueueAdded]:
        half = gpus(self.total // 2)
        return [QueueAdded(Queue(name, quota=half)) for name in ("a", "b")]


class Queued(Stand):
    """Of an engine with a queue of its own, driven by the loop alone. Call open_ledger() once the engine is there."""

    directory: Path

    def open_ledger(self) -> None:
        self._path = self.directory / "ledger.db"
        self._store = Store.create(self._path, self.policy)
        self._store.append(self.queues(), self.clock())
        self._loop()

    def _loop(self, holder: str = "one") -> None:
        self.loop = Loop(self._store, self.engine, self.clock, holder=holder, settings=self.settings)

    @property
    def store(self) -> Store:
        return self._store

    def close(self) -> None:
        self._store.close()

    def revive(self) -> None:
        self.close()
        self._store = Store.open(self._path)
        self._loop()

    def forget(self) -> None:
        """All records of the allocator are lost."""
        self.close()
        for path in self.directory.glob("ledger.db*"):
            path.unlink()
        self.open_ledger()

    def rival(self) -> bool:
        path = self.directory / "rival.db"
        with Store.open(path) if path.exists() else Store.create(path, self.policy) as store:
            return Loop(store, self.engine, self.clock, holder="two", settings=self.settings).step()

    def why(self, uid: str) -> str:
        seen = self.seen(uid)
        return "" if seen is None else seen.note

    def evictions(self, uid: str) -> int:
        seen = self.seen(uid)
        return 0 if seen is None else seen.evictions

    def job(
        self, uid: str, *, queue: str, gpus: int, tasks: int, share: float | None, limit: float | None, **more
    ) -> Job:
        micro = [None if one is None else round(one * MICRO) for one in (share, limit)]
        return Job(uid, queue, (Tasks(tasks, gpus=gpus, share=micro[0], limit=micro[1]),), **more)


class Served(Stand):
    """Of a runner under the service, which keeps the jobs. Call open_service() once the runner is there."""

    directory: Path
    runner: Runner
    caller: Caller
    """The user who submits."""

    def open_service(self) -> None:
        path = self.directory / "cluster.db"
        self._lock = Lock(path, path.with_name("api.sock"))
        fresh = not path.exists()
        self._store = Store.create(path, self.policy) if fresh else Store.open(path)
        self.service = Service(self._store, self.runner, engine=self.name, clock=self.clock, options=Options(grace=5.0))
        self.engine = self.service.work.hosted
        if fresh:
            self._store.append(self.queues(), self.clock())
        self.loop = self.service.work.loop
        self.loop.settings = replace(self.settings, annotate_every=1e9)
        self.number = 0

    @property
    def store(self) -> Store:
        return self._store

    def _round(self) -> None:
        self.service.work.round()

    def close(self) -> None:
        self._store.close()
        self._lock.release()

    def revive(self) -> None:
        self.close()
        self.open_service()

    def rival(self) -> bool:
        with suppress(StoreError):
            Lock(self._store.path, self._store.path.with_name("rival.sock")).release()
            return True
        return False

    def submit(self, work: Work = RUNS, *, held: bool = False, **asks: Any) -> str:
        return self._submit(work, asks, hold=held)["id"]

    def submit_array(self, count: int, work: Work = RUNS, *, queue: str = "a") -> list[str]:
        return list(self._submit(work, {"queue": queue}, array=count)["jobs"])

    def _submit(self, work: Work, asks: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        job = {"queue": "a", **{name: value for name, value in asks.items() if value is not None}}
        for name in {"share", "limit"} & job.keys():
            job[name] = str(job[name])
        return self.service.submit({"job": job, "run": self.run_of(work), **more}, self.caller)

    def run_of(self, work: Work) -> dict[str, Any]:
        """`run` of a submission."""
        raise NotImplementedError

    def cancel(self, uid: str) -> None:
        self.service.cancel(uid, self.caller)

    def release(self, uid: str) -> None:
        self.service.release(uid, self.caller)

    def cordon(self, node: str, *, draining: bool = False) -> None:
        self.service.cordon(node, draining, replace_admin(self.caller))

    def uncordon(self, node: str) -> None:
        self.service.cordon(node, None, replace_admin(self.caller))

    def result(self, uid: str) -> tuple[str, int | None] | None:
        self.note_results()
        entry = self.service.book.entries.get(uid)
        ended = self.service.book.ended(uid) if entry is None else entry
        return None if ended is None or ended.result is None else (ended.result.how, ended.result.exit)

    def note_results(self) -> None:
        """What a round does first."""
        with suppress(Unanswered):
            self.service.work._results()

    def seen(self, uid: str) -> SeenJob | None:
        self.note_results()
        return super().seen(uid)

    def evictions_of(self, uids: Iterable[str]) -> dict[str, int]:
        live = {one["id"]: int(one["evictions"]) for one in self.service.shown(uids)}
        return {uid: live[uid] if uid in live else self.evictions(uid) for uid in uids}

    def evictions(self, uid: str) -> int:
        return int(self.service.show(uid, self.caller)["evictions"])

    def why(self, uid: str) -> str:
        reason = self.service.show(uid, self.caller)["reason"]
        return "" if reason is None else str(reason["message"])


def replace_admin(caller: Caller) -> Caller:
    return caller._replace(admin=True)


__all__ = ["COMMANDS", "RUNS", "SHORT", "STEPS", "Between", "Killed", "Queued", "Served", "Stand", "Work"]
