"""From a pod that waits to a claim that its node has prepared: engine, plugin and node daemon are the real ones."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from claims import NODE
from cluster_double import ClusterDouble
from kube_cluster import CLAIMS, CLASSES, NAMESPACE, PODS, SLICES
from kube_stage import missing, node_in, until
from scheduler_stage import GIB, Scheduler

from gpushare.cluster.engines.seam import Accepted

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


class Cluster:
    """What Scheduler needs of one, around one real node."""

    def __init__(self, api: ClusterDouble) -> None:
        self.api = api
        self.now = 0.0
        self.settings: dict[str, str] = {}


@pytest.fixture
def node():
    with tempfile.TemporaryDirectory(prefix="gs-k-") as folder:
        Path(folder).chmod(0o755)
        with node_in(Path(folder), ClusterDouble) as made:
            ready = [{"type": "Ready", "status": "True"}]
            made.api.change(f"/api/v1/nodes/{NODE}", lambda one: one.update(spec={}, status={"conditions": ready}))
            selector = {"cel": {"expression": 'device.driver == "gpushare.dev"'}}
            one_class = {"metadata": {"name": "gpushare.dev"}, "spec": {"selectors": [selector]}}
            made.api.put(f"{CLASSES}/gpushare.dev", one_class)
            made.start_daemon()
            made.start_plugin()
            until(lambda: f"{SLICES}/{NODE}-gpushare.dev" in made.api.objects, "the plugin to tell of its GPUs")
            yield made


def submit(node, name: str, memory: str, limit: str) -> str:
    """As Kubernetes has a pod whose claim it has made. Its uid."""
    parameters = {"apiVersion": "gpushare.dev/v1", "kind": "Budget", "limit": limit}
    exactly = {"deviceClassName": "gpushare.dev", "capacity": {"requests": {"memory": memory}}}
    devices = {
        "requests": [{"name": "gpu", "exactly": exactly}],
        "config": [{"requests": ["gpu"], "opaque": {"driver": "gpushare.dev", "parameters": parameters}}],
    }
    claim = {"metadata": {"name": f"{name}-gpu", "namespace": NAMESPACE}, "spec": {"devices": devices}}
    node.api.put(f"{CLAIMS}/{name}-gpu", claim)
    pod = {
        "metadata": {"name": name, "namespace": NAMESPACE, "creationTimestamp": "2026-11-23T12:00:00Z"},
        "spec": {"schedulerName": "gpushare", "resourceClaims": [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]},
        "status": {"phase": "Pending"},
    }
    node.api.put(f"{PODS}/{name}", pod)
    return str(node.api.objects[f"{PODS}/{name}"]["metadata"]["uid"])


def prepare(node, name: str) -> str:
    """As the kubelet does once the pod is bound. What is wrong; "": nothing."""
    claim = node.api.objects[f"{CLAIMS}/{name}-gpu"]
    uid = claim["metadata"]["uid"]
    node.pod(claim["status"]["reservedFor"][0]["uid"])
    return str(node.kubelet.claims("NodePrepareResources", [(uid, f"{name}-gpu")])[uid].error)


def test_a_pod_that_waits_is_started_and_its_node_prepares_the_claim(node):
    first, second = submit(node, "train", "1Gi", "3Gi"), submit(node, "serve", "2Gi", "2Gi")
    scheduler = Scheduler(Cluster(node.api))
    try:
        (kept,) = scheduler.engine.snapshot().nodes
        assert kept.node.uuids == tuple(node.uuids) and kept.node.gpus == 2 and kept.state == "ready"
        assert scheduler.start(first, NODE, 1, GIB) == Accepted()
        assert scheduler.start(second, NODE, 1, 2 * GIB) == Accepted()
        assert node.api.objects[f"{PODS}/train"]["spec"]["nodeName"] == NODE
        assert prepare(node, "train") == prepare(node, "serve") == ""
    finally:
        scheduler.close()
    placed = {one["job"]["name"]: one["job"] for one in node.placed()}
    budgets = {
        name: [(gpu["uuid"], gpu["request"], gpu["limit"]) for gpu in job["gpus"]] for name, job in placed.items()
    }
    assert budgets == {
        "team-a/train-gpu": [(node.uuids[1], GIB, 3 * GIB)],
        "team-a/serve-gpu": [(node.uuids[1], 2 * GIB, 2 * GIB)],
    }
