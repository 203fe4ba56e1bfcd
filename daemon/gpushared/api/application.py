"""The HTTP+JSON API on api.sock, for the command line and whoever speaks HTTP to a Unix socket.

Who calls is known from the kernel (SO_PEERCRED). Everybody may look; a job is changed and ended by its own user
and by administrators: root, and a group that the settings may name. Every error has the same shape:
{"error": {"code", "message", "facts", "hint"}}.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp import web

from gpushare import __version__, api
from gpushare.errors import GpushareError, NoSuchJob, NotNoted, NotPermitted, QuantityError, UsageError
from gpushare.job_spec import FOREVER, OPTIONS, JobSpec, plain_options
from gpushare.quantity import MAX, NOTHING, Budget, Quantity
from gpushare.reasons import Reason, words
from gpushared.api import event_stream
from gpushared.api.answers import MAX_BODY, Pieces, Rejected, document, error_response, http_error, status_of
from gpushared.api.http_listener import NOBODY, HttpListener
from gpushared.api.request_body import RequestBody, number, shortened
from gpushared.api.views import Views
from gpushared.config import Config
from gpushared.core import budget_change, visibility
from gpushared.core import instructions as do
from gpushared.core.events import (
    BudgetChanged,
    Checkpointed,
    JobEnded,
    JobSubmitted,
    JobWithdrawn,
    ReservationAsked,
    ReservationEnded,
)
from gpushared.core.visibility import Viewer
from gpushared.jobs import earlier
from gpushared.jobs.registry import JobRecord, JobState, Notice, new_job_id, stop
from gpushared.jobs.state_file import Planned
from gpushared.limits.access import Access
from gpushared.limits.backlog import Backlog
from gpushared.limits.identities import user_name
from gpushared.runtime.asks import INTERNAL
from gpushared.runtime.shell import Shell
from gpushared.system.logs import Sparingly, facts, log
from gpushared.system.processes import Process, parent_of, peer_credentials, printable, uid_of

BODY_WITHIN = 10.0
LONGEST_SOURCE = 256
"""Characters of where a budget comes from."""
MOST_LAST = 10**9
"""Records that a follower may ask for: there are never so many."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is at the other end, as the kernel says."""

    pid: int
    uid: int
    admin: bool

    def may_change(self, uid: int) -> bool:
        return self.admin or self.uid == uid


class Api:
    """The handlers."""

    def __init__(self, shell: Shell, config: Callable[[], Config], scope: str, access: Access) -> None:
        self.shell = shell
        self.access = access
        self.views = Views(shell)
        self._config = config
        self._scope = scope
        self._started = time.monotonic()
        self._pieces = Pieces(shell.limits.bytes, shell.limits.time)
        self._sparingly = Sparingly()
        self.listener: HttpListener | None = None
        self.active = 0
        """Requests in progress; a daemon that somebody is talking to does not go idle."""

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        job = "/v1/jobs/{job}"
        app.add_routes(
            [
                web.get("/v1/version", self.get_version),
                web.post("/v1/jobs", self.post_job),
                web.get("/v1/jobs", self.get_jobs),
                web.get(job, self.get_job),
                web.patch(job, self.patch_job),
                web.delete(job, self.delete_job),
                web.put(f"{job}/main", self.put_main),
                web.get(f"{job}/events", self.get_events),
                web.get(f"{job}/story", self.get_story),
                web.post(f"{job}/checkpointed", self.post_checkpointed),
                web.post(f"{job}/stop", self.post_stop),
                web.post("/v1/reservations", self.post_reservation),
                web.get("/v1/reservations", self.get_reservations),
                web.delete("/v1/reservations/{reservation}", self.delete_reservation),
                web.get("/v1/explain", self.get_explain),
                web.get("/v1/events", self.get_records),
                web.get("/v1/pressure", self.get_pressure),
                web.get("/v1/status", self.get_status),
                web.get("/metrics", self.get_metrics),
            ]
        )
        return app

    # ---- errors ------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.active += 1
        try:
            _check_body(request)
            return await self._in_turn(request, handler)
        except web.HTTPException as error:
            return http_error(request, error)
        except GpushareError as error:
            return error_response(status_of(error), error)
        except ConnectionError:
            raise  # the client has gone in the middle of its answer
        except Exception as error:
            return self._failed(request, error)
        finally:
            self.active -= 1

    def _failed(self, request: web.Request, error: Exception) -> web.Response:
        self.shell.core_loop.errors += 1
        resource = request.match_info.route.resource
        left_out = self._sparingly.allow((request.method, resource and resource.canonical, type(error)))
        if left_out is not None:
            more = {"more": left_out} if left_out else {}
            log.exception("a request failed", extra=facts(method=request.method, path=request.path, **more))
        hint = "this is a bug of gpushare; the daemon's log has the details"
        return error_response(500, GpushareError("the daemon failed on this request", code="internal", hint=hint))

    async def _in_turn(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A user's requests are begun one after the other, so that many of them hold nobody else up."""
        connection = self.listener.connection_of(request.protocol) if self.listener is not None else None
        if connection is None:
            return await handler(request)  # metrics over TCP
        connection.busy += 1
        try:
            uid = self._caller(request).uid
            await self.shell.limits.time.enter(uid)
            await self.access.meet(uid)
            return await handler(request)
        finally:
            connection.busy -= 1
            connection.idle_since = time.monotonic()

    async def _body(self, request: web.Request, *, empty_is_ok: bool = False) -> RequestBody:
        """Its bytes are held for the caller until they are read and understood."""
        held, uid = self.shell.limits.bytes, self._caller(request).uid
        size = MAX_BODY if request.content_length is None else min(request.content_length, MAX_BODY)
        try:
            async with asyncio.timeout(BODY_WITHIN):
                await held.room(uid, size)
                held.change(uid, size)
                try:
                    data = await _read(request)
                finally:
                    held.change(uid, -size)
        except TimeoutError:
            message = f"the body of the request did not come within {BODY_WITHIN:g} s"
            raise UsageError(message, code="bad_request") from None
        if not data and empty_is_ok:
            return RequestBody({})
        try:
            return RequestBody(json.loads(data))
        except (ValueError, RecursionError):
            raise UsageError("the body of the request is not JSON", code="bad_request") from None

    def _caller(self, request: web.Request) -> Caller:
        sock = _unix_socket(request)
        if sock is None:
            raise NotPermitted("this address serves metrics only")
        pid, uid, _ = peer_credentials(sock)
        return Caller(pid, uid, self.access.is_admin(uid))

    def _viewer(self, request: web.Request) -> Viewer:
        return self.access.viewer(self._caller(request).uid)

    def _find(self, request: web.Request) -> JobRecord:
        name, viewer = request.match_info["job"], self._viewer(request)
        found = self.shell.registry.find(name, viewer)
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(
                f"{name[:60]!r} fits {len(found)} jobs",
                code="ambiguous_job",
                facts=[(record.id, viewer.words(words(visibility.who(record.spec)))) for record in found[:8]],
                hint="use the id",
            )
        raise NoSuchJob(f"no job {printable(name, 60)!r}", hint="see `gpushare ps`")

    def _find_own(self, request: web.Request) -> tuple[JobRecord, Caller]:
        record, caller = self._find(request), self._caller(request)
        if not caller.may_change(record.spec.uid):
            raise self._not_theirs(record, caller.uid, "its user or an administrator may change it")
        return record, caller

    def _not_theirs(self, record: JobRecord, uid: int, hint: str | None = None) -> NotPermitted:
        owner = words(visibility.user(record.spec))
        return NotPermitted(f"job {record.id} belongs to {self.access.viewer(uid).words(owner)}", hint=hint)

    def _over(self, record: JobRecord, caller: Caller) -> NoSuchJob:
        name = self.access.viewer(caller.uid).words(words(visibility.name(record.spec)))
        return NoSuchJob(f"job {name} ({record.id}) has ended", hint="`gpushare ps -a` says how")

    # ---- looking -----------------------------------------------------------------------------------

    async def get_version(self, request: web.Request) -> web.Response:
        self._caller(request)
        answer: api.Version = {
            "version": __version__,
            "protocol": api.PROTOCOL,
            "pid": os.getpid(),
            "driver": self.shell.gpus.driver.kind,
            "scope": self._scope,
        }
        return web.json_response(answer)

    async def _answer(self, request: web.Request, **fields: object) -> web.StreamResponse:
        """For what may be long: lists are iterators."""
        return await self._pieces.send(request, self._caller(request).uid, document(fields))

    async def get_jobs(self, request: web.Request) -> web.StreamResponse:
        """The living; with ?ended=1 also those that have ended lately."""
        ended = request.query.get("ended") == "1"
        return await self._answer(request, jobs=self.views.jobs(self._viewer(request), ended=ended))

    async def get_job(self, request: web.Request) -> web.Response:
        return web.json_response(self.views.job(self._find(request), self._viewer(request)))

    async def get_status(self, request: web.Request) -> web.StreamResponse:
        viewer, count = self._viewer(request), sum(1 for _ in self.shell.registry.live())
        daemon = {"version": __version__, "uptime": time.monotonic() - self._started, "jobs": count}
        return await self._answer(request, daemon=daemon, gpus=self.views.gpus(viewer), jobs=self.views.jobs(viewer))

    async def get_story(self, request: web.Request) -> web.StreamResponse:
        record, viewer = self._find(request), self._viewer(request)
        if not viewer.may_see(record.spec.uid):
            raise self._not_theirs(record, viewer.uid, "its user and administrators read its story")
        story: Iterable[api.Record] = self.views.story(record, viewer)
        if record.of_earlier_daemon or record.state is JobState.ENDED:
            owner = frozenset((record.spec.uid,))
            found = await self.shell.historian.ask(viewer.uid, lambda history: history.records(0.0, record.id, owner))
            if found is not None and found.records:
                story = [earlier.shown(one, viewer) for one in found.records]
        shown = self.views.job(record, viewer)
        waiting = self.views.waiting(viewer, record.id)
        return await self._answer(request, job=shown, story=story, waiting=waiting)

    async def get_explain(self, request: web.Request) -> web.StreamResponse:
        viewer = self._viewer(request)
        return await self._answer(
            request,
            gpus=self.views.gpus(viewer),
            waiting=self.views.waiting(viewer),
            pressure=self.views.pressure(),
            records=self.views.records(viewer, self.views.readable(viewer)),
        )

    async def get_records(self, request: web.Request) -> web.StreamResponse:
        """What has happened; with ?since=TIME all that is known from then on; with ?follow=1 also what happens, a
        line each, until the caller hangs up."""
        viewer = self._viewer(request)
        since = request.query.get("since")
        if since is not None:
            return await self._answer(request, records=await self._records_since(viewer, _moment(since)))
        if request.query.get("follow") != "1":
            return await self._answer(request, records=self.views.records(viewer, self.views.readable(viewer)))
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
        """From the history; where there is none, from memory."""
        users = earlier.users_for(viewer)
        found = await self.shell.historian.ask(viewer.uid, lambda history: history.records(since, None, users))
        if found is None:
            known = self.views.records(viewer, self.views.readable(viewer))
            return [one for one in known if one["time"] >= since]
        records = [earlier.shown(one, viewer) for one in found.records]
        return [*earlier.note_of_cut(records), *records] if found.cut else records

    async def get_pressure(self, request: web.Request) -> web.Response:
        self._caller(request)
        return web.json_response({"gpus": self.views.pressure()})

    async def get_metrics(self, request: web.Request) -> web.Response:
        from gpushared.api.metrics import CONTENT_TYPE, render

        nobody = Viewer(NOBODY, self._config().reveal)  # over TCP
        viewer = self._viewer(request) if _unix_socket(request) is not None else nobody
        await self.shell.limits.bytes.room(viewer.uid)
        return web.Response(body=render(self.shell, self.views, viewer), headers={"Content-Type": CONTENT_TYPE})

    # ---- submitting --------------------------------------------------------------------------------

    async def post_job(self, request: web.Request) -> web.Response:
        caller = self._caller(request)
        body = await self._body(request)
        known = body.text("job", longest=16)
        wait = body.seconds("wait", FOREVER)
        spec = self._spec(body, caller)
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
                return web.json_response(self.views.job(record, self._viewer(request)))
            record = await self._submit(_job_id(known), spec, wait, wrapper)
        except BaseException:
            wrapper.close()
            raise
        return web.json_response(self.views.job(record, self._viewer(request)), status=201)

    def _spec(self, body: RequestBody, caller: Caller) -> JobSpec:
        request = _quantity(body.text("request", longest=64), "the request")
        limit = _quantity(body.text("limit", longest=64), "the limit")
        sources = _source(body.text("request_source")), _source(body.text("limit_source"))
        if not any(sources) and (request, limit) == (NOTHING, MAX):
            request = limit = None  # `gpushare run` writes down what follows from saying nothing
        budget, place = self.access.budget(caller.uid, request, limit)
        observe = _observes(body.text("mode"))
        if observe:
            budget, place = Budget(NOTHING, MAX), ""
        devices = body.texts("devices", most=64, longest=128)
        command = shortened(body.texts("command", most=100_000) or ())
        name = body.text("name", longest=256) or (Path(command[0]).name if command else "job")
        spec = JobSpec(
            name=printable(name, 63),
            uid=caller.uid,
            user=user_name(caller.uid),
            command=command,
            request=budget.request,
            limit=budget.limit,
            gpus=_or(body.integer("gpus", 1, 64), 1),
            devices=None if devices is None else self._devices(devices),
            observe=observe,
            request_source=sources[0] or place,
            limit_source=sources[1] or place,
            reservation=self._reservation(body.text("reservation", longest=64), caller),
            **{name: body.option(name) for name in plain_options()},
        )
        body.text("cwd")
        body.finish(JOB_FIELDS)
        return spec

    def _devices(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        if not devices:
            raise UsageError(
                "CUDA_VISIBLE_DEVICES hides every GPU from this program",
                code="no_such_gpu",
                hint="unset it, or name a GPU in it",
            )
        return self.shell.gpus.resolve(devices)

    def _reregister(self, job: str, spec: JobSpec, caller: Caller, wrapper: Process) -> JobRecord | None:
        """A wrapper comes back after a restart of the daemon; None: nobody here knows its job."""
        record = self.shell.registry.get(job)
        if record is not None and not caller.may_change(record.spec.uid):
            raise self._not_theirs(record, caller.uid)
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

    async def _submit(self, job: str, spec: JobSpec, wait: float | None, wrapper: Process) -> JobRecord:
        allowed = self.access.admit(spec, self.shell.registry.bytes_of_live(spec.uid))
        if isinstance(allowed, Reason):
            raise Rejected(self.access.viewer(spec.uid).told(allowed))
        spec = allowed
        record = self.shell.registry.open(job, spec)
        record.patience = None if wait is None else record.began + wait
        record.admission = asyncio.get_running_loop().create_future()
        self.shell.registry.set_wrapper(record, wrapper)
        self.shell.feed(JobSubmitted(job, spec, wait))
        return await self._admission_of(record)

    async def _admission_of(self, record: JobRecord) -> JobRecord:
        """Wait for it. Who asks a second time takes the first call's place."""
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
            # The client has hung up, or the daemon stops, or cannot promise it. Admitted meanwhile, it is nobody's job.
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

    # ---- reserving ---------------------------------------------------------------------------------

    async def post_reservation(self, request: web.Request) -> web.Response:
        caller = self._caller(request)
        body = await self._body(request)
        amount = _quantity(body.text("request", longest=64), "the request")
        devices = body.texts("devices", most=64, longest=128)
        spec = JobSpec(
            name=printable(body.text("name", longest=256) or "reserved", 63),
            uid=caller.uid,
            user=user_name(caller.uid),
            command=(),
            request=amount or NOTHING,
            limit=MAX,
            gpus=_or(body.integer("gpus", 1, 64), 1),
            devices=None if devices is None else self._devices(devices),
        )
        lasting = body.seconds("lasting", FOREVER)
        body.finish(RESERVATION_FIELDS)
        allowed = self.access.admit_reservation(spec)
        if isinstance(allowed, Reason):
            raise Rejected(self._viewer(request).told(allowed))
        event = ReservationAsked(new_job_id(), spec, lasting)
        answer = self.shell.core_loop.call(event)
        if isinstance(answer, do.ReservationRefused):
            raise Rejected(self._viewer(request).told(answer.reason))
        if not isinstance(answer, do.ReservationMade):
            raise GpushareError("the daemon did not answer the request", code="internal")
        try:
            self.shell.commits.now()
        except NotNoted:
            self.shell.feed(ReservationEnded(event.reservation))
            raise
        made = self.shell.core.reservations[event.reservation]
        return web.json_response(self.views.reservation(made, self._viewer(request)), status=201)

    async def get_reservations(self, request: web.Request) -> web.StreamResponse:
        viewer = self._viewer(request)
        found = list(self.shell.core.reservations.values())
        return await self._answer(request, reservations=(self.views.reservation(one, viewer) for one in found))

    async def delete_reservation(self, request: web.Request) -> web.Response:
        caller = self._caller(request)
        name = request.match_info["reservation"]
        found = self.shell.core.reservations.get(self._reservation(name, caller))
        assert found is not None  # else _reservation has raised
        self.shell.commits.now(Planned(released=found.id))
        self.shell.feed(ReservationEnded(found.id))
        return web.json_response(self.views.reservation(found, self._viewer(request)))

    def _reservation(self, name: str | None, caller: Caller) -> str:
        """The id of the caller's reservation of that name or id; "" if none is named."""
        if not name:
            return ""
        own = [one for one in self.shell.core.reservations.values() if caller.may_change(one.spec.uid)]
        for one in own:
            if name in (one.id, one.spec.name):
                return one.id
        raise NoSuchJob(
            f"no reservation {printable(name, 60)!r}", code="no_such_reservation", hint="see `gpushare reserve --list`"
        )

    # ---- running -----------------------------------------------------------------------------------

    async def put_main(self, request: web.Request) -> web.Response:
        record, caller = self._find_own(request)
        body = await self._body(request)
        pid = body.integer("pid", 1, 2**22)
        body.finish(("pid",))
        if record.state is JobState.ENDED:
            raise self._over(record, caller)
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
        if record.stopping is not None:  # by somebody who could not know of the program yet
            stop(record, [main], record.stopping)
        return web.json_response(self.views.job(record, self._viewer(request)))

    async def post_checkpointed(self, request: web.Request) -> web.Response:
        record, _ = self._find_own(request)
        (await self._body(request, empty_is_ok=True)).finish(())
        self.shell.feed(Checkpointed(record.id))
        await self.shell.commits.done()
        return web.json_response({})

    async def post_stop(self, request: web.Request) -> web.Response:
        (record, caller), viewer = self._find_own(request), self._viewer(request)
        body = await self._body(request, empty_is_ok=True)
        now = body.flag("now", False)
        body.finish(("now",))
        if record.state is JobState.ENDED:
            raise self._over(record, caller)
        shown, reached, spared = self.views.job(record, viewer), 0, 0
        if record.state is JobState.QUEUED:
            self.shell.jobs.withdraw(record)
            self.shell.commits.quietly()
        else:
            reached, spared = self.shell.stopper.stop_job(record, user_name(caller.uid), now=now)
        return web.json_response({"job": shown, "processes": reached, "spared": spared})

    async def patch_job(self, request: web.Request) -> web.Response:
        record, caller = self._find_own(request)
        body = await self._body(request)
        event = BudgetChanged(
            record.id,
            request=_quantity(body.text("request", longest=64), "the request"),
            limit=_quantity(body.text("limit", longest=64), "the limit"),
            priority=body.integer("priority", -(2**31), 2**31 - 1),
        )
        dry_run = body.flag("dry_run", False)
        body.finish(("request", "limit", "priority", "dry_run"))
        if event.request is None and event.limit is None and event.priority is None:
            raise UsageError("nothing to change", code="bad_request", hint="give request, limit or priority")
        if record.state is JobState.ENDED:
            raise self._over(record, caller)
        if not caller.admin:
            allowed = self.access.change(record.spec, event)
            if isinstance(allowed, Reason):
                raise Rejected(self._viewer(request).told(allowed))
            event = allowed
        viewer = self._viewer(request)
        before = self.views.job(record, viewer)
        found = self.shell.core.new_budget(event)
        if dry_run:
            if isinstance(found, Reason):
                raise Rejected(self._viewer(request).told(found))
            after, note = self.shell.core.try_budget(record.id, found, lambda: self.views.job(record, viewer))
            return web.json_response({"before": before, "after": after, "note": note})
        if isinstance(found, budget_change.Found):
            self.shell.commits.now(Planned(record.id, found.spec))
        answer = self.shell.core_loop.call(event)
        self.shell.commits.soon()  # it may have failed, or have made room for a job that waits
        if isinstance(answer, do.BudgetRefused):
            raise Rejected(self._viewer(request).told(answer.reason))
        if not isinstance(answer, do.BudgetSet):
            raise GpushareError("the daemon did not answer the change", code="internal")
        record.spec = self.shell.core.jobs[record.id].spec
        after = self.views.job(record, viewer)
        return web.json_response({"before": before, "after": after, "note": answer.note})

    async def delete_job(self, request: web.Request) -> web.Response:
        (record, _), viewer = self._find_own(request), self._viewer(request)
        body = await self._body(request, empty_is_ok=True)
        exit_code, number = body.integer("exit_code", 0, 255), body.integer("signal", 1, 64)
        body.finish(("exit_code", "signal"))
        if record.state is JobState.QUEUED:
            self.shell.jobs.withdraw(record)
            self.shell.commits.quietly()
        elif record.state is not JobState.ENDED:
            record.exit_code, record.exit_signal = exit_code, number
            self.shell.jobs.end(record)
            # Else a daemon that is killed now would bring the job back. An end is told even where it cannot be noted:
            # the program is gone, and the next daemon will find that out by itself.
            self.shell.commits.quietly()
        shown = self.views.job(record, viewer)
        outcome = self.views.outcome(record, viewer)
        shown["state"], shown["outcome"] = "ended", outcome
        return web.json_response({"job": shown, "outcome": outcome})

    async def get_events(self, request: web.Request) -> web.StreamResponse:
        record, caller = self._find_own(request)

        def show(notices: list[Notice], lost: int) -> Iterable[event_stream.Line]:
            return [*event_stream.note_of(lost, kind="lost"), *notices]

        room = partial(self.shell.limits.bytes.room, caller.uid)
        return await event_stream.stream(
            request, record.backlog(self.shell.limits.bytes), record.listeners, show, room=room
        )


OF_THE_CALLER = ("uid", "user", "observe")
"""Options that the body does not give: the kernel says who calls, and `mode` says the third."""
JOB_FIELDS = (*(name for name in OPTIONS if name not in OF_THE_CALLER), "wait", "job", "cwd", "mode")
RESERVATION_FIELDS = ("name", "request", "gpus", "devices", "lasting")


def metrics_application(handlers: Api) -> web.Application:
    """What a TCP port serves: /metrics and nothing else, for there nobody knows who calls."""
    app = web.Application()
    app.add_routes([web.get("/metrics", handlers.get_metrics)])
    return app


def _unix_socket(request: web.Request) -> socket.socket | None:
    sock: socket.socket | None = request.transport.get_extra_info("socket") if request.transport is not None else None
    return sock if sock is not None and sock.family == socket.AF_UNIX else None


def _check_body(request: web.Request) -> None:
    """Before anything is done for it: what is packed could be any size, and to look takes no body."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType
    if request.method in ("GET", "HEAD") and request.body_exists:
        raise UsageError(f"a {request.method} request has no body", code="bad_request")


async def _read(request: web.Request) -> bytes:
    """Not by request.read(), which keeps the bytes as long as the request: a job may queue for days."""
    data = bytearray()
    while not request.content.at_eof():
        data += await request.content.readany()
        if len(data) > MAX_BODY:
            raise web.HTTPRequestEntityTooLarge(MAX_BODY, len(data))
    return bytes(data)


def _moment(text: str) -> float:
    try:
        moment = float(text)
    except ValueError:
        moment = -1.0
    if not 0.0 <= moment < 1e12:  # nan is not, either
        raise UsageError(f"since={printable(text, 20)} is not a number", code="bad_request")
    return moment


def _quantity(text: str | None, what: str) -> Quantity | None:
    if text is None:
        return None
    try:
        return Quantity.parse(text)
    except QuantityError as error:
        raise QuantityError(f"{what}: {error.message}", hint=error.hint) from None


def _source(text: str | None) -> str:
    """The name of a variable or of a file, most often."""
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


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
