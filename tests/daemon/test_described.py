"""docs/openapi/node.json says what the daemon takes and answers: every call is made, no field is missing or more."""

from __future__ import annotations

import json
import os
import typing
from typing import Any

import pytest
from daemon_harness import GIB, GPU, GPU2, until
from test_admin_dashboard import address, free_port

from api_description import Described
from gpushare import api_bodies, unixhttp
from gpushare.client import Events
from gpushared.api import submit_routes

JOB = {"name": "train", "command": ["train.py"], "request": "4Gi", "limit": "14Gi", "on_reclaim": "trim,suspend,term"}
WRONG: dict[Any, object] = {str: 7, int: "x", float: "x", bool: "x", list[str]: "x"}


def first_line(daemon, target: str) -> Any:
    stream = Events(daemon.directory / "api.sock", target, 10.0, dict)
    lines: list[Any] = []
    until(lambda: lines.extend(stream.read()) or lines)
    stream.close()
    return lines[0]


def test_every_call_answers_as_described(make_daemon):
    daemon = make_daemon(dashboard_port=free_port())
    node = Described("node", daemon.directory / "api.sock")
    job = node.ask("POST", "/v1/jobs", {**JOB, "devices": [GPU]})["id"]
    path = f"/v1/jobs/{job}"
    shim = daemon.connect()
    shim.hello(job, request=4 * GIB, limit=14 * GIB)
    shim.attach(GPU)
    shim.allocate(6 * GIB)
    node.ask("PUT", f"{path}/main", {"pid": os.getpid()})
    node.ask("POST", f"{path}/checkpointed", {})
    node.ask("PATCH", path, {"limit": "15Gi"})
    assert node.ask("PATCH", path, {"limit": "none"}, fails=400)["code"]
    node.ask("POST", "/v1/reservations", {"name": "mine", "request": "1Gi"})
    assert address(daemon.client) == node.ask("GET", "/v1/dashboard")["url"]
    for target in ("version", "status", "explain", "pressure", "jobs", "reservations", "events", "events?since=0"):
        node.ask("GET", f"/v1/{target}")
    node.ask("GET", path)
    node.ask("GET", f"{path}/story")
    node.ask("GET", "/v1/history")
    assert "gpushare_build_info" in node.ask("GET", "/metrics")
    node.ask("DELETE", "/v1/reservations/mine")

    node.line("GET", "/v1/events", first_line(daemon, "/v1/events?follow=1"))
    node.line("GET", "/v1/history", first_line(daemon, "/v1/history?follow=1"))
    suspender = Events(daemon.directory / "api.sock", f"{path}/suspender", 10.0, dict)
    told: list[Any] = []
    until(lambda: told.extend(suspender.read()) or told)
    node.line("GET", "/v1/jobs/{job}/suspender", told[0])
    answer = {"number": told[0]["number"], "where": "running", "pid": os.getpid(), "milliseconds": 1}
    node.ask("POST", f"{path}/suspender", answer)
    shim.page.trim_ready = 1  # it can be asked to be quiet, and is not yet
    node.ask("POST", f"{path}/suspend", {})
    node.ask("POST", f"{path}/resume", {})
    suspender.close()

    runner = Events(daemon.directory / "api.sock", f"{path}/hooks", 10.0, dict)
    calls: list[Any] = []
    until(lambda: calls.extend(runner.read()) or calls)
    node.line("GET", "/v1/jobs/{job}/hooks", calls[0])
    node.ask("POST", f"{path}/hooks", {"number": calls[0]["number"], "milliseconds": 1})
    runner.close()

    placement = {"attempt": 1, "uid": os.getuid(), "gpus": [GPU2], "request": "2Gi"}
    node.ask("PUT", "/v1/placements/task-1", placement)
    node.ask("PUT", "/v1/placements/task-1", {**placement, "request": "3Gi"})
    node.ask("GET", "/v1/placements")
    node.ask("GET", "/v1/placements/task-1")
    node.ask("DELETE", "/v1/placements/task-1?attempt=1")

    daemon.call(lambda: daemon.shell.registry.get(job).notices.put("changed", "its limit is another", {"limit": 1}))
    node.line("GET", "/v1/jobs/{job}/events", first_line(daemon, f"{path}/events"))
    other = node.ask("POST", "/v1/jobs", JOB)["id"]
    node.ask("POST", f"/v1/jobs/{other}/stop", {})
    node.ask("DELETE", f"/v1/jobs/{other}", {"signal": 15})
    node.ask("GET", "/v1/jobs?ended=1")
    assert node.ask("GET", "/v1/jobs/nothing", fails=404)["code"] == "no_such_job"
    assert node.made == node.calls
    shim.close()


BODIES = [
    ("POST", "/v1/jobs", submit_routes.NEW_JOB),
    ("PATCH", "/v1/jobs/JOB", api_bodies.JobChange),
    ("PUT", "/v1/jobs/JOB/main", api_bodies.Main),
    ("POST", "/v1/jobs/JOB/stop", api_bodies.Stop),
    ("DELETE", "/v1/jobs/JOB", api_bodies.Exit),
    ("POST", "/v1/reservations", api_bodies.NewReservation),
    ("PUT", "/v1/placements/task", api_bodies.NewPlacement),
    ("POST", "/v1/jobs/JOB/suspender", api_bodies.SuspendAnswer),
    ("POST", "/v1/jobs/JOB/hooks", api_bodies.HookAnswer),
]


@pytest.mark.parametrize(("method", "path", "kind"), BODIES, ids=[f"{one[0]} {one[1]}" for one in BODIES])
def test_each_field_of_a_body_is_read_and_has_its_type(daemon, method, path, kind):
    job = daemon.client.register(JOB)["id"]
    fields = kind if isinstance(kind, dict) else typing.get_type_hints(kind)
    needed = {"attempt": 1, "uid": os.getuid(), "gpus": [GPU], "request": "1Gi"} if "placements" in path else {}
    needed |= {"number": 1, "where": "running"} if "suspender" in path else {}
    needed |= {"number": 1} if "hooks" in path else {}
    for name, expected in fields.items():
        body = json.dumps({**needed, name: WRONG[expected]}).encode()
        status, text = unixhttp.exchange(daemon.directory / "api.sock", method, path.replace("JOB", job), body, 10.0)
        assert status == 400, (name, text)
        error = json.loads(text)["error"]
        assert error["code"] != "unknown_field", f"{name} is described, and not read"
