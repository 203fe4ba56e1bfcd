"""Streams and answers over a real socket: what arrives in any pieces, ends in any way, or never comes."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from gpushare import unixhttp
from gpushare.client import Client, Events
from gpushare.errors import DaemonUnreachable, UsageError
from gpushare.history import _tail, _time, file_name, whose

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Peer:
    """Listens, takes one connection, and says what a test has it say."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "s"
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(self.path))
        self.server.listen(1)
        self.connection: socket.socket | None = None

    def accept(self) -> bytes:
        self.connection, _ = self.server.accept()
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += self.connection.recv(4096)
        return asked

    def say(self, data: bytes) -> None:
        assert self.connection is not None
        self.connection.sendall(data)

    def end(self) -> None:
        assert self.connection is not None
        self.connection.close()

    def answers(self, *pieces: bytes) -> threading.Thread:
        def answer() -> None:
            self.accept()
            for piece in pieces:
                self.say(piece)
            self.end()

        thread = threading.Thread(target=answer)
        thread.start()
        return thread


@pytest.fixture
def peer(tmp_path):
    one = Peer(tmp_path)
    yield one
    if one.connection is not None:
        one.connection.close()
    one.server.close()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


# ---- a stream -----------------------------------------------------------------------------------------------


def stream(peer: Peer) -> Events[dict]:
    events: Events[dict] = Events(peer.path, "/v1/jobs/a/events", 5.0, dict)
    assert peer.accept().startswith(b"GET /v1/jobs/a/events HTTP/1.1\r\nHost: gpushare\r\n")
    return events


def read(events: Events[dict]) -> list[dict]:
    import select

    select.select([events], [], [], 5.0)
    return list(events.read())


def test_lines_come_as_they_are_whole_and_a_read_waits_for_nothing(peer):
    events = stream(peer)
    assert list(events.read()) == [] and not events.ended
    line = b'{"a": 1}\n'
    peer.say(HEAD + chunk(line[:3]))
    assert read(events) == []
    peer.say(chunk(line[3:] + b"\n \n" + b'{"b": 2}\n{"c":'))
    assert read(events) == [{"a": 1}, {"b": 2}]
    peer.say(chunk(b" 3}\n"))
    assert read(events) == [{"c": 3}] and not events.ended
    peer.say(b"0\r\n\r\n")
    assert read(events) == [] and (events.ended, events.clean) == (True, True)
    assert list(events.read()) == []
    descriptor = events.fileno()
    events.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_an_answer_that_has_only_begun_is_none_yet(peer):
    events = stream(peer)
    peer.say(HEAD[:20])
    assert read(events) == [] and not events.ended
    peer.say(HEAD[20:] + chunk(b'{"a": 1}\n'))
    assert read(events) == [{"a": 1}] and not events.ended
    events.close()


def test_a_daemon_that_dies_ends_it_uncleanly(peer):
    events = stream(peer)
    peer.say(HEAD + chunk(b'{"a": 1}\n{"b"'))
    assert read(events) == [{"a": 1}]
    peer.end()
    assert read(events) == [] and (events.ended, events.clean) == (True, False)
    events.close()


def test_the_last_lines_come_with_the_end(peer):
    events = stream(peer)
    peer.say(HEAD + chunk(b'{"a": 1}\n') + b"0\r\n\r\n")
    assert read(events) == [{"a": 1}] and events.clean
    events.close()


@pytest.mark.parametrize("status", [b"400 Bad Request", b"404 Not Found", b"503 Service Unavailable"])
def test_a_refusal_ends_it_without_a_line(peer, status):
    events = stream(peer)
    body = b'{"error": {"code": "no_such_job", "message": "no"}}\n'
    peer.say(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
    assert read(events) == [] and events.ended
    events.close()


def test_a_refusal_whose_words_have_not_come_ends_it_too(peer):
    events = stream(peer)
    peer.say(b"HTTP/1.1 404 Not Found\r\nContent-Length: 100\r\n\r\n")
    assert read(events) == [] and (events.ended, events.clean) == (True, False)
    events.close()


def test_a_line_of_another_shape_is_no_daemons(peer):
    events = stream(peer)
    peer.say(HEAD + chunk(b"[1]\n"))
    with pytest.raises(DaemonUnreachable) as caught:
        read(events)
    assert caught.value.code == "garbage"
    events.close()


def test_a_connection_that_breaks_ends_it(peer):
    events = stream(peer)
    assert peer.connection is not None
    peer.say(HEAD)
    assert read(events) == []
    events._connection.shutdown(socket.SHUT_RD)
    peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.end()
    assert read(events) == [] and events.ended and not events.clean
    events.close()


# ---- an answer ------------------------------------------------------------------------------------------------


def exchanged(peer: Peer, *pieces: bytes, timeout: float = 5.0) -> tuple[int, bytes]:
    thread = peer.answers(*pieces)
    try:
        return unixhttp.exchange(peer.path, "POST", "/v1/x", b"{}", timeout)
    finally:
        thread.join()


def test_an_answer_in_pieces(peer):
    assert exchanged(peer, HEAD, chunk(b"ab"), chunk(b"c"), b"0\r\n\r\n") == (200, b"abc")


def test_an_answer_until_the_end(peer):
    assert exchanged(peer, b"HTTP/1.0 201 Created\r\n\r\n", b"ab", b"c") == (201, b"abc")


def test_an_answer_that_breaks_off(peer):
    with pytest.raises(DaemonUnreachable, match="hung up in the middle of its answer") as caught:
        exchanged(peer, HEAD, chunk(b"ab"))
    assert caught.value.code == "hung_up"


def test_an_answer_that_is_too_long(peer, monkeypatch):
    monkeypatch.setattr(unixhttp, "MAX_BODY", 10)
    assert exchanged(peer, b"HTTP/1.0 200 OK\r\n\r\n", b"x" * 10) == (200, b"x" * 10)
    with pytest.raises(DaemonUnreachable) as caught:
        exchanged(peer, b"HTTP/1.0 200 OK\r\n\r\n", b"x" * 11)
    assert caught.value.code == "garbage"


def test_a_daemon_that_says_nothing_is_waited_for_as_long_as_was_said(peer):
    began = time.monotonic()
    with pytest.raises(DaemonUnreachable, match="does not answer") as caught:
        unixhttp.exchange(peer.path, "GET", "/v1/x", None, 0.05)
    assert caught.value.code == "timed_out" and time.monotonic() - began >= 0.05


def test_a_daemon_that_takes_no_connection_is_waited_for_as_long_as_was_said(peer):
    """Its queue is full: it hangs, and others have asked before."""
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for one in waiting:
        one.connect(str(peer.path))
    frees = threading.Timer(5.0, peer.server.accept)
    frees.start()
    try:
        began = time.monotonic()
        with pytest.raises(DaemonUnreachable, match="does not answer") as caught:
            unixhttp.connect(peer.path, 0.05)
        assert caught.value.code == "timed_out" and time.monotonic() - began >= 0.05
    finally:
        frees.cancel()
        for one in waiting:
            one.close()


@pytest.mark.parametrize(
    ("timeout", "bound"), [(2.5, (2, 500_000)), (0.5, (0, 500_000)), (None, (0, 0)), (1e9, (3600, 0))]
)
def test_a_connection_waits_for_room_as_long_as_was_said_and_an_hour_at_most(peer, timeout, bound):
    with unixhttp.connect(peer.path, timeout) as connection:
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.calcsize("ll"))
        assert struct.unpack("ll", found) == bound, "0 is for ever"
        assert connection.gettimeout() == timeout


def test_where_nobody_listens(tmp_path):
    for path in (tmp_path / "none", tmp_path / "left"):
        if path.name == "left":
            with socket.socket(socket.AF_UNIX) as gone:
                gone.bind(str(path))
        with pytest.raises(DaemonUnreachable, match=f"no daemon listens at {path}") as caught:
            unixhttp.connect(path, 1.0)
        assert caught.value.code == "no_daemon"


def test_a_socket_that_cannot_be_talked_to(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DaemonUnreachable, match=r"cannot talk to the daemon at .*: AF_UNIX path too long") as caught:
        unixhttp.connect(tmp_path / "x" / ("y" * 200), 1.0)
    assert caught.value.code == "cannot_connect"


def test_a_job_without_a_name_is_asked_of_nobody(tmp_path):
    with pytest.raises(UsageError, match="the name of a job is empty") as caught:
        Client(tmp_path / "none").job("")
    assert caught.value.hint == "`gpushare ps` lists them"


# ---- files of the history ---------------------------------------------------------------------------------------


def test_the_last_bytes_of_a_file_are_whole_lines(tmp_path):
    path = tmp_path / "1000.jobs"
    path.write_bytes(b"one\ntwo\nthree\nfo")
    assert _tail(path, 100) == ([b"one", b"two", b"three"], False)
    assert _tail(path, 16) == ([b"one", b"two", b"three"], False)
    assert _tail(path, 15) == ([b"two", b"three"], True), "the first part may be incomplete"
    assert _tail(path, 9) == ([b"three"], True)


def test_what_is_no_file_of_ours_is_empty(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"one\n")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("pipe", "link", "gone", "."):
        assert _tail(tmp_path / name, 100) == ([], False), name


def test_a_file_that_cannot_be_read_is_empty(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"one\n")

    def pread(*_arguments):
        raise OSError(5, "Input/output error")

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "pread", pread)
    assert _tail(tmp_path / "file", 100) == ([], False)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (b'{"time": 12.5, "a": 1}', 12.5),
        (b'{"time": 12', 12.0),
        (b'{"a": 1, "time": 3}', -1.0),
        (b'{"time": 1.2.3}', -1.0),
        (b"", -1.0),
    ],
)
def test_the_time_of_a_line(line, seconds):
    assert _time(line) == seconds


def test_whose_a_file_is():
    assert whose(file_name(1000, "jobs")) == 1000
    assert whose(file_name(None, "jobs")) is None
    for name in ("notes.txt", "x.jobs", ".jobs"):
        with pytest.raises(ValueError, match=name):
            whose(name)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (None, b""),
        (b"", b"Content-Type: application/json\r\nContent-Length: 0\r\n"),
        (b'{"a": "\xc3\xa4"}', b"Content-Type: application/json\r\nContent-Length: 11\r\n"),
    ],
)
def test_a_request_says_how_long_its_body_is_and_has_it_last(body, told):
    asked = unixhttp.request_bytes("POST", "/v1/jobs", body)
    head, empty, rest = asked.partition(b"\r\n\r\n")
    assert empty and rest == (body or b"")
    assert head + b"\r\n" == (
        b"POST /v1/jobs HTTP/1.1\r\nHost: gpushare\r\nAccept: application/json\r\nConnection: close\r\n" + told
    )
