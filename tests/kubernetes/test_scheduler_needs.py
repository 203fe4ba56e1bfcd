"""CPUs and memory of the host: where a pod is not placed, and what counts as taken."""

from __future__ import annotations

import pytest
from kube_cluster import NODES, PODS, Program

from gpushare.cluster.engines.kubernetes.needs import Needs, of_pod

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
    ruled.go(lambda: all(one.began for one in others.programs.values()))
    assert {others.pod(f"p{number}")["spec"]["nodeName"] for number in range(2)} == {"n2"}


def test_what_others_have_counts_until_it_is_over(others, ruled):
    has(others, "n1", "4")
    has(others, "n2", "16")
    path = other(others, "web", "n2", cpu="10")
    submit(others, "train", cpu="8")
    for _ in range(4):
        ruled.round()
    assert "nodeName" not in others.pod("train")["spec"]
    assert "what its pod says of nodes" in others.pod("train")["status"]["conditions"][0]["message"]
    others.api.change(path, lambda one: one["status"].update(phase="Succeeded"))
    ruled.go(lambda: others.programs["train"].began)
    assert others.pod("train")["spec"]["nodeName"] == "n2"


def test_what_runs_goes_on_when_others_come(others, ruled):
    has(others, "n1", "16")
    has(others, "n2", "4")
    submit(others, "train", cpu="8")
    ruled.go(lambda: others.programs["train"].began)
    other(others, "web", "n1", cpu="14")
    submit(others, "waits", cpu="8")
    for _ in range(6):
        ruled.round()
    assert others.programs["train"].began == 1 and others.pod("train")["status"]["phase"] == "Running"
    assert "nodeName" not in others.pod("waits")["spec"]


def test_a_node_that_does_not_say_what_it_has_takes_all(others, ruled):
    submit(others, "train", cpu="1000", memory="9Ti")
    ruled.go(lambda: others.programs["train"].began)
