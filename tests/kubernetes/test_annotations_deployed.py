"""`kubectl apply -k deploy/kubernetes-1.33` on a real node of a server without claims, until a pod lends, and back."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from annotations_stage import FEATURES
from kube_stage import until
from real_nodes import RealNodes
from real_pods import NAMESPACE, Pods
from test_deployed_on_real_node import LENDS_WITHIN, WHY, WITHIN, annotated, kubectl, overlay

from gpushare.errors import GpushareError
from gpushare.kubernetes.carried import gate_of
from gpushare.kubernetes.names import NODE_GPUS
from gpushare.kubernetes.server import Answer
from gpushare.paths import software_driver_dir

pytestmark = [pytest.mark.skipif(bool(WHY), reason=WHY), pytest.mark.timeout(400)]
KINDS = "crd,clusterrole,clusterrolebinding,mutatingwebhookconfiguration,validatingadmissionpolicy"


@pytest.fixture(scope="module")
def cluster():
    with tempfile.TemporaryDirectory(prefix="gs-kn-") as folder:
        Path(folder).chmod(0o755)
        made = RealNodes(Path(folder), ["k1"], "gpus=1,memory=4Gi", FEATURES)
        try:
            made.nodes["k1"].start("daemon")
            made.server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            yield made
        finally:
            made.end()


def with_driver(cluster: RealNodes, pod: dict[str, Any]) -> dict[str, Any]:
    """This machine's: elsewhere NVIDIA's runtime brings one."""
    node, (container,) = cluster.nodes["k1"], pod["spec"]["containers"]
    driver = {**node.driver, "LD_LIBRARY_PATH": str(software_driver_dir())}
    container["env"] = [{"name": name, "value": value} for name, value in driver.items()]
    pod["spec"]["volumes"].append({"name": "pool", "hostPath": {"path": str(node.pool)}})
    container["volumeMounts"].append({"name": "pool", "mountPath": str(node.pool)})
    return pod


def picture(cluster: RealNodes) -> str:
    logs = [path.read_text()[-1500:] for path in sorted((cluster.nodes["k1"].folder / "log").glob("*/*/*.log"))]
    return "\n".join([kubectl(cluster, "get", "pods,events", "-A"), *logs])


def test_from_apply_to_a_pod_that_lends_and_back_to_nothing(cluster, tmp_path, record_property):
    record_property("kubernetes", f"kubectl apply -k deploy/kubernetes-1.33: {cluster.about()}")
    node, pods = cluster.nodes["k1"], Pods(cluster.server, claims=False)
    kubectl(cluster, "label", "node", "k1", "gpushare.dev/node=true")
    made = overlay(tmp_path, node, cluster.api.ports[0], ["../kubernetes-1.33"])
    began = time.monotonic()
    kubectl(cluster, "apply", "-k", str(made))

    def tried(what: Any) -> Any:
        def once() -> Any:
            with contextlib.suppress(Answer, GpushareError):
                return what()
            return None

        return until(once, lambda: picture(cluster), WITHIN)

    queue = {"apiVersion": "gpushare.dev/v1", "kind": "Queue", "metadata": {"name": NAMESPACE}, "spec": {"quota": 1}}
    tried(lambda: cluster.server.ask("POST", "/apis/gpushare.dev/v1/queues", queue))
    lends = with_driver(cluster, annotated("lends", gpu_fraction="0.25", gpu_fraction_limit="0.8"))
    accepted = tried(lambda: pods.make("pods", lends))
    took = time.monotonic() - began
    assert gate_of(accepted)

    def lending() -> bool:
        return any(gpu["loan"] for one in node.client.placements() for gpu in one["job"]["gpus"])

    until(lending, lambda: picture(cluster), WITHIN)
    total = time.monotonic() - began
    print(f"accepted after {took:.1f} s, lends after {total:.1f} s")
    assert total < LENDS_WITHIN
    pods.clear()
    until(lambda: not pods.names() and not node.leftovers(), lambda: f"{pods.names()} {node.leftovers()}", WITHIN)
    assert "k1" in kubectl(cluster, "get", "nodegpus"), NODE_GPUS
    kubectl(cluster, "delete", "-k", str(made), "--wait=true", f"--timeout={WITHIN:.0f}s")
    assert "gpushare" not in kubectl(cluster, "get", KINDS, "-o", "name")
