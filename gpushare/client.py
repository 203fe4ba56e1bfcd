"""Client of the node daemon's HTTP+JSON API.

Each call opens a connection, because the daemon may restart between two calls. The daemon's errors become the classes
of errors.py with the daemon's own text. Anything that is no answer becomes DaemonUnreachable.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

from gpushare import api, unixhttp
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob, NotNoted, NotPermitted, Refused, UsageError
from gpushare.nearest import did_you_mean

__all__ = ["MAY_PASS", "Client", "Events"]

TIMEOUT = 10.0
MAY_PASS = ("not_admitted", "attempt_runs")
"""Codes of refusals of Client.place() that may end by themselves: memory is just coming back."""
ERRORS: dict[int, type[GpushareError]] = {
    400: UsageError,
    401: NotPermitted,
    403: NotPermitted,
    404: NoSuchJob,
    409: Refused,
    503: DaemonUnreachable,
    507: NotNoted,
}


class Client:
    """The daemon's API at one socket. Each method sends one request and returns the JSON that api.py describes.

        node = gpushare.locate.find(gpushare.config.load_settings())
        node.client().status()["gpus"]

    Raises DaemonUnreachable if there is no answer within `timeout` seconds, and Refused, NoSuchJob or NotPermitted with
    the daemon's reason. Amounts are in bytes, times in seconds since 1970.
    """

    def __init__(self, api_socket: Path, timeout: float = TIMEOUT) -> None:
        self.api_socket = api_socket
        self.timeout = timeout

    def version(self) -> api.Version:
        return cast(api.Version, self._call("GET", "/v1/version", api.Version))

    def status(self) -> api.Status:
        return cast(api.Status, self._call("GET", "/v1/status", api.Status))

    def jobs(self, *, ended: bool = False) -> list[api.Job]:
        """The jobs that live; with `ended`, also those that ended lately."""
        target = "/v1/jobs?ended=1" if ended else "/v1/jobs"
        return cast(api.Jobs, self._call("GET", target, api.Jobs))["jobs"]

    def job(self, name: str) -> api.Job:
        return cast(api.Job, self._call("GET", _job_path(name), api.Job))

    def find_job(self, name: str) -> api.Job:
        """The job with this id, unique prefix of an id, name, or pid of one of its processes."""
        try:
            return self.job(name)
        except NoSuchJob as error:
            known = self.jobs(ended=True)
            owners = [job for job in known if any(str(process["pid"]) == name for process in job["processes"])]
            if len(owners) == 1:
                return owners[0]
            error.hint = did_you_mean(name, [job["name"] for job in known]) or error.hint
            raise

    def register(self, body: Mapping[str, object], wait: float | None = None) -> api.Job:
        timeout = None if wait == float("inf") else self.timeout + (wait or 0)
        return cast(api.Job, self._call("POST", "/v1/jobs", api.Job, body, timeout))

    def set_main(self, job: str, pid: int) -> api.Job:
        return cast(api.Job, self._call("PUT", f"{_job_path(job)}/main", api.Job, {"pid": pid}))

    def change(self, job: str, changes: Mapping[str, object]) -> api.Change:
        return cast(api.Change, self._call("PATCH", _job_path(job), api.Change, changes))

    def end(self, job: str, exit_code: int | None, signal: int | None) -> api.Ended:
        body = {"exit_code": exit_code, "signal": signal}
        return cast(api.Ended, self._call("DELETE", _job_path(job), api.Ended, body))

    def stop(self, job: str, *, now: bool) -> api.Stopped:
        """SIGTERM to the job's processes, SIGKILL if `now`; a queued job leaves the queue. The job as it was before."""
        return cast(api.Stopped, self._call("POST", f"{_job_path(job)}/stop", api.Stopped, {"now": now}))

    def story(self, job: str) -> api.Story:
        return cast(api.Story, self._call("GET", f"{_job_path(job)}/story", api.Story))

    def dashboard(self) -> str:
        """The address of the page that the daemon serves for administrators. NotPermitted; Refused if there is none."""
        return cast(api.Dashboard, self._call("GET", "/v1/dashboard", api.Dashboard))["url"]

    def explain(self) -> api.Explanation:
        return cast(api.Explanation, self._call("GET", "/v1/explain", api.Explanation))

    def records(self, since: float | None = None) -> list[api.Record]:
        """The records in the daemon's memory; with a time (as time.time() gives it), all records since then."""
        target = "/v1/events" if since is None else f"/v1/events?since={since:.3f}"
        return cast(api.Records, self._call("GET", target, api.Records))["records"]

    def follow(self, last: int) -> Events[api.Record]:
        """A stream of all records from now on, after the last `last` ones."""
        return Events(self.api_socket, f"/v1/events?follow=1&last={last}", self.timeout, api.Record)

    def pressure(self) -> list[api.GpuPressure]:
        return cast(api.Pressure, self._call("GET", "/v1/pressure", api.Pressure))["gpus"]

    def history(self, since: float, until: float, step: float, job: str | None = None) -> api.History:
        """Memory over time, of all jobs or of the one with this id; values of every `step` seconds, or of as many as
        the daemon has kept."""
        target = f"/v1/history?since={since:.3f}&until={until:.3f}&step={step:.3f}" + (f"&job={job}" if job else "")
        return cast(api.History, self._call("GET", target, api.History))

    def place(self, placement: str, body: Mapping[str, object]) -> api.Placement:
        """Of an engine: a task of `uid` runs here, or has other amounts from now on."""
        return cast(api.Placement, self._call("PUT", _placement_path(placement), api.Placement, body))

    def placements(self) -> list[api.Placement]:
        return cast(api.Placements, self._call("GET", "/v1/placements", api.Placements))["placements"]

    def displace(self, placement: str, attempt: int) -> api.Placement:
        """Of an engine: the task is over. It is there, and `leaving`, until nothing of it runs."""
        target = f"{_placement_path(placement)}?attempt={attempt}"
        return cast(api.Placement, self._call("DELETE", target, api.Placement))

    def reserve(self, body: Mapping[str, object]) -> api.Reservation:
        return cast(api.Reservation, self._call("POST", "/v1/reservations", api.Reservation, body))

    def reservations(self) -> list[api.Reservation]:
        return cast(api.Reservations, self._call("GET", "/v1/reservations", api.Reservations))["reservations"]

    def release(self, name: str) -> api.Reservation:
        if not name:
            raise UsageError("the name of a reservation is empty", hint="`gpushare reserve --list` lists them")
        target = f"/v1/reservations/{quote(name, safe='', errors='backslashreplace')}"
        return cast(api.Reservation, self._call("DELETE", target, api.Reservation))

    def checkpointed(self, job: str) -> None:
        self._call("POST", f"{_job_path(job)}/checkpointed", dict, {})

    def suspend(self, job: str) -> api.Suspending:
        """Its memory goes to host memory until `resume`. Refused if the job cannot be suspended."""
        return cast(api.Suspending, self._call("POST", f"{_job_path(job)}/suspend", api.Suspending, {}))

    def resume(self, job: str) -> api.Suspending:
        """A suspended job goes on as soon as its memory fits again."""
        return cast(api.Suspending, self._call("POST", f"{_job_path(job)}/resume", api.Suspending, {}))

    def suspender(self, job: str) -> Events[api.SuspendCommand]:
        """The commands for the job's suspender, which the caller is then."""
        return Events(self.api_socket, f"{_job_path(job)}/suspender", self.timeout, api.SuspendCommand)

    def hooks(self, job: str) -> Events[api.HookCommand]:
        """The commands for the process that calls the job's hooks, which the caller is then."""
        return Events(self.api_socket, f"{_job_path(job)}/hooks", self.timeout, api.HookCommand)

    def hook_answers(self, job: str, answer: Mapping[str, object]) -> None:
        self._call("POST", f"{_job_path(job)}/hooks", dict, answer)

    def suspender_answers(self, job: str, answer: Mapping[str, object]) -> None:
        self._call("POST", f"{_job_path(job)}/suspender", dict, answer)

    def events(self, job: str) -> Events[api.Notice]:
        return Events(self.api_socket, f"{_job_path(job)}/events", self.timeout, api.Notice)

    def _call(
        self,
        method: str,
        target: str,
        answer: type,
        body: Mapping[str, object] | None = None,
        timeout: float | None = -1,
    ) -> object:
        sent = None if body is None else json.dumps(body).encode()
        timeout = self.timeout if timeout == -1 else timeout
        status, received = unixhttp.exchange(self.api_socket, method, target, sent, timeout)
        value = decode(received)
        if status >= 400:
            raise error_of(status, value)
        api.check(value, answer)
        return value


Line = TypeVar("Line")


class Events(Generic[Line]):
    """Notices or records, as they come. Has a `fileno` to wait on; never blocks once it is open."""

    def __init__(self, api_socket: Path, target: str, timeout: float, shape: type[Line]) -> None:
        self._shape = shape
        self._parser = unixhttp.Parser()
        self._line = bytearray()
        self.ended = False
        self.clean = False  # the daemon closed the stream on purpose: the job is over
        self._connection: socket.socket = unixhttp.connect(api_socket, timeout)
        try:
            self._connection.sendall(unixhttp.request_bytes("GET", target, None))
        except OSError as error:
            self._connection.close()
            raise unixhttp.unreachable(api_socket, error) from error
        self._connection.setblocking(False)

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def read(self) -> Iterator[Line]:
        """What has arrived; sets `ended` when nothing more will come."""
        while not self.ended:
            try:
                data = self._connection.recv(unixhttp.READ)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.ended = not data
            self._line += self._parser.feed(data)
            if self._parser.complete:
                self.ended = self.clean = True
            if self._parser.status >= 400:
                self.ended = True
                return
            yield from self._whole_lines()

    def _whole_lines(self) -> Iterator[Line]:
        *lines, rest = self._line.split(b"\n")
        self._line = bytearray(rest)
        for line in lines:
            if line.strip():
                value = decode(bytes(line))
                api.check(value, self._shape)
                yield cast(Line, value)


def _placement_path(id: str) -> str:
    return f"/v1/placements/{quote(id, safe='', errors='backslashreplace')}"


def _job_path(name: str) -> str:
    if not name:
        raise UsageError("the name of a job is empty", hint="`gpushare ps` lists them")
    return f"/v1/jobs/{quote(name, safe='', errors='backslashreplace')}"


def decode(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise unixhttp.garbage(data) from None


def error_of(status: int, value: object) -> GpushareError:
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return unixhttp.garbage(json.dumps(value).encode())
    facts = [(str(fact[0]), str(fact[1])) for fact in error.get("facts") or () if len(fact) == 2]
    hint = error.get("hint")
    kind = ERRORS.get(status, GpushareError)
    return kind(
        error["message"],
        facts=facts,
        hint=hint if isinstance(hint, str) else None,
        code=str(error.get("code") or kind.code),
    )
