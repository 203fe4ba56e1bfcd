"""Routes about placements: tasks that an engine has placed on GPUs of this node (jobs/placements.py).

    PUT /v1/placements/ID               {"attempt", "uid", "gpus", "request", "limit", ...}: place it; again with the
                                        same attempt: other amounts, other cgroups, further sessions and holders
    GET /v1/placements[/ID]             what is placed, and what runs of it
    DELETE /v1/placements/ID?attempt=N  it is over; it is shown until nothing of it runs

Only engines may change them: root, members of the group in the settings, and a user in its own daemon.
"""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

from aiohttp import web

from gpushare import api, api_bodies
from gpushare.errors import NoSuchJob, NotNoted, NotPermitted, Refused, UsageError
from gpushare.job_spec import MOST_NAME, JobSpec, plain_options
from gpushared.api.answers import Rejected
from gpushared.api.calls import call
from gpushared.api.request_body import RequestBody, number
from gpushared.api.routes import Caller, Routes, quantity
from gpushared.core import instructions as do
from gpushared.core.events import BudgetChanged, JobEnded, JobSubmitted
from gpushared.core.visibility import Viewer
from gpushared.jobs.placements import Placement, Session
from gpushared.jobs.registry import JobRecord, JobState, new_job_id
from gpushared.limits.identities import user_name
from gpushared.runtime.asks import INTERNAL
from gpushared.system.processes import printable, start_time

TURNS = ("compute", "exclusive")
"""Options that a placement cannot have: engines preload the library in which launches have no hooks."""
MOST_ATTEMPTS = 2**62
MOST_UID = 2**32 - 2
MOST_CGROUPS, MOST_PATH = 256, 4096
ID = re.compile(r"[!-~]{1,200}")
CGROUP = re.compile(r"(/[^/\0\n]{1,255})+")


class Wanted(NamedTuple):
    """What the body says."""

    attempt: int
    spec: JobSpec
    job: str | None
    cgroups: tuple[str, ...]
    sessions: tuple[Session, ...]
    holders: tuple[Session, ...]


class PlacementRoutes(Routes):
    """Placements."""

    @call("PUT", "/v1/placements/{placement:.+}", api.Placement, statuses=(200, 201), body=api_bodies.NewPlacement)
    async def put_placement(self, request: web.Request) -> web.Response:
        """Place a task; with the same attempt again: other amounts, another cgroup, further sessions and holders. For
        engines."""
        self._engine(request)
        id = request.match_info["placement"]
        if not ID.fullmatch(id):
            raise UsageError("a placement's id has 1 to 200 letters, digits and signs", code="bad_request")
        wanted = self._read(id, await self.body(request))
        placements = self.shell.jobs.placements
        known = placements.check(id, wanted.attempt)
        if known is None:
            await self._place(id, wanted)
        else:
            self._change(known, wanted)
            placements.extend(known, wanted.cgroups, wanted.sessions, wanted.holders)
        self.shell.commits.soon()
        await self.shell.commits.done(kept=True)
        made = placements.get(id)
        if made is None:
            raise Refused(f"{id} was ended meanwhile", code="stale_attempt")
        return web.json_response(self._shown(made, self.viewer(request)), status=201 if known is None else 200)

    @call("GET", "/v1/placements", api.Placements)
    async def get_placements(self, request: web.Request) -> web.StreamResponse:
        """The placements, and what runs of them."""
        viewer, engine = self.viewer(request), self.access.is_engine(self.caller(request).uid)
        found = [one for one in self.shell.jobs.placements if engine or self._is_seen(one, viewer)]
        return await self.answer(request, placements=(self._shown(one, viewer) for one in found))

    @call("GET", "/v1/placements/{placement:.+}", api.Placement)
    async def get_placement(self, request: web.Request) -> web.Response:
        """One placement."""
        viewer, engine = self.viewer(request), self.access.is_engine(self.caller(request).uid)
        found = self.shell.jobs.placements.get(request.match_info["placement"])
        if found is None or not (engine or self._is_seen(found, viewer)):
            raise _none(request.match_info["placement"])
        return web.json_response(self._shown(found, viewer))

    @call("DELETE", "/v1/placements/{placement:.+}", api.Placement, query={"attempt": "The attempt that is over."})
    async def delete_placement(self, request: web.Request) -> web.Response:
        """The placement is over. It is shown until nothing of it runs. For engines."""
        self._engine(request)
        attempt = number(request.query.get("attempt", ""), "attempt", MOST_ATTEMPTS)
        placements = self.shell.jobs.placements
        found = placements.get(request.match_info["placement"])
        if found is None:
            raise _none(request.match_info["placement"])
        if attempt < found.attempt:
            raise Refused(f"attempt {attempt} of {found.id} is over, the last is {found.attempt}", code="stale_attempt")
        placements.leave(found)
        shown = self._shown(placements.get(found.id) or found, self.viewer(request))
        record = self.shell.registry.get(found.job)
        if record is not None and record.state is JobState.RUNNING:
            self.shell.jobs.end(record)
        else:
            placements.closed(found.job)
        self.shell.commits.quietly()
        return web.json_response(shown)

    # ---- who, and what -------------------------------------------------------------------------------

    def _engine(self, request: web.Request) -> Caller:
        caller = self.caller(request)
        if not self.access.is_engine(caller.uid):
            raise NotPermitted(
                "only engines place jobs: root, and the members of the group that [placements] group names",
                code="no_engine",
            )
        return caller

    def _is_seen(self, one: Placement, viewer: Viewer) -> bool:
        record = self.shell.registry.get(one.job)
        return record is not None and viewer.may_see(record.spec.uid)

    def _shown(self, one: Placement, viewer: Viewer) -> api.Placement:
        record = self.shell.registry.get(one.job)
        assert record is not None
        return {
            "id": one.id,
            "attempt": one.attempt,
            "state": "leaving" if one.leaving else "placed",
            "cgroups": list(one.cgroups),
            "sessions": [pid for pid, _ in one.sessions],
            "holders": [pid for pid, _ in one.holders],
            "pids": sorted({client.process.pid for client in self.shell.clients.of_job(one.job)}),
            "job": self.views.job(record, viewer),
        }

    def _read(self, id: str, body: RequestBody) -> Wanted:
        attempt, uid = body.integer("attempt", 1, MOST_ATTEMPTS), body.integer("uid", 0, MOST_UID)
        gpus = body.texts("gpus", most=64, longest=128)
        request = quantity(body.text("request", longest=64), "the request")
        limit = quantity(body.text("limit", longest=64), "the limit") or request
        if attempt is None or uid is None or not gpus or request is None or limit is None:
            raise UsageError("attempt, uid, gpus and request are needed", code="bad_request")
        spec = JobSpec(
            name=printable(body.text("name", longest=MOST_NAME) or id, MOST_NAME),
            uid=uid,
            user=user_name(uid),
            command=(id,),
            request=request,
            limit=limit,
            gpus=len(gpus),
            devices=self.devices(gpus),
            request_source=id,
            limit_source=id,
            **{name: body.option(name) for name in plain_options() if name not in TURNS},
        )
        job = body.text("job", longest=16)
        cgroups = body.texts("cgroups", most=MOST_CGROUPS, longest=MOST_PATH) or ()
        one = body.text("cgroup")
        cgroups += (one,) if one else ()
        if job is not None and not (re.fullmatch("[0-9a-f]{16}", job) and int(job, 16)):
            raise UsageError(f"{job!r} is not a job's id", code="bad_request", hint="16 hexadecimal digits")
        if not all(CGROUP.fullmatch(path) and not {".", ".."} & set(path.split("/")) for path in cgroups):
            raise UsageError("cgroup is not a path below the root, as /proc/PID/cgroup has it", code="bad_request")
        session, holder = body.integer("session", 2, 2**22), body.integer("holder", 2, 2**22)
        body.finish(api_bodies.NewPlacement)
        return Wanted(attempt, spec, job, cgroups, _session(session), _session(holder))

    # ---- changes -------------------------------------------------------------------------------------

    async def _place(self, id: str, wanted: Wanted) -> None:
        """Raises what the core says against it; then nothing has changed."""
        registry, placements = self.shell.registry, self.shell.jobs.placements
        job = wanted.job or new_job_id()
        record = registry.get(job)
        if record is not None and self._adopts(record, wanted):
            placements.put(Placement(id, wanted.attempt, job, wanted.cgroups, wanted.sessions, wanted.holders))
            record.over, record.spec = False, record.spec._replace(devices=wanted.spec.devices)
            self.shell.feed(JobSubmitted(job, record.spec))
            self._change(placements.get(id), wanted)
            return
        if record is not None and (record.state is not JobState.ENDED or record.spec.uid != wanted.spec.uid):
            raise UsageError(f"there is a job {job} already", code="bad_request")
        record = registry.open(job, wanted.spec)
        record.admission = asyncio.get_running_loop().create_future()
        placements.put(Placement(id, wanted.attempt, job, wanted.cgroups, wanted.sessions, wanted.holders))
        self.shell.feed(JobSubmitted(job, wanted.spec))
        refusal = record.admission.result() if record.admission.done() else INTERNAL
        if refusal is not None:
            placements.drop(id)
            registry.forget(record)
            raise Rejected(self.access.viewer(0).told(refusal), self.shell.core.queue_length)
        try:
            self.shell.commits.now()
        except NotNoted:
            placements.drop(id)
            self.shell.feed(JobEnded(job))
            raise

    def _adopts(self, record: JobRecord, wanted: Wanted) -> bool:
        """A job of which the daemon has lost whose it is: its notes were lost, and its pages were not."""
        alone = record.wrapper is None and self.shell.jobs.placements.of_job(record.id) is None
        return alone and record.state is JobState.RUNNING and record.spec.uid == wanted.spec.uid

    def _change(self, known: Placement | None, wanted: Wanted) -> None:
        """Other amounts for what is placed already."""
        record = None if known is None else self.shell.registry.get(known.job)
        job = None if record is None else self.shell.core.jobs.get(record.id)
        if known is None or record is None or job is None:
            raise Refused("it is over", code="stale_attempt")
        gpus = set(record.spec.devices or job.bounds)
        if set(wanted.spec.devices or ()) != gpus or not set(job.bounds) <= gpus or wanted.spec.uid != record.spec.uid:
            raise Refused(f"attempt {known.attempt} of {known.id} has other GPUs, or another user", code="placed")
        spec = wanted.spec
        if (spec.request, spec.limit, spec.priority) == (job.spec.request, job.spec.limit, job.spec.priority):
            return
        event = BudgetChanged(record.id, request=spec.request, limit=spec.limit, priority=spec.priority)
        self.done(event, do.BudgetSet, self.access.viewer(0))
        record.spec = self.shell.core.jobs[record.id].spec._replace(devices=spec.devices)


def _session(pid: int | None) -> tuple[Session, ...]:
    if pid is None:
        return ()
    started = start_time(pid)
    if started is None:
        raise UsageError(f"there is no process {pid}", code="no_such_process")
    return ((pid, started),)


def _none(id: str) -> NoSuchJob:
    return NoSuchJob(f"no placement {printable(id, 60)!r}", code="no_such_placement")
