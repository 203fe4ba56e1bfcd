"""Client of the service behind `gpushare cluster serve`: where it is, and what it may be asked.

It speaks as the node daemon does, so client.py's errors and streams serve here, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from gpushare import unixhttp
from gpushare.client import Events, decode, error_of
from gpushare.cluster.service.lock import serving
from gpushare.cluster.store import default_path
from gpushare.errors import DaemonUnreachable, UsageError

__all__ = ["ClusterClient", "find", "need"]

SYSTEM_SOCKET = Path("/run/gpushare-cluster/api.sock")
VARIABLE = "GPUSHARE_CLUSTER_SOCKET"
TIMEOUT = 10.0


class ClusterClient:
    """The service at one socket. Each method sends one request and returns the JSON that docs/service.md describes.

    Raises DaemonUnreachable if there is no answer within `timeout` seconds, and UsageError, Refused, NoSuchJob,
    NotPermitted or NotNoted with the service's reason. Amounts are bytes and micro-GPUs, times seconds since 1970.
    """

    def __init__(self, api_socket: Path, timeout: float = TIMEOUT) -> None:
        self.api_socket = api_socket
        self.timeout = timeout

    def submit(self, submission: Mapping[str, Any]) -> str:
        """The id of the job, or of the array."""
        return str(self.submitted(submission)["id"])

    def submitted(self, submission: Mapping[str, Any]) -> dict[str, Any]:
        """{"id", "jobs", "actions", "never"}: also what follows from it."""
        return self._call("POST", "/v1/jobs", submission)

    def jobs(self, *, ended: bool = False, queue: str | None = None, user: str | None = None) -> list[dict[str, Any]]:
        """Jobs that are not over; with `ended`, the latest of the others before them."""
        query = {"queue": queue, "user": user, "ended": "1" if ended else None}
        jobs: list[dict[str, Any]] = self._call("GET", _target("/v1/jobs", **query))["jobs"]
        return jobs

    def job(self, id: str) -> dict[str, Any]:
        """By id or, of those that are not over, by name."""
        return self._call("GET", _job(id))

    def history(self, since: float, until: float, step: float, queue: str | None = None) -> dict[str, Any]:
        """{"kept", "step", "cut", "series"}: micro-GPUs of each queue over time (seconds since 1970)."""
        said = {"since": f"{since:.3f}", "until": f"{until:.3f}", "step": f"{step:.3f}"}
        return self._call("GET", _target("/v1/history", **said, queue=queue))

    def overview(self) -> dict[str, Any]:
        """The cluster at a glance, as service/overview.py says."""
        return self._call("GET", "/v1/overview")

    def cancel(self, id: str, *, now: bool = False) -> dict[str, Any]:
        """A job, or all of an array; `now`: without grace."""
        return self._call("DELETE", _target(_job(id), now="1" if now else None))

    def hold(self, id: str) -> dict[str, Any]:
        return self._call("POST", f"{_job(id)}/hold", {})

    def release(self, id: str) -> dict[str, Any]:
        return self._call("POST", f"{_job(id)}/release", {})

    def explain(self, id: str) -> dict[str, Any]:
        return self._call("GET", f"{_job(id)}/explain")

    def events(self, since: int = 0, job: str | None = None, *, begin: float = 0.0) -> list[dict[str, Any]]:
        """Those after this number, and not before that time, that the service still has."""
        target = _target("/v1/events", since=str(since), job=job, **{"from": f"{begin:.3f}"})
        events: list[dict[str, Any]] = self._call("GET", target)["events"]
        return events

    def follow(self, since: int = 0, job: str | None = None) -> Events[dict[str, Any]]:
        """The same, and those that come."""
        target = _target("/v1/events", since=str(since), job=job, follow="1")
        return Events(self.api_socket, target, self.timeout, dict)

    def queues(self) -> dict[str, Any]:
        return self._call("GET", "/v1/queues")

    def nodes(self) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = self._call("GET", "/v1/nodes")["nodes"]
        return nodes

    def cordon(self, node: str) -> dict[str, Any]:
        """Nothing starts there any more."""
        return self._call("POST", f"{_node(node)}/cordon", {})

    def drain(self, node: str) -> dict[str, Any]:
        """The same, and what runs there is stopped and waits again."""
        return self._call("POST", f"{_node(node)}/drain", {})

    def uncordon(self, node: str) -> dict[str, Any]:
        return self._call("POST", f"{_node(node)}/uncordon", {})

    def change(self, events: str) -> dict[str, Any]:
        """Changes of queues and priorities, as codec.encode_events() writes them."""
        return self._call("POST", "/v1/changes", {"events": json.loads(events)})

    def state(self) -> dict[str, Any]:
        """{"now", "policy", "state"}: what snapshot.restore() makes an allocator of."""
        return self._call("GET", "/v1/state")

    def status(self) -> dict[str, Any]:
        return self._call("GET", "/v1/status")

    def version(self) -> dict[str, Any]:
        return self._call("GET", "/v1/version")

    def metrics(self) -> str:
        """As Prometheus reads them."""
        status, received = self._exchange("GET", "/metrics", None)
        if status >= 400:
            raise error_of(status, decode(received))
        return received.decode()

    def _call(self, method: str, target: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        sent = None if body is None else json.dumps(body).encode()
        status, received = self._exchange(method, target, sent)
        value = decode(received)
        if status >= 400:
            raise error_of(status, value)
        if not isinstance(value, dict):
            raise unixhttp.garbage(received)
        return value

    def _exchange(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        try:
            return unixhttp.exchange(self.api_socket, method, target, body, self.timeout)
        except DaemonUnreachable as error:
            if error.code == "garbage":
                raise
            if error.code == "timed_out":
                raise DaemonUnreachable(
                    f"the cluster's service at {self.api_socket} has not answered for {self.timeout:g} s",
                    code=error.code,
                    hint="it runs, and is slow or stopped: try again; its log may say why",
                ) from None
            why = error.__cause__ or error.message
            raise DaemonUnreachable(
                f"the cluster's service at {self.api_socket} does not answer: {why}",
                code=error.code,
                hint="is it running? `systemctl status gpushare-cluster`, or start one: `gpushare cluster serve`",
            ) from None


def find(store: Path | None = None, environ: Mapping[str, str] | None = None) -> ClusterClient | None:
    """The service that runs here: the one that has this file, else the one that is named by the environment, the
    user's own, or the system's. None: there is none."""
    environ = os.environ if environ is None else environ
    if store is None:
        named = environ.get(VARIABLE, "").strip()
        if named:
            if not named.startswith("/"):
                raise UsageError(f"{VARIABLE}={named} is not an absolute path", code="bad_socket")
            return ClusterClient(Path(named))
    own = serving(store or default_path(environ))
    if own is not None:
        return ClusterClient(own)
    return ClusterClient(SYSTEM_SOCKET) if store is None and _listens(SYSTEM_SOCKET) else None


def _listens(path: Path) -> bool:
    """A service that was killed leaves its socket behind."""
    try:
        unixhttp.connect(path, TIMEOUT).close()
    except DaemonUnreachable:
        return False
    return True


def need(store: Path | None = None, environ: Mapping[str, str] | None = None) -> ClusterClient:
    """The same. DaemonUnreachable where there is none."""
    found = find(store, environ)
    if found is None:
        raise DaemonUnreachable(
            "no service runs jobs here",
            code="no_service",
            hint="start one: `gpushare cluster serve`, or name its socket with GPUSHARE_CLUSTER_SOCKET",
        )
    return found


def _job(id: str) -> str:
    if not id:
        raise UsageError("the name of a job is empty", hint="`gpushare queue` lists them")
    return f"/v1/jobs/{quote(id, safe='', errors='backslashreplace')}"


def _node(name: str) -> str:
    return f"/v1/nodes/{quote(name, safe='', errors='backslashreplace')}"


def _target(path: str, **query: str | None) -> str:
    said = {key: value for key, value in query.items() if value is not None}
    return f"{path}?{urlencode(said, errors='backslashreplace')}" if said else path
