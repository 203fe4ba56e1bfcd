"""The plugin on a node whose API server has no claims: pods that carry theirs, on the real node daemon.

The stand-in for the API server says what the scheduler has written; a pod's cgroup is there when the test makes it.
"""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from claims import GIB, NODE, result
from cluster_double import ClusterDouble
from kube_stage import KubeNode, missing, node_in, until

from gpushare.kubernetes.carried import CLAIM, GATES
from gpushare.kubernetes.names import NODE_GPUS

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
GATE = "0123456789abcdef" * 2


class Pods:
    """Of one node. The plugin's own checks of a node come from KubeNode."""

    def __init__(self, node: KubeNode) -> None:
        self.node = node
        self.api = node.api
        self.api.lacks = ("/apis/resource.k8s.io/",)
        self.uuids: list[str] = []

    def path(self, name: str) -> str:
        return f"/api/v1/namespaces/team-a/pods/{name}"

    def bound(self, name: str = "train", gate: str = GATE, memory: str = "1Gi", **more: Any) -> str:
        """As the scheduler leaves it; its uid. `limit`, `pool`, `gpu`: of what it has been given."""
        uid, limit = f"p-{name}", more.get("limit")
        device = {**result(self.uuids[more.get("gpu", 0)], memory), "pool": more.get("pool", NODE)}
        said = {"apiVersion": "gpushare.dev/v1", "kind": "Budget", **({"limit": limit} if limit else {})}
        config = [{"source": "FromClaim", "opaque": {"driver": "gpushare.dev", "parameters": said}}]
        allocation = {"devices": {"results": [device], "config": config}}
        annotations = {CLAIM: json.dumps({"memory": memory}), "gpushare.dev/allocation": json.dumps(allocation)}
        volume = {"name": "gpushare", "hostPath": {"path": f"{GATES}/{gate}/libgpushare.so"}}
        meta = {"name": name, "namespace": "team-a", "uid": uid, "annotations": annotations}
        spec = {"nodeName": NODE, "volumes": [volume] if gate else []}
        self.api.put(self.path(name), {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
        return uid

    def library(self, gate: str = GATE) -> Path:
        return self.node.state / "pods" / gate / "libgpushare.so"

    def opened(self, gate: str = GATE) -> None:
        until(self.library(gate).exists, lambda: f"the gate to open: {self.node.log()}")

    def ends(self, name: str = "train") -> None:
        self.api.change(self.path(name), lambda pod: pod["status"].update(phase="Succeeded"))

    def gone(self, name: str = "train") -> None:
        self.api.remove(self.path(name))

    def left(self) -> list[str]:
        gates = self.node.state / "pods"
        return [*self.node.leftovers(), *(f"gate {one.name}" for one in gates.glob("*"))]

    def nothing_is_left(self) -> None:
        until(lambda: not self.left(), lambda: f"nothing to be left: {self.left()} {self.node.log()}")

    def events(self) -> list[str]:
        found = sorted(self.api.of("events"), key=lambda one: int(one["metadata"]["resourceVersion"]))
        return [one["message"] for one in found]


@pytest.fixture(scope="module")
def ground():
    with tempfile.TemporaryDirectory(prefix="gs-k-") as folder:
        Path(folder).chmod(0o755)
        with node_in(Path(folder), ClusterDouble) as node:
            made = Pods(node)
            node.start_daemon()
            made.uuids = node.uuids
            node.start_plugin()
            yield made


@pytest.fixture
def pods(ground):
    yield ground
    node = ground.node
    node.api.start()
    if node.daemon.poll() is not None:
        node.start_daemon()
    if node.plugin.poll() is not None:
        node.start_plugin()
    for path in [one for one in node.api.objects if "/pods/" in one or "/events/" in one]:
        node.api.remove(path)
    for pod in node.pods.glob("pod*"):
        pod.rmdir()
    ground.nothing_is_left()


def test_the_gate_opens_when_the_placement_is_there_and_not_before(pods):
    uid = pods.bound(limit="2Gi")
    time.sleep(0.5)  # so long the plugin has looked again and again
    assert not pods.library().exists() and not pods.node.placed()
    pods.node.pod(uid)
    pods.opened()
    (placed,) = pods.node.placed()
    assert placed["id"].startswith(f"kubernetes/{uid}/") and placed["cgroups"] == [f"/kubepods/pod{uid}"]
    assert placed["job"]["id"] == GATE[:16], "as the pod's variables have it"
    assert (placed["job"]["name"], placed["job"]["gpus"][0]["limit"]) == ("team-a/train", 2 * GIB)
    assert pods.library().read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("how", ["ends", "gone"])
def test_nothing_is_left_of_a_pod_that_is_over(pods, how):
    pods.node.pod(pods.bound())
    pods.opened()
    getattr(pods, how)()
    pods.nothing_is_left()


def test_what_its_user_writes_into_a_pod_that_runs_does_not_raise_its_limit(pods):
    pods.node.pod(pods.bound())
    pods.opened()

    def more(pod):
        text = pod["metadata"]["annotations"]["gpushare.dev/allocation"]
        pod["metadata"]["annotations"]["gpushare.dev/allocation"] = text.replace("1Gi", "3Gi")

    pods.api.change(pods.path("train"), more)
    looked = len(pods.api.requests)
    until(lambda: len(pods.api.requests) > looked + 3, "the plugin to look again")
    assert [one["job"]["gpus"][0]["limit"] for one in pods.node.placed()] == [GIB]


def test_two_pods_have_their_own_and_a_second_of_the_same_gate_ends_alone(pods):
    pods.node.pod(pods.bound("first", memory="1Gi"))
    pods.node.pod(pods.bound("second", gate="f" * 32, memory="512Mi"))
    pods.opened()
    pods.opened("f" * 32)
    assert sorted(one["job"]["name"] for one in pods.node.placed()) == ["team-a/first", "team-a/second"]
    pods.gone("second")
    until(lambda: not pods.library("f" * 32).exists(), "the second to end")
    assert pods.library().exists() and len(pods.node.placed()) == 1


@pytest.mark.parametrize(("part", "number"), [("daemon", signal.SIGKILL), ("plugin", signal.SIGKILL)])
def test_a_restart_loses_nothing_and_leaves_nothing(pods, part, number):
    pods.node.pod(pods.bound("old"))
    pods.opened()
    pods.node.kill(getattr(pods.node, part), number)
    pods.gone("old")
    uid = pods.bound("new", gate="e" * 32)
    pods.node.pod(uid)
    getattr(pods.node, f"start_{part}")()
    pods.opened("e" * 32)
    until(lambda: [one["job"]["name"] for one in pods.node.placed()] == ["team-a/new"], pods.node.log)
    until(lambda: not pods.library().exists(), "the old gate to close")


def test_the_daemon_loses_its_notes_and_somebody_removes_the_gate(pods):
    pods.node.pod(pods.bound())
    pods.opened()
    pods.node.kill(pods.node.daemon)
    for path in pods.node.daemon_folder.glob("state*"):
        path.unlink()
    pods.library().unlink()
    pods.node.start_daemon()
    pods.opened()
    until(lambda: len(pods.node.placed()) == 1, "the placement to be there again")


def test_while_the_api_server_is_away_nothing_ends_and_the_plugin_starts_all_the_same(pods):
    pods.node.pod(pods.bound())
    pods.opened()
    pods.api.stop()
    pods.node.kill(pods.node.plugin)
    pods.library().unlink()
    pods.node.start_plugin()
    pods.opened()
    assert len(pods.node.placed()) == 1
    pods.api.start()
    pods.gone()
    pods.nothing_is_left()


def test_what_is_wrong_is_told_once_in_an_event_of_the_pod(pods):
    pods.node.pod(pods.bound("wrong", limit="512Mi"))
    until(pods.events, "an event")
    assert pods.events() == [
        "claim team-a/wrong: Budget.limit 512Mi is below the request 1Gi; raise the limit, or leave it out"
    ]
    (event,) = pods.api.of("events")
    assert (event["type"], event["reason"], event["involvedObject"]["name"]) == ("Warning", "NotPrepared", "wrong")
    uid = pods.bound("large", gate="d" * 32, memory="3Gi")
    pods.node.pod(uid)
    pods.opened("d" * 32)
    pods.node.pod(pods.bound("late", gate="c" * 32, memory="3Gi"))
    until(lambda: len(pods.events()) == 2, "a second event")
    assert pods.events()[1].startswith("no room for a request of 3.0 GiB on GPU 0")
    assert pods.events()[1].endswith("it is tried again")
    pods.gone("large")
    pods.opened("c" * 32)


def test_a_pod_without_a_gate_has_its_placement_and_one_of_another_node_has_none(pods):
    pods.node.pod(pods.bound("bare", gate=""))
    until(lambda: len(pods.node.placed()) == 1, "its placement")
    pods.bound("away", gate="b" * 32, pool="n2")
    until(pods.events, "an event")
    assert "has no GPU of gpushare.dev on n1" in pods.events()[0]
    assert len(pods.node.placed()) == 1


def test_what_is_in_the_way_of_a_gate_is_told(pods):
    (pods.node.state / "pods").mkdir(exist_ok=True)
    (pods.node.state / "pods" / GATE).write_text("")
    try:
        pods.node.pod(pods.bound())
        until(pods.events, "an event")
    finally:
        (pods.node.state / "pods" / GATE).unlink()
    pods.opened()


def test_a_pod_that_removes_what_it_asks_for_keeps_its_placement(pods):
    uid = pods.bound()
    pods.node.pod(uid)
    pods.opened()
    pods.api.change(pods.path("train"), lambda pod: pod["metadata"]["annotations"].pop(CLAIM))
    pods.node.pod(pods.bound("next", gate="f" * 32))
    pods.opened("f" * 32)  # so it has looked
    assert len(pods.node.placed()) == 2 and pods.library().exists()


def test_the_gate_of_another_pod_opens_nobody_s_and_does_not_end_with_him(pods):
    """Whose volumes name it: by a volume of another name, and as its own."""
    pods.node.pod(pods.bound("owner"))
    pods.opened()
    uid = pods.bound("thief", gate="f" * 32)
    stolen = {"name": "mine", "hostPath": {"path": f"{GATES}/{GATE}/libgpushare.so"}}
    pods.api.change(pods.path("thief"), lambda pod: pod["spec"]["volumes"].insert(0, stolen))
    pods.node.pod(uid)
    pods.opened("f" * 32)
    pods.node.pod(pods.bound("copy"))
    until(pods.events, "an event")
    assert "there is a job" in pods.events()[0], "it is made of the gate, and so there is one of a gate"
    pods.gone("thief")
    pods.gone("copy")
    until(lambda: not pods.library("f" * 32).exists(), "the thief to end")
    assert pods.library().exists() and [one["job"]["name"] for one in pods.node.placed()] == ["team-a/owner"]


def test_who_writes_into_its_library_changes_no_other_s(pods):
    """A container that its user has given the volume may write into it."""
    pods.node.pod(pods.bound("first"))
    pods.opened()
    with pods.library().open("r+b") as file:
        file.write(b"evil")
    pods.node.pod(pods.bound("second", gate="f" * 32))
    pods.opened("f" * 32)
    assert pods.library("f" * 32).read_bytes()[:4] == b"\x7fELF"


def uses(pods) -> dict[str, dict[str, Any]]:
    """What the node's object says of pods, by their name."""
    said = [one for found in pods.api.of("nodegpus") for one in (found.get("status") or {}).get("uses") or ()]
    return {one["pod"]["name"]: one for one in said}


def test_how_pods_use_their_gpus_is_told_by_the_node_s_object(pods):
    uid = pods.bound(limit="2Gi")
    pods.node.pod(uid)
    pods.node.pod(pods.bound("other", gate="f" * 32, memory="512Mi"))
    until(lambda: len(uses(pods)) == 2, lambda: f"what is told: {uses(pods)} {pods.node.log()}")
    one = uses(pods)["train"]
    assert one["pod"] == {"namespace": "team-a", "name": "train", "uid": uid}
    assert (one["pool"], one["data"]["request"], one["data"]["limit"]) == (NODE, "1Gi", "2Gi")
    assert one["conditions"][0]["message"] == "uses 0 B of 1.0 GiB requested"
    (found,) = pods.api.of("nodegpus")
    time.sleep(2.0)
    assert pods.api.of("nodegpus") == [found], "what is as before is not written again"
    pods.gone("other")
    until(lambda: list(uses(pods)) == ["train"], lambda: f"the other to be gone: {uses(pods)}")
    pods.api.remove(f"{NODE_GPUS}/{NODE}")
    until(lambda: pods.api.of("nodegpus") and list(uses(pods)) == ["train"], "both to be made again")


def test_the_node_s_gpus_are_an_object_of_the_node(pods):
    (found,) = until(lambda: pods.api.of("nodegpus"), "the object")
    assert (found["kind"], found["metadata"]["name"]) == ("NodeGpus", NODE)
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", "node-uid")
    assert [one["attributes"]["uuid"]["string"] for one in found["spec"]["devices"]] == pods.node.uuids
    pods.api.remove(f"{NODE_GPUS}/{NODE}")
    until(lambda: pods.api.of("nodegpus"), "the object to be made again")
    with contextlib.suppress(KeyError):
        assert not [one for one in pods.api.requests if "resourceslices" in one[1]]
