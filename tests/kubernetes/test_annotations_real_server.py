"""The annotation carrier with a real API server: one before Kubernetes 1.34, or a later one that does as 1.33 did.

Webhook, scheduler and plugin have the rights that deploy/kubernetes-1.33 (before 1.30: -1.29) gives them. There are no
kubelets: test_annotations_on_real_node.py has these.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from annotations_stage import FEATURES, annotation, webhook_of
from claims import GIB, gpu
from kube_stage import until
from real_api_server import DEPLOY, KINDS, NAMESPACED, RealApiServer, binary, missing
from scheduler_stage import Scheduler
from test_webhook_node import Cluster

from gpushare.cluster.engines.kubernetes.cache import Watched
from gpushare.cluster.engines.seam import Accepted
from gpushare.kubernetes.carried import CLAIM, GATES, gate_of
from gpushare.kubernetes.names import NODE_GPUS
from gpushare.kubernetes.pods import Carried
from gpushare.kubernetes.publish import Publisher
from gpushare.kubernetes.server import MERGE, STRATEGIC, Access, Answer, Server

WHY = missing() or ("" if binary("kubectl") else "needs kubectl, which makes of deploy/kubernetes-1.33 what is applied")
pytestmark = [pytest.mark.skipif(bool(WHY), reason=WHY), pytest.mark.timeout(300)]

PODS = "/api/v1/namespaces/team-a/pods"
SINCE, POLICIES = (1, 34), (1, 30)
"""Kubernetes that has claims, and that has policies of admission."""
WORKLOADS = ("DaemonSet", "Deployment")
WITHIN = 60.0
MAIN = {"name": "x", "image": "x"}
BARE = {"containers": [{**MAIN, "name": "main"}], "schedulerName": "gpushare"}


def version() -> tuple[int, int]:
    said = subprocess.run([str(binary("kube-apiserver")), "--version"], capture_output=True, text=True).stdout
    found = re.search(r"v(\d+)\.(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


NEWER = pytest.mark.skipif(not WHY and version() < POLICIES, reason="Kubernetes 1.30 has policies of admission")


class Older(RealApiServer):
    def apply_all(self, part: str) -> None:
        """What `kubectl apply -k` makes of it, without pods, and without what this server does not know."""
        line = [str(binary("kubectl")), "kustomize", str(DEPLOY.with_name(part))]
        made = subprocess.run(line, check=True, capture_output=True, text=True).stdout
        for one in yaml.safe_load_all(made):
            if one["kind"] in WORKLOADS:
                continue
            group, _, number = one["apiVersion"].rpartition("/")
            base = f"/apis/{group}/{number}" if group else f"/api/{number}"
            kind = KINDS.get(one["kind"], f"{one['kind'].lower()}s")
            if not self._serves(f"{base}/{kind}"):
                assert one["kind"] == "PodDisruptionBudget", one["kind"]
                continue
            inside = "/namespaces/gpushare" if kind in NAMESPACED else ""
            self._until(lambda path=f"{base}{inside}/{kind}", one=one: self._put(path, one))


@pytest.fixture(scope="module")
def cluster():
    with tempfile.TemporaryDirectory(prefix="gs-api-") as folder:
        api = Older(Path(folder), features=FEATURES if version() >= SINCE else None)
        try:
            api.apply_all("kubernetes-1.33" if version() >= POLICIES else "kubernetes-1.29")
            server = api.server
            labels = {"gpushare.dev/annotations": "true"}
            server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "team-a", "labels": labels}})
            publish(api)
            yield api
        finally:
            api.end()


def publish(api: RealApiServer) -> None:
    """As the plugins of two nodes do."""
    for name in ("n1", "n2"):
        node = api.server.ask("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        said = {"conditions": [{"type": "Ready", "status": "True"}]}
        api.server.ask("PUT", f"/api/v1/nodes/{name}/status", {**node, "status": said})
        devices = [gpu(f"GPU-{name}-{index}", index, capacity=80 * GIB) for index in (0, 1)]
        plugin = Server(Access.of_kubeconfig(api.plugins))
        api._until(lambda plugin=plugin, name=name, devices=devices: tell(plugin, name, devices))


def tell(plugin: Server, name: str, devices: list[Any]) -> None:
    Publisher(plugin, name, claims=plugin.has_claims()).publish(devices, "sim")


@pytest.fixture(scope="module")
def webhook(cluster):
    made = webhook_of(cluster)
    yield made
    made.end(9)


class Seen(Cluster):
    """What Scheduler needs: the rights of the scheduler, and what is newest."""

    def __init__(self, cluster: RealApiServer) -> None:
        self.api = self  # type: ignore[assignment]
        self.kubeconfig = cluster.schedulers
        self.now = 0.0
        self.settings = {}
        self.server = cluster.server

    def newest(self, path: str) -> int:
        """Of objects that are there: the list's own version grows with objects of all kinds, which no watch tells."""
        found = self.server.ask("GET", path)["items"] if path == "/api/v1/pods" else ()
        return max((int(one["metadata"]["resourceVersion"]) for one in found), default=0)


@pytest.fixture
def scheduler(cluster):
    made = Scheduler(Seen(cluster))  # type: ignore[arg-type]
    yield made
    made.close()


def submit(cluster: RealApiServer, name: str, scheduler: str = "gpushare", **annotations: str) -> dict[str, Any]:
    said = {one.replace("_", "-"): value for one, value in annotations.items()}
    spec = {"schedulerName": scheduler, "containers": [{"name": "main", "image": "x"}]}
    return cluster.server.ask("POST", PODS, {"metadata": {"name": name, "annotations": said}, "spec": spec})


def remove(cluster: RealApiServer, *names: str) -> None:
    for name in names:
        cluster.server.ask("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})


def test_a_pod_comes_from_the_webhook_over_the_scheduler_to_its_node(cluster, webhook, scheduler, record_property):
    does_as = FEATURES["emulated-version"] if version() >= SINCE else "itself"
    record_property("kubernetes", f"annotations: API server {cluster.version()}, which does as {does_as}")
    until(lambda: webhook.log, "the webhook")
    made = cluster._until(lambda: submit(cluster, "train", gpu_fraction="0.25", gpu_fraction_limit="0.8"))
    gate, uid = gate_of(made), made["metadata"]["uid"]
    assert gate and json.loads(made["metadata"]["annotations"][CLAIM]) == {"memory": "20Gi", "limit": "0.8"}
    plugin = Carried(Server(Access.of_kubeconfig(cluster.plugins)), "n2")
    try:
        assert scheduler.start(uid, "n2", 1, 20 * GIB) == Accepted()
        claim = until(lambda: (plugin.all() or {}).get(uid), "the node's plugin to see it", WITHIN)
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        assert (result["device"], claim["gate"]) == ("gpu-n2-1", gate)
        stored = cluster.server.ask("GET", f"{PODS}/train")
        assert stored["spec"]["nodeName"] == "n2"
        assert (annotation(stored, "gpus"), annotation(stored, "limit")) == ("GPU-n2-1", "0.8")
        remove(cluster, "train")
        until(lambda: uid not in (plugin.all() or {}), "the node's plugin to see that it is gone", WITHIN)
    finally:
        plugin.close()


def test_what_makes_no_sense_is_refused_by_the_server(cluster, webhook):
    with pytest.raises(Answer, match=r"gpu-fraction-limit '0\.3' is below"):
        submit(cluster, "wrong", gpu_fraction="0.5", gpu_fraction_limit="0.3")
    with pytest.raises(Answer, match="only gpushare's scheduler gives parts of GPUs"):
        submit(cluster, "wrong", "default-scheduler", gpu_fraction="0.5")


def test_a_pod_that_runs_is_evicted(cluster, webhook, scheduler):
    uid = submit(cluster, "evicted", gpu_fraction="0.5")["metadata"]["uid"]
    assert scheduler.start(uid, "n1", 0, 40 * GIB) == Accepted()
    scheduler.job(uid)
    assert scheduler.evict(uid, 5.0) == Accepted()
    meta = cluster.server.ask("GET", f"{PODS}/evicted")["metadata"]
    assert meta["deletionTimestamp"] and meta["deletionGracePeriodSeconds"] == 5
    remove(cluster, "evicted")


def test_nobody_has_other_rights(cluster):
    plugin, scheduler = (Server(Access.of_kubeconfig(path)) for path in (cluster.plugins, cluster.schedulers))
    for server, method, path in (
        (plugin, "PATCH", f"{PODS}/x"),
        (plugin, "GET", "/api/v1/namespaces/team-a/secrets"),
        (plugin, "DELETE", f"{NODE_GPUS}/n1"),
        (scheduler, "PATCH", f"{NODE_GPUS}/n1"),
        (scheduler, "GET", "/api/v1/namespaces/team-a/secrets"),
    ):
        with pytest.raises(Answer) as caught:
            server.ask(method, path, {} if method == "PATCH" else None, MERGE)
        assert caught.value.status == 403


@pytest.fixture
def tenant(cluster):
    """A user who may do with pods of two namespaces what pods' editors may."""
    server = cluster.server
    for name, labels in (("free", {}), ("held", {"gpushare.dev/tenants": "true"})):
        meta = {"name": name, "labels": {"gpushare.dev/annotations": "true", **labels}}
        with contextlib.suppress(Answer):
            server.ask("POST", "/api/v1/namespaces", {"metadata": meta})
    with contextlib.suppress(Answer):
        server.ask("POST", "/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    return server


def refused(server: Server, why: str, name: str, namespace: str = "free", **more: Any) -> None:
    with pytest.raises(Answer, match=why):
        made(server, name, namespace, **more)


def made(server: Server, name: str, namespace: str = "free", annotations: Any = None, **spec: Any) -> dict[str, Any]:
    body = {"metadata": {"name": name, "annotations": annotations or {}}, "spec": {**BARE, **spec}}
    return server.ask("POST", f"/api/v1/namespaces/{namespace}/pods", body)


@NEWER
def test_a_claim_is_the_webhook_s_alone_and_stays_as_it_is(cluster, webhook, tenant):
    """Who wrote it would have no gate: its containers would start before their placement, and without the library."""
    alone = {CLAIM: '{"memory": "1Gi", "limit": "max"}'}
    refused(tenant, "only gpushare's webhook writes", "own", annotations=alone)
    stored = made(tenant, "copy", annotations={"gpu-memory": "1024", **alone})
    assert json.loads(stored["metadata"]["annotations"][CLAIM]) == {"memory": "1Gi"}
    path = "/api/v1/namespaces/free/pods"
    for name, value in (("copy", "{}"), ("copy", None), ("later", "{}")):
        if name == "later":
            made(tenant, name)
        for where in ("", "/status"):
            changed = {"metadata": {"annotations": {CLAIM: value}}}
            with pytest.raises(Answer, match="only gpushare's webhook writes"):
                tenant.ask("PATCH", f"{path}/{name}{where}", changed, MERGE)
    binding = {"metadata": {"name": "later", "annotations": {CLAIM: "{}", "gpu-memory": "1"}}}
    with pytest.raises(Answer, match="only gpushare's webhook writes"):
        tenant.ask("POST", f"{path}/later/binding", {**binding, "target": {"kind": "Node", "name": "n1"}})
    tenant.ask("PATCH", f"{path}/copy", {"metadata": {"labels": {"a": "b"}}}, MERGE)


@NEWER
def test_annotations_of_a_container_give_a_claim_and_what_asks_for_nothing_none(cluster, webhook, tenant):
    of_main = "nvidia.com/container.main"
    stored = made(tenant, "kai", annotations={f"{of_main}.gpu-memory.request": "1Gi", CLAIM: '{"memory": "9Gi"}'})
    assert json.loads(stored["metadata"]["annotations"][CLAIM]) == {"memory": "1Gi"}
    for name in ("gpus.devices", "gpu-memory.other"):
        refused(tenant, "only gpushare's webhook writes", "own", annotations={f"{of_main}.{name}": "0", CLAIM: "{}"})


@NEWER
@pytest.mark.parametrize(
    ("why", "spec"),
    [
        ("no volumes of its node", {"volumes": [{"name": "gpushare", "hostPath": {"path": "/"}}]}),
        ("no volumes of its node", {"volumes": [{"name": "x", "hostPath": {"path": f"{GATES}/{'0' * 32}"}}]}),
        ("no volumes of its node", {"volumes": [{"name": "gpushare-sockets", "hostPath": {"path": "/run/gpushare"}}]}),
        ("no namespaces of its node", {"hostPID": True}),
        (
            "no container is privileged",
            {"initContainers": [{**MAIN, "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
        ),
        ("only pods with gpu-fraction", {"runtimeClassName": "nvidia"}),
        (
            "nobody writes into gpushare's volumes",
            {
                "volumes": [{"name": "gpushare-sockets", "hostPath": {"path": "/run/gpushare/containers"}}],
                "containers": [{**MAIN, "volumeMounts": [{"name": "gpushare-sockets", "mountPath": "/x"}]}],
            },
        ),
    ],
)
def test_pods_of_tenants_have_nothing_of_their_node(cluster, webhook, tenant, why, spec):
    refused(tenant, why, "hostile", "held", **spec)
    made(tenant, "hostile", "free", **spec)
    tenant.ask("DELETE", "/api/v1/namespaces/free/pods/hostile", {"gracePeriodSeconds": 0})


@NEWER
def test_pods_of_tenants_have_parts_of_gpus_and_can_be_looked_into(cluster, webhook, tenant):
    stored = made(tenant, "train", "held", annotations={"gpu-memory": "1024"}, runtimeClassName="nvidia")
    assert gate_of(stored)
    path = "/api/v1/namespaces/held/pods/train/ephemeralcontainers"
    mounts = [{"name": "gpushare-sockets", "mountPath": "/x"}]
    added = {"spec": {"ephemeralContainers": [{**MAIN, "name": "debug", "volumeMounts": mounts}]}}
    found = tenant.ask("PATCH", path, added, STRATEGIC)["spec"]["ephemeralContainers"]
    assert found[0]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}] and "volumeMounts" not in found[0]
    pod = path.removesuffix("/ephemeralcontainers")
    tenant.ask("PATCH", pod, {"metadata": {"annotations": {"gpu-memory": None}}}, MERGE)
    again = {"spec": {"ephemeralContainers": [{**MAIN, "name": "again"}]}}
    found = tenant.ask("PATCH", path, again, STRATEGIC)["spec"]["ephemeralContainers"]
    assert {one["name"]: len(one.get("env") or ()) for one in found} == {"debug": 1, "again": 1}


def test_what_nodes_publish_has_a_schema(cluster):
    head = {"apiVersion": "gpushare.dev/v1", "kind": "NodeGpus", "metadata": {"name": "n9"}}
    for spec in ({}, {"driver": "other", "nodeName": "n9", "pool": {"name": "n9", "generation": 1}}):
        with pytest.raises(Answer) as caught:
            cluster.server.ask("POST", NODE_GPUS, {**head, "spec": spec})
        assert caught.value.status == 422, spec


def test_a_watch_of_one_node_s_pods_shows_no_others(cluster, webhook):
    watched = Watched(cluster.server, "/api/v1/pods", lambda: None, selector="fieldSelector=spec.nodeName%3Dn1")
    try:
        spec = {"containers": [{"name": "main", "image": "x"}]}
        for name, node in (("mine", "n1"), ("theirs", "n2")):
            cluster.server.ask("POST", PODS, {"metadata": {"name": name}, "spec": {**spec, "nodeName": node}})
        until(lambda: watched.get(("team-a", "mine")), "the pod", WITHIN)
        assert watched.get(("team-a", "theirs")) is None
    finally:
        watched.close()
    remove(cluster, "mine", "theirs")
