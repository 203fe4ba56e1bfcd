"""Attackers: processes of another user that do something nasty until the test has seen enough."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from daemon_harness import GPU2
from shim_client import ShimClient

from gpushare._layout import lib

BOUND = 5.0
"""Seconds in which somebody else must be served, whatever goes on: many times what it takes on a quiet machine, and far
less than any of the attacks would take without a defence."""


@contextlib.contextmanager
def attack(uid: int, nasty: Callable[[Callable[[], None]], object]) -> Iterator[int]:
    """Runs `nasty(ready)` as that user in a process of its own, from when it has called `ready` until the end. What it
    returns is kept until then."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            held = nasty(lambda: os.write(write, b"ready") and None)
            time.sleep(120 if held is None else 121)  # what it holds stays open
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        with os.fdopen(read, "rb", buffering=0) as pipe:
            said = pipe.read(5)
            assert said == b"ready", (said + (pipe.read() or b"")).decode()
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def slowest(daemon: Any, seconds: float, *others: Callable[[], object]) -> float:
    """The longest that somebody else waits for an answer, on both sockets, connections of old and new ones."""
    worst = 0.0
    with ShimClient(daemon.shim) as shim:
        assert shim.hello(request=0, limit=2**31).status == lib.GS_OK
        assert shim.attach(GPU2).status == lib.GS_OK
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for call in (lambda: shim.ask(4096), daemon.client.version, lambda: hello(daemon.shim), *others):
                started = time.monotonic()
                call()
                worst = max(worst, time.monotonic() - started)
    print(f"the slowest answer to somebody else: {worst * 1000:.0f} ms")
    return worst


def hello(path: Path) -> None:
    with ShimClient(path) as newcomer:
        assert newcomer.hello(request=2**20, limit=2**20).status == lib.GS_OK


def connect(path: Path, kind: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.connect(str(path))  # waiting where the queue at the door is full
    sock.settimeout(10)
    return sock


def lingering(seconds: int = 60) -> socket.socket:
    """A TCP socket whose last close takes so long: there is data that nobody reads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock = socket.socket()
        sock.connect(server.getsockname())
        unread, _ = server.accept()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(65536))
    os.dup(unread.fileno())  # it stays open as long as this process
    return sock
