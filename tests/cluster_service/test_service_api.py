"""The service as a process: its API, its end, its return after kill -9, and the command line that talks to it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from service_process import PATIENCE, Process, until
from service_stage import in_a_child

from gpushare.cli.cluster import command
from gpushare.cluster.client import ClusterClient, find, need
from gpushare.cluster.quantity import gpus
from gpushare.cluster.service.lock import serving
from gpushare.cluster.store import StoreError
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob, NotPermitted, Refused, UsageError


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    service = Process(tmp_path_factory.mktemp("service"))
    service.start()
    yield service
    if service.process is not None:
        service.end()


@pytest.fixture
def service(kept: Process):
    """With no job of an earlier test."""
    if kept.process is None:
        kept.start()
    for id in {job["array"] or job["id"] for job in kept.client.jobs()}:
        kept.client.cancel(id, now=True)
    until(lambda: not kept.client.jobs())
    return kept


def test_a_job_runs_and_its_story_is_told(service: Process) -> None:
    client = service.client
    seq = client.status()["seq"]
    stream = client.follow(seq)
    id = client.submit({"job": {"gpus": 2, "name": "train"}, "run": {"duration": 0.1, "exit": 4}})
    assert client.job("train")["id"] == id
    until(lambda: client.job(id)["state"] == "ended")
    job = client.job(id)
    assert job["result"] == {"how": "failed", "exit": 4, "text": ""} and job["run"] == {"duration": 0.1, "exit": 4}
    told = [one["event"] for one in client.events(seq, job=id)]
    assert told == ["start", "submitted", "running", "ended"]
    heard: list[str] = []
    until(lambda: heard.extend(one["event"] for one in stream.read() if one["job"] == id) or "ended" in heard)
    stream.close()
    assert heard == told
    assert id in [one["id"] for one in client.jobs(ended=True)] and not client.jobs()
    with pytest.raises(NoSuchJob):
        client.job("9999")


def test_a_job_that_ends_while_it_is_listed_is_in_the_list(service: Process) -> None:
    """The list comes in pieces, and the job is in the last one."""
    client, there = service.client, set()
    waiting = client.submit({"job": {"gpus": 1}, "array": 500, "hold": True})
    for _ in range(12):
        there.add(client.submit({"job": {"gpus": 1}, "run": {"duration": 0.01}}))
        for _ in range(2):
            found = [one["id"] for one in client.jobs(ended=True)]
            assert there <= set(found), there - set(found)
            assert len(found) == len(set(found)), "each once"
    client.cancel(waiting, now=True)
    until(lambda: not client.jobs())


def test_lists_come_whole_and_chosen(service: Process) -> None:
    client = service.client
    before = {one["id"] for one in client.jobs(ended=True)}
    id = client.submit({"job": {"queue": "lab", "gpus": 2}, "array": 250})
    jobs = client.jobs(queue="lab")
    assert [job["id"] for job in jobs] == [f"{id}_{index}" for index in range(250)]
    assert client.jobs(user="nobody-of-that-name") == []
    with pytest.raises(UsageError, match="no queue"):
        client.jobs(queue="lap")
    assert {one["queue"]["name"] for one in client.queues()["queues"]} >= {"lab"}
    assert [one["node"]["name"] for one in client.nodes()] == ["n1", "n2"]
    assert client.explain(f"{id}_9")["state"] == "pending"
    text = client.metrics()
    assert 'gpushare_cluster_jobs{queue="lab",state="waiting"} 248.0' in text
    assert 'gpushare_cluster_nodes{state="ready"} 2.0' in text and "gpushare_cluster_errors_total 0.0" in text
    client.cancel(id, now=True)
    until(lambda: not client.jobs())
    after = [one["id"] for one in client.jobs(ended=True)]
    assert sorted(after) == sorted({*before, *(f"{id}_{index}" for index in range(250))}), "each once, none left out"


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ({"job": {"queue": "lap"}}, UsageError, "no queue"),
        ({"jobs": {}}, UsageError, "unknown field 'jobs'"),
        ({"job": {"gpu": 2}}, UsageError, "unknown key 'gpu'"),
        ({"array": 0}, UsageError, "array"),
        ({"array": 10**9}, UsageError, "array"),
        ({"after": "1"}, UsageError, "after"),
        ({"after": ["none"]}, NoSuchJob, "none"),
        ({"hold": "yes"}, UsageError, "hold"),
        ({"run": []}, UsageError, "run"),
        ({"job": []}, UsageError, "job"),
        ({"run": {"duration": "long"}}, UsageError, "duration"),
        ({"run": {"env": "x" * 5 * 2**20}}, GpushareError, "larger than 4 MiB"),
        ({"job": {"gpus": 2, "tasks": 3, "wait": False}}, Refused, "no room"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(service: Process, body, error, words) -> None:
    with pytest.raises(error, match=words):
        service.client.submit(body)
    assert service.client.jobs() == []


def test_kill_nine_loses_nothing(service: Process) -> None:
    """The engine in memory goes with its process, so what ran is started again."""
    client = service.client
    first = client.submit({"job": {"gpus": 2}, "array": 3, "run": {"env": {"A": "1"}}})
    until(lambda: [job["state"] for job in client.jobs()].count("running") == 2)
    seq = client.status()["seq"]
    service.end(signal.SIGKILL)
    assert find(service.store, {}) is None
    with pytest.raises(DaemonUnreachable, match="does not answer"):
        client.version()
    service.start()
    assert [job["id"] for job in client.jobs()] == [f"{first}_{index}" for index in range(3)]
    assert client.job(f"{first}_0")["run"] == {"env": {"A": "1"}}
    until(lambda: [job["state"] for job in client.jobs()].count("running") == 2)
    assert client.status()["seq"] > seq, "notices are not numbered twice"


def test_it_stops_when_it_is_asked_to(service: Process) -> None:
    stream = service.client.follow(0)
    assert service.end() == 0
    until(lambda: list(stream.read()) is None or stream.ended)
    stream.close()
    assert not service.socket.exists()
    assert "stopped" in service.log.read_text().splitlines()[-1]


def test_one_service_has_a_file_and_commands_find_it(service: Process) -> None:
    assert serving(service.store) == service.socket
    found = find(service.store, {})
    assert found is not None and found.version()["engine"] == "memory"
    assert need(None, {"GPUSHARE_CLUSTER_SOCKET": str(service.socket)}).version()
    second = subprocess.run(service.words(), capture_output=True, text=True, timeout=PATIENCE)
    assert second.returncode == 1 and f"is in use by the service at {service.socket}" in second.stderr
    assert service.client.version(), "its socket is still there"


def test_the_command_line_talks_to_the_service(service: Process) -> None:
    def run(*words: str) -> str:
        done = CliRunner().invoke(command, [*words, "--store", str(service.store)])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    said = run("submit", "--queue", "lab", "--gpus", "2", "--name", "train")
    id = said.split()[1]
    assert said.startswith(f"submitted {id}\nstart") and "there is room" in said
    assert f"{id} train" in run("jobs") and "lab" in run("queues")
    assert f"job {id} of queue lab" in run("explain", id)
    assert "cordoned n2" in run("cordon", "n2")
    assert "cordoned" in run("nodes").splitlines()[-1]
    waiting = run("submit", "--queue", "lab", "--gpus", "2").split()[1]
    run("hold", waiting)
    assert "held" in run("jobs").splitlines()[-1]
    run("release", waiting)
    run("uncordon", "n2")
    until(lambda: service.client.job(waiting)["state"] == "running")
    assert "node n1 was lost" in run("plan", "--what-if", "lose: n1")
    assert "changed" in run("change", "queue: {name: lab, quota: 3}")
    assert service.client.queues()["queues"][0]["queue"]["quota"] == gpus(3)
    assert "cancelled" in run("cancel", id, waiting)
    until(lambda: not service.client.jobs())
    wrong = CliRunner().invoke(command, ["change", "lose: n1", "--store", str(service.store)])
    assert isinstance(wrong.exception, UsageError) and "come from the engine memory" in str(wrong.exception)
    ended = CliRunner().invoke(command, ["end", id, "--store", str(service.store)])
    assert isinstance(ended.exception, UsageError)


def test_a_file_that_a_service_has_is_written_by_nobody_else(service: Process, monkeypatch) -> None:
    monkeypatch.setattr("gpushare.cli.cluster_state.find", lambda store: None)
    done = CliRunner().invoke(command, ["cordon", "n1", "--store", str(service.store)])
    assert isinstance(done.exception, StoreError) and "a service writes to" in str(done.exception)


def test_one_user_does_not_have_all_its_connections(service: Process) -> None:
    """Root and the service's own user are not bound; that they are many harms nobody."""
    held = []
    for _ in range(200):
        one = socket.socket(socket.AF_UNIX)
        one.connect(str(service.socket))
        one.sendall(b"GET /v1/jobs HT")  # and no more
        held.append(one)
    assert service.client.status()["errors"] == 0
    for one in held:
        one.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root serves all users")
def test_only_root_serves_all_users(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpushared.cluster", "--system"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 4 and "--system" in done.stderr


NOBODY = 65534


def as_nobody(path: Path, root: str) -> None:
    """What another user is told, and what it may do."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    client = ClusterClient(path, PATIENCE)
    own = client.submit({})
    assert client.job(own)["uid"] == NOBODY and "run" in client.job(own)
    assert client.job(root)["uid"] == 0 and "run" not in client.job(root)
    forbidden = (
        lambda: client.cancel(root),
        lambda: client.hold(root),
        lambda: client.submit({"job": {"queue": client.job(root)["queue"]}}),
        lambda: client.cordon("n1"),
        lambda: client.change("[]"),
    )
    for action in forbidden:
        with pytest.raises(NotPermitted):
            action()
    assert client.cancel(own) == {"jobs": [own]}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root serves all users")
def test_another_user_changes_only_its_own_jobs(tmp_path: Path) -> None:
    service = Process(tmp_path)
    with tempfile.TemporaryDirectory() as reachable:
        Path(reachable).chmod(0o711)
        service.socket = Path(reachable, "api.sock")
        service.start("--system")
        try:
            root = service.client.submit({"run": {"env": {"SECRET": "1"}}})
            assert in_a_child(as_nobody, service.socket, root) == 0
            until(lambda: [job["uid"] for job in service.client.jobs()] == [0])
        finally:
            service.end()
