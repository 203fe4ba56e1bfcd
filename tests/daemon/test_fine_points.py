"""Fine points of single parts: who is told first, whose time is spent, what is left at an edge."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import GIB, GPU, InProcess
from fixed_gpus import FixedGpus

from gpushare._layout import ffi, lib
from gpushare.errors import UsageError
from gpushare.history import Stop
from gpushared.api.placement_routes import PlacementRoutes
from gpushared.core.node import NodeState
from gpushared.gpus.inventory import GpuInfo, Inventory
from gpushared.history.file import File
from gpushared.history.levels import FRAME, Amounts, SeriesKey, Who
from gpushared.jobs import state_file
from gpushared.jobs.registry import JobState
from gpushared.jobs.state_file import StateFile
from gpushared.shims import inbox as inbox_
from gpushared.shims import outbox as outbox_
from gpushared.shims.inbox import Inbox
from gpushared.shims.outbox import Outbox
from gpushared.system.descriptors import CarefulSocket, DescriptorCloser

pytestmark = pytest.mark.usefixtures("quiet_loop")

ADA, BOB = 70001, 70002
JOB = {"name": "train", "command": ["x"], "request": "1Gi", "limit": "8Gi", "on_reclaim": "hook,suspend,term"}


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


# ---- words first ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "body", "events"),
    [
        ("suspender", {"number": 0, "where": "running"}, ["SuspenderAnswered"]),
        ("hooks", {"number": 0}, ["HookAnswered"]),
        ("suspend", {}, ["SuspendWanted"]),
        ("resume", {}, ["ResumeWanted"]),
    ],
)
def test_the_core_sees_what_the_words_say_before_what_a_process_says(daemon: InProcess, what, body, events) -> None:
    """What was given back, and is still to be taken, is decided by what the pages say then."""
    job = daemon.client.register(JOB)["id"]
    told: list[str] = []
    feed = daemon.shell.core_loop.feed

    def note(event: Any) -> None:
        told.append(type(event).__name__)
        feed(event)

    daemon.call(lambda: setattr(daemon.shell.core_loop, "feed", note))
    daemon.http("POST", f"/v1/jobs/{job}/{what}", json.dumps(body).encode())
    if what in ("suspender", "hooks"):  # it is not the job's, so the core does not hear what it says
        events = []
    assert [one for one in told if one != "MemorySampled"] == ["UsedSeen", *events]


# ---- frames -----------------------------------------------------------------------------------------


class Clock:
    """Each look takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now


def test_a_frame_costs_its_user_what_it_took_without_the_answers_that_were_sent_meanwhile(monkeypatch) -> None:
    spent: list[tuple[int, float]] = []
    due = iter([True, False, False])
    clock = Clock()
    monkeypatch.setattr(inbox_, "time", clock)

    def receive(sockets: Any, number: int, frames: Any, sizes: Any, descriptors: Any, count: Any) -> int:
        for one in range(number):
            sizes[one] = 10
        count[0] = 0
        return number

    taken: list[Any] = []
    limits: Any = thing(
        time=thing(spend=lambda uid, seconds: spent.append((uid, seconds)), may=lambda uid: True),
        descriptors=thing(take=lambda uid, descriptors: taken.append((uid, descriptors))),
    )
    outbox: Any = thing(send_if_due=lambda now: next(due), send=lambda: None)
    handled: list[int] = []
    one = Inbox(limits, outbox, lambda connection, frame, size, descriptors: handled.append(connection.uid))
    connections: Any = [thing(fd=number, uid=70000 + number) for number in range(3)]
    monkeypatch.setattr(inbox_, "lib", thing(gs_receive_frames=receive))
    assert one._receive_some(connections) == 3
    assert handled == [70000, 70001, 70002] and taken == [(70002, [])]
    # A look before, after each frame, and one more after the answers were sent: that second is nobody's.
    assert spent == [(70000, 1.0), (70001, 1.0), (70002, 1.0)] and clock.now == 5.0


class Reader:
    """A connection whose program does or does not read."""

    def __init__(self, fd: int, uid: int, *, unsent: bool = False) -> None:
        self.fd, self.uid = fd, uid
        self.unsent = [b"x"] if unsent else []
        self.done: list[Any] = []

    def answered(self) -> None:
        self.done.append("answered")

    def unsendable(self, frame: bytes, error: int) -> None:
        self.done.append(error)


def test_an_answer_waits_behind_others_and_an_error_is_told(monkeypatch) -> None:
    spent: list[int] = []
    sockets: list[int] = []

    def send(sockets_: Any, number: int, frames: Any, results: Any) -> int:
        sockets.extend(sockets_[one] for one in range(number))
        for one in range(number):
            results[one] = {-1: errno.EBADF, 5: 0, 6: errno.EAGAIN, 7: errno.EPIPE}[sockets_[one]]
        return sum(1 for one in range(number) if results[one])

    monkeypatch.setattr(outbox_, "lib", thing(gs_send_frames=send))
    outbox = Outbox(thing(in_round=True), thing(spend=lambda uid, seconds: spent.append(uid)))  # type: ignore[arg-type]
    assert not outbox.send_if_due(float("inf")), "there is none"
    readers: Any = [Reader(5, 1), Reader(6, 2), Reader(7, 3), Reader(8, 4, unsent=True)]
    for number, one in enumerate(readers):
        outbox.reply(one, number, int(lib.GS_OK), text="a text" if number == 0 else "")
    assert not outbox.send_if_due(0.0), "the first has not waited long enough"
    assert outbox.send_if_due(outbox._send_by)
    assert sockets == [5, 6, 7, -1], "what waits already is not overtaken"
    assert [one.done for one in readers] == [["answered"], [errno.EAGAIN], [errno.EPIPE], [0]]
    assert spent == [1, 2, 3, 4], "the time of sending is that of those who are answered"
    outbox.reply(readers[0], 9, int(lib.GS_OK))
    assert ffi.string(outbox._batch.each[0].u.answer.text) == b"", "a text does not stay for the next"
    outbox.send()
    outbox.send()
    assert readers[0].done == ["answered"] * 2


def test_the_programs_connections_end_with_the_daemon(make_daemon) -> None:
    daemon = make_daemon()
    shims = [daemon.connect() for _ in range(3)]
    for one in shims[:2]:
        one.hello(request=0, limit="max")
    assert shims[0].attach(GPU).status == lib.GS_OK
    server = daemon.daemon.shims
    connections = list(server._connections)
    assert len(connections) == 3
    daemon.stop()
    assert all(one.fd == -1 and one.client is None for one in connections) and not server._connections
    for one in shims:
        assert one.sock.recv(10) == b""
        one.close()


def test_at_most_so_many_bytes_are_read_at_once() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(b"x" * 100)
    careful = CarefulSocket(theirs, DescriptorCloser(), 1, 30)
    assert (len(careful.recv(65536)), len(careful.recv(20)), len(careful.recv(1))) == (30, 20, 1)
    ours.close()
    careful.close()


# ---- names of GPUs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "found"),
    [
        *[("0", 0), ("00", 0), ("GPU-0", 0), ("gpu-0", 0), ("GPU-", None), ("GPU", None), ("", None), ("1", None)],
        *[(GPU, 0), (GPU + "0", None), ("GPU-1", None), ("0.0", None), ("-1", None), ("²", None)],
    ],
)
def test_what_names_the_only_gpu(device, found) -> None:
    inventory = Inventory(FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB)]))
    inventory.note(inventory.driver.list())
    if found is None:
        with pytest.raises(UsageError, match="this node has no such GPU"):
            inventory.resolve([device])
    else:
        assert inventory.resolve([device]) == (GPU,)


# ---- histories and notes ----------------------------------------------------------------------------

A, WHO = SeriesKey(GPU, "a"), Who("train", "ada", ADA)


def test_a_value_of_long_ago_is_in_a_range_for_one_frame(tmp_path) -> None:
    """A series has a point in each frame; what has none in a whole frame before a range has ended unseen."""
    start = 10**12
    file = File(tmp_path / "h" / "usage.db", start)
    file.write(start, {A: Amounts(5, 1, 2, 3)}, {A: WHO})
    last = start + FRAME * 1000
    for since, there in ((start, True), (last, True), (last + 1, False)):
        found, cut = file.read(0, since, since + 1000, None, None)
        assert [one.key for one in found] == ([A] if there else []) and not cut
    file.close()


def test_points_of_a_series_that_has_been_removed_are_nobodys(tmp_path) -> None:
    """A series goes a moment before the last of its points."""
    start = 10**12
    file, other = File(tmp_path / "h" / "usage.db", start), A._replace(job="other")
    file.write(start, {A: Amounts(5, 1, 2, 3), other: Amounts(6, 1, 2, 3)}, {A: WHO, other: WHO})
    file._db.execute("delete from series where job = 'other'")
    found, cut = file.read(0, start, start + 1000, None, None)
    assert [one.key for one in found] == [A] and not cut
    file.close()


def test_the_notes_are_on_the_disk_before_they_take_the_place_of_the_old_ones(tmp_path, monkeypatch) -> None:
    done: list[Any] = []
    fsync, replace = os.fsync, type(tmp_path).replace
    monkeypatch.setattr(state_file.os, "fsync", lambda fd: (done.append("synced"), fsync(fd)))
    monkeypatch.setattr(
        type(tmp_path),
        "replace",
        lambda self, target: (done.append(json.loads(self.read_text())), replace(self, target)),
    )
    StateFile(tmp_path / "state.json").write(NodeState(), 5.0, [])
    assert done[0] == "synced" and done[1] == json.loads((tmp_path / "state.json").read_text())


# ---- a page that cannot be sent ---------------------------------------------------------------------


def test_a_program_that_hangs_up_before_it_has_its_page_is_let_go() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    done: list[str] = []
    read, write = os.pipe()
    connection: Any = thing(sock=ours, close=lambda: done.append("closed"), answered=lambda: done.append("answered"))
    page: Any = thing(for_its_process=lambda: contextlib.nullcontext(read))
    frame = ffi.new("struct gs_frame *")
    with ours:
        outbox_.send_with_page(connection, frame, page)
        data, (fd,), _, _ = socket.recv_fds(theirs, 4096, 1)
        assert done == ["answered"] and len(data) == lib.GS_FRAME_BYTES
        theirs.close()
        outbox_.send_with_page(connection, frame, page)
        assert done == ["answered", "closed"]
    for one in (fd, read, write):
        os.close(one)


# ---- placements -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrapper", "placed", "state", "uid", "adopts"),
    [
        (None, None, JobState.RUNNING, ADA, True),
        (object(), None, JobState.RUNNING, ADA, False),
        (None, object(), JobState.RUNNING, ADA, False),
        (None, None, JobState.QUEUED, ADA, False),
        (None, None, JobState.ENDED, ADA, False),
        (None, None, JobState.RUNNING, BOB, False),
    ],
    ids=["lost", "with a wrapper", "placed", "queued", "ended", "another's"],
)
def test_a_job_of_which_the_daemon_has_lost_whose_it_is(wrapper, placed, state, uid, adopts) -> None:
    routes: Any = object.__new__(PlacementRoutes)
    routes.shell = thing(jobs=thing(placements=thing(of_job=lambda job: placed)))
    record = thing(id="a", wrapper=wrapper, state=state, spec=thing(uid=uid))
    assert routes._adopts(record, thing(spec=thing(uid=ADA))) is adopts


def test_what_a_stop_says_is_kept_as_it_was() -> None:
    assert Stop({"code": "reclaim"}, last=True)._asdict() == {"killed": {"code": "reclaim"}, "last": True}
