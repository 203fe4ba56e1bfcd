"""What users are told: why a pod waits, as a condition and an event, and what of it cannot be read."""

from __future__ import annotations

import pytest
from claims import budget
from kube_cluster import CLAIMS, PODS


def told(cluster, pod: str) -> str:
    found = [one for one in cluster.pod(pod)["status"].get("conditions", ()) if one["type"] == "PodScheduled"]
    return found[0]["message"] if found and found[0]["status"] == "False" else ""


def events(cluster, pod: str) -> list[str]:
    return [one["message"] for one in cluster.api.of("events") if one["involvedObject"]["name"] == pod]


def test_why_it_waits_is_the_allocators_sentence_and_is_written_once(cluster, ruled):
    for number in range(4):
        cluster.submit(f"runs{number}", memory=None, queue="a")
    uid = cluster.submit("waits", memory=None, queue="a")
    ruled.go(lambda: told(cluster, "waits"))
    assert told(cluster, "waits") == ruled.store.allocator.explain(uid).reason.message
    (pod,) = [one for path, one in cluster.api.objects.items() if path == f"{PODS}/waits"]
    (condition,) = pod["status"]["conditions"]
    assert (condition["reason"], condition["status"]) == ("Unschedulable", "False")
    before = len(cluster.api.requests)
    for _ in range(30):
        ruled.round()
    assert events(cluster, "waits") == [told(cluster, "waits")]
    assert not [one for one in cluster.api.requests[before:] if one[0] in ("POST", "PATCH")]
    cluster.cancel("runs0")
    ruled.settle()
    ruled.go(lambda: cluster.programs["waits"].began)
    assert told(cluster, "waits") == ""


def test_an_unknown_queue_is_told(cluster, ruled):
    cluster.submit("train", queue="vison")
    ruled.go(lambda: told(cluster, "train"))
    assert "vison" in told(cluster, "train") and events(cluster, "train") == [told(cluster, "train")]


AFFINITY = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x"}]}}
WRONG = {
    "limit below the request": ({"said": {"limit": "4Gi"}}, {}, "Budget.limit 4Gi is below the request 8Gi"),
    "an amount with two meanings": ({"said": {"limit": "24g"}}, {}, "write 24Gi"),
    "more priority than the class": ({"said": {"priority": 5}}, {}, "a claim may not say more than its class"),
    "no such class": ({}, {"deviceClassName": "other"}, "there is no DeviceClass other"),
    "selectors": ({}, {"selectors": [{"cel": {"expression": "true"}}]}, "has selectors, which this scheduler"),
    "all devices": ({}, {"allocationMode": "All"}, "has allocationMode All, which this scheduler"),
    "another capacity": ({}, {"capacity": {"requests": {"cores": "1"}}}, "more than the capacity memory"),
    "nothing": ({}, {"capacity": {"requests": {"memory": "0"}}}, "asks for no memory"),
    "no amount": ({}, {"capacity": {"requests": {"memory": "much"}}}, "cannot read 'much'"),
    "anti-affinity": ({"spec": {"affinity": AFFINITY}}, {}, "a required podAntiAffinity, which this scheduler"),
    "a group without a size": ({"labels": {"gpushare.dev/pod-group": "g"}}, {}, "pod-group-size is ''"),
    "no duration": ({"annotations": {"gpushare.dev/checkpoint-every": "soon"}}, {}, "soon"),
    "no claim": ({"spec": {"resourceClaims": []}}, {}, "it claims no GPU of gpushare.dev"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_read_is_told_and_never_started(cluster, ruled, what):
    more, exactly, words = WRONG[what]
    cluster.submit("train", **more)

    def change(one):
        one["spec"]["devices"]["requests"][0]["exactly"].update(exactly)

    (path,) = [path for path in cluster.api.objects if path.startswith(f"{CLAIMS}/train")]
    cluster.api.change(path, change)
    cluster.programs["train"].requeue = False
    ruled.settle()
    ruled.loop.step()
    assert words in told(cluster, "train"), told(cluster, "train")
    ruled.settle()
    ruled.loop.step()
    assert len(events(cluster, "train")) == 1 and "nodeName" not in cluster.pod("train")["spec"]


def test_a_claim_that_another_pod_has_is_told(cluster, ruled):
    cluster.submit("train")
    (path,) = [path for path in cluster.api.objects if path.startswith(f"{CLAIMS}/train")]
    given = {"request": "gpu", "driver": "gpushare.dev", "pool": "n1", "device": "gpu-n1-0"}
    status = {"allocation": {"devices": {"results": [given]}}, "reservedFor": [{"resource": "pods", "uid": "x"}]}
    cluster.api.change(path, lambda one: one.update(status=status))
    ruled.settle()
    ruled.loop.step()
    assert "is allocated already, for another pod" in told(cluster, "train")


def test_a_pod_whose_claim_is_not_made_yet_waits(cluster, ruled):
    cluster.submit("train")
    cluster.api.change(f"{PODS}/train", lambda one: one["status"].pop("resourceClaimStatuses"))
    ruled.settle()
    ruled.loop.step()
    assert told(cluster, "train") == ""


def test_a_gate_or_an_annotation_holds_a_pod(cluster, ruled):
    cluster.submit("gated", queue="a", gates=[{"name": "x"}])
    cluster.submit("held", queue="a", annotations={"gpushare.dev/hold": "true"})
    cluster.submit("free", queue="a")
    ruled.settle()
    ruled.go(lambda: cluster.programs["free"].began)
    for _ in range(3):
        ruled.round()
    assert not cluster.programs["gated"].began and not cluster.programs["held"].began
    cluster.api.change(f"{PODS}/gated", lambda one: one["spec"].update(schedulingGates=[]))
    cluster.api.change(f"{PODS}/held", lambda one: one["metadata"].update(annotations={}))
    ruled.settle()
    ruled.go(lambda: cluster.programs["gated"].began and cluster.programs["held"].began)


def test_priority_and_run_time_are_the_claims(cluster, ruled):
    config = [{"opaque": budget(priority=100, minRunTime="10m")["opaque"]}]
    cluster.api.change(
        "/apis/resource.k8s.io/v1/deviceclasses/gpushare.dev", lambda one: one["spec"].update(config=config)
    )
    uids = [
        cluster.submit(
            "usual", said={"priority": 0, "minRunTime": 0}, annotations={"gpushare.dev/preemptible": "false"}
        ),
        cluster.submit("high", annotations={"gpushare.dev/checkpoint-every": "5m"}),
    ]
    ruled.settle()
    usual, high = (ruled.job(uid).job for uid in uids)
    assert (usual.priority, usual.min_runtime, usual.preemptible, usual.checkpoint_every) == (50, 0.0, False, None)
    assert (high.priority, high.min_runtime, high.preemptible, high.checkpoint_every) == (150, 600.0, True, 300.0)
