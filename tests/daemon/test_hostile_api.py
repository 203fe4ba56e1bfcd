"""Clients that mean harm, on the HTTP socket: whatever they do, others are served within a bound."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from daemon_harness import until
from hostile import BOUND, attack, connect, lingering, slowest
from other_user import ALICE, BOB, CAROL, as_user, needs_root

from gpushare.errors import DaemonUnreachable, Refused
from gpushared.api import http_listener
from gpushared.limits import backlog as backlogs
from gpushared.limits.user_limits import UserLimits

pytestmark = needs_root
JOB = {"name": "a", "command": ["a"], "request": "1Mi", "limit": "1Mi", "gpus": 1}
GET = b"GET /v1/%s HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def shared(make_daemon):
    return make_daemon(system=True)


def api(daemon) -> socket.socket:
    return connect(daemon.directory / "api.sock", socket.SOCK_STREAM)


def answer(sock: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while more := sock.recv(65536):
            said += more
    return said


def guests(daemon) -> int:
    return daemon.call(lambda: len(daemon.daemon.api.guard.listener._connections))


# ---- connections -------------------------------------------------------------------------------


def test_five_thousand_connections_of_one_user(shared):
    def nasty(ready):
        held = []
        for _ in range(5_000):
            held.append(api(shared))
        ready()
        return held

    def another():
        return [shared.client.version()["protocol"] for _ in range(5)]

    def one_more():
        try:
            shared.client.version()
        except DaemonUnreachable as error:
            return error.message
        return "served"

    with attack(CAROL, nasty):
        assert guests(shared) <= 1024 + 2
        assert slowest(shared, 2) < BOUND
        assert as_user(BOB, another) == [1] * 5
        assert "too many connections" in as_user(CAROL, one_more)
    until(lambda: guests(shared) <= 1)
    assert as_user(CAROL, one_more) == "served"


def test_a_request_that_comes_byte_by_byte(shared, monkeypatch):
    """Slow loris: a header that never ends, from 300 connections."""
    monkeypatch.setattr("gpushared.api.http_listener.REQUEST_WITHIN", 2.0)

    def nasty(ready):
        held = [api(shared) for _ in range(300)]
        ready()
        for byte in b"GET /v1/version HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"a" * 1000:
            for sock in held:
                with contextlib.suppress(OSError):
                    sock.send(bytes((byte,)))
            time.sleep(0.2)

    with attack(CAROL, nasty):
        assert slowest(shared, 1) < BOUND
        until(lambda: guests(shared) <= 1, 10)


def test_a_body_that_does_not_come(shared, monkeypatch):
    monkeypatch.setattr("gpushared.api.answers.BODY_WITHIN", 0.5)
    with api(shared) as sock:
        sock.send(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert b"400 Bad Request" in sock.recv(65536)
    assert shared.call(lambda: shared.daemon.api.guard.active) == 0


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /v1/version HTTP/1.1\r\nX: " + b"a" * 2**20, b"400"),
        (b"GET /" + b"a" * 2**20, b"400"),
        (b"GET /v1/version HTTP/1.1\r\n" + b"X: y\r\n" * 200_000, b"400"),
        (b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n" + b"a" * 2**20, b"413"),
        (b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n" + b"a" * 0xFFFFF, b"413"),
        (b"\0" * 2**20, b"400"),
    ],
    ids=["long header", "long target", "many headers", "long body", "long chunk", "zeros"],
)
def test_what_is_too_large_is_refused_and_not_kept(shared, head, status):
    with api(shared) as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(head)
        assert answer(sock).startswith(b"HTTP/1.1 " + status)
    assert slowest(shared, 0.3) < BOUND
    until(lambda: guests(shared) == 0)


# ---- requests ----------------------------------------------------------------------------------


def test_floods_of_requests_back_to_back(shared):
    """One request is a line; as many as fit are sent before the first answer, from 100 connections."""
    for number in range(30):
        shared.client.register(JOB | {"name": f"job{number}"})

    def nasty(ready):
        held = [api(shared) for _ in range(100)]
        for sock in held:
            sock.setblocking(False)
        ready()
        many = GET % b"explain" * 2000
        while True:
            for sock in held:
                with contextlib.suppress(OSError):
                    sock.send(many)
                with contextlib.suppress(OSError):
                    sock.recv(2**20)

    with attack(CAROL, nasty):
        assert slowest(shared, 5) < BOUND


def test_more_requests_at_once_than_are_kept_are_all_answered(shared):
    """Who sends faster than its share of the loop allows has to wait until there is room; nothing is lost for it."""
    count, padding = 400, b"x" * 3000
    request = b"GET /v1/version HTTP/1.1\r\nHost: x\r\nX-Padding: " + padding + b"\r\n\r\n"
    assert count * len(request) > 4 * http_listener.MOST_UNPARSED
    with api(shared) as sock, ThreadPoolExecutor(1) as pool:
        sock.settimeout(60.0)
        sent = pool.submit(sock.sendall, count * request)
        said = b""
        while said.count(b"HTTP/1.1 200 OK") < count:
            more = sock.recv(65536)
            assert more, f"closed after {said.count(b'HTTP/1.1 200 OK')} answers"
            said += more
        sent.result(10.0)


def test_answers_that_nobody_reads(shared, monkeypatch):
    monkeypatch.setattr("gpushared.api.http_listener.UNREAD_WITHIN", 1.5)
    for number in range(30):
        shared.client.register(JOB | {"name": f"job{number}"})

    def nasty(ready):
        held = [api(shared) for _ in range(50)]
        for sock in held:
            sock.sendall(GET % b"status" * 300)
        ready()
        return held

    with attack(CAROL, nasty):
        assert slowest(shared, 1) < BOUND
        until(lambda: guests(shared) <= 1, 15)


def test_events_that_nobody_reads(shared, monkeypatch):
    monkeypatch.setattr("gpushared.api.http_listener.UNREAD_WITHIN", 1.5)

    def nasty(ready):
        job = shared.client.register(JOB)
        held = []
        for _ in range(20):
            sock = api(shared)
            sock.send(GET % f"jobs/{job['id']}/events".encode())
            held.append(sock)
        ready()
        return held

    with attack(CAROL, nasty):
        (job,) = shared.client.jobs()
        entry = shared.shell.registry.get(job["id"])
        until(lambda: len(entry.notices.listeners) == 20)

        def notices():
            for number in range(2000):
                entry.notices.put("changed", "x" * 500, {"number": number})

        for _ in range(10):
            shared.call(notices)
        unread = shared.call(lambda: sum(map(len, entry.notices.listeners)))
        assert unread <= 20 * backlogs.UNREAD
        assert slowest(shared, 1) < BOUND
        until(lambda: guests(shared) <= 1, 15)
    until(lambda: shared.client.jobs() == [])


def test_one_that_reads_its_events_gets_all_of_them(shared):
    job = shared.client.register(JOB)
    entry = shared.shell.registry.get(job["id"])
    with contextlib.closing(shared.client.events(job["id"])) as events:
        until(lambda: len(entry.notices.listeners) == 1)
        seen = []
        for number in range(600):
            shared.call(lambda number=number: entry.notices.put("changed", "x", {"number": number}))
            until(lambda number=number: seen.extend(events.read()) or len(seen) > number)
        assert [one["facts"]["number"] for one in seen] == list(range(600))


def test_descriptors_that_take_an_hour_to_close(shared):
    def nasty(ready):
        for _ in range(5):
            slow = lingering()
            sock = api(shared)
            socket.send_fds(sock, [GET % b"version"], [slow.fileno()] * 3)
            slow.close()
            assert sock.recv(15) == b"HTTP/1.1 200 OK"
        ready()

    with attack(CAROL, nasty):
        assert slowest(shared, 2) < BOUND


def test_a_user_has_only_so_many_jobs(make_daemon, monkeypatch):
    monkeypatch.setattr("gpushared.limits.limits.UserLimits", lambda: UserLimits(400))
    daemon = make_daemon(system=True)

    def many():
        jobs = 0
        with contextlib.suppress(Refused):
            while jobs < 100:
                daemon.client.register(JOB)
                jobs += 1
        return jobs

    assert as_user(CAROL, many) == 400 // 16
    assert as_user(BOB, lambda: daemon.client.register(JOB))["state"] == "running"
    until(lambda: daemon.client.jobs() == [])


def test_jobs_and_waits_as_fast_as_they_come(shared):
    """Each is written down, and each that waits holds a connection."""

    def nasty(ready):
        held = []
        for _ in range(200):
            sock = api(shared)
            body = json.dumps(JOB | {"request": "15Gi", "limit": "15Gi", "wait": 60}).encode()
            sock.send(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            held.append(sock)
        ready()
        while True:
            with contextlib.suppress(OSError):
                shared.client.register(JOB)

    with attack(CAROL, nasty), attack(ALICE, nasty):
        assert slowest(shared, 4) < BOUND


# ---- what one user may see and do of another's -------------------------------------------------


def test_what_others_may_see_and_do(shared):
    job = shared.client.register(JOB | {"name": "secret", "command": ["train.py", "--token", "x"]})["id"]

    def look():
        client = shared.client
        seen = [one for one in client.jobs() if one["id"] == job]
        codes = []
        for call in (
            lambda: client.story(job),
            lambda: client.change(job, {"priority": -5}),
            lambda: client.end(job, 0, None),
            lambda: client.set_main(job, os.getpid()),
            lambda: client.register(JOB | {"job": job}),
        ):
            try:
                call()
                codes.append("done")
            except Exception as error:
                codes.append(getattr(error, "code", repr(error)))
        told = json.dumps([client.explain(), client.status(), client.job(job)])
        told += shared.http("GET", "/metrics")[1].decode()
        codes.append(json.loads(shared.http("GET", f"/v1/jobs/{job}/events")[1])["error"]["code"])
        return [seen, codes, "secret" in told or "token" in told]

    seen, codes, told = as_user(CAROL, look)
    assert codes == ["not_permitted"] * 6
    assert [(one["name"], one["command"]) for one in seen] == [("-", [])] and not told
    assert shared.client.job(job)["state"] == "running"
    assert 'name="secret"' in shared.http("GET", "/metrics")[1].decode(), "its own user sees it"


def test_a_process_of_somebody_else_is_not_made_ones_own(shared):
    """What a job's main process is may be killed with the daemon's rights."""

    def claim():
        job = shared.client.register(JOB)["id"]
        codes = []
        for pid in (1, os.getppid()):
            try:
                shared.client.set_main(job, pid)
                codes.append("done")
            except Exception as error:
                codes.append(error.code)
        return codes

    assert as_user(CAROL, claim) == ["not_a_child"] * 2
