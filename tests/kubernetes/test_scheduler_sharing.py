"""Pods that name one claim together are one task: they run on its GPU side by side, count once, and end together."""

from __future__ import annotations

import pytest
from kube_cluster import CLAIMS, GIB, PODS, Program
from test_scheduler_words import told

from gpushare.cluster.engines.kubernetes.mark import read
from gpushare.cluster.engines.seam import Accepted, Unanswered

CLAIM = f"{CLAIMS}/both"


def submit(cluster, name, *, program=None, **more):
    more.setdefault("queue", "a")
    return cluster.submit(name, program or Program(requeue=False), shared="both", **more)


def runs(cluster, *names):
    return all((pod := cluster.pod(name)) and pod["status"]["phase"] == "Running" for name in names)


def used(engine):
    return dict(engine._board.used)


def test_the_others_join_the_first_on_its_gpu_and_it_counts_once(cluster, ruled):
    first = submit(cluster, "first")
    for name in ("second", "third"):
        submit(cluster, name)
    ruled.settle()
    ruled.go(lambda: runs(cluster, "first", "second", "third"))
    assert len({cluster.pod(name)["spec"]["nodeName"] for name in ("first", "second", "third")}) == 1
    claim = cluster.api.objects[CLAIM]
    assert {one["name"] for one in claim["status"]["reservedFor"]} == {"first", "second", "third"}
    ruled.settle()
    (job,) = ruled.engine.snapshot().jobs
    assert (job.job.id, len(job.tasks), job.tasks[0].phase) == (first, 1, "running")
    assert list(used(ruled.engine).values()) == [8 * GIB]
    assert not ruled.engine._board.foreign


def test_one_that_comes_later_says_why_it_waits_and_then_joins(cluster, scheduler):
    first = submit(cluster, "first")
    submit(cluster, "second")
    scheduler.settle()
    scheduler.token()
    scheduler.engine.snapshot()
    assert "shares claim team-a/both with pod team-a/first, which starts first" in told(cluster, "second")
    assert isinstance(scheduler.start(first), Accepted)
    scheduler.settle()
    scheduler.engine.snapshot()
    assert cluster.pod("second")["spec"]["nodeName"] == "n1"
    mark = read(cluster.pod("second")["metadata"]["annotations"]["gpushare.dev/start"])
    assert (mark.job, mark.gpus, mark.amount) == (first, (0,), 8 * GIB)


def test_a_start_that_was_cut_off_is_undone_though_another_of_them_starts_first_now(cluster, ruled):
    """What the claim was given for the second is nobody's: the first was held back by its user until now."""
    submit(cluster, "first", annotations={"gpushare.dev/hold": "true"})
    second = submit(cluster, "second")
    cluster.api.refuses = lambda _, path, __: (503, {"message": "away"}) if path.endswith("/binding") else None
    with pytest.raises(Unanswered):
        ruled.start(second)
    assert cluster.api.objects[CLAIM]["status"]["reservedFor"][0]["uid"] == second
    cluster.api.refuses = lambda *_: None
    cluster.api.change(f"{PODS}/first", lambda pod: pod["metadata"]["annotations"].pop("gpushare.dev/hold"))
    ruled.settle()
    ruled.go(lambda: runs(cluster, "first", "second"))


def test_it_runs_until_the_last_of_them_has_ended_and_the_worst_status_counts(cluster, ruled):
    submit(cluster, "first", program=Program(seconds=3, exit=0, requeue=False))
    submit(cluster, "second", program=Program(seconds=9, exit=3, requeue=False))
    ruled.settle()
    ruled.go(lambda: runs(cluster, "first", "second"))
    ruled.go(lambda: cluster.pod("first")["status"]["phase"] == "Succeeded")
    ruled.settle()
    (job,) = ruled.engine.snapshot().jobs
    assert (job.tasks[0].phase, job.ended) == ("running", False)
    ruled.go(lambda: cluster.pod("second")["status"]["phase"] == "Failed")
    ruled.go(lambda: not used(ruled.engine))
    (job,) = ruled.engine.snapshot().jobs
    assert (job.ended, job.tasks[0].exit) == (True, 3)


def test_all_of_them_are_evicted_and_their_next_pods_share_again(cluster, ruled):
    """Queue b takes its half back: pods of a deployment that share a claim go and come together."""
    submit(cluster, "pair", program=Program(pods=2), memory="80Gi", said={"priority": -10})
    cluster.programs["pair"].make("pair-2")
    for number in range(3):
        cluster.submit(f"fill{number}", memory="80Gi", queue="a")
    ruled.settle()
    ruled.go(lambda: runs(cluster, "pair", "pair-2", "fill0", "fill1", "fill2"))
    before = {pod["metadata"]["uid"] for _, pod in cluster.pods_of("pair")}
    cluster.submit("own", memory="80Gi", queue="b")
    ruled.settle()
    ruled.go(lambda: runs(cluster, "own"))
    after = {pod["metadata"]["uid"] for _, pod in cluster.pods_of("pair")}
    assert len(after) == 2 and not before & after, "one task, and nobody else's"
    assert runs(cluster, "fill0", "fill1", "fill2")
    cluster.cancel("own")
    ruled.settle()
    ruled.go(lambda: len([1 for _, pod in cluster.pods_of("pair") if pod["status"]["phase"] == "Running"]) == 2)
    ruled.settle()
    assert {one.evictions for one in ruled.engine.snapshot().jobs if len(one.tasks) and one.evictions} == {1}


def test_evicted_is_each_of_them(cluster, scheduler):
    first = submit(cluster, "first")
    submit(cluster, "second")
    scheduler.settle()
    scheduler.start(first)
    scheduler.settle()
    scheduler.engine.snapshot()
    cluster.tick()
    scheduler.settle()
    scheduler.engine.snapshot()
    assert isinstance(scheduler.evict(first), Accepted)
    assert all(cluster.pod(name)["metadata"].get("deletionTimestamp") for name in ("first", "second"))


@pytest.mark.parametrize("last", ["mark", "claim"])
def test_killed_between_two_writes_of_a_join_the_next_service_goes_on(cluster, scheduler, last):
    first = submit(cluster, "first")
    submit(cluster, "second")
    scheduler.settle()
    scheduler.start(first)
    scheduler.settle()
    refused = {"mark": f"{CLAIM}/status", "claim": f"{PODS}/second/binding"}[last]
    cluster.api.refuses = lambda _, path, __: (503, {"message": "too late"}) if path == refused else None
    scheduler.engine.snapshot()
    assert cluster.pod("second")["metadata"]["annotations"]["gpushare.dev/start"]
    assert not cluster.pod("second")["spec"].get("nodeName")
    cluster.api.refuses = lambda *_: None
    scheduler.settle()
    scheduler.engine.snapshot()
    assert cluster.pod("second")["spec"]["nodeName"] == "n1"
    assert len(cluster.api.objects[CLAIM]["status"]["reservedFor"]) == 2


def test_one_that_may_not_be_bound_leaves_the_claim_to_the_first(cluster, scheduler):
    first = submit(cluster, "first")
    submit(cluster, "second")
    scheduler.settle()
    scheduler.start(first)
    scheduler.settle()
    where = f"{PODS}/second/binding"
    cluster.api.refuses = lambda _, path, __: (403, {"message": "a policy forbids it"}) if path == where else None
    scheduler.engine.snapshot()
    assert [one["name"] for one in cluster.api.objects[CLAIM]["status"]["reservedFor"]] == ["first"]
    scheduler.settle()
    (job,) = scheduler.engine.snapshot().jobs
    assert (job.tasks[0].phase, used(scheduler.engine)) == ("starting", {("n1", 0): 8 * GIB})


OWNED = {"resourceClaimTemplateName": "second"}
WRONG = {
    "queue": ({"queue": "b"}, "which is in another queue"),
    "group": (
        {"labels": {"gpushare.dev/pod-group": "g"}, "annotations": {"gpushare.dev/pod-group-size": "1"}},
        "a pod group has a claim for each pod",
    ),
    "node": ({"spec": {"nodeSelector": {"kubernetes.io/hostname": "n2"}}}, "this pod does not fit that node"),
    "claims": (
        {"spec": {"resourceClaims": [{"name": "x", "resourceClaimName": name, **OWNED} for name in ("both", "more")]}},
        "but not all of its claims",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_one_task_is_said(cluster, scheduler, what):
    more, words = WRONG[what]
    first = submit(cluster, "first")
    if what == "claims":
        other = {**cluster.api.objects[CLAIM], "metadata": {"name": "more", "namespace": "team-a"}}
        cluster.api.put(f"{CLAIMS}/more", other)
    scheduler.settle()
    scheduler.start(first)
    submit(cluster, "second", **more)
    scheduler.settle()
    scheduler.engine.snapshot()
    assert words in told(cluster, "second"), told(cluster, "second")
    assert not cluster.pod("second")["spec"].get("nodeName")


def test_a_pod_that_is_held_keeps_no_other_from_the_claim(cluster, ruled):
    submit(cluster, "held", annotations={"gpushare.dev/hold": "true"})
    submit(cluster, "free")
    ruled.settle()
    ruled.go(lambda: runs(cluster, "free"))
    assert not cluster.pod("held")["spec"].get("nodeName")
    cluster.api.change(f"{PODS}/held", lambda one: one["metadata"]["annotations"].pop("gpushare.dev/hold"))
    ruled.settle()
    ruled.go(lambda: runs(cluster, "held", "free"))


def test_a_claim_of_a_pod_that_another_scheduler_has_started_is_not_joined(cluster, scheduler):
    """Its budget is that pod's."""
    submit(cluster, "second")
    other = {"metadata": {"name": "other", "namespace": "team-a"}, "spec": {"nodeName": "n1"}, "status": {}}
    cluster.api.put(f"{PODS}/other", other)
    cluster.api.objects[f"{PODS}/other"]["spec"]["resourceClaims"] = []
    result = {"request": "gpu", "driver": "gpushare.dev", "pool": "n1", "device": "gpu-n1-0"}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"resource": "pods", "uid": "x"}]}
    cluster.api.change(CLAIM, lambda one: one.update(status=status))
    scheduler.settle()
    scheduler.token()
    scheduler.engine.snapshot()
    assert "is allocated already, for another pod" in told(cluster, "second")
