"""The HTTP+JSON API on api.sock, for the command line and all other programs that speak HTTP to a Unix socket.

The kernel tells which user calls (SO_PEERCRED). Every user may read; a job is changed and ended by its own user and by
administrators: root, and a group that the settings may name. Every error has the same shape:
{"error": {"code", "message", "facts", "hint"}}.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from gpushared.api.guard import Guard
from gpushared.api.history import HistoryHandler
from gpushared.api.job_routes import JobRoutes
from gpushared.api.node_routes import NodeRoutes
from gpushared.api.reservation_routes import ReservationRoutes
from gpushared.api.submit_routes import SubmitRoutes
from gpushared.api.views import Views
from gpushared.config import Config
from gpushared.history.usage import UsageHistory
from gpushared.limits.access import Access
from gpushared.runtime.shell import Shell


class Api:
    """The routes. guard.py wraps each request."""

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
        self.guard = Guard(shell.limits, access.meet, self._count_failure)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self.guard.middleware])
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

    def _count_failure(self) -> None:
        self._shell.core_loop.errors += 1


def metrics_application(handlers: Api) -> web.Application:
    """For a TCP port: /metrics and nothing else, because the caller's user is unknown there."""
    app = web.Application()
    app.add_routes([web.get("/metrics", handlers.node.get_metrics)])
    return app
