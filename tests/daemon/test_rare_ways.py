"""What hardly ever happens to a daemon: a page that cannot be made, a socket without descriptors, words that come late,
a process that is gone before anybody looks."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sqlite3
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import GIB, GPU, GPU2, InProcess, until
from fixed_gpus import FixedGpus

from gpushare._layout import ffi, lib
from gpushare.errors import GpushareError, UsageError
from gpushare.quantity import Quantity
from gpushared import cli
from gpushared.api import request_body
from gpushared.api.request_body import RequestBody
from gpushared.clients import pages as pages_
from gpushared.clients.credit import CreditPages
from gpushared.clients.turn_words import TurnWords
from gpushared.core.rules import Who
from gpushared.gpus import pid_names
from gpushared.gpus.driver_thread import DriverThread
from gpushared.gpus.inventory import GpuInfo, Sample
from gpushared.gpus.nvml import _heard
from gpushared.history import file as history_file
from gpushared.history.file import File
from gpushared.history.usage import UsageHistory
from gpushared.jobs import placements as placements_
from gpushared.jobs.placements import Placement, Placements
from gpushared.limits.identities import Identities
from gpushared.runtime.asks import Asks
from gpushared.runtime.credit_effects import CreditEffects
from gpushared.shims import outbox as outbox_
from gpushared.system import acceptor as acceptor_
from gpushared.system.acceptor import Acceptor
from gpushared.system.address import address_setting, is_local, split_address

pytestmark = pytest.mark.usefixtures("quiet_loop")

MIB = 2**20
JOB = {"name": "train", "command": ["x"], "request": "4Gi", "limit": "8Gi"}


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


def messages(caplog: pytest.LogCaptureFixture, text: str) -> list[dict[str, Any]]:
    return [one.facts for one in caplog.records if one.getMessage() == text]


# ---- programs ---------------------------------------------------------------------------------------


def test_a_program_that_opens_more_gpus_than_its_page_has_lines_is_told(daemon: InProcess, monkeypatch) -> None:
    monkeypatch.setattr(pages_, "LINES", 1)
    with daemon.connect() as shim:
        shim.hello(request=4 * GIB, limit=8 * GIB)
        assert shim.attach(GPU).status == lib.GS_OK
        answer = shim.attach(GPU2)
        assert (answer.status, answer.text) == (
            lib.GS_UNKNOWN,
            "this process has as many GPUs open as gpushare can count",
        )
        (process,) = daemon.shell.core.processes.values()
        share = process.shares[GPU2]
        assert (share.used, share.overhead, share.attached) == (0, 0, False), "it has no context there"
        assert shim.ask(MIB).status == lib.GS_OK, "the first GPU serves as before"
        with daemon.connect() as other:
            other.hello(request=0, limit="max")
            other.attach(GPU2)
            gpu = daemon.shell.core.gpus[GPU2]
            own = gpu.shares[other.page_id]
            rest = gpu.capacity - own.overhead - own.credit
            until(lambda: other.ask(rest).status == lib.GS_OK)  # also what it was given there and could not use
        assert share.credit == 0


def test_the_number_of_a_line_is_the_next_ones_gpu(daemon: InProcess) -> None:
    with daemon.connect() as shim:
        shim.hello(request=4 * GIB, limit=8 * GIB)
        assert [shim.attach(gpu).line for gpu in (GPU2, GPU, GPU2)] == [0, 1, 0]
        shim.allocate(GIB, line=1)
        process = next(iter(daemon.shell.core.processes.values()))
        until(lambda: process.shares[GPU].credit >= GIB)
        assert shim.detach(1).line == 1 and shim.detach(7).status == lib.GS_BAD_FRAME
        assert process.shares[GPU].used == GIB, "what it still uses stays"


def test_the_end_of_a_trim_has_memory_looked_at_where_somebody_waits() -> None:
    """A claim that waits gets what was freed now, and not with the next sample."""

    async def story() -> None:
        fed: list[Any] = []
        gpus = {GPU: thing(asks={1: object()}), GPU2: thing(asks={})}
        effects = CreditEffects(thing(core=thing(gpus=gpus), feed=fed.append), thing(), thing())
        effects.used_seen = lambda gpu: f"words of {gpu}"  # type: ignore[method-assign, assignment, return-value]
        effects.trimmed(thing(page=thing(gpus=[GPU, GPU2, "GPU-gone"])))
        assert fed == [f"words of {GPU}"]

    asyncio.run(story())


def test_a_program_says_that_its_trim_has_ended(daemon: InProcess) -> None:
    told: list[int] = []
    with daemon.connect() as shim:
        shim.hello(request=4 * GIB, limit=8 * GIB)
        shim.attach(GPU)
        daemon.shell._credit_effects.trimmed = lambda client: told.append(client.id)
        seq = shim.send(shim.frame(lib.GS_TRIMMED))
        answer = shim.answer()
        assert (answer.seq, answer.status, told) == (seq, lib.GS_OK, [shim.page_id])


def test_a_client_that_fails_the_daemon_is_closed_and_counted(daemon: InProcess, monkeypatch, caplog) -> None:
    with daemon.connect() as shim:
        shim.hello(request=4 * GIB, limit=8 * GIB)
        monkeypatch.setattr(daemon.daemon.shims._requests, "_ask", lambda *_: 1 / 0)
        shim.send_ask(MIB)
        with pytest.raises((EOFError, ConnectionError)):
            shim.receive()
    assert daemon.shell.core_loop.errors == 1
    assert messages(caplog, "a frame could not be handled") == [{"pid": os.getpid()}]
    daemon.call(lambda: setattr(daemon.shell.core_loop, "errors", 0))


def test_the_earlier_connection_of_a_program_ends_when_it_comes_again(daemon: InProcess) -> None:
    with daemon.connect() as shim:
        shim.hello(request=4 * GIB, limit=8 * GIB)
        before = shim.sock
        shim.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        shim.sock.connect(str(daemon.shim))
        shim.sock.settimeout(5)
        assert shim.hello(present=True).status == lib.GS_OK
        before.settimeout(5)
        assert before.recv(10) == b""
        before.close()
        assert shim.attach(GPU).status == lib.GS_OK and len(daemon.shell.clients) == 1


def test_a_page_that_cannot_be_made_is_said_and_its_job_is_none(daemon: InProcess, monkeypatch, caplog) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(daemon.daemon.shims.handshake.pages, "create", full)
    monkeypatch.setattr(daemon.daemon.shims.handshake.pages, "make_spares", full)
    with daemon.connect() as shim:
        welcome = shim.hello(request=4 * GIB, limit=8 * GIB)
        assert (welcome.status, welcome.text) == (
            lib.GS_SHUTTING_DOWN,
            "the daemon cannot make a page: No space left on device",
        )
    assert daemon.client.jobs() == [] and dict(daemon.shell.core.jobs) == {}
    daemon.call(daemon.daemon.shims.handshake._make_spares)
    said = messages(caplog, "cannot make a page")
    assert said == [{"error": "[Errno 28] No space left on device"}] * 2
    monkeypatch.undo()
    job = daemon.client.register(JOB)["id"]
    monkeypatch.setattr(daemon.daemon.shims.handshake.pages, "create", full)
    with daemon.connect() as shim:
        assert shim.hello(job).status == lib.GS_SHUTTING_DOWN
    assert daemon.client.job(job)["state"] == "running", "its wrapper holds it"


def test_a_job_that_gives_back_when_it_is_idle_can_be_asked_to_trim(make_daemon) -> None:
    from gpushared import config

    rules = config.parse('[policy]\nidle_release = "60s"\n', Path("x"))["rules"]
    daemon = make_daemon(rules=rules)
    with daemon.connect() as shim:
        shim.hello(request=GIB, limit=GIB)
        assert shim.page.trim_ms == lib.GS_TRIM_MS


# ---- asks and answers -------------------------------------------------------------------------------


def test_an_ask_that_cannot_be_answered_is_logged_and_over(caplog) -> None:
    asks = Asks()

    def broken(*_: object) -> None:
        raise OSError("its connection is gone")

    event = thing(ask=asks.next_number(), process=1, gpu=GPU)
    asks.add(event, broken)
    assert asks.refuse(1) and not asks.refuse(1) and asks.open == {}
    assert caplog.text.count("an ask could not be answered") == 1
    assert [asks.next_number() for _ in range(2)] == [2, 3]


def test_more_answers_than_one_call_sends_go_in_several(monkeypatch) -> None:
    """Each once, in their order, whole, and without the text of one before it."""
    sent: list[list[tuple[int, bytes]]] = []

    def send(sockets: Any, count: int, frames: Any, results: Any) -> int:
        each = [outbox._batch.each[number] for number in range(count)]
        sent.append([(one.seq, ffi.string(one.u.answer.text)) for one in each])
        return 0

    monkeypatch.setattr(outbox_, "lib", thing(gs_send_frames=send))
    outbox = outbox_.Outbox(thing(in_round=True), thing(spend=lambda uid, seconds: None))
    answered: list[int] = []
    connection = thing(unsent=[], fd=5, uid=1, answered=lambda: answered.append(1))
    for seq in range(35):
        outbox.reply(connection, seq, 0, text=f"answer {seq}" if seq < 32 else "")
    first = [(seq, f"answer {seq}".encode()) for seq in range(32)]
    assert sent == [first] and len(answered) == 32
    assert not outbox.send_if_due(0.0) and outbox.send_if_due(time.perf_counter() + 1)
    assert sent == [first, [(seq, b"") for seq in range(32, 35)]]
    assert not outbox.send_if_due(time.perf_counter() + 9)
    outbox.send()
    assert len(sent) == 2 and len(answered) == 35


# ---- sockets ----------------------------------------------------------------------------------------


class Listener:
    """A listening socket whose accept() does what the test says."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes, self.closed, self.backlog = list(outcomes), False, 0

    def accept(self) -> tuple[Any, None]:
        outcome = self.outcomes.pop(0) if self.outcomes else BlockingIOError()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome, None

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def listen(self, backlog: int) -> None:
        self.backlog = backlog

    def fileno(self) -> int:
        return 5

    def close(self) -> None:
        self.closed = True


class Loop:
    def __init__(self) -> None:
        self.reads: list[Any] = []
        self.later: list[Any] = []

    def add_reader(self, fd: int, call: Any) -> None:
        self.reads.append(call)

    def remove_reader(self, fd: int) -> None:
        self.reads.clear()

    def call_later(self, seconds: float, call: Any) -> None:
        assert seconds == 0.5
        self.later.append(call)


@pytest.fixture
def accepting(monkeypatch):
    loop = Loop()
    monkeypatch.setattr(acceptor_.asyncio, "get_running_loop", lambda: loop)

    def make(*outcomes: Any) -> Any:
        stand = thing(loop=loop, listener=Listener(*outcomes), taken=[], said=[])
        stand.acceptor = Acceptor(stand.listener, stand.taken.append, stand.said.append)
        return stand

    return make


def connection(name: str) -> Any:
    return thing(name=name, setblocking=lambda flag: None)


@pytest.mark.parametrize("number", acceptor_.USED_UP)
def test_without_descriptors_it_looks_away_for_a_moment(accepting, number) -> None:
    first = connection("a")
    stand = accepting(first, OSError(number, "used up"), connection("b"))
    stand.loop.reads[0]()
    assert stand.taken == [first] and stand.said == [os.strerror(number)] and stand.loop.reads == []
    stand.loop.later.pop()()
    assert len(stand.loop.reads) == 1
    stand.loop.reads[0]()
    assert len(stand.taken) == 2


def test_another_error_of_the_socket_is_a_bug_that_is_raised(accepting) -> None:
    stand = accepting(OSError(errno.EBADF, "bad"))
    with pytest.raises(OSError, match="bad"):
        stand.loop.reads[0]()
    assert stand.said == [] and stand.loop.later == []


@pytest.mark.parametrize("passing", [BlockingIOError, InterruptedError, ConnectionAbortedError])
def test_a_connection_that_went_away_is_none(accepting, passing) -> None:
    stand = accepting(passing())
    stand.loop.reads[0]()
    assert stand.taken == [] and stand.said == [] and len(stand.loop.reads) == 1


def test_so_many_connections_are_taken_in_one_pass_and_none_after_the_end(accepting) -> None:
    stand = accepting(*map(connection, "x" * 200))
    stand.loop.reads[0]()
    assert len(stand.taken) == 64
    accept = stand.loop.reads[0]
    stand.acceptor.close()
    stand.acceptor.close()
    accept()
    assert len(stand.taken) == 64 and stand.listener.closed and stand.loop.reads == []
    stand.acceptor._resume()
    assert stand.loop.reads == []


def test_a_daemon_that_cannot_accept_says_so(daemon: InProcess, caplog) -> None:
    daemon.call(lambda: daemon.daemon.shims._note_pause("Too many open files"))
    (said,) = messages(caplog, "a client is not understood")
    assert said["why"] == "cannot accept connections: Too many open files" and said["uid"] == -1


@pytest.mark.parametrize(
    ("text", "local"),
    [("127.0.0.1:80", True), ("[::1]:80", True), ("localhost:80", True), ("0.0.0.0:80", False), ("node:80", False)],
)
def test_addresses_that_only_this_machine_reaches(text, local) -> None:
    assert is_local(text) is local and address_setting(text) == text and address_setting("") == ""


@pytest.mark.parametrize("value", [80, None, True, [], "80", ":80", "x:", "x:0", "x:65536", "x:-1", "x:1.5"])
def test_what_is_no_address(value) -> None:
    with pytest.raises(UsageError, match='not a "host:port"'):
        address_setting(value)
    if isinstance(value, str):
        with pytest.raises(UsageError, match="is not a"):
            split_address(value)


def test_the_highest_port_is_one() -> None:
    assert split_address("x:65535") == ("x", 65535) and split_address("[::1]:1") == ("::1", 1)


# ---- the driver -------------------------------------------------------------------------------------


def test_an_answer_that_comes_after_the_end_is_of_no_use_and_no_error() -> None:
    async def story() -> None:
        loop, free, begun = asyncio.get_running_loop(), threading.Event(), threading.Event()
        thread = DriverThread(loop)

        def slow() -> int:
            begun.set()
            free.wait(5)
            return 1

        present, later = thread.ask(slow), thread.ask(lambda: 2)
        await asyncio.to_thread(begun.wait, 5)
        thread.close()
        assert later.cancelled() and not present.done()
        present.cancel()
        free.set()
        await asyncio.sleep(0.05)
        assert present.cancelled()

    asyncio.run(story())


def test_what_the_software_driver_says_while_it_starts_is_heard_and_said_on(capfd) -> None:
    lines: list[str] = []
    descriptors = sorted(Path("/proc/self/fd").iterdir())
    with _heard(lines):
        os.write(2, b"gpushare: one\nand two\nunfinished")
    assert lines == ["gpushare: one", "and two"] and capfd.readouterr().err == "gpushare: one\nand two\nunfinished"
    with pytest.raises(OSError, match="x"), _heard(lines):
        raise OSError("x")
    os.write(2, b"after")
    assert capfd.readouterr().err == "after" and len(lines) == 2
    assert sorted(Path("/proc/self/fd").iterdir()) == descriptors


def test_whether_this_is_the_first_pid_namespace(monkeypatch) -> None:
    for inode, first in ((pid_names.HOST_PID_NAMESPACE, True), (5, False), (None, False)):

        def stat(_self: Path, inode: int | None = inode) -> Any:
            if inode is None:
                raise FileNotFoundError
            return thing(st_ino=inode)

        monkeypatch.setattr(pid_names, "Path", lambda text, stat=stat: thing(stat=lambda: stat(text)))
        assert pid_names.in_first_namespace() is first


def test_a_daemon_without_a_gpu_says_so(make_daemon, caplog) -> None:
    make_daemon(FixedGpus([]))
    assert caplog.text.count("no GPU found") == 1


def test_a_history_that_takes_no_sample_is_counted_and_tried_again(make_daemon, caplog, monkeypatch) -> None:
    from gpushared import daemon as daemon_

    monkeypatch.setattr(daemon_, "HISTORY_EVERY", 0.01)
    looks: list[int] = []

    def look(_self: object) -> float:
        looks.append(1)
        if len(looks) < 3:
            raise RuntimeError("a bug")
        return 3600.0

    monkeypatch.setattr("gpushared.api.history.HistoryHandler.look", look)
    daemon = make_daemon()
    until(lambda: len(looks) == 3)
    assert daemon.shell.core_loop.errors == 2 and caplog.text.count("the usage history took no sample") == 2
    daemon.call(lambda: setattr(daemon.shell.core_loop, "errors", 0))


# ---- turns ------------------------------------------------------------------------------------------


class TurnPages:
    """One process with a line; `words` is what it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.line = thing(turn=0)
        self.woken = 0
        self.credit = CreditPages()
        self.credit.pages[1] = thing(lines={GPU: self.line}, wake_trimmer=self._wake)  # type: ignore[assignment]
        monkeypatch.setattr("gpushared.clients.turn_words.lib", thing(gs_say_turn=self._say))
        self.words = TurnWords(self.credit)

    def _wake(self) -> None:
        self.woken += 1

    def _say(self, line: Any, clear: int, set_: int) -> None:
        line.turn = (line.turn & ~clear) | set_


def test_a_process_that_is_asked_is_woken_and_another_is_not(monkeypatch) -> None:
    stage = TurnPages(monkeypatch)
    held = stage.line.turn = int(lib.GS_TURN_HELD)
    stage.words.say(1, GPU, closed=False)
    assert stage.woken == 0
    stage.words.say(1, GPU, closed=False, ask=True)
    assert stage.woken == 1 and stage.words.read(1, GPU).done is False
    stage.words.say(1, GPU, closed=True)
    assert stage.woken == 2, "it has not answered: it is woken again"
    stage.line.turn |= int(lib.GS_TURN_WANTED)
    stage.words.release_all()
    assert stage.line.turn == held and stage.words.read(1, GPU) == (True, False, False, True)
    for left in (lib.GS_TURN_CLOSED, lib.GS_TURN_QUIET, lib.GS_TURN_PROBE, lib.GS_TURN_WANTED):
        stage.line.turn = held | int(left)  # of an earlier daemon
        stage.words.release(1, GPU)
        assert stage.line.turn == held
    stage.words.release(9, GPU)


# ---- the history ------------------------------------------------------------------------------------


def test_a_disk_that_fails_is_no_broken_file(tmp_path, monkeypatch) -> None:
    """Only a file whose content is wrong is put aside."""
    path = tmp_path / "usage" / "usage.db"
    File(path, 1000).close()
    for error, aside in ((sqlite3.OperationalError("disk I/O error"), False), (sqlite3.DatabaseError("broken"), True)):
        outcomes = [error]

        def open_(self: File, outcomes: list[Exception] = outcomes, real: Any = File._open) -> None:
            if outcomes:
                raise outcomes.pop()
            real(self)

        monkeypatch.setattr(File, "_open", open_)
        if aside:
            File(path, 2000).close()
        else:
            with pytest.raises(sqlite3.OperationalError, match="disk"):
                File(path, 2000)
        monkeypatch.undo()
        assert path.with_name("usage.db.bad").exists() is aside and path.exists()


def test_a_nearly_full_file_loses_half_of_each_level(tmp_path, monkeypatch) -> None:
    from gpushared.history.levels import Amounts, SeriesKey
    from gpushared.history.levels import Who as Owner

    key = SeriesKey(GPU, "a")
    file = File(tmp_path / "usage" / "usage.db", 1_000_000)
    for second in range(1, 41):
        file.begin()
        found = Amounts(second, 0, 9, 0)
        file.write(1_000_000 + second * 1000, {key: found}, {key: Owner("a", "ann", 1)})
        file.commit(1_000_000 + second * 1000)
    count = file._count(0)
    file.make_room()
    assert file._count(0) == count, "there is room"
    (pages,) = file._db.execute("pragma page_count").fetchone()
    monkeypatch.setattr(history_file, "MOST_PAGES", pages)
    file.make_room()
    assert count // 2 - 1 <= file._count(0) <= count // 2
    (series, *_), _cut = file.read(0, 1_000_000, 2_000_000, None, None)
    assert series.points[-1].amounts.usage == 40, "the latest stay"
    file.close()


def test_a_question_on_which_the_history_fails_has_no_answer_and_the_next_one_has(tmp_path, caplog) -> None:
    async def story() -> None:
        usage = UsageHistory(tmp_path)
        usage.start()
        usage.look({}, lambda key: None, time.time())
        assert await asyncio.wait_for(usage.ask(lambda file: 1 // 0), 5) is None, "nobody waits until it is too late"
        assert caplog.text.count("a question about the usage history failed") == 1
        assert await usage.ask(lambda file: 7) in (7, None)
        usage.close()

    asyncio.run(story())


def test_followers_of_the_history_end_with_the_daemon() -> None:
    ended: list[int] = []

    class Follower:
        def end(self) -> None:
            ended.append(1)

    usage = UsageHistory(None)
    usage.followers |= {Follower(), Follower()}  # type: ignore[arg-type]
    usage.end_streams()
    assert ended == [1, 1]


# ---- users and placements ---------------------------------------------------------------------------


def test_who_asked_for_a_user_after_the_end_hears_nothing() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        known = Identities(loop, lambda uid: Who(uid, "x"))
        future: asyncio.Future[Who] = loop.create_future()
        called: list[int] = []
        known._asked[5] = future
        known.when_known(5, lambda: called.append(1))
        future.add_done_callback(lambda done: known._answered(5, done))
        future.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert called == [] and not known.has(5) and known._asked == {}
        known.close()

    asyncio.run(story())


def test_a_wrapper_holds_its_placement_and_brings_its_session_where_sessions_count(monkeypatch) -> None:
    monkeypatch.setattr(placements_, "start_time", {7: 70, 8: 80, 9: 90}.get)
    table = Placements()
    held = Placement("held", 1, "a", (), ((7, 70),), ((8, 80),))
    inside = Placement("inside", 1, "b", ("/x",), (), ((8, 80),))
    alone = Placement("alone", 1, "c", ("/y",), (), ())
    for one in (held, inside, alone):
        table.put(one)
        table.take_wrapper(one, 9)
    assert (table.get("held").sessions, table.get("held").holders) == (((7, 70), (9, 90)), ((8, 80), (9, 90)))
    assert (table.get("inside").sessions, table.get("inside").holders) == ((), ((8, 80), (9, 90)))
    assert table.get("inside").cgroups == ("/x",) and table.get("alone") == alone
    table.take_wrapper(table.get("inside"), 404)
    assert table.get("inside").holders == ((8, 80), (9, 90)), "it has gone already"


# ---- bodies and options -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        ("texts", ["a", "b"], ("a", "b")),
        ("amount", "2Gi", Quantity.parse("2Gi")),
        ("text", "x", "x"),
        ("flag", False, False),
        ("integer", 3, 3),
        ("seconds", 3, 3.0),
        ("share", 0.5, 0.5),
    ],
)
def test_an_option_is_read_by_its_kind(monkeypatch, kind, value, read) -> None:
    monkeypatch.setattr(request_body, "OPTIONS", {"it": thing(kind=kind, least=1, most=9)})
    monkeypatch.setattr(request_body, "JobSpec", thing(_field_defaults={"it": "the default"}))
    assert RequestBody({"it": value}).option("it") == read
    for none in ({}, {"it": None}):
        assert RequestBody(none).option("it") == "the default"
    with pytest.raises(GpushareError):
        RequestBody({"it": {}}).option("it")


@pytest.mark.parametrize(
    ("kind", "last", "beyond"),
    [
        *[("texts", ["x"] * 64, ["x"] * 65), ("texts", ["x" * 4096], ["x" * 4097])],
        *[("amount", "2Gi".ljust(64), "2Gi".ljust(65)), ("text", "x" * 9, "x" * 10)],
        *[("integer", 9, 10), ("integer", 1, 0), ("seconds", 9, 9.1), ("share", 1, 1.01)],
    ],
)
def test_an_option_has_the_bounds_of_its_kind(monkeypatch, kind, last, beyond) -> None:
    monkeypatch.setattr(request_body, "OPTIONS", {"it": thing(kind=kind, least=1, most=9)})
    monkeypatch.setattr(request_body, "JobSpec", thing(_field_defaults={"it": None}))
    assert RequestBody({"it": last}).option("it") is not None
    with pytest.raises(GpushareError, match=r"^it "):
        RequestBody({"it": beyond}).option("it")


# ---- the command ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "status", "says"),
    [
        (ModuleNotFoundError("x", name="aiohttp"), 1, "gpushared: the Python module aiohttp is not installed for "),
        (UsageError("it is not gpushare: it is wrong"), None, "gpushared: it is not gpushare: it is wrong\n"),
        (UsageError("it is wrong", hint="do it right"), None, "gpushared: it is wrong\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_the_command_says_when_it_fails(monkeypatch, capsys, raised, status, says) -> None:
    def run(_: object) -> int:
        raise raised

    monkeypatch.setattr(cli, "_run", run)
    steps: list[str] = []
    monkeypatch.setattr(cli, "_without_preload", lambda: steps.append("without the library"))
    monkeypatch.setattr(cli.logs, "set_up", lambda level, form: steps.append("logs"))
    code = cli.main([])
    err = capsys.readouterr().err
    assert steps == ["without the library", "logs"], "it looks at GPUs only then"
    assert err.startswith(says) and (says or err == "")
    assert code == (raised.exit_code if status is None else status)
    if isinstance(raised, ModuleNotFoundError):
        assert err.endswith("hint: the installation of gpushare is not whole: install it again\n")


def test_a_driver_that_is_none_is_named(monkeypatch) -> None:
    monkeypatch.setenv("GPUSHARE_DRIVER", "amd")
    with pytest.raises(UsageError, match="GPUSHARE_DRIVER=amd is none of auto, nvidia and sim"):
        cli._run(cli.parser().parse_args([]))
    assert cli._choose_driver("nvidia") == "nvidia" and cli._choose_driver("sim") == "sim"


@pytest.mark.parametrize(("arguments", "cautions"), [([], 0), (["--system"], 1), (["--config", "FILE"], 1)])
def test_doubtful_settings_are_named_where_somebody_made_them(tmp_path, capsys, arguments, cautions) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[reclaim]\nclaim_timeout = "3s"\n')
    given = [str(file) if one == "FILE" else one for one in arguments]
    assert cli._run(cli.parser().parse_args([*given, "--check-config"])) == 0
    told = capsys.readouterr()
    assert told.out.startswith("[memory]\n")
    if "FILE" in arguments:
        assert told.err.startswith("gpushared: ") and "a borrower may be protected" in told.err
    elif cautions == 0:
        assert "may be protected" not in told.err


def test_a_sample_is_of_the_gpu_that_was_asked_for(make_daemon) -> None:
    gpus = FixedGpus(
        [GpuInfo(GPU, 0, "Test GPU", 16 * GIB), GpuInfo(GPU2, 1, "Test GPU", 16 * GIB)],
        {GPU: Sample(GIB, {1: GIB}), GPU2: Sample(3 * GIB, {1: 3 * GIB})},
    )
    daemon = make_daemon(gpus)
    until(lambda: [gpu["unmanaged"] for gpu in daemon.client.status()["gpus"]] == [GIB, 3 * GIB])
