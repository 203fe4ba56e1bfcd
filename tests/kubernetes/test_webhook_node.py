"""From an annotated pod to a program that is refused: webhook, scheduler, plugin and node daemon are the real ones."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from claims import NODE
from cluster_double import ClusterDouble
from enforced_stage import Program, enforced_node
from kube_cluster import CLAIMS, CLASSES, NAMESPACE, PODS, SLICES
from kube_stage import KubeNode, missing, node_in, until
from scheduler_stage import GIB, Scheduler
from webhook_cases import pod, variable
from webhook_stage import TEMPLATES, Webhook, deploy, webhook_at

from gpushare.cluster.engines.seam import Accepted

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
MIB = 2**20


class Cluster:
    """What Scheduler needs of one, around one real node."""

    def __init__(self, api: ClusterDouble) -> None:
        self.api = api
        self.now = 0.0
        self.settings: dict[str, str] = {}


def begun(node: KubeNode) -> None:
    ready = [{"type": "Ready", "status": "True"}]
    node.api.change(f"/api/v1/nodes/{NODE}", lambda one: one.update(spec={}, status={"conditions": ready}))
    selector = {"cel": {"expression": 'device.driver == "gpushare.dev"'}}
    one_class = {"metadata": {"name": "gpushare.dev"}, "spec": {"selectors": [selector]}}
    node.api.put(f"{CLASSES}/gpushare.dev", one_class)
    deploy(node.api)
    node.start_daemon()
    node.start_plugin()
    until(lambda: f"{SLICES}/{NODE}-gpushare.dev" in node.api.objects, "the plugin to tell of its GPUs")


def submit(node: KubeNode, webhook: Webhook, uid: str, annotations: dict[str, str], **more: Any) -> dict[str, Any]:
    """As the API server stores a pod, and as the controller of claims then makes its claim, with that uid."""
    stored = webhook.admit(pod(annotations, nodeSelector={}, schedulerName="gpushare", **more))
    (entry,) = stored["spec"]["resourceClaims"]
    template = node.api.objects[f"{TEMPLATES}/{entry['resourceClaimTemplateName']}"]
    name = f"claim-{uid}"
    made = {"metadata": {"name": name, "namespace": NAMESPACE, "uid": uid}, "spec": template["spec"]["spec"]}
    node.api.put(f"{CLAIMS}/{name}", made)
    meta = {"name": uid, "namespace": NAMESPACE, "uid": f"p-{uid}", "creationTimestamp": "2026-11-23T12:00:00Z"}
    stored["metadata"] |= meta
    statuses = [{"name": entry["name"], "resourceClaimName": name}]
    stored["status"] = {"phase": "Pending", "resourceClaimStatuses": statuses}
    node.api.put(f"{PODS}/{uid}", stored)
    return stored


def started(node: KubeNode, *uids: str) -> None:
    """On the first GPU, as much as each asks for; and prepared, as the kubelet does."""
    scheduler = Scheduler(Cluster(node.api))
    try:
        for uid in uids:
            job = scheduler.job(f"p-{uid}")
            assert job is not None
            (tasks,) = job.job.tasks
            assert scheduler.start(f"p-{uid}", NODE, 0, tasks.memory) == Accepted()
    finally:
        scheduler.close()
    for uid in uids:
        node.pod(f"p-{uid}")
    assert [one.error for one in node.kubelet.prepare(*uids).values()] == [""] * len(uids)


def test_an_annotated_pod_becomes_a_budget_of_its_node():
    with tempfile.TemporaryDirectory(prefix="gs-k-") as folder:
        Path(folder).chmod(0o755)
        with node_in(Path(folder), ClusterDouble) as node:
            begun(node)
            with webhook_at(node.api, Path(folder)) as webhook:
                webhook.ready()
                submit(node, webhook, "half", {"gpu-fraction": "0.5"}, env=variable("0.8"))
                submit(node, webhook, "size", {"gpu-memory": "1024"})
            started(node, "half", "size")
            gpu = node.client.status()["gpus"][0]
            capacity = gpu["capacity"]
            budgets = {one["job"]["name"]: one["job"]["gpus"][0] for one in node.placed()}
            half, size = budgets["team-a/claim-half"], budgets["team-a/claim-size"]
            assert capacity // 2 - 64 * MIB < half["request"] <= capacity // 2
            assert abs(half["limit"] - gpu["total"] * 8 // 10) <= MIB, "of all that the GPU has, as for every limit"
            assert (size["request"], size["limit"]) == (GIB, GIB)


def test_a_notebook_is_refused_at_its_limit_and_its_pod_stays():
    with enforced_node(ClusterDouble) as node:
        begun(node)
        with webhook_at(node.api, node.folder) as webhook:
            webhook.ready()
            said = {"gpu-memory": "1024", "gpu-memory-limit": "3072"}
            stored = submit(node, webhook, "notebook", said)
            submit(node, webhook, "owner", {"gpu-memory": "2048"})
        started(node, "notebook", "owner")
        kernel = Program(node, "notebook")
        owner = Program(node, "owner")
        try:
            assert kernel.do("total") == 3072
            assert kernel.do(2200) == 0, "1 GiB of its own, the rest on loan"
            assert kernel.do(1000) == 2, "out of memory: above its limit"
            assert owner.do(1700) == 0, "the owner's own memory"
            assert kernel.process.wait(30) != 0, "the kernel is stopped"
        finally:
            kernel.end()
            owner.end()
        after = node.api.objects[f"{PODS}/notebook"]
        assert after["spec"]["restartPolicy"] == stored["spec"]["restartPolicy"] == "Always"
        assert "deletionTimestamp" not in after["metadata"]
        assert "team-a/claim-notebook" in [one["job"]["name"] for one in node.placed()], "a kernel can start again"
        again = Program(node, "notebook")
        assert again.do(200) == 0
        again.end()
        for uid in ("notebook", "owner"):
            node.kubelet.unprepare(uid)
