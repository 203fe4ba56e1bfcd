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
    "by hand": (
        lambda one: put_wish(one, provisioner="kubernetes.io/no-provisioner"),
        "nobody makes those of StorageClass fast",
    ),
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
