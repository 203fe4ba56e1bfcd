"""What the plugin repeats until it is so: the cluster knows the node's GPUs, and the node has what claims need."""

from __future__ import annotations

import json
import shutil
import time

import pytest
from claims import NODE
from kube_stage import KubeNode, until

from gpushare.errors import GpushareError, NoSuchJob
from gpushare.kubernetes.publish import CLAIMS, Publisher, use_of
from gpushare.kubernetes.server import Access, Answer, Server, Unanswered
from gpushare.kubernetes.slices import STEP

MIB, GIB = 2**20, 2**30
SLICE = f"/apis/resource.k8s.io/v1/resourceslices/{NODE}-gpushare.dev"


@pytest.fixture
def server(node: KubeNode) -> Server:
    return Server(Access.of_kubeconfig(node.api.kubeconfig))


def gpus(node: KubeNode):
    return node.client.status()["gpus"]


# ---- the slice -----------------------------------------------------------------------------------------


def test_the_plugin_publishes_the_nodes_gpus(node):
    found = until(lambda: node.api.objects.get(SLICE), "the slice")
    assert [one["name"] for one in found["spec"]["devices"]] == [uuid.lower() for uuid in node.uuids]
    assert found["spec"]["nodeName"] == NODE == found["spec"]["pool"]["name"]
    assert found["metadata"]["ownerReferences"][0]["uid"] == "node-uid", "the slice goes when the node goes"


def test_a_slice_is_written_when_something_is_other_than_before_and_only_then(node, server):
    publisher = Publisher(server, NODE)
    publisher.publish(gpus(node), "sim")
    first = node.api.objects[SLICE]
    first["spec"]["devices"][0]["bindsToNode"] = False  # a default of a later server
    publisher.publish(gpus(node), "sim")
    assert node.api.objects[SLICE]["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    sick = [{**gpu, "health": {**gpu["health"], "state": "sick"}} for gpu in gpus(node)]
    publisher.publish(sick, "sim")
    second = node.api.objects[SLICE]["spec"]
    assert second["devices"][0]["taints"][0]["effect"] == "NoSchedule"
    assert second["pool"]["generation"] == first["spec"]["pool"]["generation"] + 1
    publisher.publish(gpus(node), "sim")
    assert "taints" not in node.api.objects[SLICE]["spec"]["devices"][0], "what is over is taken away"


def test_a_server_that_knows_no_parts_of_devices_gets_whole_ones(node, server, caplog):
    node.api.drops = ("allowMultipleAllocations",)
    del node.api.objects[SLICE]
    publisher = Publisher(server, NODE)
    try:
        publisher.publish(gpus(node), "sim")
        publisher.publish(gpus(node), "sim")
        (device, _) = node.api.objects[SLICE]["spec"]["devices"]
    finally:
        node.api.drops = ()  # from here the plugin itself may publish parts again
    assert "requestPolicy" not in device["capacity"]["memory"]
    assert caplog.text.count("takes no parts of devices") == 1


def test_a_write_that_another_was_faster_with_is_an_error_that_the_next_pass_corrects(node, server, monkeypatch):
    publisher = Publisher(server, NODE)
    publisher.publish(gpus(node), "sim")
    asked = server.ask

    def late(method, path, *more):
        found = asked(method, path, *more)
        if method == "GET" and "resourceslices" in path:
            node.api.put(SLICE, node.api.objects[SLICE])
        return found

    monkeypatch.setattr(server, "ask", late)
    with pytest.raises(Answer) as caught:
        publisher.publish(gpus(node), "nvidia")
    assert caught.value.status == 409
    monkeypatch.setattr(server, "ask", asked)
    publisher.publish(gpus(node), "nvidia")
    assert node.api.objects[SLICE]["spec"]["devices"][0]["attributes"]["driver"] == {"string": "nvidia"}


# ---- claims --------------------------------------------------------------------------------------------


def cgroups(node) -> list[str]:
    return sorted(path for one in node.placed() for path in one["cgroups"])


def test_pods_that_share_a_claim_come_to_its_placement(node):
    """The kubelet prepares it for the first one only."""
    node.claim("c-1", pods=("p-1",))
    node.kubelet.prepare("c-1")
    node.claim("c-1", pods=("p-1", "p-2"))
    until(
        lambda: cgroups(node) == ["/kubepods/podp-1", "/kubepods/podp-2"],
        "both pods",
    )
    node.kill(node.plugin)
    node.start_plugin()
    node.kubelet.prepare("c-1")
    assert len(cgroups(node)) == 2, "also after a restart"


def test_a_pod_that_comes_to_a_claim_later_is_known_before_its_containers_start(node):
    """Long before the next pass. The claim's first pod has shown where the kubelet makes cgroups."""
    node.claim("c-1", pods=("p-1",))
    node.kubelet.prepare("c-1")
    node.kill(node.plugin)
    asked = len(node.api.requests)
    node.start_plugin(every=60.0)
    try:
        until(lambda: any("claim-c-1" in path for _, path in node.api.requests[asked:]), "its first pass")
        time.sleep(1.0)
        node.claim("c-1", pods=("p-1", "p-2"))
        until(lambda: len(cgroups(node)) == 2, "both pods")
    finally:
        node.kill(node.plugin)


def test_a_claim_that_nobody_unprepares_goes_when_it_is_gone_and_its_pods_are(node):
    """The kubelet's own notes were lost."""
    node.claim("c-1")
    node.kubelet.prepare("c-1")
    del node.api.objects[CLAIMS.format("team-a", "claim-c-1")]
    asked = len(node.api.requests)
    until(lambda: sum("claim-c-1" in path for _, path in node.api.requests[asked:]) >= 2, "two passes", 60)
    assert node.leftovers(), "its pod runs"
    shutil.rmtree(node.pod("p-c-1"))
    until(lambda: node.leftovers() == [], "nothing to be left", 60)


def test_a_claim_that_the_api_server_cannot_be_asked_about_stays(node):
    node.claim("c-1")
    node.kubelet.prepare("c-1")
    shutil.rmtree(node.pod("p-c-1"))
    node.api.fails = 500
    asked = len(node.api.requests)
    try:
        until(lambda: len(node.api.requests) > asked + 4, "the plugin to ask", 60)
        assert len(node.leftovers()) == 3
    finally:
        node.api.fails = None


def test_how_a_claim_uses_its_gpus_is_in_its_status(node):
    node.claim("c-1", "1Gi")
    node.kubelet.prepare("c-1")
    path = CLAIMS.format("team-a", "claim-c-1")
    (said,) = until(lambda: node.api.objects[path]["status"].get("devices"), "its status", 60)
    assert (said["driver"], said["pool"], said["device"]) == ("gpushare.dev", NODE, node.uuids[0].lower())
    assert said["shareID"] == "a-share"
    assert said["data"]["request"] == "1Gi" and said["data"]["usage"] == "0"
    (condition,) = said["conditions"]
    assert (condition["type"], condition["status"]) == ("Borrowing", "False")
    assert condition["message"] == "uses 0 B of 1.0 GiB requested" and condition["lastTransitionTime"]


def job(state: str, usage: int, loan: int, uuid: str):
    return {"state": state, "gpus": [{"uuid": uuid, "usage": usage, "loan": loan, "request": GIB, "limit": 2 * GIB}]}


def test_a_loan_is_told_in_one_sentence_with_numbers(node):
    node.claim("c-1")
    found = node.api.objects[CLAIMS.format("team-a", "claim-c-1")]

    def told(state, usage, loan):
        (one,) = use_of(found, NODE, job(state, usage, loan, node.uuids[0]))
        (condition,) = one["conditions"]
        return condition["status"], condition["reason"], condition["message"]

    words = "uses 1.5 GiB of 1.0 GiB requested; 512.0 MiB of that are on loan"
    assert told("borrowing", 1536 * MIB, 512 * MIB) == ("True", "Borrowing", words)
    assert told("asked_back", 1536 * MIB, 512 * MIB)[1:] == ("AskedBack", f"{words} and asked back by their owner")
    assert told("running", 1536 * MIB - STEP + 1, 0)[2].startswith("uses 1.5 GiB"), "rounded up: small changes are none"


def test_what_the_claim_says_already_is_not_written_again(node, server):
    """Small changes are not told. A status that is lost is told again: an allocation takes it away."""
    node.claim("c-1")
    path = CLAIMS.format("team-a", "claim-c-1")
    publisher = Publisher(server, NODE)

    def written(usage: int) -> bool:
        before = node.api.objects[path]
        publisher.tell(before, job("running", usage, 0, node.uuids[0]))
        return before["metadata"]["resourceVersion"] != node.api.objects[path]["metadata"]["resourceVersion"]

    assert [written(usage) for usage in (100 * MIB, 101 * MIB, 900 * MIB, 900 * MIB)] == [True, False, True, False]
    del node.api.objects[path]["status"]["devices"]
    assert written(900 * MIB)


def test_a_server_that_keeps_no_use_is_told_once_and_the_log_says_so_once(node, server, caplog):
    node.claim("unprepared")  # of which the plugin itself tells nothing
    path = CLAIMS.format("team-a", "claim-unprepared")
    publisher = Publisher(server, NODE)
    node.api.keeps_use = False
    try:
        for usage in (100 * MIB, 900 * MIB):
            publisher.tell(node.api.objects[path], job("running", usage, 0, node.uuids[0]))
    finally:
        node.api.keeps_use = True
    assert node.api.requests.count(("PATCH", f"{path}/status")) == 1
    assert caplog.text.count("keeps nothing about the use of devices") == 1


# ---- the API server ------------------------------------------------------------------------------------


def test_what_an_api_server_may_answer(node, server):
    with pytest.raises(NoSuchJob, match="not found"):
        server.ask("GET", "/api/v1/nodes/n9")
    node.api.plain = True
    with pytest.raises(NoSuchJob, match="404 page not found"):
        server.ask("GET", "/apis/resource.k8s.io/v9")
    node.api.plain = False
    with pytest.raises(Answer, match=r"refuses GET /api/v1/nodes/n1: Unauthorized"):
        Server(Access(server._access.url)).ask("GET", f"/api/v1/nodes/{NODE}")
    node.api.stop()
    with pytest.raises(Unanswered, match="does not answer"):
        server.ask("GET", f"/api/v1/nodes/{NODE}")
    node.api.start()
    assert server.ask("GET", f"/api/v1/nodes/{NODE}")["metadata"]["uid"] == "node-uid"


@pytest.mark.parametrize("words", ["404 page not found", "the server could not find the requested resource"])
def test_a_server_without_claims_is_told_with_the_version_that_has_them(node, server, monkeypatch, words):
    handle = node.api.handle

    def old(method, path, *more):
        return (404, {"message": words}) if "resource.k8s.io" in path else handle(method, path, *more)

    monkeypatch.setattr(node.api, "handle", old)
    with pytest.raises(NoSuchJob, match=r"has no claims .*; these need Kubernetes 1.34 or later"):
        server.ask("GET", SLICE)
    before = node.log().count("1.34 or later")
    until(lambda: node.log().count("1.34 or later") > before or before, "the plugin to say it")
    with pytest.raises(NoSuchJob, match="not found"):
        server.ask("GET", "/api/v1/nodes/n9")


def test_a_token_is_read_again_for_each_request(node, tmp_path):
    (tmp_path / "token").write_text("old\n")
    content = json.loads(node.api.kubeconfig.read_text())
    content["users"][0]["user"] = {"tokenFile": "token"}
    (tmp_path / "config").write_text(json.dumps(content))
    server = Server(Access.of_kubeconfig(tmp_path / "config"))
    with pytest.raises(Answer):
        server.ask("GET", f"/api/v1/nodes/{NODE}")
    (tmp_path / "token").write_text("secret\n")
    assert server.ask("GET", f"/api/v1/nodes/{NODE}")


def test_the_service_account_of_a_pod(tmp_path):
    with pytest.raises(GpushareError, match="no pod with a service account"):
        Access.of_pod({}, tmp_path)
    (tmp_path / "token").write_text("t\n")
    for host, url in (("10.0.0.1", "https://10.0.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")):
        access = Access.of_pod({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
        assert (access.url, access.token()) == (url, "t") and access.tls["ca_certs"] == str(tmp_path / "ca.crt")


@pytest.mark.parametrize("text", ["", "[]", "current-context: x", "{", "current-context: x\ncontexts: []"])
def test_a_kubeconfig_that_is_none(tmp_path, text):
    (tmp_path / "config").write_text(text)
    with pytest.raises(GpushareError, match="as a kubeconfig"):
        Access.of_kubeconfig(tmp_path / "config")


@pytest.mark.parametrize("address", ["10.0.0.1:6443", "https://", "https://host:port", "https://host:0", "//host", ""])
def test_an_address_that_is_none(node, tmp_path, address):
    """An address without its scheme is not taken for one of this machine."""
    content = json.loads(node.api.kubeconfig.read_text())
    content["clusters"][0]["cluster"]["server"] = address
    (tmp_path / "config").write_text(json.dumps(content))
    with pytest.raises(GpushareError, match="as a kubeconfig"):
        Access.of_kubeconfig(tmp_path / "config")
