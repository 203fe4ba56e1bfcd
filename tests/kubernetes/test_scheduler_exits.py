"""How a pod has ended: the worst of its containers, and of pods that share a claim the one that counts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gpushare.cluster.engines.kubernetes.board import _together, exit_of
from gpushare.cluster.engines.seam import SeenTask


def pod(*ended: dict[str, Any] | None) -> dict[str, Any]:
    states = [{"running": {}} if one is None else {"terminated": one} for one in ended]
    return {"status": {"containerStatuses": [{"state": state} for state in states]}}


@pytest.mark.parametrize(
    ("found", "status"),
    [
        ({}, None),
        ({"status": None}, None),
        ({"status": {"containerStatuses": None}}, None),
        ({"status": {"containerStatuses": [{}, {"state": None}]}}, None),
        (pod(None), None),
        (pod({"exitCode": 0}), 0),
        (pod({"reason": "Completed"}), 0),
        (pod({"exitCode": 0, "signal": 0}), 0),
        (pod({"exitCode": 3}), 3),
        (pod({"exitCode": 137, "signal": 9}), -9),
        (pod({"exitCode": 0}, {"exitCode": 1}, None), 1),
        (pod({"exitCode": 2}, {"exitCode": 0}), 2),
        (pod({"exitCode": 1}, {"exitCode": 143, "signal": 15}), -15),
        (pod({"exitCode": 20}, {"exitCode": 143, "signal": 15}), 20),
    ],
)
def test_the_exit_of_a_pod_is_the_worst_of_its_containers(found: dict[str, Any], status: int | None) -> None:
    assert exit_of(found) == status


def task(phase: str, exit: int | None = None, number: int = 0, attempt: int = 1) -> SeenTask:
    return SeenTask(attempt, 0, number, "n1", (0,), 1, phase, exit=exit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("some", "counts"),
    [
        ([task("done", 0), task("running")], task("running")),
        ([task("running"), task("starting")], task("running")),
        ([task("starting"), task("stopping")], task("starting")),
        ([task("stopping"), task("failed")], task("stopping")),
        ([task("failed"), task("done", 1)], task("failed")),
        ([task("done", 0), task("done", 3)], task("done", 3)),
        ([task("done", -9), task("done", 3)], task("done", -9)),
        ([task("done", None), task("done", 1)], task("done", 1)),
        ([task("done", 0), task("done", None)], None),
    ],
)
def test_pods_that_share_a_claim_run_while_one_does_and_end_as_the_worst(
    some: list[SeenTask], counts: SeenTask | None
) -> None:
    for order in itertools.permutations(some):
        (one,) = _together(order)
        assert one == (counts if counts is not None else order[0])


def test_other_tasks_and_other_attempts_are_others() -> None:
    some = [task("running"), task("running", number=1), task("done", 0, attempt=2)]
    assert list(_together(some)) == some
