"""CPUs and memory of the host: where a pod is not placed, and what counts as taken."""

from __future__ import annotations

import pytest
from kube_cluster import NODES, PODS, Program
from scheduler_stage import Ruled

from gpushare.cluster.engines.kubernetes.needs import Needs, of_pod
from gpushare.cluster.engines.seam import Start
from gpushare.cluster.model import Place

GIB = 2**30


LIMITED = {"resources": {"limits": {"cpu": "3", "memory": "2Gi"}, "requests": {"cpu": "1"}}}


def asks(**requests):
    return {"resources": {"requests": requests}}


SIDECAR = {**asks(cpu="4"), "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ({}, Needs(0, 0)),
        ({"containers": [asks(cpu="500m", memory="1Gi"), asks(cpu=2)]}, Needs(2500, GIB)),
        (
            {"containers": [LIMITED]},
            Needs(1000, 2 * GIB),
        ),
        ({"containers": [asks(cpu="1")], "initContainers": [asks(cpu="4"), asks(memory="8Gi")]}, Needs(4000, 8 * GIB)),
        (
            {"containers": [asks(cpu="1")], "initContainers": [SIDECAR]},
            Needs(5000, 0),
        ),
        ({"containers": [asks(cpu="1")], "overhead": {"cpu": "250m", "memory": "64Mi"}}, Needs(1250, 64 * 2**20)),
        ({"containers": [asks(cpu="1")], **asks(cpu="6", memory="3Gi")}, Needs(6000, 3 * GIB)),
        ({"containers": [asks(cpu="many", memory=None), 7, {"resources": []}]}, Needs(0, 0)),
        ({"containers": [asks(cpu="0.1")]}, Needs(100, 0)),
    ],
)
def test_what_a_pod_needs(spec, needs):
    assert of_pod({"spec": spec}) == needs


def has(cluster, node: str, cpu: str, memory: str = "64Gi") -> None:
    cluster.api.change(f"{NODES}/{node}", lambda one: one["status"].update(allocatable={"cpu": cpu, "memory": memory}))


def other(cluster, name: str, node: str, **requests) -> str:
    """A pod that another scheduler has placed."""
    path = f"{PODS.replace('team-a', 'others')}/{name}"
    spec = {"schedulerName": "default-scheduler", "nodeName": node, "containers": [asks(**requests)]}
    cluster.api.put(
        path, {"metadata": {"name": name, "namespace": "others"}, "spec": spec, "status": {"phase": "Running"}}
    )
    return path


def submit(cluster, name: str, **requests) -> None:
    cluster.submit(name, Program(), memory="8Gi", queue="a", spec={"containers": [asks(**requests)]})


@pytest.fixture
def others(cluster, monkeypatch):
    """The stand-in's kubelets know only pods with claims."""
    own = type(cluster).pods
    monkeypatch.setattr(type(cluster), "pods", lambda self: [one for one in own(self) if "/others/" not in one[0]])
    return cluster


@pytest.mark.parametrize("requests", [{"cpu": "8"}, {"memory": "32Gi"}])
def test_a_pod_goes_where_its_cpus_and_memory_are(others, ruled, requests):
    has(others, "n1", "4", "16Gi")
    has(others, "n2", "16", "64Gi")
    for number in range(2):
        submit(others, f"p{number}", **requests)
    ruled.settle()
    ruled.go(lambda: all(one.began for one in others.programs.values()))
    assert {others.pod(f"p{number}")["spec"]["nodeName"] for number in range(2)} == {"n2"}


def test_what_others_have_counts_until_it_is_over(others, ruled):
    has(others, "n1", "4")
    has(others, "n2", "16")
    path = other(others, "web", "n2", cpu="10")
    submit(others, "train", cpu="8")
    ruled.settle()
    for _ in range(4):
        ruled.round()
    assert "nodeName" not in others.pod("train")["spec"]
    message = others.pod("train")["status"]["conditions"][0]["message"]
    assert message.startswith("no node that is there matches what its pod says of nodes: 1 GPU of 8.0 GiB needed")
    assert message.endswith("; 2 nodes lack the 8 CPUs that it needs")
    others.api.change(path, lambda one: one["status"].update(phase="Succeeded"))
    ruled.go(lambda: others.programs["train"].began)
    assert others.pod("train")["spec"]["nodeName"] == "n2"


def test_what_runs_goes_on_when_others_come(others, ruled):
    has(others, "n1", "16")
    has(others, "n2", "4")
    submit(others, "train", cpu="8")
    ruled.settle()
    ruled.go(lambda: others.programs["train"].began)
    other(others, "web", "n1", cpu="14")
    submit(others, "waits", cpu="8")
    ruled.settle()
    for _ in range(6):
        ruled.round()
    assert others.programs["train"].began == 1 and others.pod("train")["status"]["phase"] == "Running"
    assert "nodeName" not in others.pod("waits")["spec"]


def fill_two_nodes(others, ruled):
    """Of three pods two have room, on a node each."""
    has(others, "n1", "8")
    has(others, "n2", "8")
    for number in range(3):
        submit(others, f"p{number}", cpu="5")
    ruled.settle()
    ruled.go(lambda: sum(one.began for one in others.programs.values()) == 2)


def test_what_own_pods_hold_counts_where_gpus_are_free(others, ruled):
    """The kubelet would refuse the second one, and its pod would have failed."""
    fill_two_nodes(others, ruled)
    for _ in range(5):
        ruled.round()
    nodes = [others.pod(f"p{number}")["spec"].get("nodeName") for number in range(3)]
    assert sorted(map(str, nodes)) == ["None", "n1", "n2"]
    (waits,) = [number for number in range(3) if not nodes[number]]
    others.cancel(f"p{1 if waits != 1 else 0}")
    ruled.settle()
    ruled.go(lambda: others.programs[f"p{waits}"].began)


def test_of_several_that_start_at_once_no_more_than_fit_are_bound(others, scheduler):
    has(others, "n1", "8")
    spec = {"containers": [asks(cpu="3")]}
    uids = [others.submit(f"p{number}", Program(), queue="a", spec=spec) for number in range(4)]
    scheduler.settle()
    scheduler.engine.snapshot()
    starts = [Start(uid, 1, (Place(0, 0, "n1", (gpu % 2,), 8 * GIB, 0),), 0) for gpu, uid in enumerate(uids)]
    commands = [(start, scheduler.token()) for start in starts]
    answers = [type(answer).__name__ for _, answer in scheduler.engine.start_all(commands)]
    assert sorted(answers) == ["Accepted", "Accepted", "Busy", "Refused"], "the node rests once"


def test_a_quota_is_kept_where_borrowers_have_the_cpus_too(others, ruled):
    """They are evicted for the GPUs, and their CPUs come free with these."""
    for node in ("n1", "n2"):
        has(others, node, "8")
    for number in range(4):
        others.submit(f"b{number}", Program(), memory="80Gi", queue="a", spec={"containers": [asks(cpu="4")]})
    ruled.settle()
    ruled.go(lambda: all(one.began for one in others.programs.values()))
    others.submit("owner", Program(), memory="80Gi", queue="b", spec={"containers": [asks(cpu="4")]})
    ruled.settle()
    ruled.go(lambda: others.programs["owner"].began)


def test_a_restarted_scheduler_leaves_those_that_fill_a_node_alone(others, ruled, tmp_path):
    fill_two_nodes(others, ruled)
    ruled.close()
    (tmp_path / "again").mkdir()
    again = Ruled(others, tmp_path / "again")
    for _ in range(5):
        again.round()
    assert sum(one.began for one in others.programs.values()) == 2
    assert not any(pod["metadata"].get("deletionTimestamp") for _, pod in others.pods())
    again.close()


def test_a_node_that_does_not_say_what_it_has_takes_all(others, ruled):
    submit(others, "train", cpu="1000", memory="9Ti")
    ruled.go(lambda: others.programs["train"].began)


@pytest.mark.parametrize("more", [{}, {"cpu": "1"}])
def test_a_node_takes_as_many_pods_as_it_says(others, ruled, more):
    """Small ones of one user; the kubelet would let the next pod fail, whose ever it is."""
    for node, pods in (("n1", "3"), ("n2", "2")):
        said = {"cpu": "16", "memory": "64Gi", "pods": pods}
        others.api.change(f"{NODES}/{node}", lambda one, said=said: one["status"].update(allocatable=said))
    other(others, "web", "n1")
    for number in range(5):
        submit(others, f"p{number}", **more)
    ruled.settle()
    for _ in range(10):
        ruled.round()
    assert sum(one.began for one in others.programs.values()) == 4
    (waits,) = [one for number in range(5) if not (one := others.pod(f"p{number}"))["spec"].get("nodeName")]
    message = waits["status"]["conditions"][0]["message"]
    assert message.endswith("; 2 nodes lack the place for one more pod that it needs"), message
