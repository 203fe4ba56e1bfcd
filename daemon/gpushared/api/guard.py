"""Wraps each request: errors in one shape, and the fair share of its user."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from gpushare.errors import GpushareError, UsageError
from gpushared.api.answers import error_response, http_error, status_of, unix_socket
from gpushared.api.http_listener import HttpListener
from gpushared.limits.limits import Limits
from gpushared.system.logs import Sparingly, facts, log
from gpushared.system.processes import peer_credentials

__all__ = ["Guard", "Handler"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guard:
    """Guards one application and its listener."""

    def __init__(
        self,
        limits: Limits,
        meet: Callable[[int], Awaitable[None]],
        failed: Callable[[], None],
        status_of: Callable[[GpushareError], int] = status_of,
    ) -> None:
        """`meet` is awaited with the user before its request is handled; `failed` is called after a bug."""
        self._limits = limits
        self._meet = meet
        self._count_failure = failed
        self._status_of = status_of
        self._sparingly = Sparingly()
        self.listener: HttpListener | None = None
        self.active = 0
        """Requests in progress: with any, the daemon is not idle."""

    @property
    def middleware(self) -> Middleware:
        return self._handle

    @web.middleware
    async def _handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.active += 1
        try:
            _check_body(request)
            return await self._in_share(request, handler)
        except web.HTTPException as error:
            return http_error(request, error)
        except GpushareError as error:
            return error_response(self._status_of(error), error)
        except ConnectionError:
            raise  # the client has gone in the middle of its answer
        except Exception as error:
            return self._failed(request, error)
        finally:
            self.active -= 1

    def _failed(self, request: web.Request, error: Exception) -> web.Response:
        self._count_failure()
        resource = request.match_info.route.resource
        left_out = self._sparingly.allow((request.method, resource and resource.canonical, type(error)))
        if left_out is not None:
            more = {"more": left_out} if left_out else {}
            log.exception("a request failed", extra=facts(method=request.method, path=request.path, **more))
        hint = "this is a bug of gpushare; the daemon's log has the details"
        return error_response(500, GpushareError("the daemon failed on this request", code="internal", hint=hint))

    async def _in_share(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A user's requests begin one after the other, so that many of them do not delay other users."""
        connection = self.listener.connection_of(request.protocol) if self.listener is not None else None
        sock = unix_socket(request)
        if connection is None or sock is None:
            return await handler(request)  # metrics over TCP
        connection.busy += 1
        try:
            uid = peer_credentials(sock)[1]
            await self._limits.time.enter(uid)
            await self._meet(uid)
            return await handler(request)
        finally:
            connection.busy -= 1
            connection.idle_since = time.monotonic()


def _check_body(request: web.Request) -> None:
    """Refuse a compressed body, which could unpack to any size, and a body of a GET."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType
    if request.method in ("GET", "HEAD") and request.body_exists:
        raise UsageError(f"a {request.method} request has no body", code="bad_request")
