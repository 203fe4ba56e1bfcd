"""Asking a job to stop, as `gpushare top` does: real programs, and the real daemon's word for which they are."""

from __future__ import annotations

import signal

from gpushare.client import Client
from gpushare.meaning import messages_in
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
    assert asked.startswith("asked job train to stop: SIGTERM to 1 process,")
    assert train.wait() == 128 + signal.SIGTERM
    assert serve.alloc(GIB) > 0, "nobody else has noticed"
    assert serve.end() == 0
