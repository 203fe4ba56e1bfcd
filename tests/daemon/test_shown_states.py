"""What the API shows of jobs, GPUs and the history, of a world that is made up field by field."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import GIB, GPU, GPU2, InProcess
from fixed_gpus import FixedGpus

from gpushare.reclaim_steps import ReclaimStep
from gpushared.api import history as history_routes
from gpushared.api import views as views_
from gpushared.api.history import HistoryHandler, gpu_time, seen
from gpushared.api.views import Views
from gpushared.core.events import GpuExamined
from gpushared.core.health_issues import lost
from gpushared.core.instructions import Record
from gpushared.core.model import Bounds
from gpushared.core.sleep import SleepState
from gpushared.core.suspension import SuspendState
from gpushared.core.visibility import Viewer
from gpushared.gpus.inventory import GpuInfo, Sample
from gpushared.history.levels import OUTSIDE, TOTAL, Amounts, Found, Point, SeriesKey, Who
from gpushared.history.usage import Change
from gpushared.jobs.registry import JobState

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
WHOLE = 1000

ADA, BOB = 70001, 70002
JOB = {"name": "train", "command": ["train.py"], "request": "4Gi", "limit": "14Gi"}


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


# ---- the state of a job -----------------------------------------------------------------------------


def job_like(**more: Any) -> Any:
    plain = {"id": "ff", "suspension": None, "sleep": None, "reclaims": {}, "aside": None, "spec": thing(observe=False)}
    return thing(**{**plain, **more})


def state_of(job: Any, *, claims: bool = False, record: JobState = JobState.RUNNING) -> str:
    views = Views(thing(core=thing(has_claim=lambda id: claims and id == "ff")))
    return str(views._state(thing(state=record), job))


def reclaims(*steps: ReclaimStep) -> dict[str, Any]:
    return {str(number): thing(step=step) for number, step in enumerate(steps)}


@pytest.mark.parametrize("state", JobState)
def test_a_job_that_the_core_does_not_have_is_where_its_record_says(state) -> None:
    assert state_of(None, record=state) == state
    assert state_of(job_like(), record=state) == state


STATES = [
    *((job_like(suspension=thing(state=state)), state.value) for state in SuspendState if state != SuspendState.STUCK),
    (job_like(suspension=thing(state=SuspendState.STUCK)), "asked_back"),
    *((job_like(sleep=thing(state=state)), state.value) for state in SleepState),
    (job_like(reclaims=reclaims(ReclaimStep.REVOKE)), "trimming"),
    (job_like(reclaims=reclaims(ReclaimStep.TRIM, ReclaimStep.HOOK)), "trimming"),
    (job_like(reclaims=reclaims(ReclaimStep.SUSPEND)), "asked_back"),
    (job_like(reclaims=reclaims(ReclaimStep.TRIM, ReclaimStep.TERM)), "asked_back"),
    (job_like(reclaims=reclaims(ReclaimStep.KILL)), "asked_back"),
    (job_like(spec=thing(observe=True)), "observed"),
    (job_like(aside=object()), "idle"),
]


@pytest.mark.parametrize(("job", "state"), STATES)
def test_what_a_job_does(job, state) -> None:
    assert state_of(job) == state


def test_of_several_states_the_one_that_says_most_is_shown() -> None:
    everything = {
        "suspension": thing(state=SuspendState.SUSPENDED),
        "sleep": thing(state=SleepState.ASLEEP),
        "reclaims": reclaims(ReclaimStep.TERM),
        "spec": thing(observe=True),
        "aside": object(),
    }
    plain = vars(job_like())
    shown = []
    for name in everything:
        shown.append(state_of(job_like(**everything), claims=True))
        everything[name] = plain[name]
    assert shown == ["suspended", "asleep", "asked_back", "observed", "waiting"]
    assert state_of(job_like(), claims=True) == "waiting" and state_of(job_like()) == "running"


# ---- a job and its GPUs -----------------------------------------------------------------------------


@pytest.fixture
def lent(daemon: InProcess) -> Any:
    """A job on the first GPU with 6 GiB, of which its request covers 4; and its program."""
    job = daemon.client.register(JOB | {"devices": ["0"]})["id"]
    with daemon.connect() as shim:
        shim.hello(job, request=4 * GIB, limit=14 * GIB)
        shim.attach(GPU)
        shim.allocate(6 * GIB)
        yield thing(daemon=daemon, job=job, shim=shim)


def test_the_sums_of_a_job_and_of_its_gpu_agree(lent) -> None:
    job, status = lent.daemon.client.job(lent.job), lent.daemon.client.status()
    (on,), (gpu, other) = job["gpus"], status["gpus"]
    assert job["state"] == "borrowing" and on["accounted"] == 6 * GIB
    assert on["usage"] == on["accounted"] + on["overhead"] and on["loan"] == on["usage"] - 4 * GIB
    assert on["peak"] == on["accounted"], "what its context costs is a guess, and nobody has seen so much in use"
    assert on["credit"] >= 6 * GIB and on["suspended"] == 0
    assert (on["request"], on["limit"], on["index"], on["name"]) == (4 * GIB, 14 * GIB, 0, "Test GPU")
    assert gpu["usage"] == on["usage"] and gpu["lent"] == on["loan"] and gpu["requested"] == 4 * GIB
    assert gpu["free"] == gpu["capacity"] - gpu["usage"] and gpu["returning"] == gpu["unmanaged"] == 0
    assert other["usage"] == other["lent"] == other["requested"] == 0 and other["free"] == other["capacity"]
    (process,) = job["processes"]
    assert (process["pid"], process["driver_copies"]) == (os.getpid(), 0)
    assert process["gpus"] == {GPU: on["usage"]} and process["command"]
    assert 0 < on["grantable"] <= 14 * GIB - on["usage"]
    assert status["daemon"]["jobs"] == 1 and status["daemon"]["uptime"] >= 0


def test_what_is_parked_counts_for_no_process_and_is_shown_apart(lent) -> None:
    core = lent.daemon.shell.core
    (share,) = core.gpus[GPU].shares.values()

    def shown() -> tuple[Any, Any]:
        before = share.parked, share.used, share.overhead
        share.parked, share.used, share.overhead = thing(used=5, overhead=7), 0, 2
        try:
            record = lent.daemon.shell.registry.get(lent.job)
            views = lent.daemon.daemon.api.views
            job = views.job(record, Viewer(0, "name"))
            return job["gpus"][0], job["processes"][0]
        finally:
            share.parked, share.used, share.overhead = before

    on, process = lent.daemon.call(shown)
    assert (on["suspended"], on["accounted"], on["overhead"], on["usage"], on["loan"]) == (12, 0, 2, 2, 0)
    assert process["gpus"] == {GPU: 2}, "the page has what it will use again"


def test_the_peak_of_a_job_with_several_processes_is_never_below_what_it_uses(make_daemon) -> None:
    """Of one process the page has the exact peak; of several what was seen counts, and this look is one."""
    daemon = make_daemon(sample_interval=3600.0)
    job = daemon.client.register(JOB | {"devices": ["0"]})["id"]
    with daemon.connect() as one, daemon.connect() as other:
        for shim in (one, other):
            shim.hello(job, request=4 * GIB, limit=14 * GIB)
            shim.attach(GPU)
            shim.allocate(3 * GIB)
        (on,) = daemon.client.job(job)["gpus"]
        assert on["accounted"] == on["peak"] == 6 * GIB, "beside the guess of what their contexts cost"
        other.free(2 * GIB)
        (now,) = daemon.client.job(job)["gpus"]
        assert now["peak"] == 6 * GIB > now["accounted"]


def test_a_lost_gpu_has_nothing_to_give(lent) -> None:
    daemon = lent.daemon
    waiting = daemon.client.register(JOB | {"devices": ["0"], "request": "1Gi"})["id"]
    assert daemon.client.job(waiting)["gpus"][0]["grantable"] > 0
    daemon.call(lambda: daemon.shell.feed(GpuExamined(GPU, (lost(),))))
    assert [daemon.client.job(job)["gpus"][0]["grantable"] for job in (lent.job, waiting)] == [0, 0]
    gpu = daemon.client.status()["gpus"][0]
    assert (gpu["free"], gpu["health"]["state"]) == (0, "lost")


def test_a_job_that_has_ended_is_shown_as_it_was_last(lent) -> None:
    last = lent.daemon.client.job(lent.job)["gpus"]
    lent.shim.close()
    ended = lent.daemon.client.end(lent.job, 0, None)["job"]
    assert [gpu["uuid"] for gpu in ended["gpus"]] == [GPU] and ended["gpus"][0]["peak"] == last[0]["peak"]
    assert ended["outcome"]["peak"] == {GPU: last[0]["peak"]} and ended["processes"] == []


def test_the_history_has_a_thousand_letters_of_a_command(daemon: InProcess) -> None:
    job = daemon.client.register({**JOB, "command": ["x" * 5000]})["id"]
    picture = daemon.call(lambda: daemon.daemon.api.views.picture(daemon.shell.registry.get(job)))
    assert list(map(len, picture["command"])) == [1000]
    assert picture["name"] == "train" and picture["outcome"] is None


# ---- who may see what -------------------------------------------------------------------------------

KILLED = {"code": "reclaim"}


def shown_job() -> Any:
    outcome = {"exit_code": 3, "signal": 9, "killed": KILLED, "peak": {GPU: 5}}
    processes = [{"pid": 5, "command": "train.py"}]
    return {
        **{"name": "train", "user": "ada", "uid": ADA, "command": ["train.py"], "outcome": outcome},
        "processes": processes,
    }


@pytest.mark.parametrize(
    ("reveal", "name", "user", "uid", "exit_code"),
    [("name", "train", "ada", ADA, 3), ("user", "-", "ada", ADA, None), ("none", "-", "-", -1, None)],
)
def test_of_another_users_job_its_memory_is_shown(reveal, name, user, uid, exit_code) -> None:
    shown = views_._veil(shown_job(), Viewer(BOB, reveal))
    assert (shown["name"], shown["user"], shown["uid"]) == (name, user, uid)
    assert shown["command"] == [] and shown["processes"] == [{"pid": 5, "command": "-"}]
    ended = shown["outcome"]
    assert ended["exit_code"] == exit_code and ended["peak"] == {GPU: 5}
    assert (ended["signal"], ended["killed"]) == ((9, KILLED) if reveal == "name" else (None, None))
    assert views_._veil({**shown_job(), "outcome": None}, Viewer(BOB, "none"))["outcome"] is None


def test_of_foreign_processes_a_user_sees_its_own(make_daemon) -> None:
    gpus = FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB)], {GPU: Sample(3 * GIB, {1: GIB, os.getpid(): 2 * GIB})})
    daemon = make_daemon(gpus)
    daemon.client.register(JOB)
    views, core = daemon.daemon.api.views, daemon.shell.core

    def foreign(viewer: Viewer) -> list[tuple[Any, ...]]:
        found = views._foreign_processes(core.gpus[GPU], viewer)
        return [(one["pid"], one["bytes"], one["command"] != "-", one["user"] != "-", one["uid"]) for one in found]

    deadline = time.monotonic() + 5
    while daemon.shell.gpus.samples.get(GPU) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    me = os.geteuid()
    mine, init = (os.getpid(), 2 * GIB), (1, GIB)
    see = lambda reveal, uid: daemon.call(lambda: foreign(Viewer(uid, reveal)))  # noqa: E731
    assert see("none", me)[0] == (*mine, True, True, me), "the largest first"
    for reveal, user in (("name", True), ("user", True), ("none", False)):
        seen_by = see(reveal, BOB)
        assert seen_by[0] == (*mine, False, user, me if user else -1)
        assert seen_by[1] == (*init, False, user, 0 if user else -1)
    assert daemon.call(views.gpus)[0]["unmanaged_processes"] == [], "nobody asked"
    assert len(daemon.client.status()["gpus"][0]["unmanaged_processes"]) == 2


# ---- records ----------------------------------------------------------------------------------------


def record(time_: float, uid: int | None, job: str = "ff") -> Record:
    return Record(time_, "admitted", GPU, f"text {time_:g}", {"n": 1}, job, "train", uid)


def records_of(*records: Record, own: tuple[Record, ...] = ()) -> Views:
    return Views(thing(core=thing(records=list(records), story=lambda job: own if job == "ff" else ())))


def test_records_that_a_viewer_may_read_and_the_last_of_them() -> None:
    views = records_of(*(record(number, (None, ADA, BOB)[number % 3]) for number in range(9)))
    ada, root = Viewer(ADA, "user"), Viewer(0, "none")
    times = lambda found: [one.time for one in found]  # noqa: E731
    assert times(views.readable(ada)) == [0, 1, 3, 4, 6, 7]
    assert times(views.readable(root)) == list(range(9)) == times(views.readable(Viewer(ADA, "name")))
    assert [times(views.readable(ada, last)) for last in (0, 1, 2, 99)] == [[], [7], [6, 7], [0, 1, 3, 4, 6, 7]]
    (shown,) = views.records(ada, [record(5.0, None)])
    assert shown.pop("time") == pytest.approx(time.time() - time.monotonic() + 5.0, abs=1.0)
    assert shown == {
        **{"name": "train", "event": "admitted", "gpu": GPU, "job": "ff", "text": "text 5"},
        "facts": {"n": 1},
    }


def test_a_story_begins_with_the_time_in_the_queue() -> None:
    job, viewer = thing(id="ff"), Viewer(ADA, "name")
    noted = [record(1, ADA), record(2, ADA, "other"), record(3, ADA), record(4, ADA)]
    texts = lambda views: [one["text"] for one in views.story(job, viewer)]  # noqa: E731
    assert texts(records_of(*noted, own=(record(3, ADA), record(4, ADA)))) == ["text 1", "text 3", "text 4"]
    assert texts(records_of(*noted)) == ["text 1", "text 3", "text 4"], "the core has forgotten the job"


# ---- the history ------------------------------------------------------------------------------------


def world() -> Any:
    """Two GPUs. Job a borrows on the first and only has its request on the second; job b is observed on the first."""
    a = thing(id="a", bounds={"x": Bounds(4, 9), "y": Bounds(4, 9)}, observed={}, spec=thing(observe=False))
    b = thing(id="b", bounds={"x": Bounds(0, 20)}, observed={"x": 5}, spec=thing(observe=True))
    for job, name in ((a, "train"), (b, "look")):
        job.spec.name, job.spec.user, job.spec.uid = name, f"user of {name}", ADA
    gpus = {
        id: thing(id=id, capacity=20, unmanaged=unmanaged, returning_total=returning)
        for id, unmanaged, returning in (("x", 3, 2), ("y", 0, 0))
    }
    usage = {"x": {"a": 7}, "y": {"a": 1}}
    core = thing(jobs={"a": a, "b": b}, gpus=gpus, requested=lambda gpu: 4)
    totals = {"a": {"x": 2.0, "y": 3.0}, "b": {"x": 5.0}}
    records = [thing(id=id, totals=thing(gpu_time=times)) for id, times in totals.items()]
    return thing(
        core=core,
        credit=thing(usage_by_job=lambda gpu: dict(usage[gpu.id])),
        registry=thing(live=lambda: iter(records)),
    )


def test_what_a_sample_of_the_history_has() -> None:
    assert seen(world()) == {
        SeriesKey("x", "a"): Amounts(7, 4, 9, 3),
        SeriesKey("x", "b"): Amounts(5, 0, 20, 0),
        SeriesKey("x", TOTAL): Amounts(7, 4, 20, 3),
        SeriesKey("x", OUTSIDE): Amounts(3, 0, 0, 0),  # without what is on its way back from ended programs
        SeriesKey("y", "a"): Amounts(1, 4, 9, 0),
        SeriesKey("y", TOTAL): Amounts(1, 4, 20, 0),
        SeriesKey("y", OUTSIDE): Amounts(0, 0, 0, 0),
    }
    assert gpu_time(world()) == {
        **{SeriesKey("x", "a"): 2.0, SeriesKey("y", "a"): 3.0, SeriesKey("x", "b"): 5.0},
        **{SeriesKey("x", TOTAL): 7.0, SeriesKey("y", TOTAL): 3.0},
    }


def test_a_sample_has_the_share_of_time_of_what_computes(monkeypatch) -> None:
    noted: list[Any] = []
    usage = thing(look=lambda found, whose, now: noted.append((found, whose)), followers=set())
    handler = HistoryHandler(world(), usage, lambda _: Viewer(ADA, "name"), thing())
    parts = {SeriesKey("x", "a"): 400, SeriesKey("y", "a"): 0, SeriesKey("x", TOTAL): 500, SeriesKey("z", "gone"): 9}
    monkeypatch.setattr(handler, "_gpu_time", thing(means=lambda seconds, now: parts))
    assert handler.look() == history_routes.EVERY
    ((found, whose),) = noted
    plain = seen(world())
    assert found.pop(SeriesKey("x", "a")) == Amounts(7, 4, 9, 3, 400)
    assert found.pop(SeriesKey("x", TOTAL)) == Amounts(7, 4, 20, 3, 500)
    assert found.items() <= plain.items() and len(found) == len(plain) - 2
    assert whose(SeriesKey("x", "a")) == Who("train", "user of train", ADA)
    assert {whose(SeriesKey("x", one)) for one in (TOTAL, OUTSIDE)} == {Who("", "", -1)}
    usage.followers.add(1)
    assert handler.look() == history_routes.WHILE_FOLLOWED < history_routes.EVERY


@pytest.mark.parametrize(
    ("reveal", "uid", "name", "user"),
    [
        ("name", BOB, "train", "ada"),
        ("user", BOB, "-", "ada"),
        ("none", BOB, "-", "-"),
        ("none", ADA, "train", "ada"),
        ("none", 0, "train", "ada"),
    ],
)
def test_a_series_is_named_as_far_as_its_reader_may_know(reveal, uid, name, user) -> None:
    viewer, key = Viewer(uid, reveal), SeriesKey("x", "a")
    points = (Point(1, 1500, Amounts(7, 4, 9, 3, WHOLE // 2), 8), Point(1, 2500, None, 0))
    named = {"gpu": "x", "job": "a", "name": name, "user": user}
    assert history_routes._series(Found(key, Who("train", "ada", ADA), points), viewer) == {
        **named,
        "points": [[1.5, 7, 8, 4, 9, 3, 0.5], [2.5]],
    }
    total = SeriesKey("x", TOTAL)
    change = Change(
        3500,
        {key: Amounts(7, 4, 9, 3, WHOLE // 4), total: Amounts(1, 1, 1, 1, 0), SeriesKey("x", "b"): None},
        {key: Who("train", "ada", ADA), total: Who("", "", -1)},
    )
    now = {"usage": 7, "request": 4, "limit": 9, "loan": 3, "computing": 0.25}
    ones = {**dict.fromkeys(("usage", "request", "limit", "loan"), 1), "computing": 0.0}
    assert history_routes._line(change, viewer) == {
        "time": 3.5,
        "series": [
            {**named, "now": now},
            {"gpu": "x", "job": TOTAL, "name": "", "user": "", "now": ones},
            {"gpu": "x", "job": "b", "now": None},
        ],
    }


def test_gpus_of_a_job_are_shown_in_its_order(daemon: InProcess) -> None:
    job = daemon.client.register(JOB | {"gpus": 2, "devices": ["1", "0"]})
    assert [gpu["uuid"] for gpu in job["gpus"]] == [GPU2, GPU] and {gpu["loan"] for gpu in job["gpus"]} == {0}
