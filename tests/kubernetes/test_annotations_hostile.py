"""What users may write into their pods, and what must not come of it: a server without claims checks none of it.

Such a user may create and change pods of a namespace, and nothing else.
"""

from __future__ import annotations

import copy
import json

import pytest
from annotated_cluster import AnnotatedCluster
from kube_cluster import NAMESPACE, PODS
from kube_cluster import KubeCluster as ClaimsCluster
from scheduler_stage import Scheduler

from gpushare.cluster.engines.kubernetes import request
from gpushare.cluster.engines.seam import Accepted, Refused
from gpushare.kubernetes.carried import CLAIM

LONG = "9" * 5000
"""Python reads no number of so many digits."""
GROUP = "gpushare.dev/pod-group"


@pytest.fixture
def cluster(tmp_path):
    made = AnnotatedCluster(tmp_path)
    yield made
    made.close()


@pytest.fixture
def scheduler(cluster):
    made = Scheduler(cluster)
    yield made
    made.close()


def told(cluster, name: str) -> str:
    conditions = cluster.pod(name)["status"].get("conditions") or ()
    return " ".join(one["message"] for one in conditions)


def others_start(cluster, scheduler) -> None:
    uid = cluster.submit("other", memory="8Gi")
    assert scheduler.start(uid) == Accepted()
    cluster.tick()
    assert scheduler.job(uid).tasks[0].phase == "running"


@pytest.mark.parametrize("name", ["pod-group-size", "pod-group-min"])
def test_a_number_of_thousands_of_digits_stops_nobody_else(cluster, scheduler, name):
    notes = {f"{GROUP}-size": "2", f"gpushare.dev/{name}": LONG}
    cluster.submit("hostile", labels={GROUP: "g"}, annotations=notes)
    others_start(cluster, scheduler)
    assert f"gpushare.dev/{name}" in told(cluster, "hostile")


def test_a_node_s_label_is_compared_with_a_number_of_thousands_of_digits(cluster, scheduler):
    said = {"matchExpressions": [{"key": "size", "operator": "Gt", "values": [LONG]}]}
    needed = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [said]}}
    cluster.api.change("/api/v1/nodes/n1", lambda node: node["metadata"]["labels"].update(size="5"))
    cluster.submit("hostile", spec={"affinity": {"nodeAffinity": needed}})
    others_start(cluster, scheduler)


def test_a_whole_gpu_with_a_limit_below_it_is_refused_and_stops_nobody_else(cluster, scheduler):
    """No webhook writes it."""
    uid = cluster.submit("hostile", memory=None, said={"limit": "8Gi"})
    answer = scheduler.start(uid, "n1", 0, 80 * 2**30)
    assert isinstance(answer, Refused) and "limit 8Gi" in answer.why
    others_start(cluster, scheduler)
    assert not cluster.pod("hostile")["spec"].get("nodeName")


def test_a_limit_that_is_raised_in_the_middle_of_a_start_is_not_above_its_queue_s(cluster, scheduler):
    """What its queue allows was looked up before."""
    queue = {"metadata": {"name": NAMESPACE}, "spec": {"quota": 1, "maxLimit": "0.5"}}
    cluster.api.put(f"/apis/gpushare.dev/v1/queues/{NAMESPACE}", queue)
    scheduler.api.watched["/apis/gpushare.dev/v1/queues"].objects(1.0)
    uid = cluster.submit("hostile", memory="8Gi", said={"limit": "16Gi"})

    def refuses(_, __, body):
        pod = copy.deepcopy(cluster.pod("hostile"))
        if "gpushare.dev/allocation" in json.dumps(body) and "max" not in pod["metadata"]["annotations"][CLAIM]:
            pod["metadata"]["annotations"][CLAIM] = '{"memory": "8Gi", "limit": "max"}'
            cluster.api._store(f"{PODS}/hostile", pod)

    cluster.api.refuses = refuses
    answer = scheduler.start(uid)
    assert isinstance(answer, Refused) and "changed meanwhile" in answer.why
    assert scheduler.start(uid, attempt=2) == Accepted()
    assert cluster.pod("hostile")["metadata"]["annotations"]["gpushare.dev/limit"] == "40Gi"


@pytest.mark.parametrize("edit", ["removed", "spoiled", "larger"])
def test_a_claim_that_is_edited_afterwards_gives_nothing_back_and_takes_nothing(cluster, scheduler, edit):
    uid = cluster.submit("hostile", memory="8Gi")
    assert scheduler.start(uid, "n1", 0) == Accepted()
    cluster.tick()

    def change(pod):
        notes = pod["metadata"]["annotations"]
        if edit == "removed":
            del notes[CLAIM]
        else:
            notes[CLAIM] = "[" if edit == "spoiled" else '{"memory": "70Gi"}'

    cluster.api.change(f"{PODS}/hostile", change)
    job = scheduler.job(uid)
    assert (job.tasks[0].phase, job.tasks[0].amount) == ("running", 8 * 2**30)
    claim = cluster.claim_of("hostile")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert result["consumedCapacity"] == {"memory": "8Gi"}, "its node reads this"


def test_a_pod_that_its_user_has_bound_counts_on_its_node(cluster, scheduler):
    """The scheduler starts nothing there that the kubelet would refuse."""
    allocatable = {"cpu": "4", "memory": "64Gi", "pods": "100"}
    cluster.api.change("/api/v1/nodes/n1", lambda node: node["status"].update(allocatable=allocatable))
    needs = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]}
    cluster.submit("own", spec={**needs, "nodeName": "n1"})
    uid = cluster.submit("other", spec=needs)
    scheduler.settle()
    scheduler.token()
    assert scheduler.job(uid) is not None
    there = {name: kept.room.cpu for name, kept in scheduler.engine._board.nodes.items()}
    assert there["n1"] == 1000


@pytest.mark.parametrize("error", [ValueError, IndexError, OverflowError])
def test_a_pod_that_nobody_thought_of_stops_nobody_else(cluster, scheduler, monkeypatch, error):
    read = request.read

    def reads(pod, *more):
        if pod["metadata"]["name"] == "hostile":
            raise error
        return read(pod, *more)

    monkeypatch.setattr(request, "read", reads)
    cluster.submit("hostile")
    others_start(cluster, scheduler)
    assert told(cluster, "hostile") == f"it cannot be read: {error.__name__}"


def test_a_claim_of_kubernetes_without_requests_stops_nobody_else(tmp_path):
    cluster = ClaimsCluster(tmp_path)
    scheduler = Scheduler(cluster)
    try:
        cluster.submit("hostile")
        (path,) = [one for one in cluster.api.objects if "/resourceclaims/" in one]
        cluster.api.change(path, lambda claim: claim["spec"]["devices"].update(requests=[]))
        others_start(cluster, scheduler)
        assert "requests no GPU" in told(cluster, "hostile")
    finally:
        scheduler.close()
        cluster.close()


def test_what_no_text_can_have_is_told_once(cluster, scheduler):
    """Half of a character: the API server stores another one, and what is stored would never be what is to be told."""
    cluster.submit("hostile", memory="8Gi", said={"kind": "\ud800"})
    for _ in range(3):
        scheduler.token()
        scheduler.job("")
    assert told(cluster, "hostile").encode()
    assert sum(path.endswith("/hostile/status") for _, path in cluster.api.requests) == 1
