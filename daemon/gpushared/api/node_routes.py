"""Routes about the node as a whole: version, status, records, pressure, metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial

from aiohttp import web

from gpushare import __version__, api
from gpushare.errors import NotPermitted, Refused
from gpushared.api import event_stream
from gpushared.api.answers import unix_socket
from gpushared.api.calls import call
from gpushared.api.history_question import moment
from gpushared.api.http_listener import NOBODY
from gpushared.api.request_body import number
from gpushared.api.routes import Routes
from gpushared.api.views import Views
from gpushared.core import instructions as do
from gpushared.core.visibility import Viewer
from gpushared.jobs import earlier
from gpushared.limits.access import Access
from gpushared.limits.backlog import Backlog
from gpushared.runtime.shell import Shell
from gpushared.system.dashboard import Dashboard

MOST_LAST = 10**9
"""Records that a follower may ask for: there are never so many."""


class NodeRoutes(Routes):
    """The node."""

    def __init__(self, shell: Shell, access: Access, views: Views, *, reveal: Callable[[], str], scope: str) -> None:
        """`reveal`: what users see of other users' jobs now. `scope`: system or user."""
        super().__init__(shell, access, views)
        self._reveal = reveal
        self._scope = scope
        self._started = time.monotonic()
        self.dashboard: Dashboard | None = None
        """The page for administrators, if the settings ask for it."""

    @call("GET", "/v1/version", api.Version)
    async def get_version(self, request: web.Request) -> web.Response:
        """Which daemon this is."""
        self.caller(request)
        answer: api.Version = {
            "version": __version__,
            "protocol": api.PROTOCOL,
            "pid": os.getpid(),
            "driver": self.shell.gpus.driver.kind,
            "scope": self._scope,
        }
        return web.json_response(answer)

    @call("GET", "/v1/status", api.Status, query={"jobs": "Only these jobs: their ids, with commas between."})
    async def get_status(self, request: web.Request) -> web.StreamResponse:
        """The GPUs and the jobs. Who follows the streams of events and history knows which jobs to ask about."""
        viewer, count = self.viewer(request), sum(1 for _ in self.shell.registry.live())
        jobs = request.query.get("jobs")
        only = None if jobs is None else frozenset(jobs.split(","))
        daemon = {"version": __version__, "uptime": time.monotonic() - self._started, "jobs": count}
        return await self.answer(
            request, daemon=daemon, gpus=self.views.gpus(viewer), jobs=self.views.jobs(viewer, only=only)
        )

    @call("GET", "/v1/explain", api.Explanation)
    async def get_explain(self, request: web.Request) -> web.StreamResponse:
        """Why memory is short now: GPUs, what waits, pressure, and the last records."""
        viewer = self.viewer(request)
        return await self.answer(
            request,
            gpus=self.views.gpus(viewer),
            waiting=self.views.waiting(viewer),
            pressure=self.views.pressure(),
            records=self.views.records(viewer, self.views.readable(viewer)),
        )

    @call(
        "GET",
        "/v1/events",
        api.Records,
        line=api.Record,
        query={
            "since": "All records from this time on, in seconds since 1970.",
            "follow": "1: new ones too, as they come, one a line.",
            "last": "With follow: begin with so many earlier ones; default 10.",
        },
    )
    async def get_records(self, request: web.Request) -> web.StreamResponse:
        """The last records; with ?since=TIME all records from then on; with ?follow=1 also new ones, a line each, until
        the caller closes the connection."""
        viewer = self.viewer(request)
        if "since" in request.query:
            since = moment(request, "since", 0.0)
            return await self.answer(request, records=await self._records_since(viewer, since))
        if request.query.get("follow") != "1":
            return await self.answer(request, records=self.views.records(viewer, self.views.readable(viewer)))
        count = number(request.query.get("last", "10"), "last", MOST_LAST)
        backlog = Backlog(self.views.readable(viewer, count), self.views.may_read(viewer))

        def show(records: list[do.Record], lost: int) -> Iterable[event_stream.Line]:
            nowhere = {"event": "lost", "gpu": None, "job": None, "name": None}
            return [*event_stream.note_of(lost, **nowhere), *self.views.records(viewer, records)]

        room = partial(self.shell.limits.bytes.room, viewer.uid)
        return await event_stream.stream(
            request, backlog, self.shell.records.followers, show, room=room, heartbeat=event_stream.HEARTBEAT
        )

    async def _records_since(self, viewer: Viewer, since: float) -> list[api.Record]:
        """From the history; if there is none, from memory."""
        users = earlier.users_for(viewer)
        found = await self.shell.historian.ask(viewer.uid, lambda history: history.records(since, None, users))
        if found is None:
            known = self.views.records(viewer, self.views.readable(viewer))
            return [one for one in known if one["time"] >= since]
        records = [earlier.shown(one, viewer) for one in found.records]
        return [*earlier.note_of_cut(records), *records] if found.cut else records

    @call("GET", "/v1/pressure", api.Pressure)
    async def get_pressure(self, request: web.Request) -> web.Response:
        """How long owners have waited for their memory, by GPU."""
        self.caller(request)
        return web.json_response({"gpus": self.views.pressure()})

    @call("GET", "/v1/dashboard", api.Dashboard)
    async def get_dashboard(self, request: web.Request) -> web.Response:
        """The address of the page that the daemon serves. For administrators; of a user's own daemon for its user."""
        caller = self.caller(request)
        if not (caller.admin or caller.uid == os.geteuid()):
            raise NotPermitted("the page of this daemon is for administrators", hint="yours is `gpushare dashboard`")
        if self.dashboard is None:
            raise Refused(
                "this daemon serves no page", code="no_dashboard", hint="set `port` of [dashboard] in its settings"
            )
        if self.dashboard.url is None:
            raise Refused("the page's server does not run", code="no_dashboard", hint="the daemon's log says why")
        answer: api.Dashboard = {"url": self.dashboard.url}
        return web.json_response(answer)

    @call("GET", "/metrics", None)
    async def get_metrics(self, request: web.Request) -> web.Response:
        """The metrics, as Prometheus reads them."""
        from gpushared.api.metrics import CONTENT_TYPE, render

        nobody = Viewer(NOBODY, self._reveal())  # over TCP
        viewer = self.viewer(request) if unix_socket(request) is not None else nobody
        await self.shell.limits.bytes.room(viewer.uid)
        return web.Response(body=render(self.shell, self.views, viewer), headers={"Content-Type": CONTENT_TYPE})
