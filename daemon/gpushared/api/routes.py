"""What all routes of the API need: the caller, the body of the request, the job that the path names, long answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import web

from gpushare.errors import GpushareError, NoSuchJob, NotPermitted, QuantityError, UsageError
from gpushare.quantity import Quantity
from gpushare.reasons import words
from gpushared.api.answers import Pieces, Rejected, document, read_body, unix_socket
from gpushared.api.request_body import RequestBody
from gpushared.api.views import Views
from gpushared.core import instructions as do
from gpushared.core import visibility
from gpushared.core.visibility import Viewer
from gpushared.jobs.registry import JobRecord
from gpushared.limits.access import Access
from gpushared.runtime.core_loop import AnsweredAtOnce
from gpushared.runtime.shell import Shell
from gpushared.system.processes import peer_credentials, printable

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Caller:
    """The calling process and its user, by the kernel."""

    pid: int
    uid: int
    admin: bool

    def may_change(self, uid: int) -> bool:
        return self.admin or self.uid == uid


class Routes:
    """Handlers of requests about one noun."""

    def __init__(self, shell: Shell, access: Access, views: Views) -> None:
        self.shell = shell
        self.access = access
        self.views = views
        self._pieces = Pieces(shell.limits.bytes, shell.limits.time)

    def caller(self, request: web.Request) -> Caller:
        sock = unix_socket(request)
        if sock is None:
            raise NotPermitted("this address serves metrics only")
        pid, uid, _ = peer_credentials(sock)
        return Caller(pid, uid, self.access.is_admin(uid))

    def viewer(self, request: web.Request) -> Viewer:
        return self.access.viewer(self.caller(request).uid)

    async def body(self, request: web.Request, *, empty_is_ok: bool = False) -> RequestBody:
        """The request's body. Its bytes count for the caller until they are read and parsed."""
        data = await read_body(request, self.shell.limits.bytes, self.caller(request).uid)
        if not data and empty_is_ok:
            return RequestBody({})
        try:
            return RequestBody(json.loads(data))
        except (ValueError, RecursionError):
            raise UsageError("the body of the request is not JSON", code="bad_request") from None

    def find(self, request: web.Request) -> JobRecord:
        name, viewer = request.match_info["job"], self.viewer(request)
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

    def find_own(self, request: web.Request) -> tuple[JobRecord, Caller]:
        record, caller = self.find(request), self.caller(request)
        if not caller.may_change(record.spec.uid):
            raise self.not_theirs(record, caller.uid, "its user or an administrator may change it")
        return record, caller

    def not_theirs(self, record: JobRecord, uid: int, hint: str | None = None) -> NotPermitted:
        owner = words(visibility.user(record.spec))
        return NotPermitted(f"job {record.id} belongs to {self.access.viewer(uid).words(owner)}", hint=hint)

    def over(self, record: JobRecord, caller: Caller) -> NoSuchJob:
        name = self.access.viewer(caller.uid).words(words(visibility.name(record.spec)))
        return NoSuchJob(f"job {name} ({record.id}) has ended", hint="`gpushare ps -a` says how")

    def devices(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        if not devices:
            raise UsageError(
                "CUDA_VISIBLE_DEVICES hides every GPU from this program",
                code="no_such_gpu",
                hint="unset it, or name a GPU in it",
            )
        return self.shell.gpus.resolve(devices)

    def reservation(self, name: str | None, caller: Caller) -> str:
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

    def done(self, event: AnsweredAtOnce, answer: type[Answer], viewer: Viewer) -> Answer:
        """What the core answers when it has done what the event wants. Raises what it says against it."""
        answered = self.shell.core_loop.call(event)
        if isinstance(answered, answer):
            return answered
        if isinstance(answered, do.BudgetRefused | do.ReservationRefused | do.SuspendRefused):
            raise Rejected(viewer.told(answered.reason))
        raise GpushareError("the daemon did not answer the request", code="internal")

    async def answer(self, request: web.Request, **fields: object) -> web.StreamResponse:
        """Send an answer that may be long: its lists are iterators."""
        return await self._pieces.send(request, self.caller(request).uid, document(fields))


def quantity(text: str | None, what: str) -> Quantity | None:
    if text is None:
        return None
    try:
        return Quantity.parse(text)
    except QuantityError as error:
        raise QuantityError(f"{what}: {error.message}", hint=error.hint) from None


def or_default(value: int | None, default: int) -> int:
    return default if value is None else value
