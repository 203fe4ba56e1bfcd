"""Bodies and answers of the API: JSON in pieces, at the speed of its reader, and errors in one shape.

A list of a thousand jobs is megabytes of text. The daemon makes and sends it in pieces. Between two pieces other users
are served, and the next piece is made only when the user's unread answers are few enough (byte_budget.py). So an answer
that is not read costs one piece.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable, Iterator, Mapping

from aiohttp import web

from gpushare.errors import GpushareError, NoSuchJob, NotNoted, NotPermitted, Refused, UsageError
from gpushare.reasons import Code, Told
from gpushared.limits.byte_budget import ByteBudget
from gpushared.limits.fair_share import FairShare
from gpushared.system.processes import printable

PIECE = 32 * 1024
"""Characters, and the rest of the item that reaches it."""
MAX_BODY = 256 * 1024
"""Bytes of a request."""

BODY_WITHIN = 10.0
"""Seconds."""
RETRY_AFTER = 3
"""Seconds of Retry-After for a job that was not admitted, times one more than the jobs in the queue."""

HTTP_STATUS = {Code.NO_SUCH_JOB: 404, Code.BAD_BUDGET: 400, Code.NO_SUCH_GPU: 400}
"""Of what the core refuses; all else is CONFLICT."""
CONFLICT = 409


class Rejected(GpushareError):
    """The core refused."""

    def __init__(self, reason: Told, queue: int = 0) -> None:
        super().__init__(reason.message, facts=reason.facts, hint=reason.hint, code=reason.code.value)
        self.status = HTTP_STATUS.get(reason.code, CONFLICT)
        self.retry_after = RETRY_AFTER * (1 + queue) if reason.code is Code.NOT_ADMITTED else None
        """Seconds, if the same request may succeed later."""


def document(fields: Mapping[str, object | Iterator[object]]) -> Iterator[str]:
    """A JSON object in pieces of text; an iterator becomes a list whose items are made one by one."""
    before = "{"
    for name, value in fields.items():
        yield f"{before}{json.dumps(name)}: "
        before = ", "
        if isinstance(value, Iterator):
            yield from _items(value)
        else:
            yield json.dumps(value)
    yield "}" if fields else "{}"


def _items(items: Iterator[object]) -> Iterator[str]:
    before = "["
    for item in items:
        yield before + json.dumps(item)
        before = ", "
    yield "]" if before == ", " else "[]"


class Pieces:
    """Sends answers that may be long."""

    def __init__(self, held: ByteBudget, fair_share: FairShare) -> None:
        self._byte_budget = held
        self._fair_share = fair_share

    async def send(
        self, request: web.Request, uid: int, parts: Iterable[str], content_type: str = "application/json"
    ) -> web.StreamResponse:
        """A short answer goes in one piece, with its length."""
        waiting: list[str] = []
        size = 0
        response: web.StreamResponse | None = None
        try:
            for part in parts:
                waiting.append(part)
                size += len(part)
                if size < PIECE:
                    continue
                if response is None:
                    response = web.StreamResponse(headers={"Content-Type": f"{content_type}; charset=utf-8"})
                    await response.prepare(request)
                await self._byte_budget.room(uid)  # right before: what is written counts at once
                await response.write("".join(waiting).encode())
                waiting.clear()
                size = 0
                await self._fair_share.enter(uid)
        except Exception:
            if response is not None and request.transport is not None:
                request.transport.abort()  # half an answer has gone: no other can follow it
            raise
        if response is None:
            return web.Response(text="".join(waiting), content_type=content_type, charset="utf-8")
        await response.write("".join(waiting).encode())
        await response.write_eof()
        return response


def status_of(error: GpushareError) -> int:
    if isinstance(error, Rejected):
        return error.status
    if isinstance(error, NotNoted):
        return 507
    if isinstance(error, NotPermitted):
        return 403
    if isinstance(error, NoSuchJob):
        return 404
    if isinstance(error, Refused):
        return 409
    return 400 if isinstance(error, UsageError) else 500


def error_response(status: int, error: GpushareError) -> web.Response:
    shown = {
        "code": error.code,
        "message": error.message,
        "facts": [list(fact) for fact in error.facts],
        "hint": error.hint,
    }
    retry_after = error.retry_after if isinstance(error, Rejected) else None
    if retry_after is None:
        return web.json_response({"error": shown}, status=status)
    return web.json_response(
        {"error": {**shown, "retry_after": retry_after}}, status=status, headers={"Retry-After": str(retry_after)}
    )


def http_error(request: web.Request, error: web.HTTPException) -> web.Response:
    """aiohttp's refusals (no such path, wrong method, a bad body) in the shape of our errors."""
    if error.status == 413:
        message = f"the body of the request is larger than {MAX_BODY} bytes"
    elif error.status == 415:
        message = "the body of the request is encoded, and the daemon takes none that is"
    else:
        message = f"{(error.reason or 'no').lower()}: {request.method} {printable(request.path, 100)}"
    return error_response(error.status, GpushareError(message, code=f"http_{error.status}"))


def unix_socket(request: web.Request) -> socket.socket | None:
    sock: socket.socket | None = request.transport.get_extra_info("socket") if request.transport is not None else None
    return sock if sock is not None and sock.family == socket.AF_UNIX else None


async def read_body(request: web.Request, held: ByteBudget, uid: int, most: int = MAX_BODY) -> bytes:
    """The body of a request. Its bytes count for the caller until they are read."""
    size = most if request.content_length is None else min(request.content_length, most)
    try:
        async with asyncio.timeout(BODY_WITHIN):
            await held.room(uid, size)
            held.change(uid, size)
            try:
                return await _read(request, most)
            finally:
                held.change(uid, -size)
    except TimeoutError:
        message = f"the body of the request did not come within {BODY_WITHIN:g} s"
        raise UsageError(message, code="bad_request") from None


async def _read(request: web.Request, most: int) -> bytes:
    """Read the body piece by piece. request.read() would keep the bytes as long as the request, and a job may queue for
    days."""
    data = bytearray()
    while not request.content.at_eof():
        data += await request.content.readany()
        if len(data) > most:
            raise web.HTTPRequestEntityTooLarge(most, len(data))
    return bytes(data)
