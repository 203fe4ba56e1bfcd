"""Many programs that ask in the same moment: each gets its own answer, and none of them costs much."""

from __future__ import annotations

import contextlib
import os
import sys
from types import FrameType
from typing import Any

import pytest
from daemon_harness import GIB, GPU
from fixed_gpus import FixedGpus
from shim_client import MIB

from gpushare._layout import lib
from gpushared.gpus.inventory import GpuInfo

CLIENTS = 50
"""More than are taken with one call; fewer than one process may have pages."""


@pytest.fixture
def daemon(make_daemon):
    return make_daemon(FixedGpus([GpuInfo(GPU, 0, "Test GPU", 1000 * GIB)]))


@pytest.fixture
def clients(daemon):
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(CLIENTS):
            client = daemon.connect()
            stack.callback(client.close)
            assert client.hello(limit=GIB).status == lib.GS_OK
            assert client.attach(GPU).status == lib.GS_OK
            made.append(client)
        yield made


def ask(client: Any, size: int, fds: list[int] | None = None) -> int:
    return int(client.send(client.frame(lib.GS_ASK, ask={"bytes": size, "line": 0}), fds))


def test_each_gets_its_own_answer(daemon, clients):
    """Whatever else comes in the same moment: descriptors, garbage, a denial with its text, an end."""
    read, write = os.pipe()
    sent = {}

    def all_at_once() -> None:
        for number, client in enumerate(clients):
            if number == 7:
                client.sock.send(b"garbage")
            elif number == 11:
                client.sock.close()
            else:
                size = 2**40 if number % 10 == 3 else (number + 1) * MIB
                sent[client] = size, ask(client, size, [write] if number % 10 == 5 else None)

    daemon.call(all_at_once)  # on the daemon's own thread: it looks when they are all there
    for client, (size, seq) in sent.items():
        answer = client.answer()
        assert answer.seq == seq
        if size == 2**40:
            assert answer.status == lib.GS_OVER_LIMIT and "limit" in answer.text
        else:
            assert answer.status == lib.GS_OK and answer.granted >= size and answer.text == ""
            assert client.word()[1] >= size
    with pytest.raises(EOFError):
        clients[7].answer()  # that it was not understood
        clients[7].answer()
    os.close(write)
    assert os.read(read, 1) == b"", "the daemon has closed what came along"
    os.close(read)


def test_an_ask_costs_so_much(daemon, clients, monkeypatch):
    """From the frame to the answer, in bytecodes: the same on every run of one Python."""
    # To count takes longer than the work, so nothing that is counted may depend on the time.
    for seconds in ("limits.fair_share.SLICE", "shims.outbox.TOGETHER", "shims.requests.NOTICEABLE"):
        monkeypatch.setattr(f"gpushared.{seconds}", 1000.0)
    shims, counted = daemon.daemon.shims, 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return trace

    def count() -> None:
        for client in clients:
            ask(client, 512)
        shims.inbox.ready += [one for one in shims._connections if one.client is not None]
        sys.settrace(trace)
        try:
            shims.inbox.end_round()
        finally:
            sys.settrace(None)

    daemon.call(count)
    for client in clients:
        assert client.answer().status == lib.GS_OK
    assert counted / CLIENTS < 1450, f"{counted / CLIENTS:.0f} bytecodes for an ask"
