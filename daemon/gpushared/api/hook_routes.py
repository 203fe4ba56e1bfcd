"""Routes of the processes that call jobs' hooks (runtime/hook_runners.py)."""

from __future__ import annotations

from aiohttp import web

from gpushare import api, api_bodies
from gpushare.errors import NotPermitted, UsageError
from gpushared.api.calls import call
from gpushared.api.follower_routes import LONGEST_PROBLEM, FollowerRoutes
from gpushared.core.events import HookAnswered


class HookRoutes(FollowerRoutes):
    """Hooks."""

    @call("GET", "/v1/jobs/{job}/hooks", None, line=api.HookCommand)
    async def get_hooks(self, request: web.Request) -> web.StreamResponse:
        """When to call which hook, for the process that does it."""
        return await self.commands(request, self.shell.outside.hook_runners)

    @call("POST", "/v1/jobs/{job}/hooks", api_bodies.Nothing, body=api_bodies.HookAnswer)
    async def post_hooks(self, request: web.Request) -> web.Response:
        """How a call has ended."""
        record, caller = self.living(request)
        body = await self.body(request)
        number, milliseconds = body.integer("number", 0, 2**53), body.integer("milliseconds", 0, 2**40)
        problem, wakes = body.text("problem", longest=LONGEST_PROBLEM), body.flag("wakes", False)
        body.finish(api_bodies.HookAnswer)
        if number is None:
            raise UsageError("number is missing", code="bad_request")
        self.read_words_of(record.id)
        answer = HookAnswered(record.id, number, problem or "", (milliseconds or 0) / 1000, wakes)
        if not self.shell.outside.hook_runners.answered(caller.pid, answer):
            raise NotPermitted("the caller does not call this job's hooks")
        return web.json_response({})
