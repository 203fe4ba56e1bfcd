"""The calls of suspenders, of runners of hooks, and of users who suspend: who may make them, and what they are told."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from daemon_harness import GIB, GPU, InProcess, until

from gpushare.errors import Refused
from gpushare.standstill import stands_still
from gpushared.api import follower_routes
from gpushared.core.events import THERE

JOB = {"name": "train", "command": ["x"], "request": "1Gi", "limit": "8Gi", "on_reclaim": "hook,suspend,term"}
CALLS = [
    ("GET", "hooks", None),
    ("POST", "hooks", {"number": 0}),
    ("GET", "suspender", None),
    ("POST", "suspender", {"number": 0, "where": "running"}),
    ("POST", "suspend", {}),
    ("POST", "resume", {}),
]


@pytest.fixture
def job(daemon: InProcess) -> str:
    return str(daemon.client.register(JOB)["id"])


def call(daemon: InProcess, method: str, job: str, what: str, body: object = None) -> tuple[int, str, str]:
    data = None if body is None else json.dumps(body).encode()
    status, text = daemon.http(method, f"/v1/jobs/{job}/{what}", data)
    error = json.loads(text).get("error", {})
    return status, error.get("code", ""), error.get("message", "")


@contextmanager
def following(daemon: InProcess, job: str, what: str) -> Iterator[list[Any]]:
    """As the job's follower. What it has been told, so far."""
    stream: Any = daemon.client.hooks(job) if what == "hooks" else daemon.client.suspender(job)
    told: list[Any] = []
    until(lambda: told.extend(stream.read()) or told)
    try:
        yield told
    finally:
        stream.close()


@pytest.mark.parametrize(("method", "what", "body"), CALLS)
def test_a_job_that_has_ended_has_no_followers(daemon: InProcess, job: str, method, what, body) -> None:
    daemon.client.end(job, 0, None)
    message = f"job train ({job}) has ended"
    assert call(daemon, method, job, what, body) == (404, "no_such_job", message)


@pytest.mark.parametrize("what", ["hooks", "suspender"])
def test_only_a_process_of_the_jobs_user_follows_it(daemon: InProcess, job: str, monkeypatch, what) -> None:
    message = "only a process of the job's user may do this for it"
    for owner in (lambda pid: os.geteuid() + 1, lambda pid: None):
        monkeypatch.setattr(follower_routes, "uid_of", owner)
        assert call(daemon, "GET", job, what) == (403, "not_permitted", message)
    monkeypatch.setattr(follower_routes, "uid_of", lambda pid: os.geteuid())
    monkeypatch.setattr(follower_routes.Process, "open", lambda pid: None)
    assert call(daemon, "GET", job, what) == (403, "not_permitted", message)
    monkeypatch.undo()
    record = daemon.shell.registry.get(job)
    record.spec = record.spec._replace(uid=12345)
    monkeypatch.setattr(follower_routes, "uid_of", lambda pid: 0)
    stream: Any = daemon.client.hooks(job) if what == "hooks" else daemon.client.suspender(job)
    until(lambda: list(stream.read()))  # root's processes may
    stream.close()


# ---- hooks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "number is missing"),
        ({"number": -1}, f"number is not a whole number from 0 to {2**53}"),
        ({"number": 2**53 + 1}, f"number is not a whole number from 0 to {2**53}"),
        ({"number": 1, "milliseconds": 2**40 + 1}, f"milliseconds is not a whole number from 0 to {2**40}"),
        ({"number": 1, "milliseconds": -1}, f"milliseconds is not a whole number from 0 to {2**40}"),
        ({"number": 1, "problem": "x" * 301}, "problem is not a text of at most 300 characters"),
        ({"number": 1, "wakes": "x"}, "wakes is neither true nor false"),
        ({"number": 1, "more": 1}, "the request has an unknown field 'more'"),
    ],
)
def test_what_a_runner_of_hooks_may_not_say(daemon: InProcess, job: str, body, message) -> None:
    status, code, words = call(daemon, "POST", job, "hooks", body)
    assert (status, words) == (400, message) and code in ("bad_request", "unknown_field")


def test_who_is_not_the_runner_is_not_believed(daemon: InProcess, job: str) -> None:
    message = "the caller does not call this job's hooks"
    assert call(daemon, "POST", job, "hooks", {"number": 0}) == (403, "not_permitted", message)
    assert not daemon.shell.core.jobs[job].hook_runner.connected


def test_what_a_runner_says_reaches_the_core(daemon: InProcess, job: str, caplog, monkeypatch) -> None:
    caplog.set_level(logging.INFO)
    fed: list[Any] = []
    feed = daemon.shell.core_loop.feed
    with following(daemon, job, "hooks") as told:
        assert told[0] == {"command": "report", "number": 0, "gpu": "", "bytes": 0, "within": 0.0}
        monkeypatch.setattr(daemon.shell.core_loop, "feed", lambda event: fed.append(event) or feed(event))
        most = {"number": 2**53, "problem": "p" * 300, "milliseconds": 2**40, "wakes": False}
        for body in ({"number": 0, "wakes": True}, most, {"number": 3, "milliseconds": 1500, "wakes": True}):
            assert call(daemon, "POST", job, "hooks", body)[0] == 200
        said = [one for one in fed if type(one).__name__ == "HookAnswered"]
        assert [(one.number, one.problem, one.seconds, one.wakes) for one in said] == [
            (0, "", 0.0, True),
            (2**53, "p" * 300, 2**40 / 1000, False),
            (3, "", 1.5, True),
        ]
        known = daemon.call(lambda: daemon.shell.outside.hook_runners.known(job))
        assert (known.number, known.problem, known.seconds, known.wakes) == (THERE, "", 0.0, True)
    ready = [one.facts for one in caplog.records if one.getMessage() == "a runner of hooks is ready"]
    assert ready == [{"job": job, "resume": True}], "once, when it comes"


# ---- suspending -------------------------------------------------------------------------------------


def test_the_log_has_where_a_suspender_found_its_job(daemon: InProcess, job: str, caplog) -> None:
    caplog.set_level(logging.INFO)
    with following(daemon, job, "suspender"):
        for problem in (None, "slow"):
            body = {"number": 0, "where": "running", "pid": os.getpid(), "problem": problem}
            assert call(daemon, "POST", job, "suspender", body)[0] == 200
        assert call(daemon, "POST", job, "suspender", body | {"number": 4})[0] == 200
    said = [one.facts for one in caplog.records if one.getMessage() == "a suspender is ready"]
    assert said == [{"job": job, "where": "running", "problem": text} for text in ("none", "slow")]


def test_who_is_not_the_suspender_is_not_believed(daemon: InProcess, job: str) -> None:
    body = {"number": 0, "where": "running", "pid": os.getpid()}
    message = "the caller is not this job's suspender"
    assert call(daemon, "POST", job, "suspender", body) == (403, "not_permitted", message)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("suspend", "this job cannot be suspended: it has no memory on a GPU"),
        ("resume", "this job is not suspended"),
    ],
)
def test_a_user_wants_what_cannot_be_done(daemon: InProcess, job: str, what, why) -> None:
    assert call(daemon, "POST", job, what, {"more": 1})[1] == "unknown_field"
    assert call(daemon, "POST", job, what, {}) == (409, "not_suspended", why)
    until(lambda: not daemon.shell.commits.pending)


def test_a_stopped_program_is_named_with_what_to_do(daemon: InProcess, job: str, program) -> None:
    one, other = program(daemon.shim), program(daemon.shim)
    for each in (one, other):
        each.call("hello", job, request=GIB, limit=8 * GIB)
        each.call("attach", GPU)
        each.call("answer_trims")
    with following(daemon, job, "suspender"):
        body = {"number": 0, "where": "running", "pid": os.getpid()}
        assert call(daemon, "POST", job, "suspender", body)[0] == 200
        subprocess.run(["kill", "-STOP", str(one.pid), str(other.pid)], check=True)
        until(lambda: stands_still(one.pid) and stands_still(other.pid))
        stopped = min(one.pid, other.pid)
        with pytest.raises(Refused) as refused:
            daemon.client.suspend(job)
        assert refused.value.code == "not_suspended"
        said = f"this job cannot be suspended: its process {stopped} stands still (Ctrl-Z, SIGSTOP, a debugger or"
        assert refused.value.message.startswith(said)
        hint = f"let it run first: fg, kill -CONT {stopped}, `docker unpause`, or leave the debugger"
        assert refused.value.hint == hint
        assert daemon.shell.core.jobs[job].suspension is None
        subprocess.run(["kill", "-CONT", str(one.pid), str(other.pid)], check=True)
        answer: dict[str, Any] = {}

        def suspended() -> bool:
            status, text = daemon.http("POST", f"/v1/jobs/{job}/suspend", b"{}")
            answer.update(json.loads(text))
            return status == 200

        until(suspended)
        assert answer["suspender"] is True and answer["job"]["state"] == "suspending" and answer["note"]
        subprocess.run(["kill", "-STOP", str(one.pid)], check=True)
        assert call(daemon, "POST", job, "suspend", {})[0] == 200, "it is on its way already"
        subprocess.run(["kill", "-CONT", str(one.pid)], check=True)
