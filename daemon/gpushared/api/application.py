"""The HTTP+JSON API on api.sock, for the command line and all other programs that speak HTTP to a Unix socket.

The kernel tells which user calls (SO_PEERCRED). Every user may read; a job is changed and ended by its own user and by
administrators: root, and a group that the settings may name. Every error has the same shape:
{"error": {"code", "message", "facts", "hint"}}.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from gpushared.api.calls import routes
from gpushared.api.guard import Guard
from gpushared.api.history import HistoryHandler
from gpushared.api.hook_routes import HookRoutes
from gpushared.api.job_routes import JobRoutes
from gpushared.api.node_routes import NodeRoutes
from gpushared.api.placement_routes import PlacementRoutes
from gpushared.api.reservation_routes import ReservationRoutes
from gpushared.api.submit_routes import SubmitRoutes
from gpushared.api.suspend_routes import SuspendRoutes
from gpushared.api.views import Views
from gpushared.config import Config
from gpushared.history.usage import UsageHistory
from gpushared.limits.access import Access
from gpushared.runtime.shell import Shell

NOUNS = (
    NodeRoutes,
    SubmitRoutes,
    JobRoutes,
    PlacementRoutes,
    SuspendRoutes,
    HookRoutes,
    ReservationRoutes,
    HistoryHandler,
)
"""What has handlers of the API."""


class Api:
    """The routes. guard.py wraps each request."""

    def __init__(
        self, shell: Shell, config: Callable[[], Config], scope: str, access: Access, usage: UsageHistory | None = None
    ) -> None:
        self.views = Views(shell)
        self.node = NodeRoutes(shell, access, self.views, reveal=lambda: config().reveal, scope=scope)
        self.submit = SubmitRoutes(shell, access, self.views)
        self.jobs = JobRoutes(shell, access, self.views)
        self.placements = PlacementRoutes(shell, access, self.views)
        self.suspend = SuspendRoutes(shell, access, self.views)
        self.hooks = HookRoutes(shell, access, self.views)
        self.reservations = ReservationRoutes(shell, access, self.views)
        self.history = HistoryHandler(shell, usage or UsageHistory(), self.node.viewer, self.node.answer)
        self._shell = shell
        self.guard = Guard(shell.limits, access.meet, self._count_failure)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self.guard.middleware])
        app.add_routes(routes(*(one for one in vars(self).values() if isinstance(one, NOUNS))))
        return app

    def _count_failure(self) -> None:
        self._shell.core_loop.errors += 1


def metrics_application(handlers: Api) -> web.Application:
    """The application of a TCP port. It has /metrics and nothing else, because the caller's user is unknown there."""
    app = web.Application()
    app.add_routes([web.get("/metrics", handlers.node.get_metrics)])
    return app
