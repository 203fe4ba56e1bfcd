"""The scheduler on a server without claims: what pods carry is read as a claim, and written into the pod."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
from annotated_cluster import AnnotatedCluster
from kube_cluster import NAMESPACE, PODS
from kube_cluster import KubeCluster as ClaimsCluster
from kube_stage import until
from scheduler_stage import GIB, Scheduler

from gpushare.cluster.engines.kubernetes.api import Api
from gpushare.cluster.engines.kubernetes.mark import read
from gpushare.cluster.engines.kubernetes.settings import Settings
from gpushare.cluster.engines.seam import Accepted, Deposed, Refused, Unanswered
from gpushare.cluster.model import Place
from gpushare.errors import UsageError
from gpushare.kubernetes import carried
from gpushare.kubernetes.names import NODE_GPUS

OURS = ("allocation", "gpus", "request", "limit")


@pytest.fixture
def cluster(tmp_path):
    made = AnnotatedCluster(tmp_path)
    yield made
    made.close()
    assert not made.unread, "the node's plugin reads what the scheduler writes"


@pytest.fixture
def scheduler(cluster):
    made = Scheduler(cluster)
    yield made
    made.close()


def notes(cluster, name: str) -> dict[str, str]:
    """What the scheduler has written of GPUs."""
    said = cluster.pod(name)["metadata"]["annotations"]
    return {one: said[f"gpushare.dev/{one}"] for one in OURS if f"gpushare.dev/{one}" in said}


def change_inside(cluster, **said: dict[str, str]) -> None:
    """While the server answers another request."""
    pod = copy.deepcopy(cluster.pod("train"))
    for what, values in said.items():
        pod["metadata"].setdefault(what, {}).update(values)
    cluster.api._store(f"{PODS}/train", pod)


def test_a_pod_gets_its_gpu_in_annotations_and_gives_it_back_with_its_end(cluster, scheduler):
    uid = cluster.submit("train", memory="8Gi", said={"limit": "24Gi"})
    assert scheduler.start(uid, "n2", 1) == Accepted()
    found = notes(cluster, "train")
    assert (found["gpus"], found["request"], found["limit"]) == ("GPU-n2-1", "8Gi", "24Gi")
    claim = cluster.claim_of("train")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert (result["pool"], result["device"], result["consumedCapacity"]) == ("n2", "gpu-n2-1", {"memory": "8Gi"})
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "train", "uid": uid}]
    cluster.tick()
    assert cluster.pod("train")["status"]["phase"] == "Running"
    assert scheduler.job(uid).tasks[0].gpus == (1,)
    cluster.api.change(f"{PODS}/train", lambda pod: pod["status"].update(phase="Succeeded"))
    assert scheduler.job(uid).tasks[0].phase == "done", "nobody else says that its GPU is free"
    asked = {path for _, path in cluster.api.requests if "resource.k8s.io" in path}
    assert asked == {"/apis/resource.k8s.io/v1"}, "asked once what is served"


def test_several_gpus_and_a_whole_one(cluster, scheduler):
    two, whole = cluster.submit("two", memory="100Mi", count=2), cluster.submit("whole", memory=None)
    assert scheduler.start(two, places=(Place(0, 0, "n1", (0, 1), 128 * 2**20, 0),)) == Accepted()
    assert scheduler.start(whole, "n2", 0, 80 * GIB) == Accepted()
    assert notes(cluster, "two")["gpus"] == "GPU-n1-0,GPU-n1-1"
    assert (notes(cluster, "whole")["gpus"], notes(cluster, "whole")["request"]) == ("GPU-n2-0", "80Gi")
    cluster.tick()


def test_a_start_that_is_refused_leaves_nothing_in_the_pod(cluster, scheduler):
    cluster.api.refuses = lambda _, path, __: (403, {"message": "no"}) if path.endswith("/binding") else None
    uid = cluster.submit("train")
    assert isinstance(scheduler.start(uid), Refused)
    assert notes(cluster, "train") == {}
    assert "gpushare.dev/start" in cluster.pod("train")["metadata"]["annotations"], "with why it failed"


def test_a_pod_that_its_user_changes_meanwhile_starts_all_the_same(cluster, scheduler):
    uid = cluster.submit("train")
    done = []

    def refuses(method, path, body):
        if method == "POST" and "gpushare.dev/allocation" in json.dumps(body) and not done:
            done.append(path)
            change_inside(cluster, labels={"x": "y"})
        return

    cluster.api.refuses = refuses
    assert scheduler.start(uid) == Accepted() and done
    assert notes(cluster, "train")["gpus"] == "GPU-n1-0"


def test_another_service_that_has_decided_meanwhile_is_not_overruled(cluster, scheduler):
    uid = cluster.submit("train")

    def refuses(method, _, body):
        if method == "POST" and "gpushare.dev/allocation" in json.dumps(body):
            cluster.api.refuses = lambda *_: None
            mark = {"gpushare.dev/start": '{"job": "x", "attempt": 9}'}
            change_inside(cluster, annotations=mark)
        return

    cluster.api.refuses = refuses
    with pytest.raises(Deposed):
        scheduler.start(uid)
    assert notes(cluster, "train") == {}


def of_pods(cluster) -> list[tuple[str, str]]:
    """What was written to pods."""
    return [one for one in cluster.api.requests if one[0] in ("PATCH", "POST") and "/pods/" in one[1]]


def test_a_start_is_one_request_all_of_it_or_nothing(cluster, scheduler):
    uid = cluster.submit("train", memory="8Gi")
    scheduler.token()
    before = cluster.pod("train")
    cluster.api.refuses = lambda method, _, __: (500, {"message": "killed"}) if method == "POST" else None
    with pytest.raises(Unanswered):
        scheduler.start(uid, "n2", 1)
    assert cluster.pod("train") == before and not scheduler.job(uid).tasks
    cluster.api.refuses = lambda *_: None
    cluster.api.requests.clear()
    assert scheduler.start(uid, "n2", 1) == Accepted()
    assert of_pods(cluster) == [("POST", f"{PODS}/train/binding")]


@pytest.mark.parametrize("after", [0, 2, 3])
def test_a_scheduler_that_is_killed_in_the_start_of_several_goes_on(cluster, after):
    """After so many of two marks and two bindings."""
    uid, left = cluster.submit_group("g", 2, memory="8Gi"), after

    def refuses(method, path, _):
        nonlocal left
        if method in ("PATCH", "POST") and "/pods/" in path:
            left -= 1
            return (500, {"message": "killed"}) if left < 0 else None
        return None

    places = tuple(Place(0, task, "n2", (task,), 8 * GIB, 0) for task in range(2))
    first = Scheduler(cluster)
    cluster.api.refuses = refuses
    with pytest.raises(Unanswered):
        first.start(uid, places=places)
    first.close()
    cluster.api.refuses = lambda *_: None
    second = Scheduler(cluster)
    try:
        second.token()
        second.engine.snapshot()
        if not after:
            assert second.start(uid, places=places) == Accepted()
        assert [notes(cluster, f"g-{number}")["gpus"] for number in range(2)] == ["GPU-n2-0", "GPU-n2-1"]
        cluster.tick()
        assert [task.phase for task in second.job(uid).tasks] == ["running", "running"]
    finally:
        second.close()


@pytest.mark.parametrize("edit", [None, '{"memory": "70Gi"}'])
def test_what_a_pod_carries_without_a_node_is_taken_out_of_it(cluster, scheduler, edit):
    """An earlier release wrote it before the binding, and was killed in between."""
    uid = cluster.submit("train", memory="8Gi")
    assert scheduler.start(uid) == Accepted()

    def change(pod):
        del pod["spec"]["nodeName"]
        mark = read(pod["metadata"]["annotations"]["gpushare.dev/start"])
        pod["metadata"]["annotations"]["gpushare.dev/start"] = replace(mark, failed="it was not bound").text()
        if edit:
            pod["metadata"]["annotations"][carried.CLAIM] = edit

    cluster.api.change(f"{PODS}/train", change)
    assert [task.phase for task in scheduler.job(uid).tasks] == ["failed"]
    assert notes(cluster, "train") == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "annotation gpushare.dev/claim: it is not an object of JSON"),
        ("[1]", "annotation gpushare.dev/claim: it is not an object of JSON"),
        ('{"count": 0}', "count is not a number of GPUs from 1 to 32"),
        ('{"count": true}', "count is not a number of GPUs from 1 to 32"),
        ('{"memory": "8 apples"}', "cannot read '8 apples' as an amount"),
        ('{"memory": "8Gi", "limit": "4Gi"}', "Budget.limit 4Gi is below the request 8Gi"),
        ('{"memory": "8Gi", "colour": "red"}', "Budget has no field 'colour'"),
        ('{"memory": "8Gi", "priority": 5}', "a claim may not say more than its class"),
    ],
)
def test_what_makes_no_sense_is_told_on_the_pod(cluster, scheduler, text, told):
    uid = cluster.submit("train")
    cluster.api.change(f"{PODS}/train", lambda pod: pod["metadata"]["annotations"].update({carried.CLAIM: text}))
    scheduler.token()
    assert scheduler.job(uid) is None
    scheduler.settle()
    (condition,) = cluster.pod("train")["status"]["conditions"]
    assert told in condition["message"], condition
    assert any(told in one["message"] for one in cluster.api.of("events"))


def test_a_pod_without_the_annotation_is_told_that_it_claims_nothing(cluster, scheduler):
    cluster.submit("train")
    cluster.api.change(f"{PODS}/train", lambda pod: pod["metadata"]["annotations"].pop(carried.CLAIM))
    scheduler.token()
    scheduler.job("")
    scheduler.settle()
    assert "it claims no GPU" in cluster.pod("train")["status"]["conditions"][0]["message"]


def test_an_allocation_that_nobody_decided_is_taken_out(cluster, scheduler):
    """A copy of a pod, where no webhook has done it. What it is started with is its own."""
    uid = cluster.submit("first")
    assert scheduler.start(uid) == Accepted()
    allocation = cluster.pod("first")["metadata"]["annotations"]["gpushare.dev/allocation"]
    copy = cluster.submit("copy")
    changed = {"gpushare.dev/allocation": allocation}
    cluster.api.change(f"{PODS}/copy", lambda pod: pod["metadata"]["annotations"].update(changed))
    assert not scheduler.job(copy).tasks and notes(cluster, "copy") == {}
    assert scheduler.start(copy, "n2", 1) == Accepted()
    assert notes(cluster, "copy")["gpus"] == "GPU-n2-1" and notes(cluster, "first")["gpus"] == "GPU-n1-0"


def test_the_limit_of_a_queue_is_in_what_is_written(cluster, scheduler):
    queue = {"metadata": {"name": NAMESPACE}, "spec": {"quota": 1, "maxLimit": "0.5"}}
    cluster.api.put(f"/apis/gpushare.dev/v1/queues/{NAMESPACE}", queue)
    scheduler.api.watched["/apis/gpushare.dev/v1/queues"].objects(1.0)
    uid = cluster.submit("train", memory="8Gi", said={"limit": "max"})
    assert scheduler.start(uid) == Accepted()
    assert notes(cluster, "train")["limit"] == "40Gi"


def test_a_server_that_is_away_at_the_start_is_asked_later_what_it_has(cluster):
    cluster.submit("train", memory="8Gi")
    cluster.api.stop()
    api = Api(Settings(kubeconfig=str(cluster.api.kubeconfig)), lambda: None)
    try:
        with pytest.raises(Unanswered):
            api.listed()
        cluster.api.start()
        listed = until(lambda: quietly(api.listed), "the lists")
        assert [one["kind"] for one in listed.claims.values()] == ["Pod"] and len(listed.slices) == 2
    finally:
        api.close()


def quietly(ask):
    try:
        return ask()
    except Unanswered:
        return None


def test_a_server_with_claims_does_not_read_the_annotation(tmp_path):
    cluster = ClaimsCluster(tmp_path)
    scheduler = Scheduler(cluster)
    try:
        uid = cluster.submit("train")
        spec = {carried.CLAIM: '{"memory": "8Gi"}'}

        def change(pod):
            pod["metadata"]["annotations"].update(spec)
            pod["spec"]["resourceClaims"] = []

        cluster.api.change(f"{PODS}/train", change)
        scheduler.token()
        assert scheduler.job(uid) is None
        scheduler.settle()
        assert "it claims no GPU" in cluster.pod("train")["status"]["conditions"][0]["message"]
        assert NODE_GPUS not in scheduler.api.watched
    finally:
        scheduler.close()
        cluster.close()


def test_an_eviction_where_the_server_knows_no_policy_v1(cluster, scheduler):
    """Before Kubernetes 1.22."""
    uid = cluster.submit("train")
    assert scheduler.start(uid) == Accepted()
    cluster.tick()
    said = []

    def refuses(_, path, body):
        if not path.endswith("/eviction"):
            return None
        said.append(body["apiVersion"])
        told = 'Eviction in version "v1" cannot be handled as a Eviction: no kind "Eviction" is registered for version '
        return (400, {"message": f'{told}"policy/v1" in scheme'}) if said[-1] == "policy/v1" else None

    cluster.api.refuses = refuses
    scheduler.job(uid)
    assert scheduler.evict(uid) == Accepted()
    assert said == ["policy/v1", "policy/v1beta1"]
    assert cluster.pod("train")["metadata"]["deletionTimestamp"]


@pytest.mark.parametrize("text", ["[", '{"priority": "high"}', '{"colour": 1}'])
def test_a_budget_in_the_settings_that_makes_no_sense_is_refused(text):
    with pytest.raises(UsageError, match=r"\[kubernetes\]: budget"):
        Settings.read({"budget": text})
