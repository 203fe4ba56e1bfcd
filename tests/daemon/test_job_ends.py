"""From the first page of a job to its end: who is told what, in which order, and what is let go."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.history import Stop
from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX, NOTHING
from gpushare.reasons import Code, Reason
from gpushared.core import instructions as do
from gpushared.core.events import (
    Detached,
    JobEnded,
    JobRestored,
    JobSubmitted,
    JobWithdrawn,
    LeftAlone,
    ProcessGone,
)
from gpushared.core.instructions import Record
from gpushared.core.visibility import Viewer
from gpushared.jobs import lifecycle as lifecycle_
from gpushared.jobs.lifecycle import WITHDRAWN, JobLifecycle
from gpushared.jobs.placements import Placement
from gpushared.jobs.registry import JobRegistry, JobState
from gpushared.limits.byte_budget import ByteBudget
from gpushared.runtime import process_lifecycle, stopping
from gpushared.runtime.process_lifecycle import ProcessLifecycle
from gpushared.runtime.rebuild import Earlier, rebuild, submission
from gpushared.runtime.record_effects import RecordEffects
from gpushared.runtime.stopping import Stopper
from gpushared.system.processes import Sent

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
PER_CLIENT = 2

ADA = 70001
GPU, GPU2 = "GPU-1", "GPU-2"


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


def spec(**more: Any) -> JobSpec:
    return JobSpec("train", ADA, "ada", ("x",), NOTHING, MAX)._replace(**more)


class Handle:
    """A process; it notes what is done with it, in a diary that it may share."""

    def __init__(self, pid: int, diary: list[Any] | None = None, sent: Sent = Sent.REACHED) -> None:
        self.pid, self.start_time, self.living, self.sent = pid, 1, True, sent
        self.diary = diary if diary is not None else []

    def close(self) -> None:
        self.diary.append(("closed", self.pid))

    def watch(self, _epoll: object, ended: Any) -> None:
        self.ended = ended

    def alive(self) -> bool:
        return self.living

    def same(self, other: Handle) -> bool:
        return self.pid == other.pid

    def send(self, number: signal.Signals, _uid: int) -> Sent:
        self.diary.append((number.name, self.pid))
        return self.sent


class Jobs:
    """A registry with a lifecycle over it; what the core and the history are told is in the diary."""

    def __init__(self) -> None:
        self.diary: list[Any] = []
        self.registry = JobRegistry(thing(), ByteBudget(lambda uid: False))
        historian: Any = thing(job=lambda uid, picture, at, stop: self.diary.append(("history", picture["id"], stop)))
        self.lifecycle = JobLifecycle(self.registry, self.diary.append, historian)
        self.gpus: list[Any] = [{"uuid": GPU}]
        self.lifecycle.picture_of = lambda record: {"id": record.id, "gpus": self.gpus}  # type: ignore[return-value, typeddict-item]

    def job(self, id: str = "a", state: JobState = JobState.RUNNING, **more: Any) -> Any:
        record = self.registry.open(id, spec(**more))
        record.state = state
        return record

    def said(self) -> list[Any]:
        told, self.diary[:] = list(self.diary), []
        return told


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


# ---- a job's life -----------------------------------------------------------------------------------


def test_an_admitted_job_runs_is_in_the_history_and_its_submitter_is_told(jobs) -> None:
    async def story() -> None:
        record = jobs.job(state=JobState.QUEUED)
        record.admission = asyncio.get_running_loop().create_future()
        jobs.lifecycle.admitted(thing(job="gone"))
        jobs.lifecycle.admitted(thing(job="a"))
        assert record.state is JobState.RUNNING and record.admission.result() is None
        assert jobs.said() == [("history", "a", None)]
        jobs.lifecycle.admitted(thing(job="a"))  # its wrapper came back
        assert record.state is JobState.RUNNING and record.admission.result() is None

    asyncio.run(story())


def test_a_refused_job_is_told_why_and_is_not_in_the_history(jobs) -> None:
    async def story() -> None:
        record, why = jobs.job(state=JobState.QUEUED), Reason(Code.TOO_LARGE, "no")
        record.admission = asyncio.get_running_loop().create_future()
        jobs.lifecycle.refused(thing(job="gone", reason=why))
        jobs.lifecycle.refused(thing(job="a", reason=why))
        assert record.admission.result() is why and jobs.said() == [] and record.state is JobState.QUEUED

    asyncio.run(story())


def test_the_end_of_a_job_is_noted_before_the_core_forgets_it(jobs) -> None:
    record = jobs.job()
    jobs.lifecycle.end(record)
    assert record.over and record.ending.last_seen == {"gpus": [{"uuid": GPU}]} and jobs.said() == [JobEnded("a")]
    jobs.gpus = []
    jobs.lifecycle.note_end(record)
    assert record.ending.last_seen == {"gpus": [{"uuid": GPU}]}, "what it showed last counts"
    jobs.lifecycle.placements.put(Placement("task", 4, "a"))
    jobs.lifecycle.closed(thing(job="gone"))
    jobs.lifecycle.closed(thing(job="a"))
    assert record.state is JobState.ENDED and jobs.said() == [("history", "a", None)]
    assert jobs.lifecycle.placements.get("task") is None and jobs.lifecycle.placements.attempts == {"task": 4}


def test_notices_are_in_words_that_the_jobs_user_may_read(jobs) -> None:
    record = jobs.job()
    why = Reason(Code.RECLAIM, "an owner wants it", facts=(("owner", "train"),), data={"asked": 7})
    viewers: list[int] = []
    jobs.lifecycle.viewer_of = lambda uid: viewers.append(uid) or Viewer(uid, "none")
    jobs.lifecycle.queued(thing(job="gone", reason=why))
    jobs.lifecycle.queued(thing(job="a", reason=why))
    jobs.lifecycle.tell(record, "asked_back", why, with_facts=True)
    jobs.lifecycle.notify(thing(job="gone", kind="relieved", reason=why))
    first, second = record.notices
    assert viewers == [ADA, ADA] and (first["kind"], second["kind"]) == ("waiting", "asked_back")
    assert first["facts"] == {"asked": 7} and second["facts"] == {"asked": 7, "facts": [["owner", "train"]]}
    assert first["text"] == second["text"] and first["text"] == "an owner wants it\n  owner  train"


def test_a_job_that_is_relieved_is_not_about_to_end(jobs) -> None:
    record, why = jobs.job(), Reason(Code.RECLAIM, "why")
    killed: Any = {"code": "reclaim"}
    jobs.lifecycle.told_to_end(record, Stop(killed, last=False))
    assert record.ending.reclaim == killed
    assert jobs.said() == [("history", "a", {"killed": killed, "last": False})]
    jobs.lifecycle.notify(thing(job="a", kind="changed", reason=why))
    assert record.ending.reclaim == killed and jobs.said() == []
    jobs.lifecycle.notify(thing(job="a", kind="relieved", reason=why))
    assert (record.ending.reclaim, record.ending.relieved) == (None, killed)
    assert jobs.said() == [("history", "a", None)] and [one["kind"] for one in record.notices] == [
        "changed",
        "relieved",
    ]
    record.ending.reclaim = killed
    jobs.lifecycle.told_to_end(record, None)
    assert record.ending.reclaim is None


def test_a_withdrawn_job_is_forgotten_and_its_submitter_is_told(jobs) -> None:
    async def story() -> None:
        record = jobs.job(state=JobState.QUEUED)
        record.admission = asyncio.get_running_loop().create_future()
        record.wrapper = Handle(7)
        jobs.registry.on_wrapper_end(record)
        assert jobs.said() == [JobWithdrawn("a")] and jobs.registry.get("a") is None
        assert record.admission.result() is WITHDRAWN

    asyncio.run(story())


@pytest.mark.parametrize(
    ("over", "main", "goes_on"),
    [(False, True, True), (False, False, False), (True, True, False)],
)
def test_where_a_wrapper_is_killed_its_program_holds_the_job(jobs, monkeypatch, over, main, goes_on) -> None:
    record, program = jobs.job(), Handle(9)
    opened: list[Any] = []
    monkeypatch.setattr(lifecycle_.Process, "open", lambda pid, start: opened.append((pid, start)) or program)
    record.over, record.wrapper = over, Handle(7)
    record.main = Handle(9) if main else None
    jobs.registry.on_wrapper_end(record)
    assert jobs.said() == ([] if goes_on else [JobEnded("a")]) and (record.wrapper is program) is goes_on
    assert opened == ([(9, 1)] if goes_on else [])


def test_a_program_that_has_gone_with_its_wrapper_ends_the_job(jobs, monkeypatch) -> None:
    record = jobs.job()
    monkeypatch.setattr(lifecycle_.Process, "open", lambda pid, start: None)
    record.wrapper, record.main = Handle(7), Handle(9)
    jobs.registry.on_wrapper_end(record)
    assert jobs.said() == [JobEnded("a")]


def test_what_holds_a_job_without_processes(jobs) -> None:
    record = jobs.job()
    assert not jobs.lifecycle.lasts_without_processes(record)
    jobs.lifecycle.placements.put(Placement("task", 1, "a"))
    assert jobs.lifecycle.lasts_without_processes(record) and jobs.lifecycle.placed(10**9) is None
    jobs.lifecycle.placements.drop("task")
    record.wrapper = Handle(7)
    assert jobs.lifecycle.lasts_without_processes(record)


# ---- its processes ----------------------------------------------------------------------------------


class Page:
    def __init__(self, diary: list[Any], used: dict[str, int]) -> None:
        self.diary, self._used, self.broken, self.held = diary, used, False, True
        self.gpus = list(used)

    def used(self) -> dict[str, int]:
        return self._used

    def is_held(self) -> bool:
        return self.held

    def close(self, *, remove: bool) -> None:
        self.diary.append(("page", remove))


class Stage:
    """Job a with two processes on one GPU."""

    def __init__(self, jobs: Jobs) -> None:
        from gpushared.clients.clients import Client, Clients

        self.jobs, self.diary = jobs, jobs.diary
        self.clients = Clients()
        self.record = jobs.job()
        self.bytes: dict[int, int] = {}
        shares = {id: thing(used=5, parked=None, overhead=2) for id in (1, 2)}
        processes = {id: thing(shares={GPU: share}) for id, share in shares.items()}
        self.core = thing(processes=processes, jobs={"a": thing(usage={GPU: 14})}, guessed=lambda share: 0)
        self.core.shares_of = lambda job, gpu: []
        self.credit = thing(pages={}, refusals=lambda id: id * 10, peak=lambda share: 9, close_share=self._close)
        self.life = ProcessLifecycle(
            thing(core=self.core, feed=self.diary.append),
            self.credit,
            self.clients,
            jobs=jobs.lifecycle,
            driver=thing(tell_unmet=lambda id: self.diary.append(("unmet", id))),
            limits=thing(enter=self._enter, leave=lambda uid, count: self._enter(uid, -count)),
            epoll=thing(),
        )
        self.made = []
        for id in (1, 2):
            page: Any = Page(self.diary, {GPU: 6 + id})
            page.id = id
            client = Client(page, Handle(100 + id, self.diary), "a", ADA)  # type: ignore[arg-type]
            self.life.adopt(client)
            self.made.append(client)

    def _enter(self, uid: int, count: int) -> None:
        self.bytes[uid] = self.bytes.get(uid, 0) + count

    def _close(self, process: int, gpu: str) -> None:
        self.diary.append(("share", process, gpu))


@pytest.fixture
def stage(jobs) -> Stage:
    return Stage(jobs)


def test_a_process_counts_for_its_user_from_its_page_to_its_end(stage) -> None:
    first, second = stage.made
    assert stage.bytes == {ADA: 2 * PER_CLIENT} and set(stage.credit.pages) == {1, 2}
    gone: list[int] = []
    first.disconnect = lambda: gone.append(1)
    first.process.ended()
    assert gone == [1] and first.disconnect is None
    assert stage.jobs.said() == [("unmet", 1), ProcessGone(1, {GPU: 7}), ("closed", 101), ("page", True)]
    assert stage.bytes == {ADA: PER_CLIENT} and set(stage.credit.pages) == {2} and stage.clients.get(1) is None
    assert (stage.record.totals.refusals, stage.record.totals.peak) == (10, {GPU: 14 + 7 - 5})
    first.process.ended()
    assert stage.jobs.said() == [] and stage.bytes == {ADA: PER_CLIENT}, "once"
    second.process.ended()
    assert stage.jobs.said()[-1] == JobEnded("a"), "nothing else holds the job"


def test_what_holds_a_job_outlasts_its_last_process(stage) -> None:
    stage.record.wrapper = Handle(7)
    for one in stage.made:
        one.process.ended()
    assert JobEnded("a") not in stage.jobs.said() and stage.record.state is JobState.RUNNING


def test_the_last_peak_is_of_the_page_and_of_what_was_parked(stage) -> None:
    stage.core.processes[1].shares[GPU].parked = object()
    stage.made[0].process.ended()
    assert stage.record.totals.peak == {GPU: 14}, "the page says nothing of a job that is suspended"
    stage.core.processes.clear()
    stage.made[1].process.ended()
    assert stage.record.totals.peak == {GPU: 14} and stage.record.totals.refusals == 30


def test_a_page_that_was_cut_short_says_nothing_of_its_process(stage, monkeypatch, caplog) -> None:
    broken = [0]
    monkeypatch.setattr(process_lifecycle, "lib", thing(gs_pages_broken=lambda: broken[0]))
    stage.life._broken = 0
    first, second = stage.made
    first.command = "program"
    first.page.broken = True
    stage.life.give_up_broken()
    assert stage.clients.get(1) is first, "no page has been cut since the last look"
    broken[0] = 1
    stage.life.give_up_broken()
    assert stage.clients.get(1) is None and stage.clients.get(2) is second
    assert ProcessGone(1, {}) in stage.jobs.said()
    (said,) = [one.facts for one in caplog.records if "cut its credit page short" in one.getMessage()]
    assert said == {"pid": 101, "command": "program", "job": "a", "name": "train", "user": "ada"}
    second.page.broken = True
    stage.life.give_up_broken()
    assert stage.clients.get(2) is second, "none since then"
    stage.jobs.registry.forget(stage.record)
    broken[0] = 2
    stage.life.give_up_broken()
    said = [one.facts for one in caplog.records if "cut its credit page short" in one.getMessage()][-1]
    assert said["job"] == "a" and said["pid"] == 102 and set(said) == {"pid", "command", "job", "user"}


@pytest.mark.parametrize(
    ("connected", "alive", "held", "gone"),
    [
        (False, True, False, True),
        (True, True, False, False),
        (False, False, False, False),
        (False, True, True, False),
    ],
)
def test_which_process_has_become_another_program(stage, connected, alive, held, gone) -> None:
    first, second = stage.made
    second.disconnect = lambda: None
    first.disconnect = (lambda: None) if connected else None
    first.process.living, first.page.held = alive, held
    stage.life.end_replaced()
    assert (stage.clients.get(1) is None) is gone and stage.clients.get(2) is second
    if gone:
        stage.jobs.said()
        stage.life.end_if_replaced(first)
        assert stage.jobs.said() == [], "it has gone already"


def test_a_lost_connection_is_looked_at_twice(stage, monkeypatch) -> None:
    """exec closes one descriptor after the other."""
    monkeypatch.setattr(process_lifecycle, "LOOK_AGAIN", 0.01)

    async def story() -> None:
        first, second = stage.made
        stage.life.connection_lost(first)
        assert stage.clients.get(1) is first, "its page is held"
        first.page.held = False
        await asyncio.sleep(0.05)
        assert stage.clients.get(1) is None
        second.page.held = False
        stage.life.connection_lost(second)
        assert stage.clients.get(2) is None

    asyncio.run(story())


def test_a_context_that_closes_tells_what_is_still_used_there(stage) -> None:
    stage.life.detached(stage.made[0], GPU)
    stage.life.detached(stage.made[0], GPU2)
    assert stage.jobs.said() == [
        *(Detached(1, GPU, 7), ("share", 1, GPU)),
        *(Detached(1, GPU2, 0), ("share", 1, GPU2)),
    ]


def test_with_the_daemon_handles_go_and_pages_stay(stage) -> None:
    stage.life.close()
    assert stage.jobs.said() == [("closed", 101), ("page", False), ("closed", 102), ("page", False)]
    assert stage.credit.pages == {} and len(stage.clients) == 2


# ---- signals ----------------------------------------------------------------------------------------


def reclaim(kind: type, job: str = "a", *processes: int) -> Any:
    return thing(job=job, processes=processes, reason=Reason(Code.RECLAIM, "an owner wants it"))


@pytest.mark.parametrize(("last", "name"), [(False, "SIGTERM"), (True, "SIGKILL")])
def test_a_reclaim_tells_first_and_signals_then(stage, monkeypatch, caplog, last, name) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(
        stopping, "open_unhooked", lambda pid, job, placed: Handle(pid, stage.diary) if pid == 5 else None
    )
    stopper = Stopper(stage.jobs.lifecycle, stage.clients)
    act = stopper.kill if last else stopper.terminate
    assert act(reclaim(do.Kill, "gone", 1)) is None and stage.jobs.said() == []
    assert act(reclaim(do.Kill, "a", 1, 2, 77, -5, -6)) is None
    told = stage.jobs.said()
    assert (
        told[0][0] == "history" and told[0][2]["last"] is last and told[0][2]["killed"]["reason"] == "an owner wants it"
    )
    assert told[1:] == [(name, 101), (name, 102), (name, 5), ("closed", 5)]
    assert [one["kind"] for one in stage.record.notices] == ["killed" if last else "asked_back"]
    (said,) = [one.facts for one in caplog.records if one.getMessage() == ("killed" if last else "asked_back")]
    assert said == {"job": "a", "name": "train", "user": "ada", "processes": 3, "reason": "an owner wants it"}
    assert stage.record.ending.reclaim["code"] == "reclaim"


def test_processes_that_may_not_be_signalled_are_reported(stage, monkeypatch) -> None:
    monkeypatch.setattr(stopping, "open_unhooked", lambda pid, job, placed: Handle(pid, stage.diary, Sent.NOT_THEIRS))
    stopper = Stopper(stage.jobs.lifecycle, stage.clients)
    stage.made[0].process.sent = Sent.NOT_THEIRS
    assert stopper.terminate(reclaim(do.Terminate, "a", 1, 2, -5)) == LeftAlone("a", {101: 1, 5: -5})
    assert stage.record.ending.reclaim is not None, "one was reached"
    stage.made[1].process.sent = Sent.GONE
    assert stopper.terminate(reclaim(do.Terminate, "a", 1, 2)) == LeftAlone("a", {101: 1})
    assert stage.record.ending.reclaim is None, "its end is no reclaim's"


@pytest.mark.parametrize(("now", "name"), [(False, "SIGTERM"), (True, "SIGKILL")])
def test_a_user_stops_a_job(stage, caplog, now, name) -> None:
    caplog.set_level(logging.INFO)
    stopper = Stopper(stage.jobs.lifecycle, stage.clients)
    stage.record.main = Handle(9, stage.diary)
    stage.made[1].process.sent = Sent.NOT_THEIRS
    assert stopper.stop_job(stage.record, "ann", now=now) == (2, LeftAlone("a", {102: 2}))
    assert stage.jobs.said() == [(name, 101), (name, 102), (name, 9)]
    (notice,) = stage.record.notices
    assert (notice["kind"], notice["text"]) == ("stopped", f"ann stops this job with {name} (`gpushare stop`)")
    assert notice["facts"] == {"signal": int(signal.Signals[name])}
    assert stage.record.ending.stopping is signal.Signals[name]
    (said,) = [one.facts for one in caplog.records if one.getMessage() == "stopped"]
    assert said == {"job": "a", "name": "train", "by": "ann", "signal": name, "processes": 2}
    stage.record.main = Handle(101, stage.diary)
    reached, _ = stopper.stop_job(stage.record, "ann", now=now)
    assert reached == 1, "its first process has a page: once"
    (said, _) = [one.facts for one in caplog.records if one.getMessage() == "left alone"]
    assert said == {"job": "a", "name": "train", "user": "ada", "pids": [102]}
    stage.made[1].process.sent = Sent.REACHED
    assert stopper.stop_job(stage.record, "ann", now=now) == (2, None)


# ---- another core -----------------------------------------------------------------------------------


class Followers:
    def __init__(self, diary: list[Any], known: dict[str, str]) -> None:
        self.diary, self._known = diary, known

    def known(self, job: str) -> Any:
        return self._known.get(job)

    def ask_again(self, job: str) -> None:
        self.diary.append(("asked again", job))


def test_a_core_is_made_from_what_stands_outside_in_this_order() -> None:
    jobs, diary = Jobs(), []
    for id, began in (("a", 3), ("b", 2), ("c", 9), ("d", 1), ("e", 5)):
        record = jobs.job(id)
        record.began = time.monotonic() - began
    for id in "cd":
        jobs.registry.get(id).state = JobState.QUEUED
    jobs.registry.get("a").wrapper = Handle(1)
    jobs.registry.get("b").wrapper, jobs.registry.get("b").over = Handle(2), True
    clients = [thing(restored=lambda: "process of e", page=thing(gpus=[GPU]), job="e")]

    class Clients(list[Any]):
        def of_job(self, job: str) -> list[Any]:
            return [one for one in self if one.job == job]

        def has_job(self, job: str) -> bool:
            return bool(self.of_job(job))

    core = thing(
        learn=lambda overheads: diary.append(("learn", dict(overheads))),
        inherit=lambda earlier: diary.append(("inherit", earlier)),
        inherit_jobs=lambda earlier: diary.append(("inherit jobs", earlier)),
    )
    info = thing(uuid=GPU, index=0, name="x", total=9, reserved=1)
    outside: Any = thing(
        gpus=thing(infos={GPU: info}),
        jobs=jobs.lifecycle,
        clients=Clients(clients),
        suspenders=Followers(diary, {"a": "suspender of a"}),
        hook_runners=Followers(diary, {"a": "runner of a", "e": "runner of e"}),
    )
    known = JobRestored("e", spec(name="old"), (GPU2,), 5.0, open=False)
    failed: Any = "the core that failed"
    earlier = Earlier({"e": known}, ["a reservation"], {GPU: 7}, failed)  # type: ignore[list-item]

    async def story() -> None:
        for id in "cd":
            jobs.registry.get(id).admission = asyncio.get_running_loop().create_future()
        jobs.registry.get("d").admission.set_result(None)
        rebuild(thing(core=core, restore=diary.append), outside, earlier)

    asyncio.run(story())
    names = [one if isinstance(one, (str, tuple)) else (type(one).__name__, getattr(one, "job", "")) for one in diary]
    assert names == [
        ("GpuFound", ""),
        ("learn", {GPU: 7}),
        ("inherit", failed),
        "a reservation",
        *(("JobRestored", id) for id in "abe"),
        "process of e",
        "suspender of a",
        ("asked again", "a"),
        "runner of a",
        ("asked again", "a"),
        "runner of e",
        ("asked again", "e"),
        ("JobEnded", "b"),
        ("JobSubmitted", "c"),
        ("inherit jobs", failed),
    ]
    restored = {one.job: one for one in diary if isinstance(one, JobRestored)}
    assert (restored["e"].spec.name, restored["e"].open, restored["e"].gpus) == ("train", True, (GPU2,)), "as it is now"
    assert (restored["a"].gpus, restored["a"].open, restored["b"].open) == ((), True, False)
    assert jobs.registry.get("b").ending.last_seen == {"gpus": [{"uuid": GPU}]}


def test_jobs_queue_again_in_the_order_in_which_they_came() -> None:
    jobs, diary = Jobs(), []
    outside: Any = thing(gpus=thing(infos={}), jobs=jobs.lifecycle, clients=[], suspenders=None, hook_runners=None)

    async def story() -> None:
        for id, began in (("a", 1.0), ("b", 5.0), ("c", 3.0)):
            record = jobs.job(id, JobState.QUEUED)
            record.began -= began
            record.patience = None if id == "c" else record.began + 4.0
            record.admission = asyncio.get_running_loop().create_future()
        core = thing(learn=lambda overheads: None)
        rebuild(thing(core=core, restore=diary.append), outside, Earlier({}))

    asyncio.run(story())
    assert [(type(one), one.job) for one in diary] == [(JobSubmitted, id) for id in "bca"]
    assert [one.age for one in diary] == pytest.approx([5.0, 3.0, 1.0], abs=0.5)
    assert [one.wait for one in diary] == [0.0, None, pytest.approx(3.0, abs=0.5)], "what is left of its patience"
    assert submission(jobs.registry.get("c")).spec == spec()


# ---- records ----------------------------------------------------------------------------------------


def test_a_record_goes_to_followers_the_history_and_the_log(caplog, monkeypatch) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("gpushared.runtime.record_effects.user_name", lambda uid: f"user{uid}")
    kept, ended, seen = [], [], []

    class Follower:
        def put(self, record: Record) -> None:
            seen.append(record)

        def end(self) -> None:
            ended.append(1)

    effects = RecordEffects(thing(record=lambda record, at: kept.append((record, at))))
    effects.followers.add(Follower())  # type: ignore[arg-type]
    full = Record(1.0, "granted", GPU, "it has 5", {"size": 5, "more": {"a": 1}}, "a", "train", ADA)
    bare = Record(2.0, "found", None, "a GPU", {}, None, None, None)
    for record in (full, full, bare, full):
        effects.log(do.Log(record))
    assert seen == [full, full, bare, full] == [record for record, _ in kept]
    assert all(abs(at - time.time()) < 5 for _, at in kept)
    assert [(one.getMessage(), one.facts) for one in caplog.records] == [
        ("it has 5", {"event": "granted", "size": 5, "job": "a", "name": "train", "user": f"user{ADA}", "gpu": GPU}),
        ("a GPU", {"event": "found"}),
    ], "one line a second of each kind"
    effects._sparingly._last.clear()
    effects.log(do.Log(full))
    assert caplog.records[-1].facts["more"] == 2, "how many were left out"
    caplog.clear()
    caplog.set_level(logging.WARNING)
    effects._sparingly._last.clear()
    effects.log(do.Log(bare))
    assert not caplog.records and seen[-1] is bare
    effects.end()
    assert ended == [1]
