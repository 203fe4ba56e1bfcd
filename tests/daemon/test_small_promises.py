"""Small things that a part of the daemon promises to the parts around it, each by itself."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import platform
import socket
import struct
import subprocess
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from daemon_harness import GPU, InProcess, until
from shim_client import amount

from gpushare._layout import ffi, lib
from gpushare.errors import NotNoted, NotPermitted
from gpushared.api import job_routes
from gpushared.api.answers import MAX_BODY, http_error
from gpushared.api.job_routes import JobRoutes
from gpushared.clients.credit import CreditPages
from gpushared.clients.pages import UNIT, Page, Pages, uuid_bytes
from gpushared.clients.turn_words import ASKS, CLOSED, HELD, PROBE, QUIET, WANTED, TurnWords, Word
from gpushared.core.events import TrimSeen
from gpushared.gpus.health_monitor import HealthMonitor
from gpushared.jobs import historian
from gpushared.jobs.historian import Historian
from gpushared.jobs.registry import JobState
from gpushared.runtime import process_lifecycle, recovery, turn_keeper
from gpushared.runtime.process_lifecycle import ProcessLifecycle
from gpushared.runtime.turn_keeper import TurnKeeper
from gpushared.shims import requests
from gpushared.system import descriptors
from gpushared.system.descriptors import DescriptorCloser
from gpushared.system.processes import Process

pytestmark = pytest.mark.usefixtures("quiet_loop")


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


# ---- what aiohttp refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (web.HTTPRequestEntityTooLarge(1, 2), 413, f"the body of the request is larger than {MAX_BODY} bytes"),
        (web.HTTPUnsupportedMediaType(), 415, "the body of the request is encoded, and the daemon takes none that is"),
        (web.HTTPNotFound(), 404, "not found: GET /v1/x"),
        (web.HTTPMethodNotAllowed("GET", ["PUT"]), 405, "method not allowed: GET /v1/x"),
        (web.HTTPNotFound(reason=""), 404, "no: GET /v1/x"),
    ],
    ids=["too large", "encoded", "no such path", "wrong method", "without a reason"],
)
def test_refusals_of_aiohttp_have_the_shape_of_ours(error, status, message) -> None:
    answer = http_error(thing(method="GET", path="/v1/x"), error)
    shown = json.loads(answer.text or "")["error"]
    assert (answer.status, shown["code"], shown["message"]) == (status, f"http_{status}", message)


# ---- descriptors that strangers send ----------------------------------------------------------------


def test_what_comes_while_others_are_closed_is_closed_too(monkeypatch) -> None:
    closed: list[int] = []
    go_on, within = threading.Event(), threading.Event()

    def close(descriptor: int) -> None:
        within.set()
        go_on.wait(5)
        closed.append(descriptor)

    monkeypatch.setattr(descriptors, "_close", close)
    closer = DescriptorCloser()
    closer.take(7, [])
    assert closer._open == {}
    closer.take(7, [1, 2])
    assert within.wait(5)
    closer.take(7, [3])
    closer.take(8, [4])
    assert closer._open[7] == 3 and not closer.too_many(7)
    closer._open[9] = descriptors.MOST_OPEN
    assert not closer.too_many(9)
    closer._open[9] += 1
    assert closer.too_many(9)
    del closer._open[9]
    go_on.set()
    until(lambda: not closer._open and not closer._waiting)
    assert sorted(closed) == [1, 2, 3, 4] and closed.index(3) > closed.index(2), "in their order"


def test_a_stranger_is_closed_once(monkeypatch) -> None:
    """Its number may be another file's a moment later."""
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    closed: list[int] = []
    close = os.close
    monkeypatch.setattr(descriptors.os, "close", lambda fd: (closed.append(fd), close(fd)))
    descriptors._close(theirs.detach())
    assert closed == [] and ours.recv(1) == b""
    ours.close()
    descriptors._close(reading)
    assert closed == [reading]
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"x")
    close(writing)


# ---- words on which a library's thread waits --------------------------------------------------------

FUTEX, WAIT = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1), 0


class Sleeper:
    """A thread that waits at a word as the library does: until it is woken, or so many seconds have passed."""

    def __init__(self, word: Any, seconds: float = 2.0) -> None:
        self._nanoseconds = int(seconds * 10**9)
        self.woken: bool | None = None
        self._address = int(ffi.cast("uintptr_t", word))
        self._expected = word[0]
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()
        time.sleep(0.05)

    def _wait(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        until_then = (ctypes.c_long * 2)(*divmod(self._nanoseconds, 10**9))
        self.woken = (
            libc.syscall(
                FUTEX, ctypes.c_void_p(self._address), WAIT, ctypes.c_uint(self._expected), until_then, None, 0
            )
            == 0
        )

    def end(self) -> bool | None:
        self._thread.join(5)
        return self.woken


@pytest.fixture
def page(directory) -> Any:
    pages = Pages(directory / "pages")
    owner = Process.open(os.getpid())
    assert owner is not None
    made = pages.create(owner, os.getuid(), job="1f", priority=0, grace_ms=0, name="x")
    made.line_of(GPU)
    yield made
    made.close(remove=True)
    pages.close()
    owner.close()


@pytest.mark.skipif(FUTEX < 0, reason="the number of the call is not known here")
@pytest.mark.parametrize("what", ["wake_trimmer", "ask_trim", "ask_quiet"])
def test_the_librarys_thread_is_woken(page: Page, what) -> None:
    sleeper = Sleeper(ffi.addressof(page._struct, "trim_asked"))
    {
        "wake_trimmer": page.wake_trimmer,
        "ask_trim": lambda: page.ask_trim(GPU, 5, 100),
        "ask_quiet": lambda: page.ask_quiet(100),
    }[what]()
    assert sleeper.end() is True
    assert page._struct.trim_asked == (0 if what == "wake_trimmer" else 1)


@pytest.mark.skipif(FUTEX < 0, reason="the number of the call is not known here")
def test_calls_at_a_gate_are_woken(page: Page) -> None:
    line = page.lines[GPU]
    lib.gs_turn_gate(line, True)
    first = line.gate
    assert first
    sleeper = Sleeper(ffi.addressof(line, "gate"))
    lib.gs_turn_gate(line, True)
    assert sleeper.end() is True and line.gate != first, "they see that the daemon lives"
    sleeper = Sleeper(ffi.addressof(line, "gate"))
    lib.gs_turn_gate(line, False)
    assert sleeper.end() is True and line.gate == 0


def test_what_a_trim_is_asked_for(page: Page) -> None:
    assert page.trim_seen() is None, "its library has no thread for it"
    page._struct.trim_ready = 1
    assert page.trim_seen() == TrimSeen(begun=True, done=True)
    page.line_of("GPU-00000000-0000-0000-0000-000000000002")
    other = page.lines["GPU-00000000-0000-0000-0000-000000000002"]
    page.ask_trim(GPU, 5, 100)
    assert (page.lines[GPU].trim_units, other.trim_units, page._struct.trim_ms) == (5, 0, 100)
    assert page.trim_seen() == TrimSeen(begun=False, done=False)
    page.ask_trim(page.gpus[1], 7, 2**40)
    assert (page.lines[GPU].trim_units, other.trim_units) == (5, 7), "the first one has not ended"
    assert page._struct.trim_ms == 2**32 - 1
    page._struct.trim_begun = 2
    assert page.trim_seen() == TrimSeen(begun=True, done=False)
    page._struct.trim_done = 2
    assert page.trim_seen() == TrimSeen(begun=True, done=True)
    page.ask_quiet(50)
    assert (page.lines[GPU].trim_units, other.trim_units, page._struct.trim_ms) == (0, 0, 50)
    page._struct.trim_ms = 0
    page.may_be_asked_to_trim()
    assert page._struct.trim_ms == lib.GS_TRIM_MS


def test_a_page_says_which_copies_and_what_is_used(page: Page) -> None:
    page._struct.copies = 3
    assert page.driver_copies() == 3
    lib.gs_grant(page.lines[GPU], 10)
    assert lib.gs_reserve(page.lines[GPU], 4)
    assert page.used() == {GPU: 4 * 512}
    assert page.line_of(GPU) == 0
    (seen,) = page.lines_seen()
    assert (seen.index, seen.used, seen.credit) == (0, 0, 0), "the ledger knows of no credit"


# ---- the rest ---------------------------------------------------------------------------------------


def test_pages_that_were_broken_before_this_daemon_are_not_its_clients(monkeypatch) -> None:
    monkeypatch.setattr(process_lifecycle, "lib", thing(gs_pages_broken=lambda: 3))
    looked: list[Any] = []
    clients = [thing(page=thing(broken=True))]
    life = ProcessLifecycle(thing(), thing(), clients, jobs=thing(), driver=thing(), limits=thing(), epoll=thing())
    life.gone = looked.append  # type: ignore[method-assign, assignment]
    life.give_up_broken()
    assert looked == []
    monkeypatch.setattr(process_lifecycle, "lib", thing(gs_pages_broken=lambda: 4))
    for _ in range(2):
        life.give_up_broken()
    assert looked == clients, "once, until there is another"


def test_the_history_is_written_in_batches_until_it_closes(tmp_path, monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(historian, "time", thing(sleep=slept.append, time=time.time))

    async def story() -> None:
        one = Historian(tmp_path / "h")
        one.start()
        assert await one.ask(1, lambda _: 5) == 5
        until(lambda: slept == [historian.PAUSE])
        one._closing = True
        assert await one.ask(1, lambda _: 6) == 6
        one.close()

    asyncio.run(story())
    assert slept == [historian.PAUSE], "nobody waits for a pause at the end"


# ---- who is a job's program -------------------------------------------------------------------------


class Naming:
    """A call that names process 50 as the program of a job that has process 40 as its program already."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, uid: int, *, parent: int = 30, owner: int = 7) -> None:
        self.closed: list[int] = []
        self.stopped: list[Any] = []
        self.failure: Exception | None = None
        monkeypatch.setattr(job_routes, "parent_of", lambda pid: parent)
        monkeypatch.setattr(job_routes, "uid_of", lambda pid: owner)
        monkeypatch.setattr(job_routes, "stop", lambda *told: self.stopped.append(told))
        monkeypatch.setattr(job_routes.Process, "open", self.process)
        self.record = thing(main=self.process(40), state=JobState.RUNNING, ending=thing(stopping=None))
        routes: Any = object.__new__(JobRoutes)
        routes.find_own = lambda request: (self.record, thing(uid=uid, pid=30))
        routes.body = self.body
        routes.shell = thing(commits=thing(now=self.note))
        routes.views, routes.viewer = thing(job=lambda *_: {}), lambda request: None
        self.routes = routes

    def note(self) -> None:
        if self.failure is not None:
            raise self.failure

    def process(self, pid: int) -> Any:
        return thing(pid=pid, close=lambda: self.closed.append(pid))

    async def body(self, request: Any) -> Any:
        return thing(integer=lambda *_: 50, finish=lambda _: None)

    def call(self) -> int:
        return int(asyncio.run(self.routes.put_main(None)).status)


@pytest.mark.parametrize(
    ("uid", "parent", "owner", "allowed"),
    [
        *[(7, 30, 7, True), (7, 30, 8, False), (7, 29, 7, False)],
        *[(0, 30, 7, True), (0, 30, 0, True), (0, 29, 0, False), (1, 30, 0, False)],
    ],
)
def test_a_program_is_a_child_of_its_wrapper_and_of_its_user(monkeypatch, uid, parent, owner, allowed) -> None:
    """The daemon may kill it later, with rights that the caller does not have. Root's may be any user's."""
    naming = Naming(monkeypatch, uid, parent=parent, owner=owner)
    if allowed:
        assert naming.call() == 200
        assert (naming.record.main.pid, naming.closed, naming.stopped) == (50, [40], [])
    else:
        with pytest.raises(NotPermitted, match="process 50 is not a child of the caller"):
            naming.call()
        assert (naming.record.main.pid, naming.closed) == (40, [50])


def test_a_program_that_cannot_be_noted_is_not_named(monkeypatch) -> None:
    naming = Naming(monkeypatch, 7)
    naming.failure = NotNoted("the disk is full")
    with pytest.raises(NotNoted):
        naming.call()
    assert (naming.record.main.pid, naming.closed) == (40, [50])


def test_a_program_that_starts_after_its_job_was_stopped_is_stopped(monkeypatch) -> None:
    naming = Naming(monkeypatch, 7)
    naming.record.main, naming.record.ending.stopping = None, 15
    assert naming.call() == 200
    ((record, (main,), number),) = naming.stopped
    assert (record, main.pid, number, naming.closed) == (naming.record, 50, 15, [])


# ---- programs and daemons that come again -----------------------------------------------------------

JOB = {"name": "train", "command": ["x"], "request": "1Gi", "limit": "2Gi", "job": "00000000000000a1"}


def test_a_wrapper_that_comes_again_holds_its_job_again(daemon: InProcess) -> None:
    daemon.client.register(JOB)
    record = daemon.shell.registry.get(JOB["job"])
    daemon.call(lambda: setattr(record, "over", True))
    assert daemon.client.register(JOB)["state"] == "running"
    assert (record.over, record.admission) == (False, None)


def test_a_page_of_an_earlier_daemon_gets_the_terms_of_its_job(monkeypatch) -> None:
    """The ledger outlives the daemon: the next one reads from it what the job was promised."""
    monkeypatch.setattr(recovery, "command_of", lambda pid: "x")
    monkeypatch.setattr(recovery.Terms, "of", lambda spec: ("terms of", spec))
    terms: list[Any] = []
    spec = thing(request=1, limit=2)
    record = thing(id="ab", spec=spec, state=JobState.RUNNING)
    outside: Any = thing(jobs=thing(registry=thing(get=lambda job: record)), gpus=thing(by_bytes={}))
    page: Any = thing(
        id=1,
        header=thing(job_id=0xAB, uid=7),
        take_lines=lambda gpus: [],
        account=thing(set_terms=terms.append),
    )
    client = recovery.take_in(outside, lambda client: None, page, thing(pid=1))
    assert client is not None and terms == [("terms of", spec)]


def test_a_daemon_that_stops_takes_no_more_programs(daemon: InProcess) -> None:
    with daemon.connect() as shim:
        shim.hello(request=0, limit="max")
        daemon.call(daemon.daemon.shims.stop)
        with pytest.raises(OSError):
            daemon.connect().close()
        assert shim.attach(GPU).status == lib.GS_OK, "those that are there are still served"
        daemon.call(daemon.daemon.shims.stop)


def test_a_newcomer_that_was_not_told_of_its_page_has_none(daemon: InProcess, monkeypatch) -> None:
    """Its connection ended before the rest of the daemon knew it; a moment later it is looked at once more."""
    monkeypatch.setattr(requests, "send_with_page", lambda connection, frame, page: connection.close())
    with daemon.connect() as shim:
        budget = {"request": amount(0), "limit": amount("max")}
        shim.send(shim.frame(lib.GS_HELLO, hello={"pid": os.getpid(), "name": b"x", **budget}))
        assert shim.sock.recv(10) == b""
        until(lambda: not list((daemon.directory / "pages").iterdir()))
        assert len(daemon.shell.clients) == 0


# ---- what a page and its word hold ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "kind", "data", "found"),
    [
        (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", 5, 6), [5, 6]),
        (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", 5, 6) + b"xyz", [5, 6]),
        (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", 5, 6)[:-1], [5]),
        (socket.SOL_SOCKET, socket.SCM_RIGHTS, b"", []),
        (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("3i", 5, 6, 7), []),
        (socket.IPPROTO_IP, socket.SCM_RIGHTS, struct.pack("i", 5), []),
    ],
)
def test_which_descriptors_come_with_a_message(level, kind, data, found) -> None:
    assert descriptors.descriptors_in([(level, kind, data), (level, kind, data)]) == found * 2


def test_lines_of_an_earlier_daemon(page: Page) -> None:
    """The ledger had entered more than was given. A GPU that is gone keeps its number."""
    first, gone = GPU, "GPU-00000000-0000-0000-0000-000000000002"
    page.line_of(gone)
    assert page.account is not None
    page.account.enter(0, 100, 3)
    page.account.enter(1, 50, None)
    lib.gs_grant(page.lines[first], 70)
    assert lib.gs_reserve(page.lines[first], 20)
    page.lines.clear()
    page.gpus.clear()
    ((gpu, seen),) = page.take_lines({uuid_bytes(first): first})
    assert gpu == first and (seen.used, seen.credit, seen.overhead) == (20 * UNIT, 70 * UNIT, 3 * UNIT)
    assert page.account.lines[0].credit == 70 and page.gpus == [first, gone] and set(page.lines) == {first, gone}
    account, page.account = page.account, None
    page.gpus.clear()
    assert page.take_lines({}) == [] and page.gpus == [], "whose page it is, is not known yet"
    page.account = account


def test_the_word_of_a_processs_launches(page: Page) -> None:
    credit = CreditPages()
    credit.pages[1] = page
    words, line = TurnWords(credit), page.lines[GPU]
    beat = int(lib.GS_TURN_BEAT)

    def bits() -> int:
        return int(line.turn) % beat

    assert words.read(1, GPU) == words.read(2, GPU) == Word(held=False, launched=False, waits=False, done=True)
    words.say(1, GPU, closed=True)
    words.say(2, GPU, closed=True)
    words.release(2, GPU)
    assert line.turn == 0, "its launches cannot be held back"
    line.turn = HELD
    assert words.read(1, GPU) == Word(held=True, launched=False, waits=False, done=True), "it was not looked at yet"
    words.say(1, GPU, closed=True)
    assert bits() == HELD | CLOSED | QUIET and line.turn >= beat, "each word is another, so that waits are renewed"
    assert words.read(1, GPU) == Word(held=True, launched=False, waits=False, done=True)
    line.turn = (line.turn | WANTED) & ~QUIET
    assert words.read(1, GPU) == Word(held=True, launched=True, waits=True, done=True)
    words.say(1, GPU, closed=True)
    assert bits() == HELD | CLOSED | QUIET | WANTED, "it still waits"
    words.say(1, GPU, closed=False)
    assert bits() == HELD | QUIET
    words.say(1, GPU, closed=False, ask=True)
    assert bits() == HELD | QUIET | PROBE and not words.read(1, GPU).done
    line.turn = line.turn & ~PROBE | ASKS
    assert not words.read(1, GPU).done
    line.turn |= WANTED | CLOSED
    words.release(1, GPU)
    assert bits() == HELD | ASKS and not words.read(1, GPU).launched, "it is not watched any more"
    before = line.turn
    words.release(1, GPU)
    assert line.turn == before, "nothing to write"
    for left in (CLOSED, QUIET, PROBE, WANTED):
        line.turn = HELD | left
        words.release_all()
        assert bits() == HELD, "also what an earlier daemon has left"


@pytest.mark.skipif(FUTEX < 0, reason="the number of the call is not known here")
@pytest.mark.parametrize("ask", [True, False])
def test_who_is_asked_whether_the_gpu_is_done_is_woken(page: Page, ask) -> None:
    credit = CreditPages()
    credit.pages[1] = page
    page.lines[GPU].turn = HELD
    sleeper = Sleeper(ffi.addressof(page._struct, "trim_asked"), 0.3)
    TurnWords(credit).say(1, GPU, closed=False, ask=ask)
    assert sleeper.end() is ask


@pytest.mark.skipif(FUTEX < 0, reason="the number of the call is not known here")
@pytest.mark.parametrize("how", ["say", "release"])
def test_launches_that_wait_are_woken_when_their_word_opens(page: Page, how) -> None:
    credit = CreditPages()
    credit.pages[1] = page
    words = TurnWords(credit)
    page.lines[GPU].turn = HELD | CLOSED
    sleeper = Sleeper(ffi.addressof(page.lines[GPU], "turn"))
    if how == "say":
        words.say(1, GPU, closed=False)
    else:
        words.release(1, GPU)
    assert sleeper.end() is True


@pytest.mark.parametrize(
    ("clients", "stopped"),
    [([1, 2], True), ([1, 3], False), ([3, 3], False), ([1, None], True), ([None, 3], False), ([], True)],
)
def test_whether_all_programs_of_a_turn_are_stopped(monkeypatch, clients, stopped) -> None:
    """1 and 2 are; None has gone."""
    monkeypatch.setattr(turn_keeper, "is_stopped", lambda pid: pid in (1, 2))
    known = {number: pid and thing(process=thing(pid=pid)) for number, pid in enumerate(clients)}
    keeper = TurnKeeper(lambda: None, thing(), known)  # type: ignore[arg-type, return-value]
    assert keeper._are_stopped(range(len(clients))) is stopped


def test_nobody_listens_to_the_driver_after_the_end() -> None:
    async def story() -> None:
        driver: Any = thing(list=list, wait_for_fault=lambda seconds: time.sleep(0.01))
        monitor = HealthMonitor(thing(), driver, lambda: thing(gpus={}), lambda event: None, lambda found: None)  # type: ignore[arg-type]
        monitor.start()
        assert monitor._listener.is_alive()
        monitor.close()
        monitor._listener.join(5)
        assert not monitor._listener.is_alive()

    asyncio.run(story())


def test_a_wrapper_in_a_placement_is_noted_before_it_is_answered(daemon: InProcess) -> None:
    """A daemon that starts just then must know that it holds the placement."""
    with subprocess.Popen(["sleep", "60"]) as other:
        body = {"attempt": 1, "uid": os.getuid(), "gpus": [GPU], "request": "1Gi"}
        daemon.client.place("task", {**body, "session": os.getpid(), "holder": other.pid})
        made = daemon.client.register({"name": "x", "command": ["x"]})
        note = json.loads((daemon.directory / "state.json").read_text())["jobs"][made["id"]]["placement"]
        other.kill()
    assert note["id"] == "task" and [pid for pid, _ in note["holders"]] == [other.pid, os.getpid()]
