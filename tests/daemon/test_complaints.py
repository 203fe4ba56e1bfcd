"""What the log says of clients that are turned away: who, and why. Nobody else learns it."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from daemon_harness import GIB, GPU, InProcess
from shim_client import MIB

from gpushare._layout import lib
from gpushared.system.logs import facts_of


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    def found() -> list[tuple[object, ...]]:
        told = [facts_of(one) for one in caplog.records if one.getMessage() == "a client is not understood"]
        return [(one["uid"], one["why"], one["pid"], one["more"]) for one in told]

    return found


def connected(daemon: InProcess) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(5)
    sock.connect(str(daemon.shim))
    return sock


def test_too_many_connections_that_say_nothing(daemon, monkeypatch, said) -> None:
    monkeypatch.setattr("gpushared.shims.connection.PENDING_PER_UID", 3)
    socks = [connected(daemon) for _ in range(6)]
    assert socks[-1].recv(100) == b"", "it is closed"
    assert said() == [(os.getuid(), "too many connections without a HELLO", 0, 0)], "once"
    for sock in socks:
        sock.close()


@pytest.mark.parametrize(
    ("packet", "why"),
    [(b"GET / HTTP/1.1\r\n\r\n", "not a frame"), (bytes(512), "not a frame")],
    ids=["too short", "zeros"],
)
def test_what_is_no_frame(daemon, said, packet: bytes, why: str) -> None:
    with connected(daemon) as sock:
        sock.send(packet)
        while sock.recv(1000):
            pass
    assert said() == [(os.getuid(), why, os.getpid(), 0)]


def test_a_user_fills_no_log_and_each_frame_is_counted(daemon, said) -> None:
    stranger = daemon.connect()
    assert stranger.ask(MIB).status == lib.GS_BAD_FRAME
    client = daemon.connect()
    assert client.hello(request=4 * GIB, limit=4 * GIB).status == lib.GS_OK
    assert client.ask(MIB).status == lib.GS_BAD_FRAME
    assert client.attach(GPU).status == lib.GS_OK
    assert client.ask(MIB).status == lib.GS_OK, "a mistake is answered, and the program goes on"
    assert said() == [(os.getuid(), "the first frame must be HELLO", os.getpid(), 0)]
    assert daemon.shell.traffic.bad_frames == 2
    client.close()
    stranger.close()
