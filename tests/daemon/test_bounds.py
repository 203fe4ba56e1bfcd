"""What one user can take from the others on a node that they share, resource by resource: docs/security.md has the
table. Each test prints what it saw (pytest -s) and holds the daemon to the bound that the table names.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from daemon_harness import Subprocess, until
from hostile import attack, connect
from other_user import BOB, CAROL, as_user, needs_root

from gpushare.errors import Refused
from gpushared.api import request_body
from gpushared.core.rules import DEFAULTS
from gpushared.limits import byte_budget

pytestmark = needs_root
MIB = 2**20
JOB = {"name": "a", "command": ["a"], "request": "1Mi", "limit": "1Mi", "gpus": 1}
GET = b"GET /v1/%s HTTP/1.1\r\nHost: x\r\n\r\n"

LATENCY = 0.5
"""Seconds that another user waits at most for an answer, as on a machine that does nothing else (yardstick)."""
A_SUBMISSION = (0.001, 0.001, 0.001)
"""Seconds of the processor that its parts take, about: the connection, the request, and the note before the answer."""
MEMORY = 64 * MIB
"""By how much one user can make the daemon grow, but for hundreds of connections (below)."""
A_CONNECTION = 512 * 1024
"""Bytes that each of these costs at most while bodies come. aiohttp keeps up to 32 requests of a connection that come
before the first is answered, and of what is no request 15 KiB of text that quotes it. A user's unfinished bodies count
together (byte_budget.py)."""
AN_UNREAD_ANSWER = 128 * 1024
"""The same of one that reads nothing of what it asked for."""


@pytest.fixture
def shared(make_daemon):
    return make_daemon(system=True)


@pytest.fixture
def node(directory):
    """A daemon of all users, as a process of its own: its memory is nobody else's."""
    directory.chmod(0o711)
    node = Subprocess(directory, {}, fixed=True)
    node.command.append("system")
    node.start()
    yield node
    node.kill()


def resident(node) -> int:
    """Bytes."""
    return int(Path(f"/proc/{node.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def api(node) -> socket.socket:
    return connect(node.directory / "api.sock", socket.SOCK_STREAM)


def post(body: object) -> bytes:
    text = json.dumps(body).encode()
    return b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(text) + text


@contextlib.contextmanager
def yardstick():
    """A process that computes and answers as a submission does: what that takes longer is the machine's load."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        for part in itertools.cycle(A_SUBMISSION):
            if not theirs.recv(1):
                break
            until_then = time.process_time() + part
            while time.process_time() < until_then:
                pass
            theirs.send(b"x")
        os._exit(0)
    theirs.close()
    with ours:
        yield lambda: [(ours.send(b"x"), ours.recv(1)) for _ in A_SUBMISSION]
    os.waitpid(pid, 0)


def timed(function) -> tuple[float, object]:
    started = time.monotonic()
    found = function()
    return time.monotonic() - started, found


def another_submits(node, times: int = 20) -> float:
    """The longest that it takes somebody else, in seconds of a machine that does nothing else: a daemon with a fifth of
    a processor takes five times as long for what comes before it."""

    def submit() -> float:
        took, computing = [], []
        with yardstick() as compute:
            for _ in range(times):
                seconds, job = timed(lambda: node.client.register(JOB | {"devices": ["1"]}))
                took.append(seconds)
                computing.append(timed(compute)[0])
                node.client.end(job["id"], 0, None)
        slowdown = sum(computing) / times / sum(A_SUBMISSION)
        return max(took) / max(1.0, slowdown)

    return as_user(BOB, submit)


def submit_many(node, count: int, **more: object) -> None:
    """As fast as one connection can; their wrapper is the caller."""
    with api(node) as sock:
        for number in range(count):
            sock.sendall(post(JOB | {"name": f"job{number}"} | more))
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += sock.recv(65536)
            assert answer.startswith(b"HTTP/1.1 201"), answer
            head, _, body = answer.partition(b"\r\n\r\n")
            (length,) = (int(line.split()[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
            while len(body) < length:
                body += sock.recv(65536)


def said(sock: socket.socket) -> bytes:
    with contextlib.suppress(ConnectionError):
        return sock.recv(65536)
    return b""


# ---- what a request may bring ------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP", "identity, gzip"])
@pytest.mark.parametrize("target", ["GET /v1/events?follow=1", "POST /v1/jobs", "DELETE /v1/jobs/x", "GET /nothing"])
def test_no_body_is_unpacked(shared, encoding, target):
    packed = gzip.compress(bytes(MIB))
    with api(shared) as sock:
        head = f"{target} HTTP/1.1\r\nHost: x\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(packed)}\r\n\r\n"
        sock.sendall(head.encode() + packed)
        assert said(sock).startswith(b"HTTP/1.1 415 ")


@pytest.mark.parametrize("length", [b"Content-Length: 2", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_who_only_looks_sends_no_body(shared, length, method):
    with api(shared) as sock:
        sock.sendall(method + b" /v1/jobs HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n\r\n")
        assert said(sock).startswith(b"HTTP/1.1 400 ")


def test_a_body_that_is_said_not_to_be_packed_is_taken(shared):
    with api(shared) as sock:
        sock.sendall(post(JOB).replace(b"\r\n\r\n", b"\r\nContent-Encoding: identity\r\n\r\n", 1))
        assert said(sock).startswith(b"HTTP/1.1 201 ")


def test_packed_bodies_cost_no_memory(node):
    """200 KB that would be 200 MB."""
    packed = gzip.compress(bytes(200 * MIB))
    head = b"GET /v1/events?follow=1 HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(
        packed
    )
    before = resident(node)

    def nasty(ready):
        kept = []
        for _ in range(200):
            sock = api(node)
            with contextlib.suppress(OSError):
                sock.sendall(head + packed)
            kept.append(sock)
        ready()
        return kept

    with attack(CAROL, nasty):
        grown, slowest = resident(node) - before, another_submits(node)
    print(
        f"packed bodies: the daemon grows by {grown / MIB:.1f} MiB, another's submission takes {slowest * 1000:.0f} ms"
    )
    assert grown < MEMORY and slowest < LATENCY


def test_bodies_without_end_cost_no_more_than_their_connections(node):
    """To paths that take one and to paths that take none, as fast as the daemon reads, and never read an answer."""
    before = resident(node)
    heads = [
        b"GET /v1/events?follow=1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"DELETE /v1/reservations/x HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 262144\r\n\r\n",
    ]

    def nasty(ready):
        kept = []
        for number in range(400):
            sock = api(node)
            sock.sendall(heads[number % len(heads)])
            sock.setblocking(False)
            kept.append(sock)
        chunk = b"40000\r\n" + bytes(0x40000) + b"\r\n"
        until_then = time.monotonic() + 5
        while time.monotonic() < until_then:
            for sock in kept:
                with contextlib.suppress(OSError):
                    sock.send(chunk)
            if time.monotonic() > until_then - 4:
                ready()
        return kept

    with attack(CAROL, nasty):
        slowest = another_submits(node)
        grown = resident(node) - before
    print(f"bodies without end: {grown / MIB:.1f} MiB, {slowest * 1000:.0f} ms")
    assert grown < 400 * A_CONNECTION and slowest < LATENCY


# ---- the text of jobs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["x" * 250_000],
        [""] * 60_000,
        ["\x01" * 40_000],
        ["\U0001f600" * 20_000],
        ["python", "é" * 9000],
        ["\ud800"] * 20_000,
    ],
    ids=["long", "many", "escaped", "wide", "accents", "surrogates"],
)
def test_a_command_is_cut_where_it_comes_in(shared, command):
    job = shared.client.register(JOB | {"command": command, "limit_source": "s" * 4000, "request_source": "t" * 4000})
    kept = json.dumps(job["command"])
    assert request_body.COMMAND // 2 <= len(kept) <= request_body.COMMAND
    assert len(job["limit_source"]) == len(job["request_source"]) == 256
    assert all(whole.startswith(part) for whole, part in zip(command, job["command"], strict=False))
    until((shared.directory / "state.json").exists)
    assert (shared.directory / "state.json").stat().st_size < 8192


def test_a_command_that_fits_is_whole():
    command = ["python", "train.py", "--lr", "1e-4", "", "é"]
    assert request_body.shortened(command) == tuple(command)
    exactly = ["x" * (request_body.COMMAND - 4)]
    assert request_body.shortened(exactly) == tuple(exactly)
    assert request_body.shortened(["x" * (request_body.COMMAND - 3)]) != ("x" * (request_body.COMMAND - 3),)


def test_many_large_jobs_and_unread_answers(node):
    """The attack of the report: 255 jobs with commands of 250 KB, and 40 lists that nobody reads."""
    before = resident(node)

    def nasty(ready):
        submit_many(node, 255, command=["x" * 250_000])
        kept = [api(node) for _ in range(40)]
        for sock in kept:
            sock.sendall(GET % b"jobs")
        time.sleep(0.2)
        ready()
        return kept

    with attack(CAROL, nasty):
        slowest = another_submits(node)
        grown, notes = resident(node) - before, (node.directory / "state.json").stat().st_size
    print(
        f"large jobs: {grown / MIB:.1f} MiB, notes {notes / MIB:.2f} MiB, another's submission {slowest * 1000:.0f} ms"
    )
    assert slowest < LATENCY
    assert grown < MEMORY
    assert notes < 255 * 8192


def test_a_user_has_only_so_much_text_of_jobs(shared, monkeypatch):
    monkeypatch.setattr("gpushared.limits.access.MOST_OF_JOBS", 100_000)

    def submit(count: int) -> int:
        made: list[object] = []
        with contextlib.suppress(Refused):
            while len(made) < count:
                made.append(shared.client.register(JOB | {"command": ["x" * 3000]}))
        return len(made)

    assert as_user(CAROL, lambda: submit(20)) == 100_000 // (4096 + 2 * 3000) == 9
    assert submit(20) == 20, "root is not bound"
    until(lambda: all(one["uid"] != CAROL for one in shared.client.jobs()))
    assert as_user(CAROL, lambda: submit(20)) == 9, "they have ended, and make room"


def test_a_thousand_jobs_that_queue(node):
    """Each of them is looked at whenever anything ends. All of them want different things."""

    def nasty(ready):
        submit_many(node, 1, request="15Gi", limit="15Gi", devices=["0"])
        kept = []
        for number in range(800):
            sock = api(node)
            wanted = f"{12 * 1024 + number}Mi"
            sock.sendall(post(JOB | {"request": wanted, "limit": wanted, "devices": ["0"], "wait": 100}))
            kept.append(sock)
        until(lambda: len(node.client.jobs()) > 800, 20)
        for sock in kept:
            sock.setblocking(False)
        ready()
        return kept

    before = resident(node)
    with attack(CAROL, nasty):
        slowest = another_submits(node)
        started = time.monotonic()
        as_user(CAROL, node.client.explain)
        explained = time.monotonic() - started
        grown = resident(node) - before
        print(f"800 queued: {grown / MIB:.1f} MiB, {slowest * 1000:.0f} ms, explain {explained * 1000:.0f} ms")
        assert slowest < LATENCY and grown < MEMORY


# ---- what is reserved, and protected -----------------------------------------------------------


def test_a_user_has_a_bounded_number_of_reservations(shared):
    def reserve() -> int:
        made = 0
        with contextlib.suppress(Refused):
            while made < 100:
                shared.client.reserve({"request": "1Mi", "name": f"r{made}"})
                made += 1
        return made

    assert as_user(CAROL, reserve) == DEFAULTS["max_reservations"] == 16
    assert as_user(BOB, reserve) == 16, "each for himself"
    assert as_user(BOB, lambda: len(shared.client.reservations())) == 32
    as_user(CAROL, lambda: shared.client.release("r3"))
    assert as_user(CAROL, lambda: shared.client.reserve({"request": "1Mi", "name": "again"}))["name"] == "again"
    assert reserve() == 100, "root is not bound"


def test_a_user_protects_its_jobs_only_so_long(shared):
    def submit(seconds: float) -> str:
        return shared.client.register(JOB | {"min_run_time": seconds})["state"]

    assert as_user(CAROL, lambda: submit(20.0)) == "running"
    code, text = as_user(CAROL, lambda: submit(365 * 86400.0))
    assert code == "policy" and "minimum run time" in text
    assert submit(365 * 86400.0) == "running", "root is not bound"


def test_many_reservations(node):
    """As many as 25 users may have, all of root, who is not bound."""
    for number in range(400):
        node.client.reserve({"request": "1Mi", "name": f"r{number}"})
    slowest = another_submits(node)
    print(f"400 reservations: another's submission {slowest * 1000:.0f} ms")
    assert slowest < LATENCY


# ---- answers -----------------------------------------------------------------------------------


def test_unread_answers_of_all_connections(node):
    """As many connections as a user may have; each asks for all that is long, again and again, and reads nothing."""
    before = resident(node)
    everything = b"".join(GET % one for one in (b"jobs?ended=1", b"status", b"explain", b"events", b"events?follow=1"))

    def nasty(ready):
        submit_many(node, 300, command=["x" * 4000])
        kept = [api(node) for _ in range(900)]
        for sock in kept:
            sock.sendall(everything)
        time.sleep(3)
        ready()
        return kept

    with attack(CAROL, nasty):
        slowest = another_submits(node)
        grown = resident(node) - before
    print(f"unread answers: {grown / MIB:.1f} MiB, another's submission {slowest * 1000:.0f} ms")
    assert slowest < LATENCY
    assert grown < 900 * AN_UNREAD_ANSWER


def test_a_long_list_is_whole_and_its_reader_may_be_slow(shared, monkeypatch):
    monkeypatch.setattr(byte_budget, "MOST", 5 * MIB)

    def submit_and_read():
        submit_many(shared, 200, command=["x" * 4000])
        with api(shared) as sock:
            sock.sendall((GET % b"jobs").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            time.sleep(0.5)
            text = b""
            while more := sock.recv(20_000):
                text += more
        listed = shared.client.jobs()
        return [len(text), [job["name"] for job in listed], shared.client.status()["daemon"]["jobs"]]

    length, names, count = as_user(CAROL, submit_and_read)
    assert length > 200 * 4000
    assert names == [f"job{number}" for number in range(200)] and count == 200


def test_whoever_holds_too_much_waits_and_others_do_not(shared, monkeypatch):
    monkeypatch.setattr(byte_budget, "MOST", MIB)
    monkeypatch.setattr("gpushared.api.http_listener.UNREAD_WITHIN", 3.0)

    def nasty(ready):
        submit_many(shared, 50, command=["x" * 4000])
        kept = [api(shared) for _ in range(100)]
        for sock in kept:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(GET % b"jobs" * 20)
        time.sleep(0.5)
        ready()
        return kept

    def of_carol() -> int:
        return shared.call(lambda: shared.shell.limits.bytes.of(CAROL))

    with attack(CAROL, nasty):
        assert MIB // 2 < of_carol() < 2 * MIB
        assert another_submits(shared) < LATENCY
        mine = threading.Thread(target=lambda: as_user(CAROL, shared.client.jobs), daemon=True)
        started = time.monotonic()
        mine.start()
        mine.join(20)
        assert not mine.is_alive() and time.monotonic() - started < 15, "unread answers are closed, and make room"
    until(lambda: of_carol() == 0 or shared.client.jobs() == [])


def test_all_that_is_held_is_let_go(shared):
    """Of every kind: jobs, answers, bodies that do not come, streams, notices."""

    def of_carol() -> int:
        return shared.call(lambda: shared.shell.limits.bytes.of(CAROL))

    def nasty(ready):
        submit_many(shared, 10)
        kept = [api(shared) for _ in range(4)]
        kept[0].sendall(GET % b"status" * 300)
        kept[1].sendall(post(JOB)[:-10])
        kept[2].sendall(GET % b"events?follow=1")
        kept[3].sendall(GET % b"jobs/job3/events")
        time.sleep(0.3)
        ready()
        return kept

    with attack(CAROL, nasty) as attacker:
        (entry,) = (one for one in shared.shell.registry.live() if one.spec.name == "job3")
        until(lambda: entry.notices.listeners)
        before = of_carol()
        assert before > 10 * 4096
        os.kill(attacker, signal.SIGSTOP)
        for _ in range(100):
            shared.call(lambda: entry.notices.put("changed", "x" * 5000, {}))
        assert of_carol() > before
        os.kill(attacker, signal.SIGCONT)
    until(lambda: shared.client.jobs() == [])
    until(lambda: of_carol() == sum(one.bytes for one in shared.shell.registry.all() if one.spec.uid == CAROL))
