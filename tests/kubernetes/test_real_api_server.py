"""The plugin with a real API server, with the rights that deploy/kubernetes gives it."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from claims import NODE, claim, result
from kube_stage import KubeNode, node_in, until
from kube_stage import missing as no_driver
from real_api_server import RealApiServer, missing

from gpushare.errors import NoSuchJob
from gpushare.kubernetes.publish import CLAIMS, Publisher
from gpushare.kubernetes.server import Access, Answer, Server

pytestmark = pytest.mark.skipif(bool(missing() or no_driver()), reason=missing() or no_driver())

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIM = CLAIMS.format("team-a", "claim-c-1")


@pytest.fixture(scope="module")
def cluster():
    with tempfile.TemporaryDirectory(prefix="gs-api-") as folder:
        api = RealApiServer(Path(folder))
        try:
            api.serve_claims()
            api.deploy()
            api.server.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
            api.server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "team-a"}})
            yield api
        finally:
            api.end()


@pytest.fixture
def server(cluster) -> Server:
    return cluster.server


@pytest.fixture
def node(cluster):
    with tempfile.TemporaryDirectory(prefix="gs-k-") as folder:
        Path(folder).chmod(0o755)
        with node_in(Path(folder)) as made:
            made.start_daemon()
            made.start_plugin(cluster.plugin_of(NODE) if cluster.own else cluster.plugins)
            made.kubelet.register()
            yield made


def allocate(server: Server, node: KubeNode, memory: str = "1Gi") -> str:
    """A claim that is allocated and reserved, and its uid."""
    made = claim(result(node.uuids[0], memory, shareID="11111111-2222-4333-8444-555555555555"), name="claim-c-1")
    status, made["metadata"] = made.pop("status"), {"name": "claim-c-1", "namespace": "team-a"}
    exactly = {"deviceClassName": "gpushare.dev", "capacity": {"requests": {"memory": memory}}}
    made["spec"] = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    here = {"key": "metadata.name", "operator": "In", "values": [NODE]}
    status["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    with contextlib.suppress(NoSuchJob):
        server.ask("DELETE", CLAIM)
    found = server.ask("POST", CLAIM.rpartition("/")[0], made)
    node.pod("p-1")
    server.ask("PUT", f"{CLAIM}/status", {**found, "status": status})
    return str(found["metadata"]["uid"])


def test_which_server_this_is(cluster, record_property):
    carrier = "of its own" if cluster.own else "as custom resources"
    words = f"API server {cluster.version()}, resource.k8s.io/v1 {carrier}"
    record_property("kubernetes", words)
    assert cluster.version().startswith("v1.")


def test_the_nodes_gpus_become_a_slice_that_is_corrected_and_belongs_to_the_node(cluster, server, node):
    path = f"{SLICES}/{NODE}-gpushare.dev"

    def found():
        try:
            return server.ask("GET", path)
        except NoSuchJob:
            return None

    made = until(found, "the slice")
    assert [one["name"] for one in made["spec"]["devices"]] == [uuid.lower() for uuid in node.uuids]
    owner = server.ask("GET", f"/api/v1/nodes/{NODE}")["metadata"]["uid"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == owner
    publisher = Publisher(Server(Access.of_kubeconfig(cluster.plugins)), NODE)
    gpus = node.client.status()["gpus"]
    for state in ("ok", "sick", "ok", "ok"):
        publisher.publish([{**gpu, "health": {**gpu["health"], "state": state}} for gpu in gpus], "sim")
    assert server.ask("GET", path)["spec"]["pool"]["generation"] == made["spec"]["pool"]["generation"] + 2


def test_a_claim_is_prepared_and_says_how_it_is_used_while_the_server_is_killed(cluster, server, node):
    uid = allocate(server, node)
    answer = prepare(node, uid)
    assert answer.error == "", answer.error
    (said,) = until(lambda: server.ask("GET", CLAIM)["status"].get("devices"), node.log)
    assert said["conditions"][0]["message"] == "uses 0 B of 1.0 GiB requested"
    cluster.kill()
    assert prepare(node, uid) == answer, "from its record"
    until(lambda: "does not answer" in node.log(), "the plugin to see it")
    cluster.start()
    until(lambda: "all is well again" in node.log(), "the plugin to see it")
    assert server.ask("GET", CLAIM)["status"]["devices"][0]["data"]["request"] == "1Gi"
    assert unprepare(node, uid) == "" and node.leftovers() == []


def test_a_claim_that_was_deleted_is_released_when_its_pod_is_gone(server, node):
    uid = allocate(server, node)
    assert prepare(node, uid).error == ""
    server.ask("DELETE", CLAIM)
    node.pod("p-1").rmdir()
    until(lambda: node.leftovers() == [], "nothing to be left")


def test_the_plugin_has_no_other_rights(cluster):
    plugin = Server(Access.of_kubeconfig(cluster.plugins))
    for method, path in (
        ("GET", "/api/v1/namespaces/team-a/secrets"),
        ("GET", "/api/v1/namespaces/team-a/pods"),
        ("DELETE", f"{SLICES}/{NODE}-gpushare.dev"),
        ("DELETE", CLAIM),
        ("GET", "/api/v1/nodes"),
    ):
        with pytest.raises(Answer) as caught:
            plugin.ask(method, path)
        assert caught.value.status == 403


def test_a_token_that_is_none_is_told(cluster, tmp_path):
    config = cluster.plugins.read_text().replace('"plugin"', '"nobody"')
    (tmp_path / "config").write_text(config)
    with pytest.raises(Answer, match="Unauthorized"):
        Server(Access.of_kubeconfig(tmp_path / "config")).ask("GET", SLICES)


def prepare(node: KubeNode, uid: str):
    return node.kubelet.claims("NodePrepareResources", [(uid, "claim-c-1")])[uid]


def unprepare(node: KubeNode, uid: str) -> str:
    return str(node.kubelet.claims("NodeUnprepareResources", [(uid, "claim-c-1")])[uid].error)
