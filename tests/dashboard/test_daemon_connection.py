"""How the dashboard asks the daemon: before one that answers byte by byte as the test says, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpushare.dashboard import daemon as module
from gpushare.dashboard.daemon import MOST_OF_A_LINE, Daemon
from gpushare.errors import DaemonUnreachable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def whole(body: bytes) -> bytes:
    return OK % (len(body), body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@dataclass
class Silence:
    first: bytes = b""


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gs-") as made:
        yield Path(made) / "api.sock"


def asked(path: Path, answers: list[Any], ask: Callable[[Daemon], Awaitable[Any]]) -> tuple[Any, list[bytes], int]:
    """What `ask` returns or raises, the requests, and how often the socket was looked for. Each connection gets the
    next answer; after a Silence it stays open and nothing more comes."""
    requests: list[bytes] = []
    looked: list[int] = []

    def find() -> Path:
        looked.append(1)
        return path

    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())  # type: ignore[arg-type]
        with contextlib.suppress(ConnectionError):
            await answer_one(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        size = next((int(one.split(b":")[1]) for one in lines if one.startswith(b"content-length:")), 0)
        requests.append(head + await reader.readexactly(size))
        answer = answers.pop(0)
        if isinstance(answer, Silence):
            writer.write(answer.first)
            await reader.read()
        else:
            writer.write(answer)
            await writer.drain()

    async def main() -> Any:
        server = await asyncio.start_unix_server(serve, path)
        try:
            return await ask(Daemon(find))
        except DaemonUnreachable as error:
            return error
        finally:
            await asyncio.gather(*serving)
            server.close()
            await server.wait_closed()

    return asyncio.run(main()), requests, len(looked)


def test_a_call_returns_whatever_is_answered(path: Path) -> None:
    async def ask(daemon: Daemon) -> Any:
        return [
            await daemon.call("POST", "/v1/jobs?a=b", b"{}"),
            await daemon.call("GET", "/v1/x"),
            await daemon.get("/v1/y"),
        ]

    refusal = b"HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\nno"
    found, requests, looked = asked(path, [whole(b"yes"), refusal, whole(b'{"a": 1}')], ask)
    assert found == [(200, b"yes"), (409, b"no"), {"a": 1}]
    first, second, _ = requests
    assert first.startswith(b"POST /v1/jobs?a=b HTTP/1.1\r\nHost: gpushare\r\n") and first.endswith(b"\r\n\r\n{}")
    assert b"content-type: application/json" in first.lower() and b"content-type" not in second.lower()
    assert looked == 1, "as long as it answers, it is not looked for again"


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n", "garbage", "answers /v1/x with status 500"),
        (whole(b"<html>" + b"x" * 60), "garbage", "is no gpushare daemon: '<html>" + "x" * 34 + "'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "hung_up", "hung up in the middle of its answer"),
        (b"garbage\r\n\r\n", "hung_up", "hung up in the middle of its answer"),
    ],
)
def test_what_is_no_answer_is_told_and_the_daemon_is_looked_for_again(
    path: Path, answer: bytes, code: str, words: str
) -> None:
    async def ask(daemon: Daemon) -> Any:
        with pytest.raises(DaemonUnreachable) as caught:
            await daemon.get("/v1/x")
        return caught.value, await daemon.get("/v1/x")

    (error, then), _, looked = asked(path, [answer, whole(b"7")], ask)
    assert (error.code, then) == (code, 7) and words in error.message
    assert looked == (2 if code == "hung_up" else 1)


def test_one_that_does_not_answer_is_left_in_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWERS_WITHIN", 0.2)
    error, _, _ = asked(path, [Silence()], lambda daemon: daemon.get("/v1/x"))
    assert (error.code, error.message) == ("timed_out", f"the daemon at {path} does not answer")


def test_where_nobody_listens(path: Path) -> None:
    async def ask(_: Daemon) -> Any:
        return await Daemon(lambda: path.with_name("none.sock")).get("/v1/x")

    error, _, _ = asked(path, [], ask)
    assert (error.code, error.message) == ("no_daemon", f"no daemon listens at {path.with_name('none.sock')}")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (aiohttp.ClientOSError(104, "Connection reset by peer"), "cannot_connect", "Connection reset by peer"),
        (
            aiohttp.ClientConnectorError(None, OSError(13, "Permission denied")),  # type: ignore[arg-type]
            "cannot_connect",
            "Permission denied",
        ),
        (aiohttp.ClientConnectorError(None, FileNotFoundError()), "no_daemon", "no daemon listens"),  # type: ignore[arg-type]
        (TimeoutError(), "timed_out", "does not answer"),
        (aiohttp.ServerDisconnectedError(), "hung_up", "hung up"),
        (ValueError(), "hung_up", "hung up"),
    ],
)
def test_each_failure_has_its_words(path: Path, error: Exception, code: str, words: str) -> None:
    found = module._unreachable(path, error)
    assert found.code == code and words in found.message and str(path) in found.message


# ---- streams -------------------------------------------------------------------------------------------


async def all_of(daemon: Daemon) -> Any:
    found: list[Any] = []
    try:
        async for line in daemon.lines("/v1/events?follow=1"):
            found.append(line)
    except DaemonUnreachable as error:
        found.append(error.code)
    return found


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        ([b'{"a": 1}\n{"a": 2}\n'], [{"a": 1}, {"a": 2}]),
        ([b'{"a"', b": 1", b'}\n\n\n{"a": 2}\n'], [{"a": 1}, {"a": 2}]),
        ([b"1\n2"], [1]),
        ([], []),
        ([b"1\n", b"x" * (MOST_OF_A_LINE + 1)], [1, "garbage"]),
        ([b'"' + b"x" * (MOST_OF_A_LINE - 2) + b'"', b"\n2\n"], ["x" * (MOST_OF_A_LINE - 2), 2]),
        ([b"1\n{\n2\n"], [1, "hung_up"]),
    ],
)
def test_a_stream_is_read_line_by_line(path: Path, parts: list[bytes], lines: list[Any]) -> None:
    """Lines may come in pieces; empty ones say that the daemon is there."""
    answer = STREAM + b"".join(map(chunk, parts)) + b"0\r\n\r\n"
    found, requests, _ = asked(path, [answer], all_of)
    assert found == lines and requests[0].startswith(b"GET /v1/events?follow=1 HTTP/1.1\r\n")


def test_a_stream_that_is_refused_or_cut_is_over(path: Path) -> None:
    assert asked(path, [b"HTTP/1.1 404 N\r\nContent-Length: 0\r\n\r\n"], all_of)[0] == ["garbage"]
    assert asked(path, [STREAM + chunk(b"1\n")], all_of)[0] == [1, "hung_up"]


def test_a_stream_that_is_silent_for_long_is_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has begun, and its connection is open."""
    monkeypatch.setattr(module, "SILENT_FOR", 0.2)
    assert asked(path, [Silence(STREAM + chunk(b"1\n"))], all_of)[0] == [1, "timed_out"]
