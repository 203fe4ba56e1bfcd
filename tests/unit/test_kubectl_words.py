"""What `kubectl gpushare` says of objects that are odd, that are not there, or that it may not read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.cli import kubectl, output
from gpushare.cluster.engines.kubernetes import names
from gpushare.errors import NoSuchJob, NotPermitted
from gpushare.kubernetes.names import NODE_GPUS, SCHEDULER
from gpushare.kubernetes.reader import NotServed

GIB = 2**30
CLAIMED = '{"memory": "8Gi", "count": 1}'


class Server:
    """Objects by path; an error in the place of one is raised."""

    namespace = "team-a"

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}

    def ask(self, path: str) -> Any:
        found = self.objects.get(path, NoSuchJob("not found"))
        if isinstance(found, Exception):
            raise found
        return found

    def all(self, path: str) -> Any:
        found = self.objects.get(path, [])
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def server(monkeypatch):
    one = Server()
    monkeypatch.setattr(kubectl, "opened", lambda kubeconfig, context: one)
    monkeypatch.setattr(output, "age", lambda created: "12m")
    return one


@pytest.fixture
def shown(server, capsys):
    def shown(*words: str) -> list[str]:
        """Both streams: what is noted is last."""
        capsys.readouterr()
        assert kubectl.main(list(words)) == 0
        out, err = capsys.readouterr()
        return [line.rstrip() for line in (out + err).splitlines()]

    return shown


def pod(name: str = "train", scheduler: str | None = SCHEDULER, status: Mapping[str, Any] | None = None, **spec: Any):
    meta = {"name": name, "namespace": "team-a", "creationTimestamp": "2026-11-01T10:00:00Z", "labels": {}}
    meta["labels"] = {"gpushare.dev/queue": "vision"}
    if scheduler is not None:
        spec["schedulerName"] = scheduler
    return {"metadata": meta, "spec": spec, "status": status or {}}


def kept(server: Server, one: dict[str, Any], *claims: str) -> None:
    """The pod, with claims of these names, which may not be there."""
    if claims:
        one["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": name} for name in claims]
    server.objects[names.POD.format("team-a", one["metadata"]["name"])] = one


def claim(name: str, *, allocated: bool = False, used: str | None = None) -> dict[str, Any]:
    status: dict[str, Any] = {"reservedFor": [{"name": "train"}]}
    if allocated:
        status["allocation"] = {"devices": {}}
    if used:
        words = [{"message": used}]
        status["devices"] = [
            {"driver": "gpushare.dev", "pool": "n1", "device": "g0", "conditions": words, "data": {"x": 1}}
        ]
    return {"metadata": {"name": name, "namespace": "team-a"}, "status": status, "spec": {}}


def test_the_words_are_those_that_kubectl_hands_on(server, capsys, monkeypatch):
    monkeypatch.setattr(kubectl.sys, "argv", ["kubectl-gpushare", "borrowers", "--json"])
    assert kubectl.main() == 0 and json.loads(capsys.readouterr().out)["loans"] == []


# ---- one pod --------------------------------------------------------------------------------------


def test_each_claim_of_a_pod_is_told(server, shown):
    kept(server, pod(), "used", "given", "free", "lost", "secret")
    for one in (claim("used", used="uses it"), claim("given", allocated=True), claim("free")):
        server.objects[names.CLAIM.format("team-a", one["metadata"]["name"])] = one
    server.objects[names.CLAIM.format("team-a", "secret")] = NotPermitted("you may not get it")
    lines = shown("explain", "train")
    assert lines[0] == "pod team-a/train is waiting"
    assert [line.strip() for line in lines if line.startswith("  claim")] == [
        "claim lost    is not there",
        "claim secret  you may not get it",
        "claim used    n1, g0: uses it",
        "claim given   is allocated",
        "claim free    is not allocated",
    ]


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        (SCHEDULER, None),
        ("other", "other: it waits in no queue of gpushare"),
        (None, "default-scheduler: it waits in no queue of gpushare"),
    ],
)
def test_a_pod_of_another_scheduler(server, shown, scheduler, words):
    kept(server, pod(scheduler=scheduler))
    told = [line.split(maxsplit=1)[1] for line in shown("explain", "train") if line.startswith("  scheduler")]
    assert [one.partition(" (")[0] for one in told] == ([words] if words else [])


def carried(**changes: Any) -> dict[str, Any]:
    one = pod(nodeName="n1", status={"phase": "Running"})
    one["metadata"]["annotations"] = {"gpushare.dev/claim": CLAIMED}
    one["spec"] |= changes
    return one


def use(name: str, text: str) -> dict[str, Any]:
    pod = {"namespace": "team-a", "name": name}
    return {"pod": pod, "pool": "n1", "device": "g0", "conditions": [{"message": text}], "data": {}}


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, ["uses      n1, g0: uses 1 GiB"]),
        ({"nodeName": ""}, []),
        ({"resourceClaims": [{"name": "x"}]}, []),
    ],
    ids=["there", "no node", "with claims"],
)
def test_a_pod_that_carries_its_claim_uses_what_its_node_says(server, shown, changes, lines):
    kept(server, carried(**changes))
    server.objects[f"{NODE_GPUS}/n1"] = {"status": {"uses": [use("train", "uses 1 GiB"), use("eval", "uses 2 GiB")]}}
    told = [" ".join(line.split()) for line in shown("explain", "train")]
    assert [line for line in told if line.startswith("uses")] == [" ".join(line.split()) for line in lines]


@pytest.mark.parametrize("error", [NoSuchJob("n1 says nothing"), NotPermitted("you may not get nodegpus")])
def test_a_node_that_cannot_be_read_is_told(server, shown, error):
    kept(server, carried())
    server.objects[f"{NODE_GPUS}/n1"] = error
    assert f"uses {error.message}" in [" ".join(line.split()) for line in shown("explain", "train")]


def test_a_pod_without_a_claim_uses_nothing(server, shown):
    kept(server, pod(nodeName="n1", status={"phase": "Running"}))
    server.objects[f"{NODE_GPUS}/n1"] = {"status": {"uses": [use("train", "uses 1 GiB")]}}
    assert not [line for line in shown("explain", "train") if line.startswith("  uses")]


def conditions(status: str, message: str) -> dict[str, Any]:
    return {"conditions": [{"type": "Accepted", "status": status, "message": message}]}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (conditions("True", ""), "vision holds 1 GPUs and may hold 2, quota 3, limit 4; 5 run, 6 wait"),
        (
            conditions("False", "queue vision: odd"),
            "vision holds 1 GPUs and may hold 2, quota 3, limit 4; 5 run, 6 wait; its object does not count: odd",
        ),
    ],
)
def test_the_queue_of_a_pod(server, shown, status, words):
    kept(server, pod())
    amounts = {"held": "1", "share": "2", "running": 5, "waiting": 6}
    spec = {"quota": 3, "limit": 4}
    server.objects[f"{names.QUEUES}/vision"] = {
        "metadata": {"name": "vision"},
        "spec": spec,
        "status": {**amounts, **status},
    }
    assert f"queue {words}" in [" ".join(line.split()) for line in shown("explain", "train")]


# ---- lists ----------------------------------------------------------------------------------------


def test_pods_that_wait_come_last_and_the_older_first(server, shown):
    def of(name: str, created: str, status: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        one = pod(name, status=status, **more)
        one["metadata"]["creationTimestamp"] = created
        return one

    running = {"phase": "Running"}
    server.objects[names.PODS.replace("/pods", "/namespaces/team-a/pods")] = [
        of("waits", "2026-11-01T09:00:00Z", {}),
        of("late", "2026-11-01T12:00:00Z", running, nodeName="n1"),
        of("b", "2026-11-01T10:00:00Z", running, nodeName="n1"),
        of("a", "2026-11-01T10:00:00Z", running, nodeName="n1"),
        of("gated", "2026-11-01T08:00:00Z", {}, schedulingGates=[{"name": "x"}]),
        of("odd", "yesterday", running, nodeName="n1"),
        of("over", "2026-11-01T08:00:00Z", {"phase": "Succeeded"}),
        of("broken", "2026-11-01T08:00:00Z", {"phase": "Failed"}),
        pod("others", "other"),
    ]
    lines = shown("queue")
    assert [line.split()[0] for line in lines[1:]] == ["odd", "a", "b", "late", "gated", "waits"]
    assert lines[1].split()[3:6] == ["-", "whole", "-"], "what is not known"


def test_without_claims_pods_are_listed_still(server, shown):
    server.objects[names.CLAIMS.replace("/resourceclaims", "/namespaces/team-a/resourceclaims")] = NotServed("none")
    server.objects[names.PODS.replace("/pods", "/namespaces/team-a/pods")] = [pod()]
    assert shown("queue")[1].split()[:3] == ["train", "vision", "waiting"]


def used(name: str, usage: int, request: int, loan: int, device: str = "g0") -> dict[str, Any]:
    amounts = {"usage": usage, "request": request, "loan": loan, "limit": 60 * GIB}
    data = {key: str(value) for key, value in amounts.items()} | {"state": "asked_back"}
    one = {"driver": "gpushare.dev", "pool": "n1", "device": device, "data": data}
    status = {"reservedFor": [{"name": name}], "devices": [one]}
    return {"metadata": {"name": f"{name}-gpu", "namespace": "team-a"}, "status": status}


def published(index: str | None) -> dict[str, Any]:
    attributes = {} if index is None else {"index": {"int": index}}
    device = {"name": "g0", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}
    return {"spec": {"driver": "gpushare.dev", "nodeName": "n1", "pool": {"generation": 1}, "devices": [device]}}


def test_a_gpu_without_a_number_has_the_name_of_its_device(server, shown):
    server.objects[names.CLAIMS] = [used("train", 30 * GIB, 24 * GIB, 6 * GIB), used("eval", 10 * GIB, 40 * GIB, 0)]
    for index, name in (("7", "7"), (None, "g0")):
        server.objects[names.SLICES] = [published(index)]
        (line,) = shown("borrowers")[1:]
        assert line.split()[:3] == ["n1", name, "team-a/train"]
        assert "asked back" in line and line.endswith("team-a/eval 30.0 GiB, no claim 16.0 GiB")
    server.objects[names.SLICES] = NotPermitted("you may not list slices")
    line, noted = shown("borrowers")[1:]
    assert line.split()[1] == "g0" and line.endswith("team-a/eval 30.0 GiB"), "what is free is not known"
    assert noted == "gpushare: you may not list slices"


def test_that_nobody_borrows_is_told_apart_from_nothing_known(server, shown):
    server.objects[names.CLAIMS] = [used("eval", 10 * GIB, 40 * GIB, 0)]
    assert shown("borrowers")[-1] == "gpushare: nobody borrows"
    server.objects[names.CLAIMS] = []
    assert shown("borrowers")[-1] == "gpushare: no claim says how it uses its GPUs"
    server.objects[names.CLAIMS] = [used("train", 30 * GIB, 24 * GIB, 6 * GIB)]
    assert shown("borrowers")[-1].endswith("-"), "with a loan, nothing is noted"
    assert shown("borrowers")[-1].startswith("n1")


def test_of_one_namespace_only_its_pods_are_told_where_they_carry_claims(server, shown):
    server.objects[names.CLAIMS] = NotServed("none")
    server.objects[names.CLAIMS.replace("/resourceclaims", "/namespaces/team-a/resourceclaims")] = NotServed("none")
    other = use("their", "x")
    other["pod"]["namespace"] = "team-b"
    mine = use("mine", "x")
    for one in (mine, other):
        one["data"] = {"usage": str(3 * GIB), "request": str(2 * GIB), "loan": str(GIB)}
    server.objects[NODE_GPUS] = [{"status": {"uses": [mine, other]}}]
    assert [line.split()[2] for line in shown("borrowers")[1:]] == ["team-a/mine", "team-b/their"]
    assert [line.split()[2] for line in shown("borrowers", "-n", "team-a")[1:]] == ["team-a/mine"]


def test_a_loan_as_json(server, shown):
    server.objects[names.CLAIMS] = [used("train", 30 * GIB, 24 * GIB, 6 * GIB)]
    (loan,) = json.loads("\n".join(shown("borrowers", "--json")))["loans"]
    amounts = {"request": 24 * GIB, "limit": 60 * GIB, "usage": 30 * GIB, "loan": 6 * GIB}
    assert loan == {
        "node": "n1",
        "device": "g0",
        "who": "team-a/train",
        **amounts,
        "state": "asked back",
        "idle_there": [],
    }
