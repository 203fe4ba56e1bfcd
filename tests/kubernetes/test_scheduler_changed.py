"""What pods ask for may change while they wait: a volume is made, a label is edited, a group is made again."""

from __future__ import annotations

import pytest
from kube_cluster import GIB, PODS
from test_scheduler_volumes import CLAIMS, NODE, made, put_wish, zone
from test_scheduler_volumes import submit as with_disk
from test_scheduler_words import told

from gpushare.cluster.engines.kubernetes.mark import read


def amounts(cluster, *names):
    return [read(cluster.pod(name)["metadata"]["annotations"]["gpushare.dev/start"]).amount for name in names]


def group(cluster, size, *memory):
    """Its pods, each of an owner of its own."""
    annotations = {"gpushare.dev/pod-group-size": str(size)}
    for number, one in enumerate(memory):
        labels = {"gpushare.dev/pod-group": "train"}
        cluster.submit(f"p{number}", memory=one, queue="a", labels=labels, annotations=annotations)


def runs(cluster, *names):
    return all((pod := cluster.pod(name)) and pod["status"]["phase"] == "Running" for name in names)


@pytest.mark.parametrize("seen", [True, False])
def test_a_group_that_is_deleted_and_made_again_has_what_it_asks_for_now(cluster, ruled, seen):
    """Within the time in which seats are kept free for pods that are made again. `seen`: that they are away."""
    group(cluster, 2, "80Gi", "80Gi")
    ruled.settle()
    ruled.go(lambda: runs(cluster, "p0", "p1"))
    for name in ("p0", "p1"):
        cluster.cancel(name)
    while cluster.pod("p0") or cluster.pod("p1"):
        ruled.round() if seen else cluster.tick()
    cluster.programs.clear()
    group(cluster, 2, "8Gi", "8Gi")
    ruled.settle()
    ruled.go(lambda: runs(cluster, "p0", "p1"))
    assert amounts(cluster, "p0", "p1") == [8 * GIB] * 2


def test_a_waiting_pod_goes_to_the_queue_of_its_new_label(cluster, ruled):
    for number in range(4):
        cluster.submit(f"fill{number}", memory=None, queue="a")
    ruled.settle()
    ruled.go(lambda: runs(cluster, *(f"fill{number}" for number in range(4))))
    cluster.submit("waits", memory=None, queue="a")
    ruled.settle()
    ruled.go(lambda: told(cluster, "waits"))
    change = {"gpushare.dev/queue": "b"}
    cluster.api.change(f"{PODS}/waits", lambda pod: pod["metadata"]["labels"].update(change))
    ruled.settle()
    ruled.go(lambda: runs(cluster, "waits"))


def test_a_pod_whose_volume_was_made_elsewhere_starts_there(cluster, ruled):
    for name, where in (("n1", "z1"), ("n2", "z2")):
        cluster.api.change(
            f"/api/v1/nodes/{name}", lambda one, where=where: one["metadata"]["labels"].update(zone=where)
        )
    put_wish(cluster)
    with_disk(cluster)
    ruled.settle()
    first = ruled.go(lambda: cluster.api.objects[f"{CLAIMS}/disk"]["metadata"]["annotations"].get(NODE))
    made(cluster, zone("z1" if first == "n2" else "z2"))
    ruled.settle()
    ruled.go(lambda: runs(cluster, "train"))
    assert cluster.pod("train")["spec"]["nodeName"] != first


def test_a_held_pod_stays_held_when_it_changes(cluster, ruled):
    cluster.submit("held", queue="a", annotations={"gpushare.dev/hold": "true"})
    ruled.settle()
    ruled.round()
    change = {"gpushare.dev/queue": "b"}
    cluster.api.change(f"{PODS}/held", lambda pod: pod["metadata"]["labels"].update(change))
    ruled.settle()
    for _ in range(5):
        ruled.round()
    assert not cluster.pod("held")["spec"].get("nodeName")
    (job,) = ruled.store.allocator.jobs.values()
    assert job.held and job.job.queue == "b"


@pytest.mark.parametrize("other", ["80Gi", None])
def test_pods_of_a_group_that_ask_for_different_amounts_are_told(cluster, ruled, other):
    group(cluster, 2, "8Gi", other)
    ruled.settle()
    ruled.go(lambda: "asks for" in told(cluster, "p1"))
    assert not cluster.pod("p0")["spec"].get("nodeName") and not cluster.pod("p1")["spec"].get("nodeName")
