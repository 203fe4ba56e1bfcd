"""Routes about reservations."""

from __future__ import annotations

from aiohttp import web

from gpushare import api, api_bodies
from gpushare.errors import NotNoted
from gpushare.job_spec import FOREVER, MOST_NAME, JobSpec
from gpushare.quantity import MAX, NOTHING
from gpushare.reasons import Reason
from gpushared.api.answers import Rejected
from gpushared.api.calls import call
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


class ReservationRoutes(Routes):
    """Reservations."""

    @call("POST", "/v1/reservations", api.Reservation, statuses=(201,), body=api_bodies.NewReservation)
    async def post_reservation(self, request: web.Request) -> web.Response:
        """Keep memory for jobs that do not run yet."""
        caller = self.caller(request)
        body = await self.body(request)
        amount = quantity(body.text("request", longest=64), "the request")
        devices = body.texts("devices", most=64, longest=128)
        spec = JobSpec(
            name=printable(body.text("name", longest=MOST_NAME) or "reserved", MOST_NAME),
            uid=caller.uid,
            user=user_name(caller.uid),
            command=(),
            request=amount or NOTHING,
            limit=MAX,
            gpus=or_default(body.integer("gpus", 1, 64), 1),
            devices=None if devices is None else self.devices(devices),
        )
        lasting = body.seconds("lasting", FOREVER)
        body.finish(api_bodies.NewReservation)
        allowed = self.access.admit_reservation(spec)
        if isinstance(allowed, Reason):
            raise Rejected(self.viewer(request).told(allowed))
        event = ReservationAsked(new_job_id(), spec, lasting)
        self.done(event, do.ReservationMade, self.viewer(request))
        try:
            self.shell.commits.now()
        except NotNoted:
            self.shell.feed(ReservationEnded(event.reservation))
            raise
        made = self.shell.core.reservations[event.reservation]
        return web.json_response(self.views.reservation(made, self.viewer(request)), status=201)

    @call("GET", "/v1/reservations", api.Reservations)
    async def get_reservations(self, request: web.Request) -> web.StreamResponse:
        """The reservations."""
        viewer = self.viewer(request)
        found = list(self.shell.core.reservations.values())
        return await self.answer(request, reservations=(self.views.reservation(one, viewer) for one in found))

    @call("DELETE", "/v1/reservations/{reservation}", api.Reservation)
    async def delete_reservation(self, request: web.Request) -> web.Response:
        """Release a reservation."""
        caller = self.caller(request)
        name = request.match_info["reservation"]
        found = self.shell.core.reservations.get(self.reservation(name, caller))
        assert found is not None  # else self.reservation() has raised
        self.shell.commits.now(Planned(released=found.id))
        self.shell.feed(ReservationEnded(found.id))
        return web.json_response(self.views.reservation(found, self.viewer(request)))
