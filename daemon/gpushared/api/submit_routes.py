"""Submitting a job: its specification, its admission, and its wrapper's return after a restart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from aiohttp import web

from gpushare import api, api_bodies
from gpushare.errors import GpushareError, NotNoted, NotPermitted, Refused, UsageError
from gpushare.job_spec import FOREVER, MOST_NAME, OPTIONS, JobSpec, plain_options
from gpushare.quantity import MAX, NOTHING, Budget
from gpushare.reasons import Reason
from gpushared.api.answers import Rejected
from gpushared.api.calls import call
from gpushared.api.request_body import RequestBody, shortened
from gpushared.api.routes import Caller, Routes, or_default, quantity
from gpushared.core.events import (
    JobEnded,
    JobSubmitted,
    JobWithdrawn,
)
from gpushared.jobs.placements import PLACED_ONLY
from gpushared.jobs.registry import JobRecord, JobState, new_job_id
from gpushared.limits.identities import user_name
from gpushared.runtime.asks import INTERNAL
from gpushared.system.processes import Process, printable

LONGEST_SOURCE = 256
"""Characters of the name of a budget's source."""
OF_THE_CALLER = ("uid", "user", "observe", "idle_release")
"""Options that are not taken from the body: the kernel gives the first two, `mode` the third, the policy the last."""
NEW_JOB: Mapping[str, Any] = {
    **{name: api_bodies.KINDS[option.kind] for name, option in OPTIONS.items() if name not in OF_THE_CALLER},
    **get_type_hints(api_bodies.NewJob),
}
"""The fields of the body: a job's options, and what only the call has."""


class SubmitRoutes(Routes):
    """POST /v1/jobs."""

    @call("POST", "/v1/jobs", api.Job, statuses=(200, 201), body=NEW_JOB)
    async def post_job(self, request: web.Request) -> web.Response:
        """Submit a job, whose wrapper is the caller. The answer comes when it is admitted or refused."""
        caller = self.caller(request)
        body = await self.body(request)
        known = body.text("job", longest=16)
        wait = body.seconds("wait", FOREVER)
        spec = self._spec(body, caller)
        placed = self._placed(caller, known)
        if placed is not None:
            with contextlib.suppress(NotNoted):  # it promises nothing new
                await self.shell.commits.done()
            return web.json_response(self.views.job(placed, self.viewer(request)))
        wrapper = Process.open(caller.pid)
        if wrapper is None:
            raise NotPermitted(
                "the daemon cannot see the calling process",
                code="invisible_process",
                hint="in a container, share the host's PID namespace",
            )
        try:
            record = self._reregister(known, spec, caller, wrapper) if known is not None else None
            if record is not None and record.state is JobState.QUEUED:
                record = await self._admission_of(record)
                wrapper.close()
            if record is not None:
                return web.json_response(self.views.job(record, self.viewer(request)))
            record = self._submit(_job_id(known), spec, wait, wrapper)
        except BaseException:
            wrapper.close()
            raise
        record = await self._admission_of(record)  # whatever becomes of this call, the handle is the job's now
        return web.json_response(self.views.job(record, self.viewer(request)), status=201)

    def _spec(self, body: RequestBody, caller: Caller) -> JobSpec:
        request = quantity(body.text("request", longest=64), "the request")
        limit = quantity(body.text("limit", longest=64), "the limit")
        sources = _source(body.text("request_source")), _source(body.text("limit_source"))
        if not any(sources) and (request, limit) == (NOTHING, MAX):
            request = limit = None  # `gpushare run` sends the defaults if the user set neither
        budget, place = self.access.budget(caller.uid, request, limit)
        observe = _observes(body.text("mode"))
        if observe:
            budget, place = Budget(NOTHING, MAX), ""
        devices = body.texts("devices", most=64, longest=128)
        command = shortened(body.texts("command", most=100_000) or ())
        name = body.text("name", longest=MOST_NAME) or (Path(command[0]).name if command else "job")
        spec = JobSpec(
            name=printable(name, MOST_NAME),
            uid=caller.uid,
            user=user_name(caller.uid),
            command=command,
            request=budget.request,
            limit=budget.limit,
            gpus=or_default(body.integer("gpus", 1, 64), 1),
            devices=None if devices is None else self.devices(devices),
            observe=observe,
            request_source=sources[0] or place,
            limit_source=sources[1] or place,
            reservation=self.reservation(body.text("reservation", longest=64), caller),
            **{name: body.option(name) for name in plain_options()},
        )
        body.text("cwd")
        body.finish(NEW_JOB)
        return spec

    def _placed(self, caller: Caller, known: str | None) -> JobRecord | None:
        """A wrapper that runs in a placement starts no job of its own, and changes nothing about the placement's."""
        placements = self.shell.jobs.placements
        placement = placements.of_process(caller.pid)
        if placement is None:
            if known is not None and placements.of_job(known) is not None:
                raise NotPermitted(f"this program does not run where job {known} was placed", code="placed")
            if self.access.placed_only(caller.uid):
                raise NotPermitted(PLACED_ONLY, code="placed", hint="submit it to the cluster's queue")
            return None
        record = self.shell.registry.get(placement.job)
        if record is None or placement.leaving or record.state is not JobState.RUNNING:
            raise Refused(f"{placement.id}, in which this program runs, has been ended", code="stale_attempt")
        if not caller.may_change(record.spec.uid) and record.spec.uid:
            raise self.not_theirs(record, caller.uid)
        placements.take_wrapper(placement, caller.pid)
        return record

    def _reregister(self, job: str, spec: JobSpec, caller: Caller, wrapper: Process) -> JobRecord | None:
        """A wrapper comes back after a restart of the daemon; None: this daemon does not know its job."""
        record = self.shell.registry.get(job)
        if record is not None and not caller.may_change(record.spec.uid):
            raise self.not_theirs(record, caller.uid)
        if record is not None and record.state is JobState.QUEUED:
            if record.wrapper is None or not record.wrapper.same(wrapper):
                raise UsageError(f"job {job} still waits for room", code="bad_request")
            return record  # its call has ended, with an earlier daemon perhaps; its place in the queue has not
        if record is None or record.state is JobState.ENDED or record.id not in self.shell.core.jobs:
            return None
        self.shell.registry.set_wrapper(record, wrapper)
        record.admission, record.over = None, False
        self.shell.feed(JobSubmitted(job, spec))
        self.shell.commits.soon()  # what it was promised is in the notes of an earlier daemon, or in its page
        return record

    def _submit(self, job: str, spec: JobSpec, wait: float | None, wrapper: Process) -> JobRecord:
        allowed = self.access.admit(spec, self.shell.registry.bytes_of_live(spec.uid))
        if isinstance(allowed, Reason):
            raise Rejected(self.access.viewer(spec.uid).told(allowed))
        spec = allowed
        record = self.shell.registry.open(job, spec)
        record.patience = None if wait is None else record.began + wait
        record.admission = asyncio.get_running_loop().create_future()
        self.shell.registry.set_wrapper(record, wrapper)
        self.shell.feed(JobSubmitted(job, spec, wait))
        return record

    async def _admission_of(self, record: JobRecord) -> JobRecord:
        """Wait for it. A second call for the same job replaces the first."""
        earlier = record.admission
        assert earlier is not None
        mine = record.admission = asyncio.get_running_loop().create_future()
        if earlier.done() and not earlier.cancelled():
            mine.set_result(earlier.result())
        try:
            refusal = await mine
            if refusal is None:
                await self.shell.commits.done()
        except (asyncio.CancelledError, NotNoted) as error:
            # The client has gone, or the daemon stops, or state.json cannot be written. If the job was admitted
            # meanwhile, it has no wrapper.
            if record.admission is mine and not (
                self.shell.registry.closing and isinstance(error, asyncio.CancelledError)
            ):
                self.shell.feed(JobWithdrawn(record.id) if record.state is JobState.QUEUED else JobEnded(record.id))
                self.shell.registry.forget(record)
                self.shell.commits.soon()
            raise
        if refusal is INTERNAL:
            self.shell.registry.forget(record)
            raise GpushareError(str(INTERNAL.message), code="internal", hint=str(INTERNAL.hint))
        if refusal is not None:
            self.shell.registry.forget(record)
            raise Rejected(self.access.viewer(record.spec.uid).told(refusal), self.shell.core.queue_length)
        return record


def _source(text: str | None) -> str:
    """Usually the name of a variable or of a file."""
    return (text or "")[:LONGEST_SOURCE]


def _observes(mode: str | None) -> bool:
    if mode not in (None, "enforce", "observe"):
        raise UsageError(f"mode {printable(mode, 20)!r} is neither enforce nor observe", code="bad_request")
    return mode == "observe"


def _job_id(known: str | None) -> str:
    if known is None:
        return new_job_id()
    valid = len(known) == 16 and all(c in "0123456789abcdef" for c in known) and int(known, 16)
    if not valid:
        raise UsageError(f"{known!r} is not a job's id", code="bad_request", hint="16 hexadecimal digits")
    return known
