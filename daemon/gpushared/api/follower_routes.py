"""Base of the routes whose callers are processes that do something for one job (runtime/followers.py)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from aiohttp import web

from gpushare.errors import NotPermitted
from gpushared.api import event_stream
from gpushared.api.routes import Caller, Routes
from gpushared.jobs.registry import JobRecord, JobState
from gpushared.runtime.followers import Command, Followers
from gpushared.system.processes import Process, uid_of

LONGEST_PROBLEM = 300
HEARTBEAT = 5.0
"""Seconds: a follower must see soon that its daemon has gone."""


class FollowerRoutes(Routes):
    """Their streams of commands."""

    async def commands(self, request: web.Request, followers: Followers) -> web.StreamResponse:
        """The stream of commands for the caller, which is the job's follower from now on."""
        record, caller = self.living(request)
        process = Process.open(caller.pid)
        if process is None or uid_of(caller.pid) not in (record.spec.uid, 0):
            raise NotPermitted("only a process of the job's user may do this for it")
        one = followers.come(record.id, process)

        def show(commands: list[Command], _lost: int) -> Iterable[event_stream.Line]:
            return commands

        room = partial(self.shell.limits.bytes.room, caller.uid)
        try:
            return await event_stream.stream(request, one.commands, set(), show, room=room, heartbeat=HEARTBEAT)
        finally:
            followers.gone(one)

    def read_words_of(self, job: str) -> None:
        """Tell the core what the words on the job's GPUs say now: more than what its follower says."""
        found = self.shell.core.jobs.get(job)
        self.shell.read_words(found.bounds if found is not None else ())

    def living(self, request: web.Request) -> tuple[JobRecord, Caller]:
        record, caller = self.find_own(request)
        if record.state is JobState.ENDED:
            raise self.over(record, caller)
        return record, caller
