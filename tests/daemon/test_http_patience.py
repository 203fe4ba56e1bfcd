"""Clients of the API that are slow, many, or gone: how long they are waited for, and what of theirs is counted."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from gpushared.api import http_listener
from gpushared.api.http_listener import (
    NOBODYS_CONNECTIONS,
    REQUEST_WITHIN,
    UNREAD_WITHIN,
    HttpConnection,
    HttpListener,
    listener_options,
)

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
NOBODY = -2

UID = 1000


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


class Bytes:
    """What is counted for each user."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.looks = 0

    def change(self, uid: int, by: int) -> None:
        self.of[uid] = self.of.get(uid, 0) + by

    def look_again(self) -> None:
        self.looks += 1


class Transport:
    def __init__(self) -> None:
        self.unread = 0
        self.aborted = self.closing = False
        self.written: list[bytes] = []
        self.name = "the transport's own"

    def get_write_buffer_size(self) -> int:
        return self.unread

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.unread += len(data)

    def writelines(self, parts: Any) -> None:
        for part in parts:
            self.write(part)

    def abort(self) -> None:
        self.aborted = self.closing = True

    def is_closing(self) -> bool:
        return self.closing


class Parser:
    """In the place of aiohttp's."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def eof_received(self) -> None:
        self.told.append("eof")

    def connection_lost(self, error: BaseException | None) -> None:
        self.told.append(f"lost {error}")


class Stand:
    def __init__(self) -> None:
        self.bytes, self.inner, self.transport, self.left = Bytes(), Parser(), Transport(), []
        listener: Any = thing(byte_budget=self.bytes, fair_share=thing(), left=self.left.append)
        self.connection = HttpConnection(listener, self.inner, UID)  # type: ignore[arg-type]

    def begin(self) -> Stand:
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self.connection.idle_since = 0.0
        return self

    @property
    def counted(self) -> int:
        return self.bytes.of.get(UID, 0)


# ---- what is written and not read -------------------------------------------------------------------


def test_answers_that_are_not_read_count_for_the_user_until_they_are() -> None:
    stand = Stand().begin()
    aiohttps = stand.inner.transport
    assert aiohttps.name == "the transport's own"
    aiohttps.write(b"x" * 10)
    assert stand.counted == 10
    aiohttps.writelines([b"y" * 5, b"z"])
    assert stand.counted == 16 and stand.transport.written == [b"x" * 10, b"y" * 5, b"z"]
    stand.connection.pause_writing()
    stand.transport.unread = 4
    stand.connection.resume_writing()
    assert stand.counted == 4 and stand.inner.told == ["pause", "resume"]
    stand.transport.unread = 0
    stand.connection.note_unread()
    assert stand.counted == 0
    aiohttps.write(b"x" * 7)
    stand.connection._unparsed += b"half a request"
    stand.connection.connection_lost(OSError("gone"))
    assert stand.counted == 0 and stand.left == [stand.connection] and stand.inner.told[-1] == "lost gone"
    assert not stand.connection._unparsed
    stand.connection.connection_lost(None)
    assert stand.counted == 0, "it is given back once"


def test_a_client_that_reads_nothing_is_cut_after_a_while() -> None:
    stand = Stand().begin()
    stand.connection.busy = 1
    stand.transport.unread = 10
    for now in (100.0, 101.0, 101.0 + UNREAD_WITHIN - 1):
        stand.connection.check(now)
        assert not stand.transport.aborted and stand.counted == 10
    stand.transport.unread = 9  # it has read a byte
    stand.connection.check(101.0 + UNREAD_WITHIN)
    stand.transport.unread = 50  # and is given more
    stand.connection.check(101.0 + 2 * UNREAD_WITHIN)
    assert not stand.transport.aborted
    stand.connection.check(101.5 + 2 * UNREAD_WITHIN)
    assert stand.transport.aborted


def test_a_client_that_reads_all_now_and_then_is_not_cut() -> None:
    stand = Stand().begin()
    stand.connection.busy = 1
    for turn in range(20):
        stand.transport.unread = turn % 2
        stand.connection.check(turn * (UNREAD_WITHIN - 1))
    assert not stand.transport.aborted


def test_a_client_that_sends_no_request_is_cut_and_one_that_waits_for_its_answer_is_not() -> None:
    stand = Stand()
    stand.connection.check(1e9)  # it is just being made
    stand.begin()
    stand.connection.idle_since = 100.0
    stand.connection.check(100.0 + REQUEST_WITHIN)
    assert not stand.transport.aborted
    stand.connection.busy = 1
    stand.connection.check(1e9)
    assert not stand.transport.aborted, "a job may queue for days"
    stand.connection.busy = 0
    stand.connection.check(100.5 + REQUEST_WITHIN)
    assert stand.transport.aborted


def test_nothing_is_held_back_on_a_connection_that_closes() -> None:
    stand = Stand().begin()
    stand.transport.closing = True
    stand.inner.transport.pause_reading()
    stand.inner.transport.resume_reading()
    assert not stand.connection._held_back


# ---- connections of a user --------------------------------------------------------------------------


class Users:
    def __init__(self) -> None:
        self.used: dict[int, int] = {}
        self.most: int | None = 2
        self.room = True

    def most_api_connections(self, uid: int) -> int | None:
        return self.most

    def has_room(self, uid: int, count: int) -> bool:
        assert count == 1
        return self.room

    def enter(self, uid: int, count: int) -> None:
        self.used[uid] = self.used.get(uid, 0) + count

    def leave(self, uid: int, count: int) -> None:
        self.used[uid] -= count


class Door:
    """A listener whose connections are socket pairs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.users, self.bytes = Users(), Bytes()
        self.many_descriptors = False
        limits: Any = thing(
            users=self.users,
            descriptors=thing(too_many=lambda uid: self.many_descriptors),
            time=thing(),
            bytes=self.bytes,
        )
        self.fails: Exception | None = None
        monkeypatch.setattr(http_listener, "CarefulSocket", lambda sock, descriptors, uid, size: sock)
        monkeypatch.setattr(http_listener, "peer_credentials", lambda sock: (1, UID, 1))
        self.listener = HttpListener(Parser, limits)  # type: ignore[arg-type]
        self.listener._loop = thing(
            create_task=self._task, connect_accepted_socket=self._connect, call_later=self._later
        )
        self.done: list[Any] = []
        self.later: list[Any] = []

    def _connect(self, protocol: Any, sock: socket.socket) -> Any:
        return protocol, sock

    def _task(self, what: Any) -> Any:
        protocol, _ = what
        assert isinstance(protocol(), HttpConnection)
        return Task(self)

    def _later(self, seconds: float, call: Any) -> Any:
        self.later.append((seconds, call))
        return thing(cancel=self.later.clear)

    def come(self, family: int = socket.AF_UNIX) -> tuple[Any, Any]:
        sent: list[bytes] = []
        sock = thing(family=family, send=sent.append, closed=False)
        sock.close = lambda: setattr(sock, "closed", True)
        self.listener._take_in(sock)
        return sock, sent

    @property
    def connections(self) -> list[HttpConnection]:
        return list(self.listener._connections.values())


class Task:
    """In which a connection begins."""

    def __init__(self, door: Door) -> None:
        self.door = door

    def cancelled(self) -> bool:
        return False

    def exception(self) -> Exception | None:
        return self.door.fails

    def add_done_callback(self, call: Any) -> None:
        self.door.done.append(lambda: call(self))


@pytest.fixture
def door(monkeypatch) -> Door:
    made: list[Door] = []

    async def make() -> None:
        made.append(Door(monkeypatch))

    asyncio.run(make())
    return made[0]


def test_a_user_has_so_many_connections_and_is_told_when_there_are_more(door, caplog) -> None:
    for _ in range(2):
        sock, sent = door.come()
        assert sent == [] and not sock.closed
    assert door.users.used == {UID: 2} and len(door.connections) == 2
    for _ in range(3):
        sock, sent = door.come()
        assert sock.closed and len(sent) == 1
    head, _, body = sent[0].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n") and f"Content-Length: {len(body)}".encode() in head
    error = json.loads(body)["error"]
    assert set(error) == {"code", "message", "facts", "hint"} and error["code"] == "too_many_connections"
    said = [one.facts for one in caplog.records if one.getMessage() == "too many connections of one user"]
    assert said == [{"uid": UID, "more": 0}], "once in a while"
    first, second = door.connections
    assert door.listener.connection_of(first.inner) is first and door.listener.connection_of(Parser()) is None
    door.listener.left(first)
    door.listener.left(first)
    assert door.users.used == {UID: 1} and door.connections == [second]
    _, sent = door.come()
    assert sent == [] and len(door.connections) == 2
    for one in door.connections:
        door.listener.left(one)
    assert door.listener._by_uid == {} and door.users.used == {UID: 0}


@pytest.mark.parametrize("why", ["room", "descriptors"])
def test_a_user_without_descriptors_is_refused(door, why) -> None:
    door.users.room, door.many_descriptors = why != "room", why == "descriptors"
    sock, sent = door.come()
    assert sock.closed and sent and door.connections == [] and door.users.used == {}


def test_who_is_not_bound_has_as_many_as_it_likes(door) -> None:
    door.users.most = None
    for _ in range(50):
        door.come()
    assert len(door.connections) == 50


def test_connections_over_tcp_are_nobodys_and_few(door) -> None:
    for number in range(NOBODYS_CONNECTIONS + 1):
        sock, _ = door.come(socket.AF_INET)
        assert sock.closed is (number == NOBODYS_CONNECTIONS)
    assert door.users.used == {NOBODY: NOBODYS_CONNECTIONS}
    sock, _ = door.come()
    assert not sock.closed, "users of this machine have their own"


def test_a_refused_client_that_has_gone_is_no_error(door) -> None:
    door.users.room = False

    def gone(_: bytes) -> None:
        raise OSError(errno.EPIPE, "gone")

    sock = thing(family=socket.AF_UNIX, send=gone, closed=False)
    sock.close = lambda: setattr(sock, "closed", True)
    door.listener._take_in(sock)
    assert sock.closed


@pytest.mark.parametrize("fails", [None, OSError("it went")])
def test_a_connection_that_does_not_begin_is_not_counted(door, fails) -> None:
    door.fails = fails
    door.come()
    assert len(door.listener._beginning) == 1
    door.done.pop()()
    assert not door.listener._beginning and len(door.connections) == (fails is None)
    assert door.users.used == {UID: 0 if fails else 1}


def test_all_are_looked_at_each_second_until_the_end(door, caplog) -> None:
    looked: list[float] = []
    door.come()
    door.connections[0].check = looked.append  # type: ignore[method-assign]
    door.listener._check()
    assert len(looked) == 1 and door.bytes.looks == 1
    ((seconds, again),) = door.later
    assert seconds == 1.0
    door.later.clear()
    again()
    assert len(looked) == 2 and len(door.later) == 1
    closed: list[int] = []
    door.listener._acceptor = thing(close=lambda: closed.append(1))
    door.listener.close()
    door.listener.close()
    assert closed and door.later == []
    door.listener._note_pause("Too many open files")
    (said,) = [one.facts for one in caplog.records if one.getMessage() == "cannot accept connections"]
    assert said == {"error": "Too many open files"}


def test_bodies_are_not_unpacked_and_requests_not_logged() -> None:
    options = listener_options()
    assert (options["access_log"], options["auto_decompress"]) == (None, False)
    assert options["read_bufsize"] == 16 * 1024 and options["lingering_time"] == 1.0
