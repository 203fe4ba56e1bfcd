"""`kubectl gpushare` on a server without claims: how pods use their GPUs is in the objects of their nodes."""

from __future__ import annotations

from typing import Any

import pytest
from annotated_cluster import AnnotatedCluster
from click.testing import CliRunner
from kube_cluster import GIB
from scheduler_stage import Scheduler

import gpushare.cli.kubectl as kubectl
from gpushare.cluster.engines.seam import Accepted
from gpushare.kubernetes.names import NODE_GPUS
from gpushare.kubernetes.publish import use_of


@pytest.fixture
def cluster(tmp_path):
    made = AnnotatedCluster(tmp_path)
    scheduler = Scheduler(made)
    try:
        for name, memory in (("train", "24Gi"), ("eval", "40Gi")):
            uid = made.submit(name, memory=memory, said={"limit": "60Gi"})
            assert scheduler.start(uid, "n1", 0, int(memory.removesuffix("Gi")) * GIB) == Accepted()
        made.tick()
        told(made, "train", 30 * GIB, 24 * GIB, 6 * GIB)
        told(made, "eval", 10 * GIB, 40 * GIB, 0)
        yield made
    finally:
        scheduler.close()
        made.close()


def told(cluster, name: str, usage: int, request: int, loan: int) -> None:
    """As the plugin of the node says it."""
    amounts = {"usage": usage, "loan": loan, "request": request, "limit": 60 * GIB}
    job: Any = {"gpus": [{"uuid": "GPU-n1-0", **amounts}], "state": "running"}
    (use,) = use_of(cluster.claim_of(name), "n1", job)
    one = {"pod": {"namespace": "team-a", "name": name, "uid": "x"}, **use}

    def change(node):
        node.setdefault("status", {}).setdefault("uses", []).append(one)

    cluster.api.change(f"{NODE_GPUS}/n1", change)


def shown(cluster, *words: str) -> str:
    with CliRunner().isolation() as (out, err, *_):
        kubectl.main([*words, "--kubeconfig", str(cluster.api.kubeconfig)])
    return out.getvalue().decode() + err.getvalue().decode()


def test_who_borrows_and_whose_request_is_idle(cluster):
    text = shown(cluster, "borrowers")
    (row,) = [line for line in text.splitlines() if line.startswith("n1")]
    assert row.split()[:3] == ["n1", "0", "team-a/train"] and "team-a/eval 30.0 GiB" in row, text
    assert shown(cluster, "borrowers", "-n", "team-a").splitlines()[1].startswith("n1")
    assert "no claim says" in shown(cluster, "borrowers", "-n", "others")


def test_how_a_pod_runs(cluster):
    text = shown(cluster, "explain", "team-a/train")
    assert "uses   n1, gpu-n1-0: uses 30.0 GiB of 24.0 GiB requested; 6.0 GiB of that are on loan" in text, text
    cluster.api.remove(f"{NODE_GPUS}/n1")
    assert "pod team-a/train is running on n1" in shown(cluster, "explain", "team-a/train")
