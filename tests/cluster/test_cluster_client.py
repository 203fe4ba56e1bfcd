"""The client of the cluster's service: what it sends, what it makes of answers, and where it looks for the service."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from gpushare import unixhttp
from gpushare.cluster import client as of_cluster
from gpushare.cluster.client import ClusterClient, find, need
from gpushare.errors import DaemonUnreachable, NoSuchJob, UsageError

SOCKET = Path("/x/api.sock")


class Service:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answer: Any = {}
        self.status = 200

    def exchange(self, path: Path, method: str, target: str, body: bytes | None, timeout: float) -> tuple[int, bytes]:
        assert (path, timeout) == (SOCKET, 3.0)
        self.asked.append((method, target, None if body is None else json.loads(body)))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.status, self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()


@pytest.fixture
def service(monkeypatch):
    one = Service()
    monkeypatch.setattr(unixhttp, "exchange", one.exchange)
    return one


CLIENT = ClusterClient(SOCKET, 3.0)


@pytest.mark.parametrize(
    ("call", "method", "target", "body"),
    [
        (lambda one: one.submitted({"job": {}}), "POST", "/v1/jobs", {"job": {}}),
        (lambda one: one.job("17"), "GET", "/v1/jobs/17", None),
        (lambda one: one.job("a/b c"), "GET", "/v1/jobs/a%2Fb%20c", None),
        (lambda one: one.overview(), "GET", "/v1/overview", None),
        (lambda one: one.cancel("17"), "DELETE", "/v1/jobs/17", None),
        (lambda one: one.cancel("17", now=True), "DELETE", "/v1/jobs/17?now=1", None),
        (lambda one: one.hold("17"), "POST", "/v1/jobs/17/hold", {}),
        (lambda one: one.release("17"), "POST", "/v1/jobs/17/release", {}),
        (lambda one: one.explain("17"), "GET", "/v1/jobs/17/explain", None),
        (lambda one: one.queues(), "GET", "/v1/queues", None),
        (lambda one: one.cordon("n/1"), "POST", "/v1/nodes/n%2F1/cordon", {}),
        (lambda one: one.drain("n"), "POST", "/v1/nodes/n/drain", {}),
        (lambda one: one.uncordon("n"), "POST", "/v1/nodes/n/uncordon", {}),
        (lambda one: one.change("[1]"), "POST", "/v1/changes", {"events": [1]}),
        (lambda one: one.state(), "GET", "/v1/state", None),
        (lambda one: one.status(), "GET", "/v1/status", None),
        (lambda one: one.version(), "GET", "/v1/version", None),
        (lambda one: one.history(1.0, 2.5, 0.1), "GET", "/v1/history?since=1.000&until=2.500&step=0.100", None),
        (
            lambda one: one.history(1.0, 2.0, 3.0, "a&b"),
            "GET",
            "/v1/history?since=1.000&until=2.000&step=3.000&queue=a%26b",
            None,
        ),
    ],
)
def test_what_is_asked_and_answered(service, call, method, target, body):
    service.answer = {"some": "thing"}
    assert call(CLIENT) == {"some": "thing"}
    assert service.asked == [(method, target, body)]


@pytest.mark.parametrize(
    ("call", "key", "target"),
    [
        (lambda one: one.jobs(), "jobs", "/v1/jobs"),
        (lambda one: one.jobs(ended=True), "jobs", "/v1/jobs?ended=1"),
        (lambda one: one.jobs(queue="q", user="u"), "jobs", "/v1/jobs?queue=q&user=u"),
        (lambda one: one.nodes(), "nodes", "/v1/nodes"),
        (lambda one: one.events(), "events", "/v1/events?since=0&from=0.000"),
        (lambda one: one.events(7, "17", begin=1.5), "events", "/v1/events?since=7&job=17&from=1.500"),
    ],
)
def test_lists_are_taken_out_of_their_answers(service, call, key, target):
    service.answer = {key: [{"a": 1}]}
    assert call(CLIENT) == [{"a": 1}] and service.asked == [("GET", target, None)]


def test_the_id_of_what_was_submitted(service):
    service.answer = {"id": 17}
    assert CLIENT.submit({"job": {}}) == "17"


def test_metrics_are_text(service):
    service.answer = b"# HELP x\nx 1\n"
    assert CLIENT.metrics() == "# HELP x\nx 1\n" and service.asked == [("GET", "/metrics", None)]
    service.status, service.answer = (
        404,
        {"error": {"code": "no_such_path", "message": "no", "facts": [], "hint": None}},
    )
    with pytest.raises(Exception, match="no"):
        CLIENT.metrics()


def test_an_error_is_the_services(service):
    service.status = 404
    service.answer = {"error": {"code": "no_such_job", "message": "no job 17", "facts": [], "hint": "see"}}
    with pytest.raises(NoSuchJob, match="no job 17") as caught:
        CLIENT.job("17")
    assert caught.value.hint == "see"
    service.status, service.answer = 200, [1]
    with pytest.raises(DaemonUnreachable) as garbage:
        CLIENT.job("17")
    assert garbage.value.code == "garbage"


@pytest.mark.parametrize("name", ["", None])
def test_a_job_without_a_name_is_asked_of_nobody(service, name):
    with pytest.raises(UsageError, match="the name of a job is empty"):
        CLIENT.job(name or "")
    assert service.asked == []


@pytest.mark.parametrize(
    ("cause", "code", "words"),
    [
        (OSError(111, "Connection refused"), "no_daemon", "does not answer: [Errno 111] Connection refused"),
        (None, "hung_up", "does not answer: it hangs"),
    ],
)
def test_a_service_that_does_not_answer(service, cause, code, words):
    service.answer = DaemonUnreachable("it hangs", code=code)
    service.answer.__cause__ = cause
    with pytest.raises(DaemonUnreachable) as caught:
        CLIENT.status()
    assert caught.value.message == f"the cluster's service at {SOCKET} {words}" and caught.value.code == code
    assert "gpushare cluster serve" in (caught.value.hint or "")


def test_nobody_is_told_to_start_a_service_that_runs_and_is_slow(service):
    service.answer = DaemonUnreachable("it hangs", code="timed_out")
    with pytest.raises(DaemonUnreachable) as caught:
        CLIENT.status()
    assert caught.value.message == f"the cluster's service at {SOCKET} has not answered for 3 s"
    assert (caught.value.code, caught.value.hint) == (
        "timed_out",
        "it runs, and is slow or stopped: try again; its log may say why",
    )


def test_what_is_no_service_is_told_as_it_is(service):
    service.answer = unixhttp.garbage(b"SSH")
    with pytest.raises(DaemonUnreachable) as caught:
        CLIENT.status()
    assert caught.value is service.answer


def test_events_are_followed(monkeypatch):
    made: list[Any] = []
    monkeypatch.setattr(of_cluster, "Events", lambda *given: made.append(given) or "stream")
    assert CLIENT.follow() == "stream" and CLIENT.follow(7, "17") == "stream"
    assert made == [
        (SOCKET, "/v1/events?since=0&follow=1", 3.0, dict),
        (SOCKET, "/v1/events?since=7&job=17&follow=1", 3.0, dict),
    ]


# ---- where it is --------------------------------------------------------------------------------------


@pytest.fixture
def places(monkeypatch):
    """Services that run: by their files, and whether the system's listens."""
    of_files: dict[Path, Path] = {}
    listening: list[bool] = []
    monkeypatch.setattr(of_cluster, "serving", of_files.get)
    monkeypatch.setattr(of_cluster, "default_path", lambda environ: Path(environ.get("HOME", "/none")) / "cluster.db")
    monkeypatch.setattr(of_cluster, "_listens", lambda path: bool(listening) and path == of_cluster.SYSTEM_SOCKET)
    return of_files, listening


def at(store: Path | None = None, **environ: str) -> Path | None:
    found = find(store, environ)
    return None if found is None else found.api_socket


def test_a_file_that_is_named_comes_first_then_the_variable_then_ones_own_then_the_systems(places):
    of_files, listening = places
    mine, other = Path("/h/cluster.db"), Path("/o.db")
    assert at(HOME="/h") is None
    listening.append(True)
    assert at(HOME="/h") == of_cluster.SYSTEM_SOCKET
    assert at(other, HOME="/h") is None, "of that file alone"
    of_files |= {mine: Path("/h/sock"), other: Path("/o/sock")}
    assert at(HOME="/h") == Path("/h/sock")
    named = {of_cluster.VARIABLE: " /n/sock "}
    assert at(HOME="/h", **named) == Path("/n/sock")
    assert at(other, HOME="/h", **named) == Path("/o/sock")
    assert at(HOME="/h", **{of_cluster.VARIABLE: " "}) == Path("/h/sock")
    assert need(other, {}).api_socket == Path("/o/sock") and need(other, {}).timeout == of_cluster.TIMEOUT


def test_a_socket_that_is_no_absolute_path(places):
    with pytest.raises(UsageError, match="GPUSHARE_CLUSTER_SOCKET=x/sock is not an absolute path") as caught:
        at(**{of_cluster.VARIABLE: "x/sock"})
    assert caught.value.code == "bad_socket"


def test_where_there_is_none(places):
    with pytest.raises(DaemonUnreachable, match="no service runs jobs here") as caught:
        need(None, {})
    assert caught.value.code == "no_service" and "gpushare cluster serve" in (caught.value.hint or "")


def test_a_socket_that_was_left_behind_is_no_service(tmp_path):
    path = tmp_path / "s"
    assert not of_cluster._listens(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)
        assert of_cluster._listens(path)
    assert not of_cluster._listens(path)
