"""Pods with annotations on real nodes of a server without claims: from the webhook to programs that are held to it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from annotations_stage import AnnotationsStage, annotation, annotations_stage
from kube_stage import until
from real_pods import NAMESPACE, pod_spec
from real_stage import ON_NODE, OUT_OF_MEMORY, WHY, WITHIN, empty

from gpushare.doctor import examine
from gpushare.doctor.cluster import CHECKS, Cluster
from gpushare.kubernetes.access import Access
from gpushare.kubernetes.carried import WRITTEN
from gpushare.kubernetes.reader import Reader
from gpushare.kubernetes.server import MERGE, Answer

pytestmark = [pytest.mark.skipif(bool(WHY), reason=WHY), pytest.mark.timeout(400)]

ELSEWHERE = ("API server", "kube-controller-manager", "gpushare's scheduler", "webhook")
LENDS = {"gpu_fraction": "0.25", "gpu_fraction_limit": "0.75"}


def made(gpus: int) -> Iterator[AnnotationsStage]:
    with tempfile.TemporaryDirectory(prefix="gs-kn-") as folder:
        Path(folder).chmod(0o755)
        with annotations_stage(Path(folder), gpus) as stage:
            yield stage


@pytest.fixture(scope="module")
def _stage():
    yield from made(1)


@pytest.fixture
def stage(_stage):
    with empty(_stage) as one:
        yield one


def test_a_pod_has_its_part_and_borrows_until_an_owner_comes(stage, record_property):
    record_property("kubernetes", f"annotations of pods: {stage.cluster.about()}")
    borrower = stage.program("borrower", **LENDS).running()
    pod, (gpu,) = stage.pods.get("pods", "borrower"), stage.node.client.status()["gpus"]
    assert (annotation(pod, "limit"), annotation(pod, "gpus")) == ("0.75", gpu["uuid"])
    (placed,) = stage.node.client.placements()
    assert placed["job"]["name"] == f"{NAMESPACE}/borrower"
    assert borrower.do("total") == 3072
    assert borrower.do(2500) == 0, "above its request"
    assert borrower.do(1000) == OUT_OF_MEMORY, "above its limit"
    until(lambda: f"{NAMESPACE}/borrower" in stage.plug_in("borrowers"), "the node to tell who borrows", WITHIN)
    assert "are on loan" in stage.plug_in("explain", "-n", NAMESPACE, "borrower")
    owner = stage.program("owner", gpu_fraction="0.5").running()
    began = time.monotonic()
    assert owner.do(1500) == 0, "within its request"
    took = time.monotonic() - began
    assert took < 1.0 + 5.0, "the grace, and little more"
    until(lambda: stage.phase("borrower") == "Failed", borrower.told, WITHIN)
    assert owner.do(1000) == OUT_OF_MEMORY
    until(lambda: len(stage.node.client.placements()) == 1, "the placement to end with its pod", WITHIN)
    print(
        f"the owner waited {took:.2f} s", *[one for one in stage.node.log("plugin").splitlines() if "after it" in one]
    )


def test_what_a_pod_writes_into_its_environment_changes_nothing(stage):
    hostile = {"GPUSHARE_LIMIT": "max", "GPUSHARE_REQUEST": "max", "GPUSHARE_MODE": "off", "LD_PRELOAD": ""}
    hostile |= {"GPUSHARE_JOB": "00000000000000ee", "GPUSHARE_SOCKET": "/nowhere", "CUDA_VISIBLE_DEVICES": ""}
    one = stage.program("hostile", hostile, gpu_memory="512", gpu_memory_limit="1024").running()
    assert (one.do("total"), one.do(1500), one.do(600)) == (1024, OUT_OF_MEMORY, 0)


@pytest.mark.parametrize("part", [*ON_NODE, *ELSEWHERE])
def test_each_part_is_killed_in_the_middle_and_nothing_is_lost(stage, part):
    """A loan is out. While the part is away the limit holds; when it is back the owner gets its memory."""
    borrower = stage.program("borrower", **LENDS).running()
    assert borrower.do(2000) == 0
    stage.kill(part)
    try:
        assert borrower.do(1500) == OUT_OF_MEMORY, "above its limit"
    finally:
        stage.start(part)
    assert borrower.do(1500) == OUT_OF_MEMORY and borrower.do(100) == 0
    owner = stage.program("owner", gpu_fraction="0.5").running()
    assert owner.do(1500) == 0
    until(lambda: stage.phase("borrower") == "Failed", borrower.told, WITHIN)


def test_what_waits_for_a_gpu_says_why_and_starts_when_one_is_free(stage):
    first = stage.program("first", gpu_fraction="0.75").running()
    stage.program("second", gpu_fraction="0.5")
    until(lambda: stage.waits("second"), "its condition", WITHIN)
    assert stage.waits("second") in stage.plug_in("explain", "-n", NAMESPACE, "second")
    assert "asks   1 GPU, 1920Mi of each" in stage.plug_in("explain", "-n", NAMESPACE, "second")
    stage.pods.delete("pods", "first", 1)
    until(lambda: stage.phase("second") == "Running", first.told, WITHIN)
    assert "second" in stage.plug_in("jobs", "-A")


@pytest.mark.parametrize("name", WRITTEN)
def test_nobody_else_writes_what_the_scheduler_writes(stage, name):
    stage.program("own", gpu_fraction="0.25").running()
    path, changed = stage.pods.path("pods", "own"), {"metadata": {"annotations": {name: "x"}}}
    for where in ("", "/status"):
        with pytest.raises(Answer, match="only gpushare's scheduler writes"):
            stage.cluster.server.ask("PATCH", path + where, changed, MERGE)


def test_a_namespace_that_allows_no_volumes_of_the_host_refuses_the_pod(stage):
    path = f"/api/v1/namespaces/{NAMESPACE}"
    label = "pod-security.kubernetes.io/enforce"
    stage.cluster.server.ask("PATCH", path, {"metadata": {"labels": {label: "baseline"}}}, MERGE)
    try:
        body = {"metadata": {"name": "refused", "annotations": {"gpu-fraction": "0.25"}}}
        spec = {**pod_spec(["true"]), "schedulerName": "gpushare"}
        spec["volumes"], spec["containers"][0]["volumeMounts"] = [], []
        with pytest.raises(Answer, match="hostPath volumes"):
            stage.pods.make("pods", {**body, "spec": spec})
    finally:
        stage.cluster.server.ask("PATCH", path, {"metadata": {"labels": {label: None}}}, MERGE)


def test_doctor_says_which_carrier_it_is_and_that_the_rights_are_there(stage):
    labels = {"metadata": {"labels": {"gpushare.dev/node": "true"}}}
    stage.cluster.server.ask("PATCH", "/api/v1/nodes/k1", labels, MERGE)
    reader = Reader(Access.of_kubeconfig(stage.cluster.api.kubeconfig))
    try:
        found = {check.id: (one.state, one.detail) for check, one in examine(Cluster(reader), CHECKS)}
    finally:
        reader.close()
    assert found["GK02"] == ("ok", "annotations of pods carry them: resource.k8s.io/v1 is not served")
    assert found["GK07"] == ("ok", "1 GPU on 1 node")
    assert {found[id][0] for id in ("GK05", "GK08", "GK09", "GK10", "GK11", "GK13")} == {"ok"}, found


def test_parts_of_several_gpus():
    for stage in made(2):
        two = stage.program("two", gpu_fraction="0.5", gpu_fraction_num_devices="2").running()
        uuids = [one["uuid"] for one in stage.node.client.status()["gpus"]]
        assert annotation(stage.pods.get("pods", "two"), "gpus") == ",".join(uuids)
        (placed,) = stage.node.client.placements()
        assert [one["uuid"] for one in placed["job"]["gpus"]] == uuids
        assert (two.do("total"), two.do(1500), two.do(1000)) == (1920, 0, OUT_OF_MEMORY)
        stage.clear()
