"""Kubernetes' own word for pods that start together: Workloads of 1.35, PodGroups of 1.36 and 1.37."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kube_cluster import NAMESPACE, PODS, Program
from scheduler_stage import Scheduler
from test_scheduler_words import told

from gpushare.cluster.engines.kubernetes import groups
from gpushare.cluster.engines.kubernetes.groups import Group, Named
from gpushare.cluster.engines.kubernetes.mark import Mark
from gpushare.cluster.engines.kubernetes.names import POD_GROUPS, WORKLOADS
from gpushare.cluster.engines.kubernetes.seats import Seats, Sitter
from gpushare.errors import UsageError

IN = f"/namespaces/{NAMESPACE}/"
NEWEST, BEFORE = (path.replace("/podgroups", f"{IN}podgroups") for path in POD_GROUPS)
OF_135 = WORKLOADS.replace("/workloads", f"{IN}workloads")
GANG = {"gang": {"minCount": 2}}
BASIC = {"basic": {}}


def pod_group(policy):
    return {"metadata": {"name": "g", "namespace": NAMESPACE}, "spec": {"schedulingPolicy": policy}}


def workload(policy, name="workers"):
    spec = {"podGroups": [{"name": "other", "policy": BASIC}, {"name": name, "policy": policy}]}
    return {"metadata": {"name": "w", "namespace": NAMESPACE}, "spec": spec}


def by_group(name="g"):
    return {"schedulingGroup": {"podGroupName": name}}


def by_workload(group="workers", **more):
    return {"workloadRef": {"name": "w", "podGroup": group, **more}}


# ---- what a pod says -----------------------------------------------------------------------------------

KEY = (NAMESPACE, "w")
SERVED = Named(workloads={KEY: workload(GANG)}, pod_groups={(NAMESPACE, "g"): pod_group(GANG)})


def pod(spec, **labels):
    owners = [{"uid": "1", "controller": True}]
    size = {"gpushare.dev/pod-group-size": "3"} if labels else {}
    meta = {"namespace": NAMESPACE, "labels": labels, "annotations": size, "ownerReferences": owners}
    return {"metadata": meta, "spec": spec}


def test_a_pod_group_and_a_group_of_a_workload_say_with_how_many_pods_they_start():
    line = ("group", NAMESPACE, "PodGroup", "g")
    assert groups.read(pod(by_group()), SERVED) == Group(line, 2, 2, open=True)
    line = ("group", NAMESPACE, "Workload", "w", "workers", "")
    assert groups.read(pod(by_workload()), SERVED) == Group(line, 2, 2, open=True)
    each = groups.read(pod(by_workload(podGroupReplicaKey="a")), SERVED)
    assert each.line == ("group", NAMESPACE, "Workload", "w", "workers", "a"), "each instance is a group of its own"


def test_pods_of_a_group_without_a_gang_are_jobs_of_their_own():
    named = Named({KEY: workload(BASIC)}, {(NAMESPACE, "g"): pod_group(BASIC)})
    for spec in (by_group(), by_workload()):
        assert groups.read(pod(spec), named) == Group(("owner", NAMESPACE, "1"))
    one = Named(pod_groups={(NAMESPACE, "g"): pod_group({"gang": {"minCount": 1}})})
    assert not groups.read(pod(by_group()), one).open


def test_where_the_server_has_no_such_kind_the_label_counts():
    label = {"gpushare.dev/pod-group": "mine"}
    for spec in (by_group(), by_workload(), {}):
        assert groups.read(pod(spec, **label), groups.NONE) == Group(("group", NAMESPACE, "mine"), 3, 3)
    assert groups.read(pod(by_group(), **label), SERVED).size == 2, "else Kubernetes' own does"
    assert groups.read(pod({}, **label), SERVED).size == 3


@pytest.mark.parametrize(
    ("spec", "named", "words"),
    [
        (by_group("none"), SERVED, "its PodGroup none is not there yet"),
        (by_workload("none"), SERVED, "its group none of Workload w is not there yet"),
        (by_workload(), Named(workloads={}), "its group workers of Workload w is not there yet"),
        (by_group(), Named(pod_groups={}, trouble="podgroups: forbidden"), "is not there yet: podgroups: forbidden"),
        (by_group(), Named(pod_groups={(NAMESPACE, "g"): pod_group({"gang": {}})}), "its PodGroup g has minCount 0"),
        (by_workload(), Named({KEY: workload({"gang": {"minCount": -1}})}), "has minCount -1"),
        (by_workload(), Named({KEY: workload({"gang": {"minCount": 10_001}})}), "has minCount 10001"),
    ],
)
def test_a_group_that_says_nothing_of_use_is_told(spec, named, words):
    with pytest.raises(UsageError) as refused:
        groups.read(pod(spec), named)
    assert words in refused.value.message


@pytest.mark.parametrize("odd", [5, "x", [], {"name": 5}, {"podGroupName": ["x"]}, None])
def test_odd_references_are_none(odd):
    assert groups.read(pod({"schedulingGroup": odd, "workloadRef": odd and []}), SERVED).line == (
        "owner",
        NAMESPACE,
        "1",
    )


# ---- seats ---------------------------------------------------------------------------------------------

LINE = ("group", NAMESPACE, "PodGroup", "g")


def sitter(number: int, *, node: str = "", job: str = "", size: int = 0, minimum: int = 2) -> Sitter:
    mark = Mark(job=job, task=number if size == minimum else 0, node=node, size=size)
    group = Group(LINE, minimum, minimum, open=True)
    return Sitter(f"p{number}", group, float(number), f"p{number}", mark, leaves=False, over=False)


def test_those_above_the_minimum_wait_until_the_first_have_started_and_then_start_alone():
    seats = Seats()
    seats.look([sitter(0)], 0.0)
    assert seats.short == {"p0": (1, 2)}
    seats.look([sitter(number) for number in range(5)], 1.0)
    assert {uid: (seat.job, seat.task) for uid, seat in seats.taken.items()} == {"p0": ("p0", 0), "p1": ("p0", 1)}
    assert seats.short == {"p2": (2, 2), "p3": (2, 2), "p4": (2, 2)}, "no second two are made of them"
    first = [sitter(number, node="n1", job="p0", size=2) for number in range(2)]
    seats.look([*first, *(sitter(number) for number in range(2, 5))], 2.0)
    assert {uid: seat.job for uid, seat in seats.taken.items() if seat.size == 1} == {
        "p2": "p2",
        "p3": "p3",
        "p4": "p4",
    }
    assert not seats.short


def test_another_service_reads_from_the_marks_who_started_together():
    """Also where the minimum was changed meanwhile."""
    marked = [sitter(number, node="n1", job="p0", size=2, minimum=2) for number in range(2)]
    alone = sitter(2, node="n1", job="p2", size=1, minimum=3)
    seats = Seats()
    seats.look([*(replace(one, group=alone.group) for one in marked), alone], 0.0)
    assert {uid: (seat.job, seat.task, seat.size) for uid, seat in seats.taken.items()} == {
        "p0": ("p0", 0, 2),
        "p1": ("p0", 1, 2),
        "p2": ("p2", 0, 1),
    }


# ---- on the stand-in for a cluster ---------------------------------------------------------------------


def submit(cluster, count: int, spec) -> Program:
    program = Program()
    cluster.submit("g", program, pod="g-0", memory="80Gi", queue="a", spec=spec)
    program.pods = count
    for number in range(1, count):
        program.make(f"g-{number}")
    return program


def serves(cluster, *kinds: str) -> None:
    """And none of the other versions."""

    def refuse(method, path, _):
        kind = "scheduling.k8s.io" in path and not path.startswith(kinds)
        return (404, {"message": "the server could not find the requested resource"}) if kind else None

    cluster.api.refuses = refuse


def version_of(path: str) -> str:
    return path.partition("/podgroups")[0].partition("/workloads")[0].partition("/namespaces")[0]


CASES = {
    "1.37": (NEWEST, pod_group, by_group()),
    "1.36": (BEFORE, pod_group, by_group()),
    "1.35": (OF_135, workload, by_workload()),
}


@pytest.fixture(params=CASES)
def case(request, cluster):
    path, make, spec = CASES[request.param]
    serves(cluster, version_of(path))
    return path, make, spec


def test_a_group_starts_when_it_is_there_and_so_many_pods_are_and_fit(case, cluster, ruled):
    path, make, spec = case
    program = submit(cluster, 1, spec)
    ruled.settle()
    ruled.go(lambda: "is not there yet" in told(cluster, "g-0"))
    cluster.api.put(f"{path}/{make(GANG)['metadata']['name']}", make(GANG))
    ruled.settle()
    ruled.go(lambda: told(cluster, "g-0") == "its pod group has 1 of 2 pods")
    assert not program.began
    program.pods = 2
    ruled.settle()
    ruled.go(lambda: program.began == 2)
    (job,) = [one for one in ruled.engine.snapshot().jobs if one.tasks]
    assert len(job.tasks) == 2 and job.job.tasks[0].least == 2


def test_further_pods_start_when_the_first_have_and_one_that_is_evicted_is_replaced(case, cluster, ruled):
    path, make, spec = case
    cluster.api.put(f"{path}/{make(GANG)['metadata']['name']}", make(GANG))
    program = submit(cluster, 4, spec)
    ruled.settle()
    ruled.go(lambda: program.began == 4)
    sizes = sorted(len(one.tasks) for one in ruled.engine.snapshot().jobs)
    assert sizes == [1, 1, 2]
    owner = cluster.submit("own", Program(requeue=False), memory="80Gi", queue="b")
    ruled.settle()
    ruled.go(lambda: cluster.programs["own"].began)
    assert ruled.job(owner).tasks
    pair = [one for one in ruled.engine.snapshot().jobs if len(one.tasks) == 2]
    assert pair, "one that had started alone went, and not the two"
    cluster.cancel("own")
    ruled.settle()
    ruled.go(lambda: sum(pod["status"]["phase"] == "Running" for _, pod in cluster.pods_of("g")) == 4)


def test_another_service_goes_on_with_the_same_jobs(case, cluster, ruled):
    path, make, spec = case
    cluster.api.put(f"{path}/{make(GANG)['metadata']['name']}", make(GANG))
    program = submit(cluster, 3, spec)
    ruled.settle()
    ruled.go(lambda: program.began == 3)
    before = {one.job.id: len(one.tasks) for one in ruled.engine.snapshot().jobs}
    cluster.api.remove(f"{path}/{make(GANG)['metadata']['name']}")
    again = Scheduler(cluster)
    try:
        again.settle()
        assert {one.job.id: len(one.tasks) for one in again.engine.snapshot().jobs} == before
    finally:
        again.close()
    assert sorted(before.values()) == [1, 2]


def test_a_server_that_does_not_let_it_read_groups_starts_all_other_pods(cluster):
    cluster.api.refuses = lambda _method, path, _body: (
        (403, {"message": "podgroups is forbidden"}) if "scheduling.k8s.io" in path else None
    )
    plain = cluster.submit("plain", Program(requeue=False), queue="a")
    submit(cluster, 1, by_group())
    made = Scheduler.__new__(Scheduler)
    made.settle = lambda: made.woken.wait(0.3)  # the collections of groups never come
    Scheduler.__init__(made, cluster)
    try:
        made.woken.wait(0.5)
        made.engine.snapshot()
        assert [one.job.id for one in made.engine.snapshot().jobs] == [plain]
        assert "forbidden" in made.engine._board.members[cluster.pod("g-0")["metadata"]["uid"]].wrong
    finally:
        made.close()
    assert f"{PODS}/plain" in cluster.api.objects
