"""`gpushare stop`, and the k of `gpushare top`: real programs, and the real daemon that signals them."""

from __future__ import annotations

import signal
import time

from gpushare.client import Client
from gpushare.message_catalog import messages_in
from gpushare.stop import ask_to_stop
from integration.node import GIB, Node, wait_for


def test_a_job_that_runs_gets_sigterm_and_one_that_queues_leaves(node: Node) -> None:
    train, serve = node.puppet("train", "--request", "10Gi"), node.puppet("serve", "--request", "2Gi")
    train.alloc(GIB)
    queued = node.run("--name", "late", "--request", "8Gi", "--wait", "true")
    wait_for(lambda: node.job("late").get("state") == "queued", "the queue")
    client = Client(node.runtime / "api.sock")

    assert ask_to_stop(client, node.job("late")["id"]) == "job late has left the queue"
    assert queued.wait(30) == 125
    assert queued.stderr is not None
    said = queued.stderr.read()
    assert [one.meaning.code for one in messages_in(said.splitlines())] == ["not_admitted"], said

    asked = ask_to_stop(client, node.job("train")["id"])
    assert asked.startswith("asked job train to stop: SIGTERM to ")
    assert train.wait() == 128 + signal.SIGTERM
    assert serve.alloc(GIB) > 0, "nobody else has noticed"
    assert serve.end() == 0


STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


def test_stop_by_name_waits_for_the_end(node: Node) -> None:
    train = node.puppet("train", "--request", "2Gi")
    other = node.puppet("other", "--request", "2Gi")
    done = node.gpushare("stop", "train")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"stopped job train ({node.job('train')['id']})\n"
    assert node.job("train")["state"] == "ended"
    assert train.wait() == 128 + signal.SIGTERM
    assert other.alloc(GIB) > 0
    done = node.gpushare("stop", "train")
    assert (done.returncode, done.stdout) == (5, "")
    assert "job train (" in done.stderr
    assert "has ended already" in done.stderr
    assert node.gpushare("stop", "nobody").returncode == 5
    assert other.end() == 0


def test_a_job_that_does_not_end_gets_sigkill_after_its_grace(node: Node) -> None:
    job = node.run("--name", "stubborn", "--grace", "1500ms", "sh", "-c", STUBBORN)
    assert job.stdout is not None and job.stdout.readline() == "ready\n"
    identity = node.job("stubborn")["id"]
    began = time.monotonic()
    done = node.gpushare("stop", identity[:6])
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert 1.5 <= took < 15
    assert done.stderr == "job stubborn did not end within 1.5 s: SIGKILL\n"
    assert done.stdout == f"stopped job stubborn ({identity})\n"
    assert job.wait(20) == 128 + signal.SIGKILL
    assert job.stderr is not None
    said = job.stderr.read()
    assert "stops this job with SIGKILL" in said
    assert "not by the daemon" not in said


def test_now_is_at_once_and_grace_is_said(node: Node) -> None:
    job = node.run("--name", "stubborn", "--grace", "1h", "sh", "-c", STUBBORN)
    assert job.stdout is not None and job.stdout.readline() == "ready\n"
    done = node.gpushare("stop", "--grace", "300ms", "stubborn")
    assert done.stderr == "job stubborn did not end within 300 ms: SIGKILL\n"
    assert job.wait(20) == 137
    job = node.run("--name", "again", "sh", "-c", STUBBORN)
    assert job.stdout is not None and job.stdout.readline() == "ready\n"
    began = time.monotonic()
    done = node.gpushare("stop", "--now", "again")
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < 8
    assert job.wait(20) == 137
    assert node.gpushare("stop", "--grace", "soon", "again").returncode == 2


def test_several_at_once_and_one_that_queues(node: Node) -> None:
    first = node.run("--name", "first", "--request", "10Gi", "sleep", "60")
    wait_for(lambda: node.job("first").get("state") == "running", "the job")
    second = node.run("--name", "second", "--request", "1Gi", "sleep", "60")
    wait_for(lambda: node.job("second").get("state") == "running", "the job")
    queued = node.run("--name", "late", "--request", "8Gi", "--wait", "true")
    wait_for(lambda: node.job("late").get("state") == "queued", "the queue")
    assert node.gpushare("stop", "first", "nobody").returncode == 5
    assert first.poll() is None, "a name that is not there is noticed before any job is stopped"
    done = node.gpushare("stop", "late", "first", "second")
    assert done.returncode == 0, done.stderr
    said = [line.split(" (")[0] + line.rpartition(")")[2] for line in done.stdout.splitlines()]
    assert said == ["job late has left the queue", "stopped job first", "stopped job second"]
    assert first.wait(20) == second.wait(20) == 128 + signal.SIGTERM
    assert first.stderr is not None
    assert first.stderr.read().endswith(" stops this job with SIGTERM (`gpushare stop`)\n")
    assert queued.wait(20) == 125
