"""Routes about suspending: what users want, and the stream and the answers of suspenders (runtime/suspenders.py)."""

from __future__ import annotations

import asyncio
from typing import cast, get_args

from aiohttp import web

from gpushare import api, api_bodies
from gpushare.errors import NotPermitted, UsageError
from gpushare.reasons import Code, Reason
from gpushare.standstill import HOW, stands_still, stays_still
from gpushared.api.answers import Rejected
from gpushared.api.calls import call
from gpushared.api.follower_routes import LONGEST_PROBLEM, FollowerRoutes
from gpushared.core import instructions as do
from gpushared.core.events import ResumeWanted, SuspenderAnswered, SuspendWanted, Whereabouts


class SuspendRoutes(FollowerRoutes):
    """Suspending."""

    @call("POST", "/v1/jobs/{job}/suspend", api.Suspending)
    async def post_suspend(self, request: web.Request) -> web.Response:
        """Its memory goes to host memory, and it stands still."""
        await self._refuse_stopped(request)
        return await self._wanted(request, SuspendWanted)

    @call("POST", "/v1/jobs/{job}/resume", api.Suspending)
    async def post_resume(self, request: web.Request) -> web.Response:
        """It goes on as soon as its memory fits again."""
        return await self._wanted(request, ResumeWanted)

    async def _wanted(self, request: web.Request, kind: type[SuspendWanted] | type[ResumeWanted]) -> web.Response:
        record, _ = self.living(request)
        (await self.body(request, empty_is_ok=True)).finish(api_bodies.Nothing)
        self.read_words_of(record.id)
        job = self.shell.core.jobs.get(record.id)
        try:
            answer = self.done(kind(record.id), do.SuspendNoted, self.viewer(request))
        finally:
            self.shell.commits.soon()
        await self.shell.commits.done(kept=True)
        shown = self.views.job(record, self.viewer(request))
        there = job is not None and job.suspender.connected
        note = self.viewer(request).words(answer.note)
        return web.json_response({"job": shown, "note": note, "suspender": there})

    async def _refuse_stopped(self, request: web.Request) -> None:
        """Its suspender would refuse it, too: the driver waits until calls end, and a stopped program ends none."""
        job = self.shell.core.jobs.get(self.living(request)[0].id)
        if job is None or job.suspension is not None:
            return
        pids = [one.pid for one in map(self.shell.core.processes.get, job.processes) if one]
        stopped = [pid for pid in pids if stands_still(pid) and await asyncio.to_thread(stays_still, pid)]
        if stopped:
            why = f"its process {min(stopped)} stands still ({HOW}), and the driver would wait for it"
            hint = f"let it run first: fg, kill -CONT {min(stopped)}, `docker unpause`, or leave the debugger"
            reason = Reason(Code.NOT_SUSPENDED, f"this job cannot be suspended: {why}", hint=hint)
            raise Rejected(self.viewer(request).told(reason))

    # ---- suspenders --------------------------------------------------------------------------------

    @call("GET", "/v1/jobs/{job}/suspender", None, line=api.SuspendCommand)
    async def get_suspender(self, request: web.Request) -> web.StreamResponse:
        """The commands for the job's suspender, which is the caller."""
        return await self.commands(request, self.shell.outside.suspenders)

    @call("POST", "/v1/jobs/{job}/suspender", api_bodies.Nothing, body=api_bodies.SuspendAnswer)
    async def post_suspender(self, request: web.Request) -> web.Response:
        """What it has done, and where the job's processes are now."""
        record, caller = self.living(request)
        body = await self.body(request)
        number = body.integer("number", 0, 2**53)
        where, problem = body.text("where", longest=16), body.text("problem", longest=LONGEST_PROBLEM)
        pid, milliseconds = body.integer("pid", 1, 2**22), body.integer("milliseconds", 0, 2**40)
        body.finish(api_bodies.SuspendAnswer)
        if number is None or where not in get_args(Whereabouts):
            raise UsageError("number or where is missing", code="bad_request")
        if pid != caller.pid:
            problem = "it runs in another PID namespace than the daemon"
        seconds = (milliseconds or 0) / 1000
        answer = SuspenderAnswered(record.id, number, cast(Whereabouts, where), problem or "", seconds)
        self.read_words_of(record.id)
        if not self.shell.outside.suspenders.answered(record.id, caller.pid, answer):
            raise NotPermitted("the caller is not this job's suspender")
        return web.json_response({})
