"""`kubectl apply -k` of all of deploy/kubernetes on a real node: what it asks of a server, and until a pod lends.

There is no network of pods and no registry here. So the pods have the node's network, their image is made of this
machine's files, and they know the driver of software GPUs; all else is as deploy/kubernetes has it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from enforced_stage import PROGRAM
from kube_stage import until
from real_api_server import DEPLOY, binary
from real_api_server import missing as no_server
from real_nodes import IMAGE, RealNode, RealNodes, from_host, missing, too_old
from real_pods import NAMESPACE, Pods, pod_spec

from gpushare.errors import GpushareError
from gpushare.kubernetes.server import Answer

WHY = no_server() or missing() or too_old()
pytestmark = [pytest.mark.skipif(bool(WHY), reason=WHY), pytest.mark.timeout(400)]

WITHIN = 120.0
LENDS_WITHIN = 60.0
"""Seconds from `kubectl apply -k`."""
WORKLOADS = (
    ("DaemonSet", "gpushare-dra", "gpushare-dra"),
    ("Deployment", "gpushare-scheduler", "scheduler"),
    ("Deployment", "gpushare-webhook", "webhook"),
)
"""Kind, name, container."""
KINDS = "crd,clusterrole,clusterrolebinding,mutatingwebhookconfiguration,validatingadmissionpolicy,deviceclass"
BORROWS = f"""
import io, sys, time
sys.stdin = io.StringIO("2500\\n")
{PROGRAM}
time.sleep(1000)
"""


def overlay(folder: Path, node: RealNode, port: int, those: Iterable[str] = (".", "scheduler", "webhook")) -> Path:
    """What is of this test alone. `those`: folders, from deploy/kubernetes."""
    made = folder / "overlay"
    made.mkdir()
    parts = [os.path.relpath(DEPLOY / part, made) for part in those]
    images = [{"name": "gpushare", "newName": IMAGE.partition(":")[0], "newTag": IMAGE.partition(":")[2]}]
    patches = [{"patch": json.dumps(patch(*one, node, port))} for one in WORKLOADS]
    (made / "kustomization.yaml").write_text(json.dumps({"resources": parts, "images": images, "patches": patches}))
    return made


def patch(kind: str, name: str, container: str, node: RealNode, port: int) -> dict[str, Any]:
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    places = {name: (path, True) for name, path in from_host().items()}
    if kind == "DaemonSet":
        environ |= node.driver
        places["pool"] = (node.pool, False)
    own = {
        "name": container,
        "imagePullPolicy": "Never",
        "env": [{"name": name, "value": value} for name, value in environ.items()],
        "volumeMounts": [
            {"name": f"own-{name}", "mountPath": str(path), "readOnly": only} for name, (path, only) in places.items()
        ],
    }
    volumes = [{"name": f"own-{name}", "hostPath": {"path": str(path)}} for name, (path, _) in places.items()]
    spec: dict[str, Any] = {"template": {"spec": {"hostNetwork": True, "containers": [own], "volumes": volumes}}}
    if kind == "Deployment":
        spec["replicas"] = 1  # on this network two have one port
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "gpushare"}, "spec": spec}


@pytest.fixture(scope="module")
def cluster():
    with tempfile.TemporaryDirectory(prefix="gs-kn-") as folder:
        Path(folder).chmod(0o755)
        made = RealNodes(Path(folder), ["k1"], "gpus=1,memory=4Gi")
        try:
            made.nodes["k1"].start("daemon")
            made.server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            yield made
        finally:
            made.end()


def kubectl(cluster: RealNodes, *words: str) -> str:
    line = [str(binary("kubectl")), f"--kubeconfig={cluster.api.kubeconfig}", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=WITHIN)
    assert done.returncode == 0, done.stderr
    return done.stdout


def annotated(name: str, **annotations: str) -> dict[str, Any]:
    spec = {**pod_spec([sys.executable, "-c", BORROWS]), "schedulerName": "gpushare"}
    said = {one.replace("_", "-"): value for one, value in annotations.items()}
    return {"metadata": {"name": name, "annotations": said}, "spec": spec}


def test_from_apply_to_a_pod_that_lends_and_back_to_nothing(cluster, tmp_path, record_property):
    record_property("kubernetes", f"kubectl apply -k: {cluster.about()}")
    node, pods = cluster.nodes["k1"], Pods(cluster.server)
    kubectl(cluster, "label", "node", "k1", "gpushare.dev/node=true")
    made = overlay(tmp_path, node, cluster.api.ports[0])
    began = time.monotonic()
    kubectl(cluster, "apply", "-k", str(made))
    queue = {"apiVersion": "gpushare.dev/v1", "kind": "Queue", "metadata": {"name": NAMESPACE}, "spec": {"quota": 1}}

    def tried(what: Any) -> Any:
        def once() -> Any:
            with contextlib.suppress(Answer, GpushareError):
                return what()
            return None

        return until(once, lambda: picture(cluster), WITHIN)

    tried(lambda: cluster.server.ask("POST", "/apis/gpushare.dev/v1/queues", queue))
    lends = annotated("lends", gpu_fraction="0.25", gpu_fraction_limit="0.8")
    accepted = tried(lambda: pods.make("pods", lends))
    took = time.monotonic() - began
    assert accepted["spec"]["resourceClaims"][0]["name"] == "gpushare"

    def lending() -> bool:
        devices = [one for claim in pods.all("resourceclaims") for one in (claim["status"].get("devices") or ())]
        return any(one["conditions"][0]["status"] == "True" for one in devices)

    until(lending, lambda: picture(cluster), WITHIN)
    total = time.monotonic() - began
    print(f"accepted after {took:.1f} s, lends after {total:.1f} s")
    assert total < LENDS_WITHIN
    what_the_server_refuses(cluster, pods)
    pods.clear()
    until(lambda: not pods.names() and not node.leftovers(), lambda: f"{pods.names()} {node.leftovers()}", WITHIN)
    kubectl(cluster, "delete", "-k", str(made), "--wait=true", f"--timeout={WITHIN:.0f}s")
    left = kubectl(
        cluster, "get", "crd,clusterrole,clusterrolebinding,mutatingwebhookconfiguration,deviceclass", "-o", "name"
    )
    assert "gpushare" not in left
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    until(lambda: not cluster.server.ask("GET", slices)["items"], "the kubelet to remove the slice", WITHIN)


def what_the_server_refuses(cluster: RealNodes, pods: Pods) -> None:
    """By the webhook, by what it is not asked about, and by the policy about marks."""
    with pytest.raises(Answer, match=r"gpu-fraction-limit '0\.3' is below gpu-fraction 0\.5"):
        pods.make("pods", annotated("wrong", gpu_fraction="0.5", gpu_fraction_limit="0.3"))
    for name, body in (
        ("plain", {**annotated("plain"), "spec": pod_spec(["true"])}),
        (
            "kai",
            {**annotated("kai", gpu_fraction="2.5"), "spec": {**pod_spec(["true"]), "schedulerName": "kai-scheduler"}},
        ),
    ):
        assert not pods.make("pods", body)["spec"].get("resourceClaims"), name
    marked = annotated("marked")
    marked["metadata"]["annotations"]["gpushare.dev/start"] = "{}"
    with pytest.raises(Answer, match="only gpushare's scheduler writes"):
        pods.make("pods", marked)
    change = {"metadata": {"annotations": {"gpushare.dev/start": "{}"}}}
    with pytest.raises(Answer, match="only gpushare's scheduler writes"):
        pods.change("pods", "lends", change)


def picture(cluster: RealNodes) -> str:
    node = cluster.nodes["k1"]
    logs = [path.read_text()[-1500:] for path in sorted((node.folder / "log").glob("*/*/*.log"))]
    words = kubectl(cluster, "get", "pods,events,resourceclaims,resourceslices", "-A")
    return "\n".join([words, *logs])
