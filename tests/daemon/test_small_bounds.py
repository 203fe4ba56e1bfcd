"""Requests that cost little to make must cost little to answer or refuse; and the daemon's files have their modes."""

from __future__ import annotations

import os
import socket
import stat
import time
import urllib.request

import pytest
from daemon_harness import GIB, GPU, until

from gpushare._layout import lib
from gpushare.errors import GpushareError
from gpushare.quantity import Quantity
from gpushared.api.http_listener import NOBODY
from gpushared.core import budget_change
from gpushared.core.events import BudgetChanged, JobSubmitted
from gpushared.core.policy import MIB

JOB = {"name": "a", "command": ["a"], "request": "1Gi", "limit": "2Gi", "gpus": 1, "devices": ["0"]}


# ---- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["9" * 5000, "1" * 5000, "-1", "1.5", "x", "", "٣", "1000000001", "0" * 11])
def test_a_number_that_is_none_is_a_bad_request(daemon, last):
    from urllib.parse import quote

    status, said = daemon.http("GET", f"/v1/events?follow=1&last={quote(last)}")
    assert status == 400 and b"bad_request" in said and len(said) < 400


@pytest.mark.parametrize(
    "body", [b'{"priority": %s}' % (b"9" * 5000), b'{"grace": 1e999}', b'{"limit": "%sGi"}' % (b"9" * 64)]
)
def test_a_number_in_a_body_too(daemon, body):
    job = daemon.client.register(JOB)["id"]
    assert daemon.http("PATCH", f"/v1/jobs/{job}", body)[0] == 400
    assert daemon.shell.core_loop.errors == 0


@pytest.mark.parametrize("over", ["the socket", "TCP"])
def test_metrics_wait_until_their_reader_has_read_enough(make_daemon, over):
    """They are made in one piece: who asks for them again and again without reading must not have them all made."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    daemon = make_daemon(metrics_listen=f"127.0.0.1:{port}")
    waited = []

    async def room(uid, more=0):
        waited.append(uid)

    daemon.shell.limits.bytes.room = room
    if over == "TCP":
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"gpushare_build_info" in answer.read()
    else:
        assert daemon.http("GET", "/metrics")[0] == 200
    assert waited == [os.geteuid() if over == "the socket" else NOBODY]


# ---- failures ----------------------------------------------------------------------------------


def test_a_failure_that_comes_again_and_again_is_logged_once_in_a_while(daemon, monkeypatch, caplog):
    monkeypatch.setattr(daemon.daemon.api.views, "pressure", lambda: 1 // 0)
    for _ in range(20):
        assert daemon.http("GET", "/v1/pressure")[0] == 500
    assert daemon.http("GET", "/v1/explain")[0] == 500
    told = [one for one in caplog.records if one.getMessage() == "a request failed"]
    assert [one.facts["path"] for one in told] == ["/v1/pressure", "/v1/explain"], "one of each kind"
    assert all(one.exc_info for one in told)
    assert daemon.shell.core_loop.errors == 21
    daemon.shell.core_loop.errors = 0


# ---- a dry run ---------------------------------------------------------------------------------


def test_a_dry_run_shows_what_would_be_and_changes_nothing(daemon):
    job = daemon.client.register(JOB)["id"]
    before = daemon.client.job(job)
    state = daemon.shell.core.state
    requested = state.gpus[GPU].requested
    change = daemon.client.change(job, {"request": "3Gi", "limit": "5Gi", "priority": 7, "dry_run": True})
    assert (change["before"]["priority"], change["after"]["priority"]) == (0, 7)
    (was,), (would_be,) = change["before"]["gpus"], change["after"]["gpus"]
    assert (was["request"], was["limit"], would_be["request"], would_be["limit"]) == (GIB, 2 * GIB, 3 * GIB, 5 * GIB)
    after = daemon.client.job(job)
    assert after == before and state.gpus[GPU].requested == requested
    assert [one.event for one in state.jobs[job].story] == ["admitted"], "nothing has happened"
    with pytest.raises(GpushareError, match=r"no room|more than"):
        daemon.client.change(job, {"request": "15.9Gi", "limit": "max", "dry_run": True})
    assert daemon.client.job(job) == before


def test_a_dry_run_says_what_the_change_would_say(daemon):
    job = daemon.client.register(JOB)["id"]
    with daemon.connect() as shim:
        assert shim.hello(job, request=GIB, limit=2 * GIB).status == lib.GS_OK
        assert shim.attach(GPU).status == lib.GS_OK
        shim.allocate(GIB)
        state = daemon.shell.core.state
        until(lambda: state.usage(state.jobs[job], GPU) > GIB)
        dry = daemon.client.change(job, {"request": "512Mi", "limit": "600Mi", "dry_run": True})
        assert "above the new limit" in dry["note"]
        assert daemon.client.change(job, {"request": "512Mi", "limit": "600Mi"})["note"] == dry["note"]


def test_a_look_that_fails_leaves_the_state_as_it_was(daemon):
    job = daemon.client.register(JOB)["id"]

    def fail() -> None:
        raise ValueError

    def look() -> None:
        state = daemon.shell.core.state
        found = budget_change.find(state, BudgetChanged(job, limit=Quantity.parse("4Gi")))
        with pytest.raises(ValueError):
            budget_change.would(state, job, found, fail)
        assert state.jobs[job].bounds[GPU].limit == 2 * GIB

    daemon.call(look)


def test_a_dry_run_on_a_node_with_a_thousand_jobs(daemon):
    """It copied the whole state: seconds in which nobody else was served."""
    job = daemon.client.register(JOB)["id"]
    spec = daemon.shell.registry.get(job).spec

    def fill() -> None:

        small = spec._replace(request=Quantity.parse("1Mi"), limit=Quantity.parse("1Mi"))
        for number in range(1000):
            daemon.shell.core.handle(JobSubmitted(f"{number + 1:016x}", small), time.monotonic())

    daemon.call(fill)
    took = []
    for _ in range(5):
        started = time.monotonic()
        daemon.client.change(job, {"limit": "3Gi", "dry_run": True})
        took.append(time.monotonic() - started)
    print(f"a dry run with 1,000 jobs takes {min(took) * 1000:.1f} ms at least, {max(took) * 1000:.1f} at most")
    assert min(took) < 0.1


# ---- whoever starts it -------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o777, 0o000, 0o277])
def test_the_daemons_files_have_their_modes_whatever_the_umask(gpushared, umask):
    earlier = os.umask(umask)
    try:
        gpushared.start()
    finally:
        os.umask(earlier)
    job = gpushared.client.register(JOB | {"request": f"{MIB}", "limit": "1Gi"})["id"]
    until((gpushared.directory / "state.json").exists)
    for path in gpushared.directory.rglob("*"):
        if path.name == "test.log":
            continue
        mode = stat.S_IMODE(path.lstat().st_mode)
        kind = "directory" if path.is_dir() else "file"
        assert mode == (0o700 if path.is_dir() else 0o600), f"the {kind} {path.name} has {mode:04o}"
    gpushared.client.end(job, 0, None)


@pytest.mark.parametrize("umask", [0o777, 0o077, 0o000])
def test_the_directory_of_a_system_daemon_is_open_for_passing_through(tmp_path, umask):
    from gpushared.system.runtime_dir import RuntimeDir

    directory = tmp_path / "made"
    earlier = os.umask(umask)
    try:
        taken = RuntimeDir(directory, system=True)
        taken._make_system()
    finally:
        os.umask(earlier)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o711
    directory.chmod(0o710)
    taken._make_system()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o710, "an administrator's choice stays"


# ---- a process without the descriptor of its page ----------------------------------------------


def test_a_process_that_has_closed_its_descriptors_is_known_by_its_pid(daemon, program):
    job = daemon.client.register(JOB)["id"]
    one = program(daemon.shim)
    first = one.call("hello", job, request=GIB, limit=2 * GIB)
    assert one.call("attach", GPU)["status"] == lib.GS_OK
    one.call("reconnect", str(daemon.shim))
    again = one.call("hello", job, request=GIB, limit=2 * GIB, present=True, descriptor=False)
    assert again["status"] == lib.GS_OK and again["page_id"] == first["page_id"]
    assert one.call("ask", 2**20)["status"] == lib.GS_OK
    stranger = program(daemon.shim)
    stranger.call("hello", job, request=GIB, limit=2 * GIB)
    until(lambda: len(daemon.shell.clients) == 2)
    stranger.call("reconnect", str(daemon.shim))
    theirs = stranger.call(
        "hello", job, request=GIB, limit=2 * GIB, present=True, page=first["page_id"], descriptor=False
    )
    assert theirs["page_id"] != first["page_id"], "another process's page is not for the asking"
