"""The dashboard's HTTP server: the page, its session, what changes, and the calls that are passed on.

It listens only on 127.0.0.1. access.py checks the caller, relay.py the request. No request is logged.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from gpushare.dashboard.about import about
from gpushare.dashboard.access import KEY_HEADER, Refusal, Sessions, check_host, check_site
from gpushare.dashboard.daemon import Daemon
from gpushare.dashboard.feed import CLUSTER, NODE
from gpushare.dashboard.live import Live
from gpushare.dashboard.relay import CALLS, CLUSTER_CALLS, MOST_OF_A_BODY, Call, allowed, body_for
from gpushare.errors import GpushareError

__all__ = ["Server", "listen"]

STATIC = Path(__file__).parent / "static"
FILES = {"/": "index.html", "/app.js": "app.js", "/app.css": "app.css", "/icon.svg": "icon.svg"}
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
HEADERS = {
    # Styles are set by scripts through the object model, which this allows; no text of a job can become a script.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """One run of the command."""

    def __init__(
        self, find: Callable[[], Path], find_service: Callable[[], Path], *, read_only: bool = False, secret: str = ""
    ) -> None:
        """`find` says where the daemon's api.sock is, `find_service` where that of the cluster's service; as Daemon
        takes them. `secret`: as Sessions takes it."""
        self.sessions = Sessions(secret)
        self._daemon = Daemon(find)
        self._service = Daemon(find_service)
        self._live = {"/live": Live(self._daemon, NODE), "/cluster/live": Live(self._service, CLUSTER)}
        self._read_only = read_only

    def url(self, port: int) -> str:
        """The address that opens the page. The part after `#` stays in the browser."""
        return f"http://127.0.0.1:{port}/#token={self.sessions.token}"

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_OF_A_BODY)
        app.on_response_prepare.append(_add_headers)
        for path in FILES:
            app.router.add_get(path, self._get_file, allow_head=False)
        app.router.add_post("/session", self._post_session)
        for path in self._live:
            app.router.add_get(path, self._get_live, allow_head=False)
        app.router.add_route("*", "/v1/{rest:.*}", self._relay)
        app.router.add_route("*", "/cluster/v1/{rest:.*}", self._relay_to_service)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            check_host(request.headers.get("Host"))
            if request.path not in FILES or request.method != "GET":
                check_site(request.headers, writes=request.method != "GET")
                if request.path != "/session":
                    cookie = request.cookies.get(self.sessions.cookie_name)
                    self.sessions.check(cookie, request.headers.get(KEY_HEADER))
            return await handler(request)
        except Refusal as refusal:
            return _error(refusal.status, refusal.code, refusal.message)
        except web.HTTPException as error:
            return _error(error.status, f"http_{error.status}", (error.reason or "refused").lower())
        except GpushareError as error:
            return _error(503, error.code, error.message, error.hint)

    async def _get_file(self, request: web.Request) -> web.Response:
        """The page itself: there is nothing secret in it."""
        path = STATIC / FILES[request.path]
        return web.Response(body=path.read_bytes(), content_type=TYPES[path.suffix], charset="utf-8")

    async def _post_session(self, request: web.Request) -> web.Response:
        """The token for a session: {token} -> {key} and what the page shows about itself."""
        try:
            body = json.loads(await request.read())
        except (ValueError, RecursionError):
            raise Refusal(400, "bad_body", "the body is not JSON") from None
        token = body.get("token") if isinstance(body, dict) else None
        name = self.sessions.cookie_name
        session = self.sessions.open(token, request.cookies.get(name))
        answer = web.json_response(about(session.key, read_only=self._read_only))
        answer.set_cookie(name, session.cookie, path="/", httponly=True, samesite="Strict")
        return answer

    async def _get_live(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):  # the page has gone
            async with contextlib.aclosing(self._live[request.path].follow()) as messages:
                async for message in messages:
                    await response.write(message)
        return response

    async def _relay(self, request: web.Request) -> web.Response:
        return await self._pass_on(request, self._daemon, CALLS, "")

    async def _relay_to_service(self, request: web.Request) -> web.Response:
        return await self._pass_on(request, self._service, CLUSTER_CALLS, "/cluster")

    async def _pass_on(self, request: web.Request, to: Daemon, calls: tuple[Call, ...], below: str) -> web.Response:
        path = request.path.removeprefix(below)
        call = allowed(request.method, path, request.query, read_only=self._read_only, calls=calls)
        body = body_for(call, await request.read())
        status, answer = await to.call(call.method, request.path_qs.removeprefix(below), body)
        return web.Response(status=status, body=answer, content_type="application/json")


async def listen(server: Server, port: int) -> tuple[web.AppRunner, int]:
    """Serve on this port of 127.0.0.1; 0: a free one. Returns the port. OSError if it is taken."""
    runner = web.AppRunner(server.application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner, runner.addresses[0][1]


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


def _error(status: int, code: str, message: str, hint: str | None = None) -> web.Response:
    """An answer in the form of the daemon's own errors."""
    return web.json_response({"error": {"code": code, "message": message, "facts": [], "hint": hint}}, status=status)
