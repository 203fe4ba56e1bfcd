"""docs/openapi/cluster.json says what the service answers: every call is made, and no field is missing or more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_process import Process, until

from api_description import Described
from gpushare.client import Events
from gpushare.cluster.codec import encode_events
from gpushare.cluster.model import Queue, QueueAdded


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Process]:
    one = Process(tmp_path)
    one.start()
    yield one
    if one.process is not None:
        one.end()


def first_line(service: Process, target: str) -> object:
    stream, lines = Events(service.socket, target, 10.0, dict), []
    until(lambda: lines.extend(stream.read()) or lines)
    stream.close()
    return lines[0]


def test_every_call_answers_as_described(service: Process) -> None:
    cluster = Described("cluster", service.socket)
    job = cluster.ask("POST", "/v1/jobs", {"job": {"queue": "lab"}, "array": 3, "run": {"duration": 600}})["jobs"][0]
    until(lambda: [one["state"] for one in service.client.jobs()] == ["running"] * 3)
    waits = cluster.ask("POST", "/v1/jobs", {"job": {"queue": "lab", "gpus": 4}, "run": {"duration": 600}})["id"]
    huge = cluster.ask("POST", "/v1/jobs", {"job": {"queue": "lab", "gpus": 2, "tasks": 9}, "hold": True})
    assert huge["id"] not in huge["never"] or huge["never"][huge["id"]]["code"]
    for target in ("version", "status", "health", "jobs", "queues", "nodes", "state", "overview", "history", "events"):
        cluster.ask("GET", f"/v1/{target}")
    for one in (job, waits):
        cluster.ask("GET", f"/v1/jobs/{one}")
        cluster.ask("GET", f"/v1/jobs/{one}/explain")
    cluster.ask("POST", f"/v1/jobs/{waits}/hold", {})
    cluster.ask("POST", f"/v1/jobs/{waits}/release", {})
    cluster.line("GET", "/v1/events", first_line(service, "/v1/events?follow=1"))
    cluster.line("GET", "/v1/history", first_line(service, "/v1/history?follow=1"))
    assert cluster.ask("DELETE", f"/v1/jobs/{job}?dry_run=1")["would"]
    cluster.ask("DELETE", f"/v1/jobs/{waits}?now=1")
    cluster.ask("GET", "/v1/jobs?ended=1&queue=lab")
    for what in ("cordon", "drain", "uncordon"):
        cluster.ask("POST", f"/v1/nodes/n1/{what}", {})
    events = json.loads(encode_events([QueueAdded(Queue("other"))]))
    cluster.ask("POST", "/v1/changes", {"events": events, "dry_run": True})
    cluster.ask("POST", "/v1/changes", {"events": events})
    assert "gpushare_cluster_jobs" in cluster.ask("GET", "/metrics")
    assert cluster.ask("GET", "/v1/jobs/99", fails=404)["code"] == "no_such_job"
    assert cluster.made == cluster.calls
