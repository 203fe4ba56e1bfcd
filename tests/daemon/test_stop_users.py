"""Who may stop a job, and what is signalled."""

from __future__ import annotations

import functools
import json
import signal
import subprocess

import pytest
from daemon_harness import GIB
from other_user import ALICE, BOB, as_user, needs_root

from gpushare._layout import lib
from gpushare.client import Client
from gpushare.errors import NoSuchJob
from gpushared.core.rules import Who
from gpushared.limits.identities import Identities

JOB = {"name": "train", "command": ["train.py"], "request": "1Gi", "limit": "2Gi", "gpus": 1}


@pytest.fixture
def job(make_daemon, monkeypatch):
    """A job of root whose program sleeps; Bob administers: the daemon, the program, the job's id."""
    groups = {BOB: frozenset({"gpu-admins"})}
    look_up = lambda uid: Who(uid, f"user{uid}", groups.get(uid, frozenset()))  # noqa: E731
    monkeypatch.setattr("gpushared.daemon.Identities", functools.partial(Identities, look_up=look_up))
    daemon = make_daemon(system=True, admin_group="gpu-admins")
    program = subprocess.Popen(["sleep", "60"])
    identity = daemon.client.register(JOB)["id"]
    daemon.client.set_main(identity, program.pid)
    yield daemon, program, identity
    program.kill()
    program.wait()


def test_the_program_gets_sigterm_or_sigkill(job):
    daemon, program, identity = job
    stopped = daemon.client.stop(identity, now=False)
    assert stopped["processes"] == 1
    assert stopped["job"]["id"] == identity
    assert program.wait(10) == -signal.SIGTERM
    assert daemon.client.stop(identity, now=True)["processes"] == 0, "it has gone, and nobody has its number"
    daemon.client.end(identity, None, 15)
    with pytest.raises(NoSuchJob, match="has ended"):
        daemon.client.stop(identity, now=False)


def test_a_program_that_starts_just_then_is_signalled_too(make_daemon):
    """The wrapper registers the job first, and names its program a moment later."""
    daemon = make_daemon()
    identity = daemon.client.register(JOB)["id"]
    assert daemon.client.stop(identity, now=False)["processes"] == 0
    program = subprocess.Popen(["sleep", "60"])
    daemon.client.set_main(identity, program.pid)
    assert program.wait(10) == -signal.SIGTERM


def test_a_process_of_another_user_is_left_alone(job, monkeypatch):
    """As one that has become root's: the daemon could end it, and the job's user could not."""
    daemon, program, identity = job
    monkeypatch.setattr("gpushared.system.processes.may_signal", lambda uid, users: False)
    stopped = daemon.client.stop(identity, now=True)
    assert (stopped["processes"], stopped["spared"]) == (0, 1)
    assert program.poll() is None


def test_now(job):
    daemon, program, identity = job
    assert daemon.client.stop(identity, now=True)["processes"] == 1
    assert program.wait(10) == -signal.SIGKILL
    (notice,) = daemon.call(lambda: list(daemon.shell.registry.get(identity).notices))
    assert notice["kind"] == "stopped"
    assert notice["text"] == "root stops this job with SIGKILL (`gpushare stop`)"


def test_processes_with_pages_are_signalled_and_none_twice(make_daemon, program):
    daemon = make_daemon()
    identity = daemon.client.register(JOB)["id"]
    main, worker, other = (program(daemon.shim) for _ in range(3))
    daemon.client.set_main(identity, main.pid)
    for one in (main, worker):
        assert one.call("hello", identity)["status"] == lib.GS_OK
    assert other.call("hello", request=GIB, limit=GIB)["status"] == lib.GS_OK
    assert daemon.client.stop(identity, now=False)["processes"] == 2
    assert main.process.wait(10) == worker.process.wait(10) == -signal.SIGTERM
    assert other.process.poll() is None


@needs_root
def test_only_its_user_and_administrators_may(job):
    daemon, program, identity = job
    client = Client(daemon.directory / "api.sock")
    refused = as_user(ALICE, lambda: client.stop(identity, now=True)["processes"])
    assert refused[0] == "not_permitted"
    assert program.poll() is None
    assert as_user(BOB, lambda: client.stop(identity, now=False)["processes"]) == 1
    assert program.wait(10) == -signal.SIGTERM


def test_what_a_request_may_say(job):
    daemon, program, identity = job
    for body in (b'{"now": 1}', b'{"soon": true}', b"[]"):
        status, answer = daemon.http("POST", f"/v1/jobs/{identity}/stop", body)
        assert status == 400, answer
    assert program.poll() is None
    status, answer = daemon.http("POST", f"/v1/jobs/{identity}/stop")
    assert (status, json.loads(answer)["processes"]) == (200, 1)
