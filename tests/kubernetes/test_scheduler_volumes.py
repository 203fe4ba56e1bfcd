"""Volumes say where a pod runs; those that are made only where it is are made there before it is bound."""

from __future__ import annotations

import pytest
from kube_cluster import GIB, NODES, PODS, Program
from test_scheduler_words import told

from gpushare.cluster.engines.kubernetes import starts
from gpushare.cluster.engines.kubernetes.volumes import NODE
from gpushare.cluster.engines.seam import Accepted, Refused
from gpushare.cluster.model import Place

CLAIMS = "/api/v1/namespaces/team-a/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
WITH_DISK = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "disk"}}]}


def zone(*names):
    return {"matchExpressions": [{"key": "zone", "operator": "In", "values": list(names)}]}


def put_disk(cluster, *terms, name="disk"):
    """A claim with its volume."""
    affinity = {"required": {"nodeSelectorTerms": list(terms)}}
    cluster.api.put(f"{VOLUMES}/pv-1", {"metadata": {"name": "pv-1"}, "spec": {"nodeAffinity": affinity}})
    spec = {"storageClassName": "fast", "volumeName": "pv-1"}
    meta = {"name": name, "namespace": "team-a"}
    cluster.api.put(f"{CLAIMS}/{name}", {"metadata": meta, "spec": spec, "status": {"phase": "Bound"}})


def put_wish(cluster, name="disk", *, mode="WaitForFirstConsumer", provisioner="csi.example.com", topologies=()):
    """A claim without a volume."""
    kind = {"metadata": {"name": "fast"}, "provisioner": provisioner, "volumeBindingMode": mode}
    kind["allowedTopologies"] = list(topologies)
    cluster.api.put(f"{CLASSES}/fast", kind)
    meta = {"name": name, "namespace": "team-a", "annotations": {}}
    spec = {"storageClassName": "fast"}
    cluster.api.put(f"{CLAIMS}/{name}", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})


def made(cluster, *terms, name="disk"):
    """As who makes volumes does."""
    put = cluster.api.objects[f"{CLAIMS}/{name}"]["metadata"]["annotations"].get(NODE)
    if put:
        put_disk(cluster, *terms, name=name)
    return put


@pytest.fixture
def zones(cluster):
    for name, where in (("n1", "z1"), ("n2", "z2")):
        cluster.api.change(f"{NODES}/{name}", lambda one, where=where: one["metadata"]["labels"].update(zone=where))
    return cluster


def submit(cluster, name="train", **more):
    return cluster.submit(name, Program(requeue=False), queue="a", spec=WITH_DISK, **more)


def test_a_pod_runs_where_its_volume_is(zones, ruled):
    put_disk(zones, zone("z2"))
    for number in range(3):
        submit(zones, f"p{number}", memory="80Gi")
    ruled.settle()
    ruled.go(lambda: sum(bool(zones.programs[f"p{number}"].began) for number in range(3)) == 2)
    ruled.round()
    nodes = [zones.pod(f"p{number}")["spec"].get("nodeName") for number in range(3)]
    assert nodes == ["n2", "n2", None], "n1 is free"


def test_a_volume_is_made_where_the_pod_is_to_run_before_it_is_bound(zones, ruled):
    put_wish(zones)
    submit(zones)
    ruled.settle()
    ruled.go(lambda: zones.api.objects[f"{CLAIMS}/disk"]["metadata"]["annotations"].get(NODE))
    for _ in range(5):
        ruled.round()
    assert not zones.pod("train")["spec"].get("nodeName"), "it has no volume yet"
    ruled.settle()
    assert sum(ruled.engine._board.used.values()) == 8 * GIB, "its GPU is kept for it"
    node = made(zones, zone("z1", "z2"))
    ruled.settle()
    ruled.go(lambda: zones.programs["train"].began)
    assert zones.pod("train")["spec"]["nodeName"] == node


def test_where_it_cannot_be_made_another_node_is_told(zones, ruled):
    put_wish(zones)
    submit(zones)
    ruled.settle()
    path = f"{CLAIMS}/disk"
    first = ruled.go(lambda: zones.api.objects[path]["metadata"]["annotations"].get(NODE))
    zones.api.change(path, lambda one: one["metadata"]["annotations"].pop(NODE))
    ruled.settle()
    second = ruled.go(lambda: zones.api.objects[path]["metadata"]["annotations"].get(NODE))
    assert first != second
    made(zones, zone("z1", "z2"))
    ruled.settle()
    ruled.go(lambda: zones.programs["train"].began)
    assert zones.pod("train")["spec"]["nodeName"] == second


def test_one_that_nobody_makes_is_given_up_after_a_while(zones, scheduler, monkeypatch):
    put_wish(zones)
    uid = submit(zones)
    scheduler.settle()
    assert isinstance(scheduler.start(uid), Accepted)
    assert scheduler.job(uid).tasks[0].phase == "starting"
    monkeypatch.setattr(starts, "MADE_WITHIN", -1.0)
    scheduler.engine.snapshot()
    (task,) = scheduler.job(uid).tasks
    assert (task.phase, task.why, task.node_to_blame) == ("failed", "its volumes cannot be made there", True)
    assert not zones.claim_of("train").get("status", {}).get("allocation")


def test_a_volume_that_comes_somewhere_else_is_no_reason_to_bind_the_pod_here(zones, scheduler):
    put_wish(zones)
    uid = submit(zones)
    scheduler.settle()
    scheduler.start(uid)
    made(zones, zone("z2"))
    scheduler.settle()
    scheduler.engine.snapshot()
    assert not zones.pod("train")["spec"].get("nodeName")
    assert scheduler.job(uid).tasks[0].why == "its volumes are not where n1 is"


def test_a_restarted_scheduler_waits_on(zones, scheduler):
    put_wish(zones)
    uid = submit(zones)
    scheduler.settle()
    scheduler.start(uid)
    scheduler.api.starter.told.clear()
    scheduler.settle()
    scheduler.engine.snapshot()
    assert scheduler.job(uid).tasks[0].phase == "starting"
    made(zones, zone("z1"))
    scheduler.settle()
    scheduler.engine.snapshot()
    assert zones.pod("train")["spec"]["nodeName"] == "n1"


def test_of_a_group_none_is_bound_where_one_volume_cannot_be_asked_for(zones, scheduler):
    put_wish(zones)
    group = {"labels": {"gpushare.dev/pod-group": "g"}, "annotations": {"gpushare.dev/pod-group-size": "2"}}
    uid = zones.submit("first", Program(requeue=False), queue="a", **group)
    submit(zones, "second", **group)
    scheduler.settle()
    where = f"{CLAIMS}/disk"
    zones.api.refuses = lambda method, path, _: (403, {"message": "no"}) if (method, path) == ("PATCH", where) else None
    places = tuple(Place(0, task, "n1", (task,), 8 * GIB, 0) for task in range(2))
    assert isinstance(scheduler.start(uid, places=places), Refused)
    assert not any(zones.pod(name)["spec"].get("nodeName") for name in ("first", "second"))
    assert not any(zones.claim_of(name).get("status", {}).get("allocation") for name in ("first", "second"))


def test_a_class_says_where_its_volumes_can_be(zones, ruled):
    topology = {"matchLabelExpressions": [{"key": "zone", "values": ["z2"]}]}
    put_wish(zones, topologies=[topology])
    submit(zones)
    ruled.settle()
    ruled.go(lambda: zones.api.objects[f"{CLAIMS}/disk"]["metadata"]["annotations"].get(NODE) == "n2")


WRONG = {
    "not there": (lambda _: None, "there is no PersistentVolumeClaim team-a/disk"),
    "not bound": (lambda one: put_wish(one, mode="Immediate"), "PersistentVolumeClaim team-a/disk has no volume yet"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_keeps_it_is_told_and_it_starts_when_that_is_over(zones, ruled, what):
    make, words = WRONG[what]
    make(zones)
    submit(zones)
    ruled.settle()
    ruled.go(lambda: words in told(zones, "train"))
    put_disk(zones, zone("z1"))
    ruled.settle()
    ruled.go(lambda: zones.programs["train"].began)


def test_a_claim_that_kubernetes_makes_for_the_pod_is_waited_for_in_silence(zones, ruled):
    scratch = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}
    spec = {"volumes": [scratch, {"name": "none", "emptyDir": {}}]}
    zones.submit("train", Program(requeue=False), queue="a", spec=spec)
    ruled.settle()
    for _ in range(3):
        ruled.round()
    assert told(zones, "train") == "" and not zones.pod("train")["spec"].get("nodeName")
    put_disk(zones, zone("z2"), name="train-scratch")
    ruled.settle()
    ruled.go(lambda: zones.programs["train"].began)
    assert zones.api.objects[f"{PODS}/train"]["spec"]["nodeName"] == "n2"


# ---- volumes that are there, of a class that makes none -------------------------------------------------


def put_folder(cluster, name, node=None, size="10Gi", **spec):
    """A volume, of a disk in a node if one is named."""
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    spec = {
        "storageClassName": "fast",
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        **({"nodeAffinity": {"required": {"nodeSelectorTerms": [here]}}} if node else {}),
        **spec,
    }
    cluster.api.put(f"{VOLUMES}/{name}", {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}})


def put_claim(cluster, name="disk", size="5Gi"):
    put_wish(cluster, name, provisioner="kubernetes.io/no-provisioner")
    said = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    cluster.api.change(f"{CLAIMS}/{name}", lambda one: one["spec"].update(said))


def given(cluster):
    """Which claim each volume was given to."""
    found = {path: one for path, one in cluster.api.objects.items() if path.startswith(VOLUMES)}
    return {one["metadata"]["name"]: (one["spec"].get("claimRef") or {}).get("name") for one in found.values()}


def bind_volumes(cluster):
    """As the controller of volumes does."""
    for volume, claim in given(cluster).items():
        if claim:
            said = {"spec": {"volumeName": volume}, "status": {"phase": "Bound"}}
            cluster.api.change(
                f"{CLAIMS}/{claim}", lambda one, said=said: [one[part].update(said[part]) for part in said]
            )


@pytest.fixture
def hosts(cluster):
    for name in ("n1", "n2"):
        say = {"kubernetes.io/hostname": name}
        cluster.api.change(f"{NODES}/{name}", lambda one, say=say: one["metadata"]["labels"].update(say))
    return cluster


def with_disks(*claims):
    return {"volumes": [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims]}


def test_a_claim_is_given_the_smallest_volume_that_is_large_enough_and_the_pod_runs_there(hosts, ruled):
    put_claim(hosts)
    for name, node, size in (("small", "n1", "1Gi"), ("large", "n2", "50Gi"), ("right", "n2", "5Gi")):
        put_folder(hosts, name, node, size)
    submit(hosts)
    ruled.settle()
    ruled.go(lambda: given(hosts)["right"])
    assert given(hosts) == {"small": None, "large": None, "right": "disk"}
    for _ in range(5):
        ruled.round()
    assert not hosts.pod("train")["spec"].get("nodeName"), "Kubernetes has not bound the two yet"
    bind_volumes(hosts)
    ruled.settle()
    ruled.go(lambda: hosts.programs["train"].began)
    assert hosts.pod("train")["spec"]["nodeName"] == "n2"


def test_pods_that_start_at_once_get_volumes_of_their_own(hosts, ruled):
    names = [f"p{number}" for number in range(6)]
    for number, name in enumerate(names):
        put_claim(hosts, f"disk-{name}")
        put_folder(hosts, f"v{number}", ("n1", "n2")[number % 2])
        hosts.submit(name, Program(requeue=False), queue="a", spec=with_disks(f"disk-{name}"), memory="8Gi")
    ruled.settle()
    ruled.go(lambda: all(given(hosts).values()))
    assert sorted(given(hosts).values()) == sorted(f"disk-{name}" for name in names)
    bind_volumes(hosts)
    ruled.settle()
    ruled.go(lambda: all(hosts.programs[name].began for name in names))


def test_a_pod_with_two_claims_runs_where_two_volumes_are(hosts, ruled):
    for name in ("disk", "more"):
        put_claim(hosts, name)
    for name, node in (("v1", "n1"), ("v2", "n2"), ("v3", "n2")):
        put_folder(hosts, name, node)
    hosts.submit("train", Program(requeue=False), queue="a", spec=with_disks("disk", "more"))
    ruled.settle()
    ruled.go(lambda: given(hosts)["v2"] and given(hosts)["v3"])
    assert not given(hosts)["v1"]
    bind_volumes(hosts)
    ruled.settle()
    ruled.go(lambda: hosts.programs["train"].began)


def test_a_pod_waits_for_such_a_volume_and_starts_when_one_is_made(hosts, ruled):
    put_claim(hosts)
    put_folder(hosts, "small", "n1", "1Gi")
    submit(hosts)
    ruled.settle()
    words = "PersistentVolumeClaim team-a/disk has no volume, and no free one of StorageClass fast is as it asks"
    ruled.go(lambda: words in told(hosts, "train"))
    put_folder(hosts, "right")
    ruled.settle()
    ruled.go(lambda: given(hosts)["right"])
    bind_volumes(hosts)
    ruled.settle()
    ruled.go(lambda: hosts.programs["train"].began)


def claims_one_of(cluster, scheduler, *names):
    """A pod that waits, and volumes of these names on n1."""
    put_claim(cluster)
    for name in names:
        put_folder(cluster, name, "n1")
    uid = submit(cluster)
    scheduler.settle()
    return uid


def give(cluster, path, claim):
    """While the API server handles a request."""
    volume = {**cluster.api.objects[path]}
    cluster.api._store(path, {**volume, "spec": {**volume["spec"], "claimRef": claim}})


def test_another_scheduler_was_sooner_and_the_pod_gets_the_next_volume(hosts, scheduler):
    uid = claims_one_of(hosts, scheduler, "a", "b")
    theirs = {"name": "other", "namespace": "team-b", "uid": "u"}

    def refuses(method, path, _):
        if (method, path) == ("PATCH", f"{VOLUMES}/a") and not given(hosts)["a"]:
            give(hosts, path, theirs)

    hosts.api.refuses = refuses
    assert isinstance(scheduler.start(uid), Accepted)
    assert given(hosts) == {"a": "other", "b": "disk"}


def test_where_the_last_one_is_gone_the_start_is_refused_for_that_node(hosts, scheduler):
    uid = claims_one_of(hosts, scheduler, "a")
    hosts.api.refuses = lambda method, path, _: (404, {}) if (method, path) == ("PATCH", f"{VOLUMES}/a") else None
    assert scheduler.start(uid) == Refused("others have got the volumes that were free there", "n1")
    assert not hosts.claim_of("train").get("status", {}).get("allocation")


def test_an_answer_that_was_lost_costs_no_second_volume(hosts, scheduler):
    uid = claims_one_of(hosts, scheduler, "a", "b")

    def refuses(method, path, body):
        if (method, path) == ("PATCH", f"{VOLUMES}/a") and not given(hosts)["a"]:
            give(hosts, path, body["spec"]["claimRef"])
            return 409, {"message": "it has changed"}
        return None

    hosts.api.refuses = refuses
    assert isinstance(scheduler.start(uid), Accepted)
    assert given(hosts) == {"a": "disk", "b": None}
