"""Budgets beside claims of NVIDIA's driver, on a real node: kube-scheduler books its devices, the kubelet asks both
drivers. NVIDIA's driver is a stand-in: there is no GPU here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kube_stage import PYTHONPATH, until
from nvidia_driver import CLASS, NvidiaDriver
from real_api_server import DEPLOY
from real_stage import OUT_OF_MEMORY, RECLAIM, WHY, WITHIN, empty, programs, stage_of

from gpushare.paths import software_driver_dir

pytestmark = [pytest.mark.skipif(bool(WHY), reason=WHY), pytest.mark.timeout(400)]

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
LABELS = {"metadata": {"labels": {"gpushare.dev/node": "true", "gpushare.dev/attach": "true"}}}


def attach(cluster):
    """As docs/kubernetes.md says: the label, then deploy/kubernetes/attach."""
    assert (DEPLOY / "attach").is_dir()
    cluster.server.ask("PATCH", "/api/v1/nodes/k1", LABELS, "application/merge-patch+json")
    cluster.api.deploy("attach")
    cluster.server.ask("POST", CLASSES, CLASS)


@pytest.fixture(scope="module")
def _stage():
    with stage_of(gpus=2, before=attach) as made:
        driver = NvidiaDriver(made.node, "4Gi")
        try:
            made.nvidia = driver
            yield made
        finally:
            driver.end()


@pytest.fixture
def stage(_stage):
    with empty(_stage) as made:
        yield made


@pytest.fixture
def program(stage):
    with programs(stage) as start:
        yield start


def template(stage, name, memory=None, *, budget=True, kind="gpu", count=1, **said):
    """A claim of NVIDIA's class, with a budget beside it."""
    of_kind = {"cel": {"expression": f'device.attributes["gpu.nvidia.com"].type == "{kind}"'}}
    gpu = {"deviceClassName": "gpu.nvidia.com", "count": count, "selectors": [of_kind]}
    if memory is not None:
        gpu["capacity"] = {"requests": {"memory": memory}}
    requests = [{"name": "gpu", "exactly": gpu}]
    config = []
    if budget:
        requests.append({"name": "budget", "exactly": {"deviceClassName": "attach.gpushare.dev"}})
        parameters = {"apiVersion": "gpushare.dev/v1", "kind": "Budget", **said}
        config = [{"requests": ["budget"], "opaque": {"driver": "gpushare.dev", "parameters": parameters}}]
    body = {"spec": {"devices": {"requests": requests, "config": config}}}
    stage.pods.make("resourceclaimtemplates", {"metadata": {"name": name}, "spec": body})


def claim_of(stage, pod):
    return next(one for one in stage.claims() if one["metadata"]["name"].startswith(f"{pod}-gpu"))


def booked(stage, pod):
    """What of NVIDIA's devices the claim has, and how many devices of ours."""
    results = claim_of(stage, pod)["status"]["allocation"]["devices"]["results"]
    theirs = [one["consumedCapacity"]["memory"] for one in results if one["driver"] == "gpu.nvidia.com"]
    return theirs, sum(one["driver"] == "gpushare.dev" for one in results)


def test_such_a_node_publishes_no_second_inventory(stage, record_property):
    record_property("kubernetes", f"attach mode: {stage.cluster.about()}")
    slices = stage.cluster.server.ask("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
    found = {one["spec"]["driver"]: [device["name"] for device in one["spec"]["devices"]] for one in slices}
    assert found == {"gpu.nvidia.com": ["gpu-0", "gpu-1", "gpu-0-mig-1"], "gpushare.dev": ["attach"]}


def test_doctor_knows_whose_gpus_these_are(stage):
    """There is no DaemonSet here: the plugin is a process."""
    line = [sys.executable, "-m", "gpushare", "doctor", "--cluster", "-o", "json"]
    environ = {**os.environ, "KUBECONFIG": str(stage.cluster.api.kubeconfig), "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=WITHIN)
    found = {one["id"]: one for one in json.loads(done.stdout)["checks"]}
    assert found["GK04"]["detail"] == "DeviceClass gpushare.dev, attach.gpushare.dev"
    assert found["GK07"]["detail"].endswith("k1: gpu.nvidia.com's"), found["GK07"]


def test_claims_that_nvidias_driver_has_booked_lend_and_the_owner_gets_its_memory_back(stage, program):
    template(stage, "borrower", "1Gi", limit="3Gi", **RECLAIM)
    borrower = program("borrower", "", template="borrower").running()
    assert booked(stage, "borrower") == (["1Gi"], 1)
    assert (borrower.do("total"), borrower.do(2500)) == (3072, 0), "1 GiB of its own, the rest on loan"
    until(lambda: stage.borrowing("borrower").get("status") == "True", stage.told, WITHIN)
    assert "on loan" in stage.kubectl("describe", "resourceclaim")
    told = stage.plug_in("borrowers")
    assert "team-a/borrower" in told, told
    template(stage, "owner", "2Gi")
    owner = program("owner", "", template="owner").running()
    assert owner.do("total") == 2048
    began = time.monotonic()
    assert owner.do(1700) == 0
    took = time.monotonic() - began
    assert took < 1.0 + 5.0, "the grace, and little more"
    until(lambda: stage.phase("borrower") == "Failed", "the borrower to end", WITHIN)
    assert owner.do(1000) == OUT_OF_MEMORY, "above its limit"
    print(f"the owner waited {took:.2f} s")


def test_a_container_has_what_both_drivers_give(stage, program):
    template(stage, "both", "1Gi")
    program("both", "", template="both").running()
    (proc,) = [Path("/proc", str(pid)) for pid in stage.node.pids() if is_program(pid)]
    names = dict(line.partition(b"=")[::2] for line in (proc / "environ").read_bytes().split(b"\0"))
    assert names[b"OF_NVIDIAS_DRIVER"] == b"gpu-0" and b"LD_PRELOAD" in names


def is_program(pid):
    return b"program.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_claim_that_says_no_memory_has_the_whole_gpu(stage, program):
    template(stage, "whole")
    one = program("whole", "", template="whole").running()
    assert booked(stage, "whole") == (["4Gi"], 1)
    capacity = stage.node.client.status()["gpus"][0]["capacity"]
    assert one.do("total") == capacity >> 20


def test_all_gpus_of_a_claim_are_one_jobs(stage, program):
    template(stage, "two", "1Gi", count=2, limit="2Gi")
    one = program("two", "", template="two").running()
    assert booked(stage, "two") == (["1Gi", "1Gi"], 1)
    (placed,) = stage.node.client.placements()
    assert [(gpu["request"] >> 20, gpu["limit"] >> 20) for gpu in placed["job"]["gpus"]] == [(1024, 2048)] * 2
    assert one.do("total") == 2048


def test_a_mig_device_is_refused_with_the_way_out(stage, program):
    template(stage, "mig", "1Gi", kind="mig")
    program("mig", "", template="mig")
    until(lambda: "of type mig, and the node daemon has no such GPU" in stage.events("mig"), stage.told, WITHIN)
    assert '.type == "gpu"' in stage.events("mig")


def test_a_claim_without_our_request_is_not_limited(stage, program):
    template(stage, "free", "1Gi", budget=False)
    env = {**stage.node.driver, "LD_LIBRARY_PATH": str(software_driver_dir())}
    one = program("free", "", template="free", env=env, folders=[stage.node.pool]).running()
    assert booked(stage, "free") == (["1Gi"], 0)
    assert one.do("total") > 3072


def test_where_the_node_daemon_keeps_some_for_itself_the_last_claim_says_who_has_the_rest(stage, program):
    for name in ("first", "second"):
        template(stage, name, "2Gi")
    program("first", "", template="first").running()
    program("second", "", template="second")
    until(lambda: "no room for a request of 2.0 GiB" in stage.events("second"), lambda: stage.events("second"), WITHIN)
    assert "first" in next(line for line in stage.events("second").splitlines() if "no room" in line)
    stage.pods.delete("pods", "first", 1)
    until(lambda: stage.phase("second") == "Running", lambda: stage.events("second"), 150.0)


def test_a_limit_below_what_is_booked_is_told_in_the_pods_events(stage, program):
    template(stage, "wrong", "2Gi", limit="1Gi")
    program("wrong", "", template="wrong")
    words = "Budget.limit 1Gi is below the request 2Gi; raise the limit, or leave it out"
    until(lambda: words in stage.events("wrong"), lambda: stage.events("wrong"), WITHIN)


@pytest.mark.parametrize("part", ["kubelet", "plugin", "daemon", "NVIDIA's driver"])
def test_each_part_is_killed_in_the_middle_and_the_owner_gets_its_memory(stage, program, part):
    template(stage, "borrower", "1Gi", limit="3Gi", **RECLAIM)
    borrower = program("borrower", "", template="borrower").running()
    assert borrower.do(2000) == 0
    before = stage.nvidia.published
    if part == "NVIDIA's driver":
        stage.nvidia.end()
        stage.nvidia.start()
    else:
        stage.kill(part)
        assert borrower.do(1500) == OUT_OF_MEMORY, "above its limit"
        stage.start(part)
    if part in ("kubelet", "NVIDIA's driver"):
        until(lambda: stage.nvidia.published > before, "the kubelet to take NVIDIA's driver again", WITHIN)
    assert borrower.do(1500) == OUT_OF_MEMORY and borrower.do(100) == 0
    template(stage, "owner", "2Gi")
    owner = program("owner", "", template="owner").running()
    assert (owner.do("total"), owner.do(1700)) == (2048, 0)
    until(lambda: stage.phase("borrower") == "Failed", "the borrower to end", WITHIN)
