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
from gpushare.cluster.service.notices import Notice
from gpushare.cluster.service.service import Caller, Service
from gpushare.cluster.service.shown import Shown
from gpushare.cluster.store import StoreError
from gpushare.errors import GpushareError, NotPermitted, Refused, UsageError
from gpushared.api.answers import PIECE, read_body, status_of, unix_socket
from gpushared.api.event_stream import HEARTBEAT, note_of, stream
from gpushared.api.guard import Guard
from gpushared.api.request_body import number
from gpushared.cluster import metrics
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

    def __init__(self, writer: Writer, limits: Limits, identities: Identities, admin_group: str) -> None:
        self._writer = writer
        self._service: Service = writer.service
        self._limits = limits
        self._identities = identities
        self._admin_group = admin_group
        self._readers: set[Backlog[Notice]] = set()
        self._loop = asyncio.get_running_loop()
        self.guard = Guard(limits, self._meet, self._count_failure, _status_of)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self.guard.middleware])
        job, node = "/v1/jobs/{job}", "/v1/nodes/{node}"
        app.add_routes(
            [
                web.get("/v1/version", self._version),
                web.get("/v1/status", self._status),
                web.get("/v1/health", self._status),
                web.post("/v1/jobs", self._submit),
                web.get("/v1/jobs", self._jobs),
                web.get(job, self._job),
                web.delete(job, self._cancel),
                web.get(f"{job}/explain", self._explain),
                web.post(f"{job}/hold", self._hold),
                web.post(f"{job}/release", self._release),
                web.get("/v1/queues", self._queues),
                web.get("/v1/nodes", self._nodes),
                web.post(f"{node}/cordon", self._cordon),
                web.post(f"{node}/drain", self._drain),
                web.post(f"{node}/uncordon", self._uncordon),
                web.post("/v1/changes", self._change),
                web.get("/v1/state", self._state),
                web.get("/v1/events", self._events),
                web.get("/metrics", self._metrics),
            ]
        )
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

    async def _version(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return _answer({"version": __version__, "pid": os.getpid(), "engine": self._service.engine})

    async def _status(self, request: web.Request) -> web.Response:  # noqa: ARG002
        status = await self._call(self._service.status)
        return _answer({**status, "version": __version__, "pid": os.getpid(), "errors": self._writer.errors})

    async def _metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002
        body = await self._call(metrics.render, self._writer)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _state(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return web.Response(text=await self._call(self._service.state), content_type="application/json")

    # ---- jobs ----------------------------------------------------------------------------------------

    async def _submit(self, request: web.Request) -> web.Response:
        caller = self._caller(request)
        body = await self._body(request)
        return _answer(await self._call(self._service.submit, body, caller), status=201)

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        """Piece by piece: between two pieces others are answered, so a job may change its place meanwhile."""
        query = request.query
        chosen = {"queue": query.get("queue"), "user": query.get("user")}
        ids = await self._call(self._service.ids, **chosen)
        over: list[Shown] = []
        if query.get("ended") == "1":
            over = await self._call(self._service.shown_ended, **chosen)
        uid = self._caller(request).uid
        response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
        await response.prepare(request)
        text, before = ['{"jobs": ['], ""
        async for rows in self._in_pieces(over, ids):
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

    async def _in_pieces(self, over: list[Shown], ids: list[str]) -> AsyncIterator[list[Shown]]:
        for first in range(0, len(over), AT_ONCE):
            yield over[first : first + AT_ONCE]
        for first in range(0, len(ids), AT_ONCE):
            yield await self._call(self._service.shown, ids[first : first + AT_ONCE])

    async def _job(self, request: web.Request) -> web.Response:
        return _answer(await self._call(self._service.show, request.match_info["job"], self._caller(request)))

    async def _cancel(self, request: web.Request) -> web.Response:
        now = request.query.get("now") == "1"
        caller = self._caller(request)
        return _answer(await self._call(self._service.cancel, request.match_info["job"], caller, now=now))

    async def _hold(self, request: web.Request) -> web.Response:
        return _answer(await self._call(self._service.hold, request.match_info["job"], self._caller(request)))

    async def _release(self, request: web.Request) -> web.Response:
        return _answer(await self._call(self._service.release, request.match_info["job"], self._caller(request)))

    async def _explain(self, request: web.Request) -> web.Response:
        return _answer(await self._call(self._service.explain, request.match_info["job"]))

    # ---- the cluster ---------------------------------------------------------------------------------

    async def _queues(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return _answer(await self._call(self._service.queues))

    async def _nodes(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return _answer(await self._call(self._service.nodes))

    async def _cordon(self, request: web.Request) -> web.Response:
        return await self._set_cordon(request, False)

    async def _drain(self, request: web.Request) -> web.Response:
        return await self._set_cordon(request, True)

    async def _uncordon(self, request: web.Request) -> web.Response:
        return await self._set_cordon(request, None)

    async def _set_cordon(self, request: web.Request, draining: bool | None) -> web.Response:
        caller = self._caller(request)
        return _answer(await self._call(self._service.cordon, request.match_info["node"], draining, caller))

    async def _change(self, request: web.Request) -> web.Response:
        caller, body = self._caller(request), await self._body(request)
        try:
            events = decode_events(json.dumps(body["events"]))
        except Exception:  # cattrs raises groups of whatever its parts raise
            raise UsageError("the events of the change cannot be read", code="bad_request") from None
        return _answer(await self._call(self._service.change, events, caller))

    # ---- events --------------------------------------------------------------------------------------

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """?since=SEQ those after it that are still kept; &job=ID of one job or array; &follow=1 and what comes."""
        since = number(request.query.get("since", "0"), "since", MOST_SEQ)
        job = request.query.get("job")

        def wanted(notice: Notice) -> bool:
            return job is None or notice["job"] == job or str(notice["job"]).startswith(f"{job}_")

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
