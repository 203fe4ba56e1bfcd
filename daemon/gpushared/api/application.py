"""The HTTP+JSON API on api.sock, for the command line and all other programs that speak HTTP to a Unix socket.

Who calls is known from the kernel (SO_PEERCRED). Everybody may look; a job is changed and ended by its own user
and by administrators: root, and a group that the settings may name. Every error has the same shape:
{"error": {"code", "message", "facts", "hint"}}.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from gpushare.errors import GpushareError, UsageError
from gpushared.api.answers import error_response, http_error, status_of
from gpushared.api.history import HistoryHandler
from gpushared.api.http_listener import HttpListener
from gpushared.api.job_routes import JobRoutes
from gpushared.api.node_routes import NodeRoutes
from gpushared.api.reservation_routes import ReservationRoutes
from gpushared.api.submit_routes import SubmitRoutes
from gpushared.api.views import Views
from gpushared.config import Config
from gpushared.history.usage import UsageHistory
from gpushared.limits.access import Access
from gpushared.runtime.shell import Shell
from gpushared.system.logs import Sparingly, facts, log

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """The routes, and what surrounds each request: errors, and its user's share of the loop."""

    def __init__(
        self, shell: Shell, config: Callable[[], Config], scope: str, access: Access, usage: UsageHistory | None = None
    ) -> None:
        self.views = Views(shell)
        self.node = NodeRoutes(shell, access, self.views, reveal=lambda: config().reveal, scope=scope)
        self.submit = SubmitRoutes(shell, access, self.views)
        self.jobs = JobRoutes(shell, access, self.views)
        self.reservations = ReservationRoutes(shell, access, self.views)
        self.history = HistoryHandler(shell, usage or UsageHistory(), self.node.viewer, self.node.answer)
        self._shell = shell
        self._access = access
        self._sparingly = Sparingly()
        self.listener: HttpListener | None = None
        self.active = 0
        """Requests in progress; a daemon that somebody is talking to does not go idle."""

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        job = "/v1/jobs/{job}"
        app.add_routes(
            [
                web.get("/v1/version", self.node.get_version),
                web.post("/v1/jobs", self.submit.post_job),
                web.get("/v1/jobs", self.jobs.get_jobs),
                web.get(job, self.jobs.get_job),
                web.patch(job, self.jobs.patch_job),
                web.delete(job, self.jobs.delete_job),
                web.put(f"{job}/main", self.jobs.put_main),
                web.get(f"{job}/events", self.jobs.get_events),
                web.get(f"{job}/story", self.jobs.get_story),
                web.post(f"{job}/checkpointed", self.jobs.post_checkpointed),
                web.post(f"{job}/stop", self.jobs.post_stop),
                web.post("/v1/reservations", self.reservations.post_reservation),
                web.get("/v1/reservations", self.reservations.get_reservations),
                web.delete("/v1/reservations/{reservation}", self.reservations.delete_reservation),
                web.get("/v1/explain", self.node.get_explain),
                web.get("/v1/events", self.node.get_records),
                web.get("/v1/pressure", self.node.get_pressure),
                web.get("/v1/status", self.node.get_status),
                web.get("/v1/history", self.history.get),
                web.get("/metrics", self.node.get_metrics),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.active += 1
        try:
            _check_body(request)
            return await self._in_turn(request, handler)
        except web.HTTPException as error:
            return http_error(request, error)
        except GpushareError as error:
            return error_response(status_of(error), error)
        except ConnectionError:
            raise  # the client has gone in the middle of its answer
        except Exception as error:
            return self._failed(request, error)
        finally:
            self.active -= 1

    def _failed(self, request: web.Request, error: Exception) -> web.Response:
        self._shell.core_loop.errors += 1
        resource = request.match_info.route.resource
        left_out = self._sparingly.allow((request.method, resource and resource.canonical, type(error)))
        if left_out is not None:
            more = {"more": left_out} if left_out else {}
            log.exception("a request failed", extra=facts(method=request.method, path=request.path, **more))
        hint = "this is a bug of gpushare; the daemon's log has the details"
        return error_response(500, GpushareError("the daemon failed on this request", code="internal", hint=hint))

    async def _in_turn(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A user's requests are begun one after the other, so that many of them hold nobody else up."""
        connection = self.listener.connection_of(request.protocol) if self.listener is not None else None
        if connection is None:
            return await handler(request)  # metrics over TCP
        connection.busy += 1
        try:
            uid = self.node.caller(request).uid
            await self._shell.limits.time.enter(uid)
            await self._access.meet(uid)
            return await handler(request)
        finally:
            connection.busy -= 1
            connection.idle_since = time.monotonic()


def metrics_application(handlers: Api) -> web.Application:
    """What a TCP port serves: /metrics and nothing else, for there nobody knows who calls."""
    app = web.Application()
    app.add_routes([web.get("/metrics", handlers.node.get_metrics)])
    return app


def _check_body(request: web.Request) -> None:
    """Before anything is done for it: what is packed could be any size, and to look takes no body."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType
    if request.method in ("GET", "HEAD") and request.body_exists:
        raise UsageError(f"a {request.method} request has no body", code="bad_request")
