"""Ways through the daemon that a usual day does not take: what is left behind, and what is said."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import GIB, GPU, InProcess, until

from gpushare._layout import ffi, lib
from gpushare.errors import NotPermitted, Refused
from gpushared.api import placement_routes
from gpushared.api.node_routes import NodeRoutes
from gpushared.api.placement_routes import PlacementRoutes
from gpushared.api.routes import Routes
from gpushared.api.submit_routes import SubmitRoutes
from gpushared.clients import pages as pages_
from gpushared.clients.pages import Page, Pages
from gpushared.core import instructions as do
from gpushared.history.file import File
from gpushared.history.levels import Amounts, SeriesKey, Who
from gpushared.jobs.placements import Placement, Placements
from gpushared.jobs.registry import JobState
from gpushared.runtime import recovery
from gpushared.runtime.driver_questions import DriverQuestions
from gpushared.runtime.suspenders import Suspenders
from gpushared.shims.handshake import Handshake
from gpushared.system import dashboard, processes
from gpushared.system.dashboard import Dashboard
from gpushared.system.processes import Process

pytestmark = pytest.mark.usefixtures("quiet_loop")

ADA, BOB = 70001, 70002
ME = os.geteuid()


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


# ---- pages ------------------------------------------------------------------------------------------


class Lib:
    """The library of layouts, with one function that fails."""

    def __getattr__(self, name: str) -> Any:
        return (lambda fd: ffi.NULL) if name == "gs_page_map" else getattr(lib, name)


def made(pages: Pages) -> Page:
    owner = Process.open(os.getpid())
    assert owner is not None
    try:
        return pages.create(owner, ME, job="1f", priority=0, grace_ms=0, name="x")
    finally:
        owner.close()


@pytest.mark.parametrize("how", ["no space", "no memory", "no place"])
def test_a_page_that_cannot_be_made_leaves_nothing(directory, monkeypatch, how) -> None:
    pages = Pages(directory / "pages")
    before = descriptors()
    if how == "no space":

        def full(fd: int, start: int, length: int) -> None:
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(pages_.os, "posix_fallocate", full)
    elif how == "no memory":
        monkeypatch.setattr(pages_, "lib", Lib())
    else:

        def fails(self: Page, path: Path) -> None:
            raise OSError(errno.EROFS, "read only")

        monkeypatch.setattr(Page, "move", fails)
    with pytest.raises(OSError):
        made(pages)
    monkeypatch.undo()
    assert descriptors() == before
    assert list((directory / "spare-pages").iterdir()) == list((directory / "pages").iterdir()) == []
    free = len(pages.ledger._free)
    page = made(pages)
    assert len(pages.ledger._free) == free - 1, "the ledger has a record of this one alone"
    page.close(remove=True)
    pages.close()


def test_a_file_that_cannot_be_mapped_is_closed(directory, monkeypatch) -> None:
    pages = Pages(directory / "pages")
    page = made(pages)
    before = descriptors()
    monkeypatch.setattr(pages_, "lib", Lib())
    assert pages_.map_checked(os.dup(page.fd), None) is None
    monkeypatch.undo()
    assert descriptors() == before
    found = pages_.map_checked(os.dup(page.fd), None)
    assert found is not None and found.id == page.id
    found.close(remove=False)
    assert descriptors() == before
    page.close(remove=True)
    pages.close()


@pytest.mark.parametrize("other", ["pid", "start_time", "uid", "job", "page"])
def test_a_page_of_another_is_closed_and_not_adopted(other) -> None:
    closed: list[bool] = []
    header = thing(pid=5, start_time=6, uid=ADA, job_id=7)
    page = thing(id=9, header=header, close=lambda *, remove: closed.append(remove))
    if other in ("pid", "start_time", "uid"):
        setattr(header, other, 99)
    elif other == "page":
        page.id = 10
    records = {f"{7:016x}": thing(spec=thing(uid=BOB if other == "job" else ADA))}
    handshake: Any = object.__new__(Handshake)
    handshake.shell = thing(clients=thing(get=lambda id: None), registry=thing(get=records.get))
    handshake.pages = thing(adopt=lambda descriptor: page)
    hello = thing(flags=lib.GS_HELLO_HAS_PAGE, page_id=9)
    assert handshake._known(thing(pid=5, start_time=6), ADA, hello, 3) is None
    assert closed == [False], "it stays: it may be somebody's"


def test_an_earlier_daemons_page_without_a_job_lets_its_process_go(monkeypatch) -> None:
    closed: list[int] = []
    rebuilt: list[Any] = []
    owners = [thing(pid=pid, close=lambda pid=pid: closed.append(pid)) for pid in (1, 2)]
    headers = [thing(header=thing(job_id=job)) for job in (0, 5)]
    monkeypatch.setattr(recovery, "take_in", lambda outside, adopt, page, owner: page.header.job_id or None)
    monkeypatch.setattr(recovery, "rebuild", lambda *told: rebuilt.append(told[2]))
    monkeypatch.setattr(recovery, "read_jobs", lambda outside, found, ids: sorted(ids))
    outside: Any = thing(jobs=thing(registry=thing(live=lambda: [])), clients=[])
    recovery.recover(thing(), outside, thing(), thing(reopen=lambda: zip(headers, owners, strict=True)), None)  # type: ignore[arg-type]
    assert closed == [1] and rebuilt == [[f"{0:016x}", f"{5:016x}"]]


# ---- placements -------------------------------------------------------------------------------------


class Placing:
    """Routes of placements over a registry with one job of ADA's, `a`."""

    def __init__(self, state: JobState = JobState.RUNNING) -> None:
        self.fed: list[Any] = []
        self.done: list[Any] = []
        self.spec = thing(uid=ADA, devices=(GPU,), _replace=lambda **more: thing(uid=ADA, **more))
        self.record = thing(id="a", state=state, over=True, wrapper=None, spec=self.spec)
        bounds = thing(spec=thing(request=1, limit=2, priority=0, _replace=lambda **more: more), bounds={GPU: None})
        self.placements = Placements()
        self.core = thing(jobs={"a": bounds})
        routes: Any = object.__new__(PlacementRoutes)
        routes.shell = thing(
            registry=thing(get=lambda job: self.record if job == "a" else None),
            jobs=thing(placements=self.placements),
            core=self.core,
            feed=self.fed.append,
        )
        routes.access = thing(viewer=lambda uid: uid)
        routes.done = lambda event, kind, viewer: self.done.append((event, kind, viewer))
        self.routes = routes

    def wanted(self, request: int = 1) -> Any:
        spec = thing(uid=ADA, devices=(GPU,), request=request, limit=2, priority=0)
        return placement_routes.Wanted(3, spec, "a", ("/x",), (), ())


@pytest.mark.parametrize("request_", [1, 5])
def test_a_job_that_was_lost_is_placed_again_as_it_runs(request_) -> None:
    placing = Placing()
    asyncio.run(placing.routes._place("task", placing.wanted(request_)))
    found = placing.placements.get("task")
    assert found == Placement("task", 3, "a", ("/x",)) and placing.record.over is False
    (event,) = placing.fed
    assert (event.job, event.spec.devices) == ("a", (GPU,))
    assert [(one.job, one.request, kind, viewer) for one, kind, viewer in placing.done] == (
        [("a", 5, do.BudgetSet, 0)] if request_ == 5 else []
    ), "as its engine says it, and only if that is another amount"


def test_what_is_over_cannot_be_changed() -> None:
    placing = Placing()
    placing.core.jobs.clear()
    for known in (None, Placement("task", 3, "a"), Placement("task", 3, "gone")):
        with pytest.raises(Refused, match="it is over"):
            placing.routes._change(known, placing.wanted())


def test_a_placement_that_ends_while_it_is_noted_is_told(daemon: InProcess, monkeypatch) -> None:
    real = daemon.shell.commits.done

    async def done(*, kept: bool = False) -> None:
        await real(kept=kept)
        daemon.shell.jobs.placements.drop("task")

    monkeypatch.setattr(daemon.shell.commits, "done", done)
    body = {"attempt": 1, "uid": ME, "gpus": [GPU], "request": "1Gi"}
    with pytest.raises(Refused, match="task was ended meanwhile"):
        daemon.client.place("task", body)


def test_a_placement_without_a_running_job_is_closed_at_once(daemon: InProcess) -> None:
    body = {"attempt": 1, "uid": ME, "gpus": [GPU], "request": "1Gi"}
    job = daemon.client.place("task", body)["job"]["id"]
    record = daemon.shell.registry.get(job)
    daemon.call(lambda: daemon.shell.registry.end(record))
    assert daemon.client.displace("task", 1)["state"] == "leaving"
    assert daemon.shell.jobs.placements.get("task") is None and daemon.shell.jobs.placements.attempts == {"task": 1}
    record.state = JobState.RUNNING
    daemon.call(lambda: daemon.shell.jobs.end(record))


@pytest.mark.parametrize(
    ("uid", "owner", "admin", "why"),
    [
        *[(ADA, ADA, False, None), (ADA, BOB, False, "not theirs"), (0, BOB, True, None), (ADA, 0, False, None)],
        *[(ADA, ADA, False, "leaving"), (ADA, ADA, False, "queued"), (ADA, ADA, False, "no record")],
    ],
)
def test_who_submits_within_a_placement(uid, owner, admin, why) -> None:
    """A program of the placement's user, or any where root's was placed."""
    taken: list[Any] = []
    placement = Placement("task", 1, "a", leaving=why == "leaving")
    state = JobState.QUEUED if why == "queued" else JobState.RUNNING
    record = None if why == "no record" else thing(id="a", state=state, spec=thing(uid=owner))
    routes: Any = object.__new__(SubmitRoutes)
    placements = thing(of_process=lambda pid: placement, take_wrapper=lambda *told: taken.append(told))
    routes.shell = thing(jobs=thing(placements=placements), registry=thing(get=lambda job: record))
    routes.not_theirs = lambda record, uid: NotPermitted("not theirs")
    caller = thing(pid=5, uid=uid, may_change=lambda of: admin or of == uid)
    if why is None:
        assert routes._placed(caller, None) is record and taken == [(placement, 5)]
        return
    kind, words = (NotPermitted, "not theirs") if why == "not theirs" else (Refused, "has been ended")
    with pytest.raises(kind, match=words):
        routes._placed(caller, None)
    assert taken == []


@pytest.mark.parametrize("sock", [None, thing(family=socket.AF_INET)], ids=["none", "TCP"])
def test_only_who_comes_by_a_unix_socket_is_told_which_daemon_this_is(sock) -> None:
    request: Any = thing(transport=thing(get_extra_info=lambda what: sock))
    with pytest.raises(NotPermitted, match="metrics only"):
        asyncio.run(object.__new__(NodeRoutes).get_version(request))


# ---- suspending -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("looks", "stays"),
    [([True], True), ([True, False], False), ([False], False)],
    ids=["still", "traced", "runs"],
)
def test_a_program_that_stays_still_is_not_suspended(looks, stays) -> None:
    """It cannot say that it is quiet, which is not waited for then. Who watches a program stops it for moments."""
    still, found = itertools.cycle(looks), []
    late = thing(done=False)
    clients: Any = {
        number: thing(process=thing(pid=100 + number), page=thing(gpus=[GPU]), job="a", id=number) for number in (1, 2)
    }
    credit: Any = thing(
        turn_gate=lambda process, *, closed: found.append((process, closed)),
        ask_quiet=lambda process, within: None,
        trims_of=lambda processes: {1: thing(done=True), 2: late},
        pages=clients,
    )

    async def asked() -> Any:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        one: Any = Suspenders(thing(feed=answered.set_result), credit, clients, thing(), lambda: None)
        one._quiet._stands_still = lambda process: process == 2 and next(still)
        one.tell = lambda job, command: answered.set_result(command)
        one.effects()[do.Suspend](do.Suspend("a", 7, (1, 2), 512, 60.0))
        await asyncio.sleep(0.6)
        late.done = True
        return await asyncio.wait_for(answered, 10)

    answer = asyncio.run(asked())
    assert found[:2] == [(1, True), (2, True)]
    if stays:
        assert answer.problem.startswith("it stands still (Ctrl-Z, SIGSTOP, a debugger")
        assert (answer.where, answer.number) == ("running", 7) and found[2:] == [(1, False), (2, False)]
    else:
        assert answer["command"] == "suspend" and 50 < answer["within"] < 59.5 and not found[2:]


# ---- files and drivers ------------------------------------------------------------------------------

A, B = SeriesKey(GPU, "a"), SeriesKey(GPU, "b")
WHO = Who("train", "ada", ADA)


def test_series_that_had_ended_do_not_end_again_with_the_next_daemon(tmp_path) -> None:
    start = 10**12
    path = tmp_path / "h" / "usage.db"
    file = File(path, start)
    file.write(start, {A: Amounts(5, 1, 2, 3), B: Amounts(6, 1, 2, 3)}, {A: WHO, B: WHO})
    file.write(start + 1000, {A: None}, {})
    file.commit(start + 2000)
    file.close()
    again = File(path, start + 60_000)
    found, _ = again.read(0, start, start + 10**6, None, None)
    rows = {one.key: [point.time - start for point in one.points] for one in found}
    assert rows == {A: [0, 1000], B: [0, 2001]}, "what lived ends when the earlier daemon was seen last"
    assert [found.key for found in again.read(0, start, start + 10**6, "b", None)[0]] == [B]
    again.close()


def test_an_answer_of_the_driver_after_the_end_is_of_no_use() -> None:
    went: list[int] = []
    called: list[Any] = []
    loop = thing(is_closed=lambda: True, call_later=lambda seconds, then: called.append(then))
    asked = thing(add_done_callback=called.append)
    questions: Any = object.__new__(DriverQuestions)
    questions._loop, questions._gpus = loop, thing(driver=thing(list=list))
    questions.thread = thing(ask=lambda question: asked)
    questions.take_in_gpus = lambda found: went.append(1)
    questions.look_for_gpus(lambda: went.append(2))
    called[0]()
    called[1](thing(cancelled=lambda: False, exception=lambda: None, result=list))
    assert went == []


def test_metrics_are_all_that_a_caller_without_a_socket_of_ours_may_have() -> None:
    routes: Any = object.__new__(Routes)
    with socket.socket(socket.AF_INET) as sock:
        request = thing(transport=thing(get_extra_info=lambda name: sock))
        with pytest.raises(NotPermitted, match="this address serves metrics only"):
            routes.caller(request)


# ---- processes --------------------------------------------------------------------------------------


def test_a_peer_that_cannot_be_seen_is_no_process(monkeypatch) -> None:
    """In a PID namespace that the daemon cannot see it has the number 0. An older kernel tells only the number."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(processes, "peer_credentials", lambda sock: (0, 1, 1))
    assert Process.of_peer(ours) is None
    monkeypatch.setattr(processes, "peer_credentials", lambda sock: (2**22 + 1, 1, 1))
    assert Process._of_peer_by_pid(ours, 2**22 + 1) is None
    found = Process._of_peer_by_pid(ours, os.getpid())
    assert found is not None and found.pid == os.getpid()
    found.close()
    before = descriptors()
    theirs.close()
    assert Process._of_peer_by_pid(ours, os.getpid()) is None and descriptors() == before - 1, "it has hung up"
    ours.close()


def test_a_process_whose_threads_cannot_be_listed_is_not_in_its_exit(monkeypatch) -> None:
    monkeypatch.setattr(processes, "_is_exiting", lambda fields: True)
    assert processes._in_exit(os.getpid())
    assert not processes._in_exit(2**22 + 1), "it has gone: its pidfd tells"


def test_a_dashboard_that_does_not_end_is_ended(directory, monkeypatch) -> None:
    """It should end when its input does; one that hangs must not outlive the daemon."""
    monkeypatch.setattr(dashboard, "ENDS_WITHIN", 0.2)

    async def story() -> None:
        started: list[Any] = []
        start = asyncio.create_subprocess_exec

        async def note(*command: str, **pipes: Any) -> Any:
            started.append(await start("sh", "-c", "echo http://x; exec sleep 60", **pipes))
            return started[0]

        monkeypatch.setattr(dashboard.asyncio, "create_subprocess_exec", note)
        page = Dashboard(directory, 1, read_only=True)
        task = asyncio.create_task(page._run())
        while page.url is None:  # noqa: ASYNC110  (a line of a pipe has no event)
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert page.url is None and await asyncio.wait_for(started[0].wait(), 10) == -9

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_gpu_that_the_daemon_did_not_know_is_looked_for_once(daemon: InProcess) -> None:
    """One that has appeared since the start is found; who has gone meanwhile is not answered."""
    from gpushared.gpus.inventory import GpuInfo

    late = "GPU-00000000-0000-0000-0000-000000000009"
    with daemon.connect() as shim:
        shim.hello(request=0, limit="max")
        daemon.gpus.infos.append(GpuInfo(late, 2, "Test GPU", 16 * GIB))
        assert shim.attach(late).status == lib.GS_OK
        answer = shim.attach("GPU-00000000-0000-0000-0000-000000000008")
        assert answer.status == lib.GS_UNKNOWN and "does not know this GPU" in answer.text
    looks: list[Any] = []
    daemon.shell.driver.look_for_gpus = looks.append
    daemon.daemon.shims._requests._look_again._last.clear()
    with daemon.connect() as shim:
        shim.hello(request=0, limit="max")
        shim.send_attach("GPU-00000000-0000-0000-0000-000000000007")
        until(lambda: looks)
    until(lambda: not len(daemon.shell.clients))
    daemon.call(looks[0])
