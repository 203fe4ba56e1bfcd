"""What an eviction leaves behind where the pod is gone before anything can be written on it."""

from __future__ import annotations

import pytest
from kube_cluster import PODS, Program
from scheduler_stage import GIB

from gpushare.cluster.engines.seam import Accepted, Refused
from gpushare.cluster.model import Place


@pytest.mark.parametrize(("left_already", "counted"), [(False, 1), (True, 0)])
def test_an_eviction_counts_unless_the_pod_was_leaving_anyhow(cluster, scheduler, left_already, counted):
    """The next pod of its owner has the seat, and what was counted of it."""
    uid = cluster.submit("train", Program(stubborn=True))
    scheduler.start(uid)
    cluster.tick()
    if left_already:
        cluster.api.handle("DELETE", f"{PODS}/train", {}, {})
    scheduler.settle()
    scheduler.engine.snapshot()
    cluster.api.refuses = lambda method, path, _: (
        (404, {"message": "pods not found"}) if (method, path) == ("PATCH", f"{PODS}/train") else None
    )
    assert scheduler.evict(uid, 5.0) == Accepted()
    cluster.api.refuses = lambda *_: None
    for _ in range(60):
        if cluster.pod("train") is None and cluster.pods_of("train"):
            break
        cluster.tick()
    seen = scheduler.job(uid)
    assert seen is not None and seen.job.name.startswith("team-a/train-")
    assert seen.evictions == counted


@pytest.mark.parametrize(
    ("node", "gpus"), [("n3", (0,)), ("n1", (2,)), ("n1", (0, 7)), ("n2", (0,))], ids=["node", "gpu", "second", "lost"]
)
def test_a_start_where_no_such_gpu_is_is_refused_and_names_the_node(cluster, scheduler, node, gpus):
    """The ledger may be a moment behind the cluster."""
    uid = cluster.submit("train", count=len(gpus))
    scheduler.settle()
    scheduler.engine.snapshot()
    cluster.lose("n2")
    answer = scheduler.start(uid, places=(Place(0, 0, node, gpus, 8 * GIB, 0),))
    assert isinstance(answer, Refused) and answer.node == node
    assert f"no GPU {gpus} on {node}" in answer.why
    assert "nodeName" not in cluster.pod("train")["spec"]
    assert scheduler.start(uid) == Accepted()
