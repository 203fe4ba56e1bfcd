"""What pods of gpushare's scheduler say, on two real nodes with real controllers: who starts together, who shares a
claim, where volumes are, which limits a queue has, what of the host they need."""

from __future__ import annotations

import time
from functools import partial

import pytest
from kube_stage import until
from real_pods import NAMESPACE, devices, pod_spec
from real_pods import template as make_template
from real_stage import OUT_OF_MEMORY, WHY, WITHIN, empty, programs, stage_of

from gpushare.errors import NoSuchJob
from gpushare.kubernetes.server import MERGE

pytestmark = [pytest.mark.skipif(bool(WHY), reason=WHY), pytest.mark.timeout(400)]

GROUPS = {"feature-gates": "GenericWorkload=true", "runtime-config": "scheduling.k8s.io/v1alpha2=true"}
"""PodGroups and Workloads, which Kubernetes 1.36 has switched off."""
SCHEDULING = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{NAMESPACE}"
QUEUES = "/apis/gpushare.dev/v1/queues"
DISKS = "/api/v1/persistentvolumes"
DISK_CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
DISK_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
SELECTED = "volume.kubernetes.io/selected-node"
QUIET = 3.0
"""Seconds in which something would have happened that must not."""


@pytest.fixture(scope="module")
def _stage():
    with stage_of(["k1", "k2"], features=GROUPS) as made:
        made.cluster.server.ask("POST", QUEUES, queue("guests", quota=0))
        yield made


@pytest.fixture
def stage(_stage):
    with empty(_stage) as made:
        yield made


@pytest.fixture
def program(stage):
    with programs(stage) as start:
        yield partial(start, scheduler="gpushare")


def queue(name, **spec):
    return {"apiVersion": "gpushare.dev/v1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def whole_gpu(stage, name="whole"):
    stage.pods.make("resourceclaimtemplates", make_template(name, None))


def runs(stage, *names):
    return all(stage.phase(name) == "Running" for name in names)


def picture(stage):
    return lambda: "\n".join((*stage.pods.picture(), (stage.folder / "service.log").read_text()[-2000:]))


def wait_for(stage, condition, within=WITHIN):
    return until(condition, picture(stage), within)


def never(stage, condition):
    deadline = time.monotonic() + QUIET
    while time.monotonic() < deadline:
        assert not condition(), picture(stage)()
        time.sleep(0.1)


# ---- pods that start together --------------------------------------------------------------------------


def in_group(name):
    return {"schedulingGroup": {"podGroupName": name}}


@pytest.fixture
def pod_group(stage):
    """Makes PodGroups and Workloads, which go with the test."""
    made = []

    def make(name, policy, kind="podgroups", **more):
        spec = {"schedulingPolicy": policy, **more} if kind == "podgroups" else more
        stage.cluster.server.ask("POST", f"{SCHEDULING}/{kind}", {"metadata": {"name": name}, "spec": spec})
        made.append(f"{SCHEDULING}/{kind}/{name}")

    yield make
    stage.pods.clear()
    for path in reversed(made):
        stage.cluster.server.ask("DELETE", path)


GANG = {"gang": {"minCount": 2}}


def test_a_pod_group_starts_when_so_many_pods_are_there_and_fit(stage, program, pod_group, record_property):
    record_property("kubernetes", f"PodGroups, volumes, shared claims: {stage.cluster.about()}")
    whole_gpu(stage)
    program("g-0", "", template="whole", spec=in_group("g"))
    wait_for(stage, lambda: "its PodGroup g is not there yet" in stage.waits("g-0"))
    pod_group("g", GANG)
    wait_for(stage, lambda: stage.waits("g-0") == "its pod group has 1 of 2 pods")
    taken = program("taken", "2Gi").running()
    program("g-1", "", template="whole", spec=in_group("g"))
    never(stage, lambda: stage.node_of("g-0") or stage.node_of("g-1"))
    print("while one GPU of two is taken:", stage.waits("g-0"))
    stage.pods.delete("pods", taken.name, 1)
    wait_for(stage, lambda: runs(stage, "g-0", "g-1"))
    assert {stage.node_of("g-0"), stage.node_of("g-1")} == {"k1", "k2"}


def test_a_pod_that_comes_later_to_its_group_starts_alone(stage, program, pod_group):
    pod_group("g", GANG)
    for number in range(3):
        program(f"g-{number}", "1Gi", spec=in_group("g"))
    wait_for(stage, lambda: runs(stage, "g-0", "g-1", "g-2"))
    program("g-3", "1Gi", spec=in_group("g"))
    wait_for(stage, lambda: runs(stage, "g-3"))


def test_a_pod_group_of_a_workload_says_the_same(stage, program, pod_group):
    pod_group("w", None, "workloads", podGroupTemplates=[{"name": "workers", "schedulingPolicy": GANG}])
    reference = {"workload": {"workloadName": "w", "podGroupTemplateName": "workers"}}
    pod_group("w-workers", GANG, podGroupTemplateRef=reference)
    program("one", "1Gi", spec=in_group("w-workers"))
    wait_for(stage, lambda: stage.waits("one") == "its pod group has 1 of 2 pods")
    program("two", "1Gi", spec=in_group("w-workers"))
    wait_for(stage, lambda: runs(stage, "one", "two"))


def test_pods_of_a_basic_group_start_each_alone(stage, program, pod_group):
    pod_group("g", {"basic": {}})
    program("alone", "1Gi", spec=in_group("g"))
    wait_for(stage, lambda: runs(stage, "alone"))


def test_the_scheduler_is_killed_and_the_groups_jobs_are_the_same(stage, program, pod_group):
    pod_group("g", GANG)
    started = [program(f"g-{number}", "1Gi", spec=in_group("g")) for number in range(3)]
    wait_for(stage, lambda: runs(stage, "g-0", "g-1", "g-2"))
    stage.kill("gpushare's scheduler")
    (stage.folder / "cluster.db").unlink()
    stage.start("gpushare's scheduler")
    program("g-3", "1Gi", spec=in_group("g"))
    wait_for(stage, lambda: runs(stage, "g-3"))
    assert [one.do("total") for one in started] == [1024] * 3


def test_a_group_with_a_least_gives_back_what_is_above_it_and_takes_it_again(stage, program):
    whole_gpu(stage)
    meta = {
        "labels": {"test": "train", "gpushare.dev/queue": "guests", "gpushare.dev/pod-group": "train"},
        "annotations": {"gpushare.dev/pod-group-size": "2", "gpushare.dev/pod-group-min": "1"},
    }
    spec = {**pod_spec(["sleep", "1000"], template="whole"), "schedulerName": "gpushare", "restartPolicy": "Always"}
    more = {"replicas": 2, "selector": {"matchLabels": {"test": "train"}}, "template": {"metadata": meta, "spec": spec}}
    stage.pods.make("replicasets", {"metadata": {"name": "train"}, "spec": more})

    def running():
        found = [one for one in stage.pods.labelled("test=train") if not one["metadata"].get("deletionTimestamp")]
        return {one["metadata"]["uid"] for one in found if one["status"].get("phase") == "Running"}

    wait_for(stage, lambda: len(running()) == 2)
    before = running()
    owner = program("owner", "", template="whole")
    wait_for(stage, lambda: runs(stage, "owner"))
    assert len(running()) == 1 and running() < before, "one of its pods went, the other goes on"
    stage.pods.delete("pods", owner.name, 1)
    wait_for(stage, lambda: len(running()) == 2)
    assert len(running() & before) == 1


# ---- pods that share a claim ---------------------------------------------------------------------------


def shared(stage, memory="2Gi"):
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "both"}}
    stage.pods.make("resourceclaims", {**head, "spec": {"devices": devices(memory)}})


def test_pods_that_name_one_claim_run_side_by_side_and_share_its_limit(stage, program):
    shared(stage, "3Gi")
    first = program("first", "", claim="both").running()
    second = program("second", "", claim="both").running()
    third = program("third", "", claim="both").running()
    assert len({stage.node_of(name) for name in ("first", "second", "third")}) == 1
    reserved = stage.pods.get("resourceclaims", "both")["status"]["reservedFor"]
    assert {one["name"] for one in reserved} == {"first", "second", "third"}
    assert first.do(600) == 0
    until(lambda: second.do(600) == 0, "the second pod to have a part of it", WITHIN)
    until(lambda: third.do(300) == 0, "the third pod to have a part of it", WITHIN)
    assert third.do(1000) == OUT_OF_MEMORY, "of all together"
    stage.pods.delete("pods", "first", 1)
    until(lambda: third.do(1000) == 0, "what the first pod had", WITHIN)
    for name in ("second", "third"):
        stage.pods.delete("pods", name, 1)
    free = partial(stage.pods.get, "resourceclaims", "both")
    wait_for(stage, lambda: not (free().get("status") or {}).get("allocation"))
    again = program("again", "", claim="both").running()
    assert again.do(2600) == 0


def test_pods_that_share_a_claim_are_evicted_together_and_come_back_together(stage, program):
    """The owner needs their whole GPU, and nobody else's."""
    shared(stage, "3Gi")
    meta = {"labels": {"test": "pair", "gpushare.dev/queue": "guests"}}
    spec = {**pod_spec(["sleep", "1000"], claim="both"), "schedulerName": "gpushare", "restartPolicy": "Always"}
    more = {"replicas": 2, "selector": {"matchLabels": {"test": "pair"}}, "template": {"metadata": meta, "spec": spec}}
    stage.pods.make("replicasets", {"metadata": {"name": "pair"}, "spec": more})

    def running():
        return [one for one in stage.pods.labelled("test=pair") if one["status"].get("phase") == "Running"]

    wait_for(stage, lambda: len(running()) == 2)
    program("fill", "3Gi").running()
    before = {one["metadata"]["uid"] for one in running()}
    stage.cluster.server.ask("PATCH", f"{QUEUES}/{NAMESPACE}", {"spec": {"quota": 2}}, MERGE)
    try:
        owner = program("owner", "3Gi")
        wait_for(stage, lambda: runs(stage, "owner"))
        assert not running() and runs(stage, "fill")
        stage.pods.delete("pods", owner.name, 1)
        wait_for(stage, lambda: len(running()) == 2)
        assert not before & {one["metadata"]["uid"] for one in running()}
    finally:
        stage.cluster.server.ask("PATCH", f"{QUEUES}/{NAMESPACE}", {"spec": {"quota": 1}}, MERGE)


# ---- volumes -------------------------------------------------------------------------------------------


class Volumes:
    """Makes claims, and volumes as who makes them does."""

    def __init__(self, stage):
        self.stage, self.server = stage, stage.cluster.server
        self.made = []

    def kind(self, name, provisioner, **more):
        head = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
        self._make(DISK_CLASSES, {**head, **more})

    def claim(self, name, kind, **more):
        room = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        self._make(DISK_CLAIMS, {"metadata": {"name": name}, "spec": {"storageClassName": kind, **room, **more}})

    def volume(self, name, kind, node, **more):
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        folder = self.stage.folder / "disks" / name
        folder.mkdir(parents=True, exist_ok=True)
        spec = {
            "storageClassName": kind,
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            **more,
        }
        self._make(DISKS, {"metadata": {"name": name}, "spec": spec})

    def make_for(self, claim, node):
        found = self.get(claim)
        reference = {"kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": claim}
        self.volume(f"of-{claim}", found["spec"]["storageClassName"], node, claimRef={**reference, "uid": uid(found)})

    def get(self, claim):
        return self.server.ask("GET", f"{DISK_CLAIMS}/{claim}")

    def told(self, claim):
        return (self.get(claim)["metadata"].get("annotations") or {}).get(SELECTED)

    def give_up(self, claim):
        """As who makes volumes does when it cannot."""
        self.server.ask("PATCH", f"{DISK_CLAIMS}/{claim}", {"metadata": {"annotations": {SELECTED: None}}}, MERGE)

    def _make(self, path, body):
        self.server.ask("POST", path, body)
        self.made.append(f"{path}/{body['metadata']['name']}")

    def clear(self):
        self.stage.pods.clear()
        for path in reversed(self.made):
            self.server.ask("DELETE", path)
        until(lambda: not any(map(self._is_there, self.made)), "the volumes to go", WITHIN)

    def _is_there(self, path):
        try:
            return self.server.ask("GET", path)
        except NoSuchJob:
            return None


def uid(thing):
    return thing["metadata"]["uid"]


@pytest.fixture
def volumes(stage):
    made = Volumes(stage)
    yield made
    made.clear()


@pytest.mark.parametrize("node", ["k1", "k2"])
def test_a_pod_runs_where_the_volume_is_that_its_claim_names(stage, program, volumes, node):
    """Also where its class waits for its first pod: a folder of a node, which nobody makes."""
    volumes.kind("local", "kubernetes.io/no-provisioner")
    volumes.volume("folder", "local", node)
    volumes.claim("disk", "local", volumeName="folder")
    program("train", "1Gi", disk="disk").running()
    assert stage.node_of("train") == node and volumes.get("disk")["status"]["phase"] == "Bound"


@pytest.mark.parametrize("node", ["k1", "k2"])
def test_a_claim_gets_one_of_such_volumes_and_its_pod_runs_there(stage, program, volumes, node):
    volumes.kind("local", "kubernetes.io/no-provisioner")
    volumes.claim("disk", "local")
    program("train", "1Gi", disk="disk")
    wait_for(stage, lambda: "no free one of StorageClass local is as it asks" in stage.waits("train"))
    volumes.volume("large", "local", node, capacity={"storage": "2Gi"})
    volumes.volume("folder", "local", node)
    wait_for(stage, lambda: runs(stage, "train"))
    found = volumes.get("disk")
    assert stage.node_of("train") == node
    assert (found["status"]["phase"], found["spec"]["volumeName"]) in [("Bound", "folder"), ("Bound", "large")]


def test_two_pods_that_come_at_once_get_local_volumes_of_their_own(stage, program, volumes):
    volumes.kind("local", "kubernetes.io/no-provisioner")
    for number, node in enumerate(("k1", "k1", "k2")):
        volumes.volume(f"folder-{number}", "local", node)
        volumes.claim(f"disk-{number}", "local")
    for number in range(3):
        program(f"p-{number}", "1Gi", disk=f"disk-{number}")
    wait_for(stage, lambda: runs(stage, "p-0", "p-1", "p-2"))
    assert len({volumes.get(f"disk-{number}")["spec"]["volumeName"] for number in range(3)}) == 3
    assert sorted(stage.node_of(f"p-{number}") for number in range(3)) == ["k1", "k1", "k2"]


def test_a_volume_is_made_where_the_pod_is_to_run_and_then_it_is_bound(stage, program, volumes):
    volumes.kind("fast", "test.example/stand-in")
    volumes.claim("disk", "fast")
    program("train", "1Gi", disk="disk")
    node = wait_for(stage, lambda: volumes.told("disk"))
    never(stage, lambda: stage.node_of("train"))
    volumes.make_for("disk", node)
    wait_for(stage, lambda: runs(stage, "train"))
    assert stage.node_of("train") == node and volumes.get("disk")["status"]["phase"] == "Bound"


def test_where_it_cannot_be_made_another_node_is_told(stage, program, volumes):
    volumes.kind("fast", "test.example/stand-in")
    volumes.claim("disk", "fast")
    program("train", "1Gi", disk="disk")
    first = wait_for(stage, lambda: volumes.told("disk"))
    volumes.give_up("disk")
    second = wait_for(stage, lambda: volumes.told("disk"))
    assert second != first
    volumes.make_for("disk", second)
    wait_for(stage, lambda: runs(stage, "train"))
    assert stage.node_of("train") == second


def of_two(name):
    """Of a group of two pods."""
    labels = {"gpushare.dev/pod-group": name}
    return {"labels": labels, "annotations": {"gpushare.dev/pod-group-size": "2"}}


@pytest.mark.parametrize("node", ["k1", "k2"])
def test_pods_of_a_group_run_where_the_volume_of_one_is_and_say_so_where_that_cannot_be(stage, program, volumes, node):
    volumes.kind("local", "kubernetes.io/no-provisioner")
    volumes.volume("folder", "local", node)
    volumes.claim("disk", "local", volumeName="folder")
    program("g-0", "1Gi", meta=of_two("g"))
    program("g-1", "1Gi", meta=of_two("g"), disk="disk")
    wait_for(stage, lambda: runs(stage, "g-0", "g-1"))
    assert (stage.node_of("g-0"), stage.node_of("g-1")) == (node, node)
    other = "k2" if node == "k1" else "k1"
    volumes.volume("far", "local", other)
    volumes.claim("more", "local", volumeName="far")
    program("h-0", "512Mi", meta=of_two("h"), disk="more")
    program("h-1", "512Mi", meta=of_two("h"), disk="disk")
    wait_for(stage, lambda: "no node suits all pods of its group" in stage.waits("h-0") + stage.waits("h-1"))


def test_no_pod_of_a_group_is_bound_while_the_volume_of_another_is_made(stage, program, volumes):
    volumes.kind("fast", "test.example/stand-in")
    volumes.claim("disk", "fast")
    program("g-0", "1Gi", meta=of_two("g"))
    program("g-1", "1Gi", meta=of_two("g"), disk="disk")
    first = wait_for(stage, lambda: volumes.told("disk"))
    never(stage, lambda: stage.node_of("g-0") or stage.node_of("g-1"))
    volumes.give_up("disk")
    second = wait_for(stage, lambda: volumes.told("disk"))
    assert second != first and not stage.node_of("g-0")
    volumes.make_for("disk", second)
    wait_for(stage, lambda: runs(stage, "g-0", "g-1"))
    assert stage.node_of("g-1") == second


def test_pods_of_a_namespace_that_may_not_use_a_queue_wait(stage, program):
    server = stage.cluster.server
    server.ask("PATCH", f"{QUEUES}/guests", {"spec": {"namespaceSelector": {"matchLabels": {"guest": "yes"}}}}, MERGE)
    try:
        waits = program("waits", "1Gi", meta={"labels": {"gpushare.dev/queue": "guests"}})
        own = program("own", "1Gi")
        why = f"namespace {NAMESPACE} may not use queue guests ("
        wait_for(stage, lambda: stage.waits("waits").startswith(why) and runs(stage, "own"))
        never(stage, lambda: stage.node_of("waits"))
        namespace = f"/api/v1/namespaces/{NAMESPACE}"
        server.ask("PATCH", namespace, {"metadata": {"labels": {"guest": "yes"}}}, MERGE)
        wait_for(stage, lambda: runs(stage, "waits"))
        server.ask("PATCH", namespace, {"metadata": {"labels": {"guest": None}}}, MERGE)
        never(stage, lambda: not runs(stage, "waits", "own"))
        assert [one.do("total") for one in (waits, own)] == [1024] * 2
    finally:
        server.ask("PATCH", f"{QUEUES}/guests", {"spec": {"namespaceSelector": None}}, MERGE)


def test_a_class_says_where_its_volumes_can_be(stage, program, volumes):
    topology = {"matchLabelExpressions": [{"key": "kubernetes.io/hostname", "values": ["k2"]}]}
    volumes.kind("far", "test.example/stand-in", allowedTopologies=[topology])
    volumes.claim("disk", "far")
    program("train", "1Gi", disk="disk")
    assert wait_for(stage, lambda: volumes.told("disk")) == "k2"


# ---- limits of queues ----------------------------------------------------------------------------------


def test_a_queue_bounds_the_limits_that_users_write(stage, program):
    server = stage.cluster.server
    server.ask("POST", QUEUES, queue("bounded", quota=1, defaultLimit="0.4", maxLimit="0.5"))
    try:
        capacity = stage.node.client.status()["gpus"][0]["capacity"] >> 20
        head = {"labels": {"gpushare.dev/queue": "bounded"}}
        greedy = program("greedy", "512Mi", limit="max", meta=head).running()
        modest = program("modest", "512Mi", limit="1Gi", meta=head).running()
        silent = program("silent", "512Mi", meta=head).running()
        found = [one.do("total") for one in (greedy, modest, silent)]
        assert found == [capacity // 2, 1024, capacity * 2 // 5]
        assert greedy.do(capacity // 2 + 1) == OUT_OF_MEMORY and greedy.do(1000) == 0
    finally:
        server.ask("DELETE", f"{QUEUES}/bounded")


# ---- CPUs and memory of the host -----------------------------------------------------------------------


def room(stage, kind):
    """Half of what a node gives its pods, and a little more: of two such pods it takes one."""
    said = stage.cluster.server.ask("GET", "/api/v1/nodes/k1")["status"]["allocatable"][kind]
    return f"{int(said) * 600}m" if kind == "cpu" else f"{int(said.removesuffix('Ki')) * 6 // 10}Ki"


@pytest.mark.parametrize("kind", ["cpu", "memory"])
def test_pods_go_where_their_cpus_and_memory_are_and_the_kubelet_refuses_none(stage, program, kind):
    needs = {kind: room(stage, kind)}
    for number in range(3):
        program(f"p{number}", "512Mi", needs=needs)
    wait_for(stage, lambda: sum(runs(stage, f"p{number}") for number in range(3)) == 2)
    (last,) = [f"p{number}" for number in range(3) if not stage.node_of(f"p{number}")]
    wait_for(stage, lambda: "; 2 nodes lack the " in stage.waits(last))
    assert "2 nodes lack the " in stage.plug_in("explain", last, "-n", NAMESPACE)
    never(stage, lambda: stage.node_of(last))
    others = [name for name in ("p0", "p1", "p2") if name != last]
    assert {stage.node_of(name) for name in others} == {"k1", "k2"}
    stage.pods.delete("pods", others[0], 1)
    wait_for(stage, lambda: runs(stage, last))
