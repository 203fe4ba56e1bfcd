"""Routes about submitted jobs: reading, changing, stopping and ending them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from aiohttp import web

from gpushare import api, api_bodies
from gpushare.errors import NotNoted, NotPermitted, UsageError
from gpushare.reasons import Reason
from gpushared.api import event_stream
from gpushared.api.answers import Rejected
from gpushared.api.calls import call
from gpushared.api.routes import Routes, quantity
from gpushared.core import budget_change
from gpushared.core import instructions as do
from gpushared.core.events import (
    BudgetChanged,
    Checkpointed,
)
from gpushared.jobs import earlier
from gpushared.jobs.notices import Notice
from gpushared.jobs.registry import JobState, stop
from gpushared.jobs.state_file import Planned
from gpushared.limits.identities import user_name
from gpushared.system.processes import Process, parent_of, uid_of


class JobRoutes(Routes):
    """Jobs."""

    @call("GET", "/v1/jobs", api.Jobs, query={"ended": "1: also jobs that have ended lately."})
    async def get_jobs(self, request: web.Request) -> web.StreamResponse:
        """Living jobs; with ?ended=1 also those that have ended lately."""
        ended = request.query.get("ended") == "1"
        return await self.answer(request, jobs=self.views.jobs(self.viewer(request), ended=ended))

    @call("GET", "/v1/jobs/{job}", api.Job)
    async def get_job(self, request: web.Request) -> web.Response:
        """One job."""
        return web.json_response(self.views.job(self.find(request), self.viewer(request)))

    @call("GET", "/v1/jobs/{job}/story", api.Story)
    async def get_story(self, request: web.Request) -> web.StreamResponse:
        """A job, what has happened to it, and what it waits for. For its user and administrators."""
        record, viewer = self.find(request), self.viewer(request)
        if not viewer.may_see(record.spec.uid):
            raise self.not_theirs(record, viewer.uid, "its user and administrators read its story")
        story: Iterable[api.Record] = self.views.story(record, viewer)
        if record.of_earlier_daemon or record.state is JobState.ENDED:
            owner = frozenset((record.spec.uid,))
            found = await self.shell.historian.ask(viewer.uid, lambda history: history.records(0.0, record.id, owner))
            if found is not None and found.records:
                story = [earlier.shown(one, viewer) for one in found.records]
        shown = self.views.job(record, viewer)
        waiting = self.views.waiting(viewer, record.id)
        return await self.answer(request, job=shown, story=story, waiting=waiting)

    @call("GET", "/v1/jobs/{job}/events", None, line=api.Notice)
    async def get_events(self, request: web.Request) -> web.StreamResponse:
        """What its user should know, as it happens, for the job's wrapper."""
        record, caller = self.find_own(request)

        def show(notices: list[Notice], lost: int) -> Iterable[event_stream.Line]:
            return [*event_stream.note_of(lost, kind="lost"), *notices]

        room = partial(self.shell.limits.bytes.room, caller.uid)
        return await event_stream.stream(
            request, record.backlog(self.shell.limits.bytes), record.notices.listeners, show, room=room
        )

    @call("PUT", "/v1/jobs/{job}/main", api.Job, body=api_bodies.Main)
    async def put_main(self, request: web.Request) -> web.Response:
        """Name the job's first process: the caller, or a child of it."""
        record, caller = self.find_own(request)
        body = await self.body(request)
        pid = body.integer("pid", 1, 2**22)
        body.finish(api_bodies.Main)
        if record.state is JobState.ENDED:
            raise self.over(record, caller)
        if pid is None:
            raise UsageError("pid is missing", code="bad_request")
        main = Process.open(pid)
        if main is None:
            raise UsageError(f"there is no process {pid}", code="no_such_process")
        # The daemon may kill this process later, with rights that the caller does not have.
        related = pid == caller.pid or parent_of(pid) == caller.pid
        if not related or (caller.uid != 0 and uid_of(pid) != caller.uid):
            main.close()
            raise NotPermitted(f"process {pid} is not a child of the caller", code="not_a_child")
        earlier, record.main = record.main, main
        try:
            self.shell.commits.now()
        except NotNoted:
            record.main = earlier
            main.close()
            raise
        if earlier is not None:
            earlier.close()
        if record.ending.stopping is not None:  # `gpushare stop` came before this program started
            stop(record, [main], record.ending.stopping)
        return web.json_response(self.views.job(record, self.viewer(request)))

    @call("POST", "/v1/jobs/{job}/checkpointed", api_bodies.Nothing)
    async def post_checkpointed(self, request: web.Request) -> web.Response:
        """The job has saved its work: being stopped costs it only what it does from now on."""
        record, _ = self.find_own(request)
        (await self.body(request, empty_is_ok=True)).finish(api_bodies.Nothing)
        self.shell.feed(Checkpointed(record.id))
        await self.shell.commits.done(kept=True)
        return web.json_response({})

    @call("POST", "/v1/jobs/{job}/stop", api.Stopped, body=api_bodies.Stop)
    async def post_stop(self, request: web.Request) -> web.Response:
        """Send SIGTERM to its processes, or SIGKILL; a job that waits is withdrawn."""
        (record, caller), viewer = self.find_own(request), self.viewer(request)
        body = await self.body(request, empty_is_ok=True)
        now = body.flag("now", False)
        body.finish(api_bodies.Stop)
        if record.state is JobState.ENDED:
            raise self.over(record, caller)
        shown, reached, spared = self.views.job(record, viewer), 0, 0
        if record.state is JobState.QUEUED:
            self.shell.jobs.withdraw(record)
            self.shell.commits.quietly()
        else:
            reached, left_alone = self.shell.stopper.stop_job(record, user_name(caller.uid), now=now)
            if left_alone is not None:
                spared = len(left_alone.pids)
                self.shell.feed(left_alone)
        return web.json_response({"job": shown, "processes": reached, "spared": spared})

    @call("PATCH", "/v1/jobs/{job}", api.Change, body=api_bodies.JobChange)
    async def patch_job(self, request: web.Request) -> web.Response:
        """Change its request, limit or priority while it runs."""
        record, caller = self.find_own(request)
        body = await self.body(request)
        event = BudgetChanged(
            record.id,
            request=quantity(body.text("request", longest=64), "the request"),
            limit=quantity(body.text("limit", longest=64), "the limit"),
            priority=body.integer("priority", -(2**31), 2**31 - 1),
        )
        dry_run = body.flag("dry_run", False)
        body.finish(api_bodies.JobChange)
        if event.request is None and event.limit is None and event.priority is None:
            raise UsageError("nothing to change", code="bad_request", hint="give request, limit or priority")
        if record.state is JobState.ENDED:
            raise self.over(record, caller)
        placement = self.shell.jobs.placements.of_job(record.id)
        if placement is not None and not self.access.is_engine(caller.uid):
            raise NotPermitted(f"job {record.id} was placed by an engine, which says what it may have", code="placed")
        if not caller.admin:
            allowed = self.access.change(record.spec, event)
            if isinstance(allowed, Reason):
                raise Rejected(self.viewer(request).told(allowed))
            event = allowed
        viewer = self.viewer(request)
        before = self.views.job(record, viewer)
        found = self.shell.core.new_budget(event)
        if dry_run:
            if isinstance(found, Reason):
                raise Rejected(self.viewer(request).told(found))
            after, note = self.shell.core.try_budget(record.id, found, lambda: self.views.job(record, viewer))
            return web.json_response({"before": before, "after": after, "note": note})
        if isinstance(found, budget_change.Found):
            self.shell.commits.now(Planned(record.id, found.spec))
        try:
            answer = self.done(event, do.BudgetSet, self.viewer(request))
        finally:
            self.shell.commits.soon()  # it may have failed, or have made room for a job that waits
        record.spec = self.shell.core.jobs[record.id].spec
        after = self.views.job(record, viewer)
        return web.json_response({"before": before, "after": after, "note": answer.note})

    @call("DELETE", "/v1/jobs/{job}", api.Ended, body=api_bodies.Exit)
    async def delete_job(self, request: web.Request) -> web.Response:
        """The job is over. Its wrapper says so, with how its program has ended."""
        (record, _), viewer = self.find_own(request), self.viewer(request)
        body = await self.body(request, empty_is_ok=True)
        exit_code, number = body.integer("exit_code", 0, 255), body.integer("signal", 1, 64)
        body.finish(api_bodies.Exit)
        if record.state is JobState.QUEUED:
            self.shell.jobs.withdraw(record)
            self.shell.commits.quietly()
        elif record.state is not JobState.ENDED and self.shell.jobs.placements.of_job(record.id) is not None:
            record.ending.note_exit(exit_code, number)  # one of its programs has ended; the engine ends the job
        elif record.state is not JobState.ENDED:
            record.ending.note_exit(exit_code, number)
            self.shell.jobs.end(record)
            # Otherwise a daemon that is killed now would restore the job. The end is answered even if it cannot be
            # written: the program has ended, and the next daemon finds that out by itself.
            self.shell.commits.quietly()
        shown = self.views.job(record, viewer)
        outcome = self.views.outcome(record, viewer)
        shown["state"], shown["outcome"] = "ended", outcome
        return web.json_response({"job": shown, "outcome": outcome})
