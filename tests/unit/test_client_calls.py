"""What the client asks the daemon: each method's request, how long it waits, and what it makes of the answer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare import api
from gpushare import client as clients
from gpushare.client import Client
from gpushare.errors import DaemonUnreachable, NoSuchJob, Refused, UsageError

SOCKET = Path("/run/x/api.sock")
SENT = {"a": 1}


@pytest.fixture
def asked(monkeypatch):
    """`asked.answers`: of each request in turn, (status, value); the last one again and again."""
    one = SimpleNamespace(requests=[], answers=[(200, {})], shapes=[])

    def exchange(path, method, target, body, timeout):
        assert path == SOCKET
        one.requests.append((method, target, None if body is None else json.loads(body), timeout))
        status, value = one.answers.pop(0) if len(one.answers) > 1 else one.answers[0]
        return status, json.dumps(value).encode()

    monkeypatch.setattr(clients.unixhttp, "exchange", exchange)
    monkeypatch.setattr(clients.api, "check", lambda value, shape: one.shapes.append(shape))
    return one


LISTS = {name: [{name: 1}] for name in ("jobs", "records", "placements", "reservations", "gpus")} | {"url": "http://x"}


@pytest.mark.parametrize(
    ("call", "method", "target", "body", "shape", "part"),
    [
        (lambda c: c.version(), "GET", "/v1/version", None, api.Version, None),
        (lambda c: c.status(), "GET", "/v1/status", None, api.Status, None),
        (lambda c: c.jobs(), "GET", "/v1/jobs", None, api.Jobs, "jobs"),
        (lambda c: c.jobs(ended=True), "GET", "/v1/jobs?ended=1", None, api.Jobs, "jobs"),
        (lambda c: c.job("a b/c"), "GET", "/v1/jobs/a%20b%2Fc", None, api.Job, None),
        (lambda c: c.job("\ud800ä"), "GET", "/v1/jobs/%5Cud800%C3%A4", None, api.Job, None),
        (lambda c: c.register(SENT), "POST", "/v1/jobs", SENT, api.Job, None),
        (lambda c: c.set_main("j", 7), "PUT", "/v1/jobs/j/main", {"pid": 7}, api.Job, None),
        (lambda c: c.change("j", SENT), "PATCH", "/v1/jobs/j", SENT, api.Change, None),
        (lambda c: c.end("j", 3, None), "DELETE", "/v1/jobs/j", {"exit_code": 3, "signal": None}, api.Ended, None),
        (lambda c: c.end("j", None, 9), "DELETE", "/v1/jobs/j", {"exit_code": None, "signal": 9}, api.Ended, None),
        (lambda c: c.stop("j", now=True), "POST", "/v1/jobs/j/stop", {"now": True}, api.Stopped, None),
        (lambda c: c.story("j"), "GET", "/v1/jobs/j/story", None, api.Story, None),
        (lambda c: c.dashboard(), "GET", "/v1/dashboard", None, api.Dashboard, "url"),
        (lambda c: c.explain(), "GET", "/v1/explain", None, api.Explanation, None),
        (lambda c: c.records(), "GET", "/v1/events", None, api.Records, "records"),
        (lambda c: c.records(1.5), "GET", "/v1/events?since=1.500", None, api.Records, "records"),
        (lambda c: c.pressure(), "GET", "/v1/pressure", None, api.Pressure, "gpus"),
        (
            lambda c: c.history(1, 2, 3),
            "GET",
            "/v1/history?since=1.000&until=2.000&step=3.000",
            None,
            api.History,
            None,
        ),
        (
            lambda c: c.history(1, 2, 3, "j"),
            *("GET", "/v1/history?since=1.000&until=2.000&step=3.000&job=j", None, api.History, None),
        ),
        (lambda c: c.place("p/1", SENT), "PUT", "/v1/placements/p%2F1", SENT, api.Placement, None),
        (lambda c: c.placements(), "GET", "/v1/placements", None, api.Placements, "placements"),
        (lambda c: c.displace("p/1", 4), "DELETE", "/v1/placements/p%2F1?attempt=4", None, api.Placement, None),
        (lambda c: c.reserve(SENT), "POST", "/v1/reservations", SENT, api.Reservation, None),
        (lambda c: c.reservations(), "GET", "/v1/reservations", None, api.Reservations, "reservations"),
        (lambda c: c.release("a/b"), "DELETE", "/v1/reservations/a%2Fb", None, api.Reservation, None),
        (lambda c: c.suspend("j"), "POST", "/v1/jobs/j/suspend", {}, api.Suspending, None),
        (lambda c: c.resume("j"), "POST", "/v1/jobs/j/resume", {}, api.Suspending, None),
    ],
)
def test_each_method_is_one_request_whose_answer_is_checked(asked, call, method, target, body, shape, part):
    asked.answers = [(200, LISTS)]
    assert call(Client(SOCKET, 3.0)) == (LISTS if part is None else LISTS[part])
    assert asked.requests == [(method, target, body, 3.0)] and asked.shapes == [shape]


@pytest.mark.parametrize(
    ("call", "target", "body"),
    [
        (lambda c: c.checkpointed("j"), "/v1/jobs/j/checkpointed", {}),
        (lambda c: c.hook_answers("j", SENT), "/v1/jobs/j/hooks", SENT),
        (lambda c: c.suspender_answers("j", SENT), "/v1/jobs/j/suspender", SENT),
    ],
)
def test_what_is_only_told_has_no_answer_but_that_it_was_heard(asked, call, target, body):
    assert call(Client(SOCKET, 3.0)) is None
    assert asked.requests == [("POST", target, body, 3.0)] and asked.shapes == [dict]


@pytest.mark.parametrize(
    ("open_", "target", "shape"),
    [
        (lambda c: c.follow(20), "/v1/events?follow=1&last=20", api.Record),
        (lambda c: c.suspender("j"), "/v1/jobs/j/suspender", api.SuspendCommand),
        (lambda c: c.hooks("j"), "/v1/jobs/j/hooks", api.HookCommand),
        (lambda c: c.events("j"), "/v1/jobs/j/events", api.Notice),
    ],
)
def test_each_stream_has_its_place_and_its_lines(monkeypatch, open_, target, shape):
    monkeypatch.setattr(clients, "Events", lambda *given: given)
    assert open_(Client(SOCKET, 3.0)) == (SOCKET, target, 3.0, shape)


@pytest.mark.parametrize(("wait", "timeout"), [(None, 10.0), (0.0, 10.0), (5.0, 15.0), (float("inf"), None)])
def test_who_waits_in_the_queue_has_ten_seconds_more_for_the_answer(asked, wait, timeout):
    Client(SOCKET).register({}, wait)
    assert asked.requests[0][3] == timeout


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda c: c.job(""), "`gpushare ps` lists them"),
        (lambda c: c.release(""), "`gpushare reserve --list` lists them"),
    ],
)
def test_what_has_no_name_is_asked_of_nobody(asked, call, hint):
    with pytest.raises(UsageError, match="is empty") as caught:
        call(Client(SOCKET))
    assert caught.value.hint == hint and asked.requests == []


# ---- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "kind"), [(400, UsageError), (409, Refused), (503, DaemonUnreachable)])
def test_an_answer_that_is_an_error_is_raised_and_not_checked(asked, status, kind):
    asked.answers = [(status, {"error": {"message": "no", "code": "odd"}})]
    with pytest.raises(kind, match="no"):
        Client(SOCKET).status()
    assert asked.shapes == []


def test_a_stream_that_cannot_be_asked_for_is_closed(monkeypatch):
    closed = []

    def sendall(_data):
        raise BrokenPipeError(32, "Broken pipe")

    connection = SimpleNamespace(sendall=sendall, close=lambda: closed.append(True))
    monkeypatch.setattr(clients.unixhttp, "connect", lambda path, timeout: connection)
    with pytest.raises(DaemonUnreachable, match=r"cannot talk to the daemon at /run/x/api\.sock: Broken pipe"):
        Client(SOCKET).events("j")
    assert closed == [True]


# ---- a job by any name --------------------------------------------------------------------------------------------


def job(id: str, name: str, *pids: int):
    return {"id": id, "name": name, "processes": [{"pid": pid} for pid in pids]}


JOBS = {"jobs": [job("a1", "train", 7, 8), job("a2", "other"), job("a3", "serve", 9), job("a4", "twin", 9)]}
UNKNOWN = (404, {"error": {"message": "no job", "hint": "look at ps"}})


def test_a_job_that_the_daemon_knows_is_not_looked_for(asked):
    asked.answers = [(200, job("a1", "train"))]
    assert Client(SOCKET).find_job("train")["id"] == "a1" and len(asked.requests) == 1


@pytest.mark.parametrize("pid", [7, 8])
def test_a_process_is_of_the_job_that_has_it(asked, pid):
    asked.answers = [UNKNOWN, (200, JOBS)]
    assert Client(SOCKET).find_job(str(pid))["id"] == "a1"
    assert [target for _, target, _, _ in asked.requests] == [f"/v1/jobs/{pid}", "/v1/jobs?ended=1"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("servee", "did you mean serve?"), ("9", "look at ps"), ("77", "look at ps"), ("xyz", "look at ps")],
)
def test_where_no_job_is_meant_for_sure_the_nearest_is_told(asked, name, hint):
    asked.answers = [UNKNOWN, (200, JOBS)]
    with pytest.raises(NoSuchJob, match="no job") as caught:
        Client(SOCKET).find_job(name)
    assert caught.value.hint == hint
