"""What is around every request: its errors in one shape, and the connection that is busy as long as it is handled."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from gpushare.errors import GpushareError, NoSuchJob, NotPermitted, UsageError
from gpushared.api.answers import unix_socket
from gpushared.api.guard import Guard
from gpushared.api.http_listener import REQUEST_WITHIN, HttpConnection


class Stand:
    def __init__(self, *, listens: bool = True, unix: bool = True) -> None:
        self.failures = 0
        self.met: list[int] = []
        self.entered: list[int] = []
        self.connection = SimpleNamespace(busy=0, idle_since=0.0)
        self.ours, self.theirs = socket.socketpair() if unix else (socket.socket(), socket.socket())
        self.guard = Guard(SimpleNamespace(time=self), self.meet, self.failed)
        if listens:
            self.guard.listener = SimpleNamespace(connection_of=lambda _protocol: self.connection)

    async def enter(self, uid: int) -> None:
        self.entered.append(uid)

    async def meet(self, uid: int) -> None:
        self.met.append(uid)

    def failed(self) -> None:
        self.failures += 1

    def ask(
        self,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
        method: str = "GET",
        *,
        body: bool = False,
        **headers: str,
    ) -> web.StreamResponse:
        async def main() -> web.StreamResponse:
            transport = SimpleNamespace(
                get_extra_info=lambda name, default=None: self.ours if name == "socket" else default
            )
            payload = asyncio.StreamReader() if body else None
            more = {"payload": payload} if payload is not None else {}
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            request = make_mocked_request(method, "/v1/jobs", named, transport=transport, **more)
            return await self.guard.middleware(request, handler)

        try:
            return asyncio.run(main())
        finally:
            self.ours.close()
            self.theirs.close()


async def answers(_: web.Request) -> web.StreamResponse:
    return web.Response(text="well")


def raises(error: BaseException) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(_: web.Request) -> web.StreamResponse:
        raise error

    return handler


def said(response: web.StreamResponse) -> dict[str, object]:
    return json.loads(response.text)["error"]


ENDINGS = {
    "an answer": (None, 200, None),
    "not found": (web.HTTPNotFound(), 404, "http_404"),
    "a refusal": (NotPermitted("no"), 403, "not_permitted"),
    "a mistake": (UsageError("what?", code="bad_request"), 400, "bad_request"),
    "no job": (NoSuchJob("none"), 404, "no_such_job"),
    "a bug": (ZeroDivisionError("division by zero"), 500, "internal"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_connection_is_busy_until_its_request_has_ended_in_whatever_way(ending):
    error, status, code = ENDINGS[ending]
    stand = Stand()

    async def handler(request: web.Request) -> web.StreamResponse:
        assert stand.connection.busy == 1 and stand.guard.active == 1
        assert stand.entered == stand.met != []
        return await (raises(error) if error is not None else answers)(request)

    before = time.monotonic()
    response = stand.ask(handler)
    assert response.status == status
    assert (stand.connection.busy, stand.guard.active) == (0, 0)
    assert before <= stand.connection.idle_since <= time.monotonic(), "it may be silent for a while from now on"
    assert stand.failures == (ending == "a bug")
    assert code is None or said(response)["code"] == code


@pytest.mark.parametrize("error", [ConnectionResetError(), asyncio.CancelledError()], ids=["gone", "cancelled"])
def test_a_client_that_has_gone_is_no_bug(error, caplog):
    stand = Stand()
    with pytest.raises(type(error)):
        stand.ask(raises(error))
    assert (stand.connection.busy, stand.guard.active, stand.failures) == (0, 0, 0)
    assert caplog.records == []


def test_requests_of_one_connection_are_counted_one_by_one():
    stand = Stand()
    stand.connection.busy = 1

    async def handler(request: web.Request) -> web.StreamResponse:
        assert stand.connection.busy == 2
        return await answers(request)

    assert stand.ask(handler).status == 200
    assert stand.connection.busy == 1


@pytest.mark.parametrize("listens,unix", [(False, True), (True, False)])
def test_what_comes_over_tcp_has_no_user(listens, unix):
    stand = Stand(listens=listens, unix=unix)
    assert stand.ask(answers).status == 200
    assert stand.met == stand.entered == [] and stand.connection.busy == 0


def test_a_user_who_may_not_be_met_is_told_and_nothing_is_done():
    stand = Stand()

    async def refuse(_: int) -> None:
        raise NotPermitted("not you")

    stand.guard._meet = refuse
    response = stand.ask(raises(AssertionError("the handler ran")))
    assert response.status == 403 and said(response)["message"] == "not you"
    assert (stand.connection.busy, stand.guard.active) == (0, 0)


def test_the_status_of_an_error_is_what_the_application_says():
    stand = Stand()
    stand.guard = Guard(SimpleNamespace(time=stand), stand.meet, stand.failed, lambda _: 418)
    assert stand.ask(raises(GpushareError("short and stout", code="teapot"))).status == 418


def test_a_bug_is_told_without_what_it_was_and_logged_with_it(caplog):
    stand = Stand()
    response = stand.ask(raises(ZeroDivisionError("secret")))
    assert said(response)["message"] == "the daemon failed on this request" and "secret" not in response.text
    assert "the daemon's log has the details" in said(response)["hint"]
    (record,) = caplog.records
    assert record.facts == {"method": "GET", "path": "/v1/jobs"}, "the first of its kind: none was left out"
    assert record.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize(
    "method,body,encoding,status",
    [
        ("GET", False, "", 200),
        ("GET", True, "", 400),
        ("HEAD", True, "", 400),
        ("POST", True, "", 200),
        ("POST", True, "identity", 200),
        ("POST", True, "Identity", 200),
        ("POST", True, "gzip", 415),
        ("GET", False, "br", 415),
    ],
)
def test_which_bodies_are_taken(method, body, encoding, status):
    stand = Stand()
    headers = {"Content_Encoding": encoding} if encoding else {}
    assert stand.ask(answers, method, body=body, **headers).status == status
    assert (status == 200) == bool(stand.met), "what is refused costs its user nothing"
    assert stand.guard.active == 0


@pytest.mark.parametrize("transport", [None, SimpleNamespace(get_extra_info=lambda _: None)], ids=["gone", "closed"])
def test_a_connection_that_is_gone_has_no_socket(transport):
    assert unix_socket(SimpleNamespace(transport=transport)) is None


# ---- what the count is for -----------------------------------------------------------------------------


class Transport:
    aborted = False
    buffered = 0

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.buffered


def connection() -> tuple[HttpConnection, Transport, list[tuple[int, int]]]:
    counted: list[tuple[int, int]] = []
    budget = SimpleNamespace(change=lambda uid, more: counted.append((uid, more)))
    one = HttpConnection(SimpleNamespace(byte_budget=budget), SimpleNamespace(connection_made=lambda _: None), 7)
    transport = Transport()
    return one, transport, counted


def test_a_connection_without_a_request_is_closed_in_time_and_a_busy_one_never():
    one, transport, _ = connection()
    one.check(one.idle_since + 1000)  # it is just being made
    one.connection_made(transport)
    for busy, seconds, closed in (
        (0, REQUEST_WITHIN - 0.1, False),
        (1, 1000 * REQUEST_WITHIN, False),
        (2, 1000 * REQUEST_WITHIN, False),
        (0, REQUEST_WITHIN + 0.1, True),
    ):
        one.busy = busy
        one.check(one.idle_since + seconds)
        assert transport.aborted is closed, (busy, seconds)


def test_a_client_that_reads_nothing_of_its_answers_is_cut_and_one_that_reads_slowly_is_not():
    one, transport, counted = connection()
    one.connection_made(transport)
    one.busy, now = 1, 100.0
    transport.buffered = 5000
    for _ in range(20):  # slowly: a byte in 20 s
        one.check(now)
        now += 20.0
        transport.buffered -= 1
        assert not transport.aborted
    transport.buffered = 0
    one.check(now)
    transport.buffered = 300
    one.check(now + 1)
    one.check(now + 30)
    assert not transport.aborted
    one.check(now + 31.5)
    assert transport.aborted
    assert sum(more for _, more in counted) == 300 and {uid for uid, _ in counted} == {7}
