"""The service's API: HTTP+JSON on a Unix socket, in the style of the node daemon's (api/application.py).

Who calls is known from the kernel (SO_PEERCRED). Everybody may look. A job is changed by its own user and by
administrators: root, who runs the service, and the members of a group that the settings may name.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, TypeVar

from aiohttp import web

from gpushare import __version__
from gpushare.cluster.codec import decode_events
from gpushare.cluster.service import api
from gpushare.cluster.service.common import Caller, Common
from gpushare.cluster.service.notices import Notice
from gpushare.cluster.service.shown import Shown
from gpushare.cluster.store import StoreError
from gpushare.errors import GpushareError, NotPermitted, Refused, UsageError
from gpushared.api.answers import PIECE, read_body, status_of, unix_socket
from gpushared.api.calls import call, routes
from gpushared.api.event_stream import HEARTBEAT, note_of, stream
from gpushared.api.guard import Guard
from gpushared.api.history_question import QUERY, moment
from gpushared.api.request_body import number
from gpushared.cluster import metrics
from gpushared.cluster.history import QueueHistory
from gpushared.cluster.writer import Writer
from gpushared.limits.backlog import Backlog
from gpushared.limits.identities import Identities, user_name
from gpushared.limits.limits import Limits
from gpushared.system.processes import peer_credentials

__all__ = ["Api"]

Answer = TypeVar("Answer")

MOST_BODY = 4 * 2**20
"""Bytes of a submission: the kernel starts no program with a larger environment and command."""
AT_ONCE = 100
"""Jobs that are shown between two other calls."""
MOST_SEQ = 2**62


class Api:
    """The routes."""

    def __init__(
        self, writer: Writer, limits: Limits, identities: Identities, admin_group: str, history: QueueHistory
    ) -> None:
        self._writer = writer
        self._service: Common = writer.service
        self._limits = limits
        self._history = history
        self._identities = identities
        self._admin_group = admin_group
        self._readers: set[Backlog[Notice]] = set()
        self._loop = asyncio.get_running_loop()
        self.guard = Guard(limits, self._meet, self._count_failure, _status_of)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self.guard.middleware])
        app.add_routes(routes(self))
        return app

    def metrics_application(self) -> web.Application:
        """For a TCP port: /metrics and nothing else, because the caller's user is unknown there."""
        app = web.Application()
        app.add_routes([web.get("/metrics", self._metrics)])
        return app

    def end_streams(self) -> None:
        """The service goes: followers should look for the next one."""
        for reader in list(self._readers):
            reader.end()

    # ---- who -----------------------------------------------------------------------------------------

    async def _meet(self, uid: int) -> None:
        if self._admin_group:
            await self._identities.get(uid)

    def _caller(self, request: web.Request) -> Caller:
        sock = unix_socket(request)
        if sock is None:
            raise NotPermitted("nobody knows who asks")
        _, uid, gid = peer_credentials(sock)
        who = self._identities.known(uid)
        admin = uid in (0, os.geteuid()) or (bool(self._admin_group) and self._admin_group in who.groups)
        return Caller(uid, gid, user_name(uid), admin)

    def _count_failure(self) -> None:
        self._writer.errors += 1

    async def _call(self, function: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer:
        return await asyncio.wrap_future(self._writer.call(function, *arguments, **named))

    # ---- the service ---------------------------------------------------------------------------------

    @call("GET", "/v1/version", api.Version)
    async def _version(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """Which service this is."""
        return _answer({"version": __version__, "pid": os.getpid(), "engine": self._service.engine})

    @call("GET", "/v1/status", api.Status)
    async def _status(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """How it is."""
        status = await self._call(self._service.status)
        return _answer({**status, "version": __version__, "pid": os.getpid(), "errors": self._writer.errors})

    @call("GET", "/v1/health", api.Status)
    async def _health(self, request: web.Request) -> web.Response:
        """The same as /v1/status."""
        return await self._status(request)

    @call("GET", "/metrics", None)
    async def _metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """The metrics, as Prometheus reads them."""
        body = await self._call(metrics.render, self._writer)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    @call("GET", "/v1/state", api.ClusterState)
    async def _state(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """The whole state, for `gpushare cluster`."""
        return web.Response(text=await self._call(self._service.state), content_type="application/json")

    @call("GET", "/v1/overview", api.Overview)
    async def _overview(self, request: web.Request) -> web.Response:
        """The cluster at a glance, as the dashboard shows it."""
        return _answer(await self._call(self._service.overview, self._caller(request)))

    @call("GET", "/v1/history", api.History, line=api.HistoryLine, query={**QUERY, "queue": "Only this queue."})
    async def _get_history(self, request: web.Request) -> web.StreamResponse:
        """GPUs of each queue over time."""
        return await self._history.get(request, self._caller(request).uid)

    # ---- jobs ----------------------------------------------------------------------------------------

    @call("POST", "/v1/jobs", api.Submitted, statuses=(201,), body=api.Submission)
    async def _submit(self, request: web.Request) -> web.Response:
        """Submit a job, or an array of jobs."""
        caller = self._caller(request)
        body = await self._body(request)
        return _answer(await self._call(self._service.submit, body, caller), status=201)

    @call(
        "GET",
        "/v1/jobs",
        api.Jobs,
        query={
            "queue": "Only of this queue.",
            "user": "Only of this user.",
            "ended": "1: before them the last 1,000 that are over.",
        },
    )
    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        """The jobs that are not over.

        Piece by piece: between two pieces others are answered, so a job may change its place meanwhile.
        """
        query = request.query
        chosen = {"queue": query.get("queue"), "user": query.get("user")}
        ended = query.get("ended") == "1"
        over, ids = await self._call(self._service.listed, ended=ended, **chosen)
        uid = self._caller(request).uid
        response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
        await response.prepare(request)
        text, before = ['{"jobs": ['], ""
        async for rows in self._in_pieces(over, ids, ended=ended):
            for row in rows:
                text.append(before + json.dumps(row))
                before = ", "
            if sum(map(len, text)) >= PIECE:
                await self._limits.bytes.room(uid)
                await response.write("".join(text).encode())
                text.clear()
        await response.write(("".join(text) + "]}").encode())
        await response.write_eof()
        return response

    async def _in_pieces(self, over: list[Shown], ids: list[str], *, ended: bool) -> AsyncIterator[list[Shown]]:
        for first in range(0, len(over), AT_ONCE):
            yield over[first : first + AT_ONCE]
        for first in range(0, len(ids), AT_ONCE):
            yield await self._call(self._service.shown, ids[first : first + AT_ONCE], ended=ended)

    @call("GET", "/v1/jobs/{job}", api.ShownJob)
    async def _job(self, request: web.Request) -> web.Response:
        """One job, over or not."""
        return _answer(await self._call(self._service.show, request.match_info["job"], self._caller(request)))

    @call(
        "DELETE",
        "/v1/jobs/{job}",
        api.Chosen,
        query={"now": "1: without grace.", "dry_run": "1: say what would follow, and change nothing."},
    )
    async def _cancel(self, request: web.Request) -> web.Response:
        """Cancel a job, or all of an array."""
        options = {name: request.query.get(name) == "1" for name in ("now", "dry_run")}
        caller = self._caller(request)
        return _answer(await self._call(self._service.cancel, request.match_info["job"], caller, **options))

    @call("POST", "/v1/jobs/{job}/hold", api.Chosen)
    async def _hold(self, request: web.Request) -> web.Response:
        """Do not start it before it is released."""
        return _answer(await self._call(self._service.hold, request.match_info["job"], self._caller(request)))

    @call("POST", "/v1/jobs/{job}/release", api.Chosen)
    async def _release(self, request: web.Request) -> web.Response:
        """It may start, whatever held it back."""
        return _answer(await self._call(self._service.release, request.match_info["job"], self._caller(request)))

    @call("GET", "/v1/jobs/{job}/explain", api.Explained)
    async def _explain(self, request: web.Request) -> web.Response:
        """Why it waits or runs, and the smallest change that would start it."""
        return _answer(await self._call(self._service.explain, request.match_info["job"]))

    # ---- the cluster ---------------------------------------------------------------------------------

    @call("GET", "/v1/queues", api.Queues)
    async def _queues(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """The queues, their shares, and who borrows from whom."""
        return _answer(await self._call(self._service.queues))

    @call("GET", "/v1/nodes", api.Nodes)
    async def _nodes(self, request: web.Request) -> web.Response:  # noqa: ARG002
        """The nodes."""
        return _answer(await self._call(self._service.nodes))

    @call("POST", "/v1/nodes/{node}/cordon", api.Cordoned)
    async def _cordon(self, request: web.Request) -> web.Response:
        """Start nothing on a node any more."""
        return await self._set_cordon(request, False)

    @call("POST", "/v1/nodes/{node}/drain", api.Cordoned)
    async def _drain(self, request: web.Request) -> web.Response:
        """The same, and what runs there is stopped and waits again."""
        return await self._set_cordon(request, True)

    @call("POST", "/v1/nodes/{node}/uncordon", api.Cordoned)
    async def _uncordon(self, request: web.Request) -> web.Response:
        """Jobs may start on it again."""
        return await self._set_cordon(request, None)

    async def _set_cordon(self, request: web.Request, draining: bool | None) -> web.Response:
        caller = self._caller(request)
        return _answer(await self._call(self._service.cordon, request.match_info["node"], draining, caller))

    @call("POST", "/v1/changes", api.Changed, body=api.NewChange)
    async def _change(self, request: web.Request) -> web.Response:
        """Change queues and priorities, all together. For administrators."""
        caller, body = self._caller(request), await self._body(request)
        try:
            events = decode_events(json.dumps(body["events"]))
        except Exception:  # cattrs raises groups of whatever its parts raise
            raise UsageError("the events of the change cannot be read", code="bad_request") from None
        dry_run = body.get("dry_run") is True
        return _answer(await self._call(self._service.change, events, caller, dry_run=dry_run))

    # ---- events --------------------------------------------------------------------------------------

    @call(
        "GET",
        "/v1/events",
        api.Events,
        line=api.EventLine,
        query={
            "since": "Those after this number.",
            "from": "Not before this time, in seconds since 1970.",
            "job": "Only of this job or array.",
            "follow": "1: new ones too, as they come, one a line.",
        },
    )
    async def _events(self, request: web.Request) -> web.StreamResponse:
        """What has happened, as far as it is still kept."""
        since = number(request.query.get("since", "0"), "since", MOST_SEQ)
        job, begin = request.query.get("job"), moment(request, "from", 0.0)

        def wanted(notice: Notice) -> bool:
            ours = job is None or notice["job"] == job or str(notice["job"]).startswith(f"{job}_")
            return ours and notice["time"] >= begin

        notices = self._service.notices
        if request.query.get("follow") != "1":
            return _answer({"events": notices.since(since, wanted), "seq": notices.seq})
        backlog: Backlog[Notice] = Backlog((), wanted)

        def put(notice: Notice) -> None:
            self._loop.call_soon_threadsafe(backlog.put, notice)

        for notice in notices.follow(since, put):
            backlog.put(notice)
        uid = self._caller(request).uid

        def show(items: Iterable[Notice], lost: int) -> list[Mapping[str, object]]:
            return [*note_of(lost), *items]

        try:
            return await stream(
                request,
                backlog,
                self._readers,
                show,
                room=lambda: self._limits.bytes.room(uid),
                heartbeat=HEARTBEAT,
            )
        finally:
            notices.unfollow(put)

    # ---- bodies --------------------------------------------------------------------------------------

    async def _body(self, request: web.Request) -> dict[str, Any]:
        uid = self._caller(request).uid
        try:
            data = await read_body(request, self._limits.bytes, uid, MOST_BODY)
        except web.HTTPRequestEntityTooLarge:
            raise _TooLarge(
                f"the submission is larger than {MOST_BODY // 2**20} MiB",
                code="too_large",
                hint="no program starts with an environment and a command of this size: put the data in a file",
            ) from None
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            raise UsageError("the body of the request is not JSON", code="bad_request") from None
        if not isinstance(body, dict):
            raise UsageError("the body of the request is not a JSON object", code="bad_request")
        return body


class _TooLarge(UsageError):
    pass


def _answer(value: object, status: int = 200) -> web.Response:
    return web.json_response(value, status=status)


def _status_of(error: GpushareError) -> int:
    if isinstance(error, _TooLarge):
        return 413
    if isinstance(error, Refused):
        return 409
    if isinstance(error, StoreError):
        return 507
    if error.code in ("busy", "stopping"):
        return 503
    return status_of(error)
