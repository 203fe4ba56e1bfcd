"""Routes about reservations."""

from __future__ import annotations

from aiohttp import web

from gpushare.errors import GpushareError, NotNoted
from gpushare.job_spec import FOREVER, JobSpec
from gpushare.quantity import MAX, NOTHING
from gpushare.reasons import Reason
from gpushared.api.answers import Rejected
from gpushared.api.routes import Routes, or_default, quantity
from gpushared.core import instructions as do
from gpushared.core.events import (
    ReservationAsked,
    ReservationEnded,
)
from gpushared.jobs.registry import new_job_id
from gpushared.jobs.state_file import Planned
from gpushared.limits.identities import user_name
from gpushared.system.processes import printable

RESERVATION_FIELDS = ("name", "request", "gpus", "devices", "lasting")


class ReservationRoutes(Routes):
    """Reservations."""

    async def post_reservation(self, request: web.Request) -> web.Response:
        caller = self.caller(request)
        body = await self.body(request)
        amount = quantity(body.text("request", longest=64), "the request")
        devices = body.texts("devices", most=64, longest=128)
        spec = JobSpec(
            name=printable(body.text("name", longest=256) or "reserved", 63),
            uid=caller.uid,
            user=user_name(caller.uid),
            command=(),
            request=amount or NOTHING,
            limit=MAX,
            gpus=or_default(body.integer("gpus", 1, 64), 1),
            devices=None if devices is None else self.devices(devices),
        )
        lasting = body.seconds("lasting", FOREVER)
        body.finish(RESERVATION_FIELDS)
        allowed = self.access.admit_reservation(spec)
        if isinstance(allowed, Reason):
            raise Rejected(self.viewer(request).told(allowed))
        event = ReservationAsked(new_job_id(), spec, lasting)
        answer = self.shell.core_loop.call(event)
        if isinstance(answer, do.ReservationRefused):
            raise Rejected(self.viewer(request).told(answer.reason))
        if not isinstance(answer, do.ReservationMade):
            raise GpushareError("the daemon did not answer the request", code="internal")
        try:
            self.shell.commits.now()
        except NotNoted:
            self.shell.feed(ReservationEnded(event.reservation))
            raise
        made = self.shell.core.reservations[event.reservation]
        return web.json_response(self.views.reservation(made, self.viewer(request)), status=201)

    async def get_reservations(self, request: web.Request) -> web.StreamResponse:
        viewer = self.viewer(request)
        found = list(self.shell.core.reservations.values())
        return await self.answer(request, reservations=(self.views.reservation(one, viewer) for one in found))

    async def delete_reservation(self, request: web.Request) -> web.Response:
        caller = self.caller(request)
        name = request.match_info["reservation"]
        found = self.shell.core.reservations.get(self.reservation(name, caller))
        assert found is not None  # else _reservation has raised
        self.shell.commits.now(Planned(released=found.id))
        self.shell.feed(ReservationEnded(found.id))
        return web.json_response(self.views.reservation(found, self.viewer(request)))
