"""Claims on real nodes: a real API server, controllers, kube-scheduler, kubelet and containerd, with the plugin and the
node daemon on software GPUs. GPUSHARE_TEST_KUBE_BIN names the binaries."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from kube_stage import until
from real_pods import devices, pod_spec
from real_pods import template as make_template
from real_stage import ON_NODE, OUT_OF_MEMORY, RECLAIM, WHY, WITHIN, Stage, empty, programs, stage_of

pytestmark = [pytest.mark.skipif(bool(WHY), reason=WHY), pytest.mark.timeout(400)]

ELSEWHERE = ("API server", "kube-controller-manager", "kube-scheduler", "gpushare's scheduler")
SCHEDULERS = ("default-scheduler", "gpushare")


@pytest.fixture(scope="module")
def _stage():
    with stage_of() as made:
        yield made


@pytest.fixture
def stage(_stage):
    with empty(_stage) as made:
        yield made


@pytest.fixture
def program(stage):
    with programs(stage) as start:
        yield start


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_claim_with_white_space_in_its_block_is_started_and_told(stage, program, scheduler):
    """The API server stores the white space of the writer; its own JSON has none."""
    made = make_template("written", "1Gi", limit="2Gi", grace="1s")
    path = stage.pods.path("resourceclaimtemplates")
    stage.cluster.server.ask("POST", path, json.dumps(made, indent=2).encode())
    one = program("written", "", template="written", scheduler=scheduler).running()
    assert (one.do("total"), one.do(1200)) == (2048, 0)
    until(lambda: stage.borrowing("written").get("status") == "True", stage.told, WITHIN)
    before = stage.borrowing("written")["usage"]
    assert one.do(300) == 0
    until(lambda: stage.borrowing("written")["usage"] != before, stage.told, WITHIN)


def test_which_servers_these_are(stage, record_property):
    record_property("kubernetes", stage.cluster.about())
    assert stage.cluster.api.own


def test_two_claims_lend_on_one_gpu_and_the_owner_gets_its_memory_back(stage, program):
    borrower = program("borrower", "1Gi", limit="3Gi", **RECLAIM).running()
    assert borrower.do("total") == 3072
    assert borrower.do(2500) == 0, "1 GiB of its own, the rest on loan"
    until(lambda: stage.borrowing("borrower").get("status") == "True", stage.told, WITHIN)
    assert "on loan" in stage.kubectl("describe", "resourceclaim")
    told = stage.plug_in("borrowers")
    assert "team-a/borrower" in told, told
    owner = program("owner", "2Gi").running()
    assert owner.do("total") == 2048
    began = time.monotonic()
    assert owner.do(1700) == 0, "its own memory"
    took = time.monotonic() - began
    assert took < 1.0 + 5.0, "the grace, and little more"
    until(lambda: stage.phase("borrower") == "Failed", "the borrower to end", WITHIN)
    assert owner.do(1000) == OUT_OF_MEMORY, "above its limit"
    told = stage.kubectl("describe", "pod", "borrower")
    assert "Exit Code:" in told and "Terminated" in told
    print(told, stage.kubectl("describe", "resourceclaim"), f"the owner waited {took:.2f} s", sep="\n")


def test_what_a_pod_writes_into_its_environment_changes_nothing(stage, program):
    hostile = {"GPUSHARE_LIMIT": "max", "GPUSHARE_REQUEST": "max", "GPUSHARE_MODE": "off", "LD_PRELOAD": ""}
    hostile |= {"GPUSHARE_JOB": "00000000000000ee", "GPUSHARE_SOCKET": "/nowhere", "CUDA_VISIBLE_DEVICES": ""}
    one = program("hostile", "512Mi", limit="1Gi", env=hostile).running()
    assert (one.do("total"), one.do(1500), one.do(600)) == (1024, OUT_OF_MEMORY, 0)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("part", [*ON_NODE, *ELSEWHERE])
def test_each_part_is_killed_in_the_middle_and_nothing_is_lost(stage, program, part, scheduler):
    """A loan is out. While the part is away the limit holds; when it is back the owner gets its memory."""
    borrower = program("borrower", "1Gi", limit="3Gi", scheduler=scheduler, **RECLAIM).running()
    assert borrower.do(2000) == 0
    stage.kill(part)
    try:
        assert borrower.do(1500) == OUT_OF_MEMORY, "above its limit"
    finally:
        stage.start(part)
    assert borrower.do(1500) == OUT_OF_MEMORY and borrower.do(100) == 0
    owner = program("owner", "2Gi", scheduler=scheduler).running()
    assert (owner.do("total"), owner.do(1700)) == (2048, 0)
    until(lambda: stage.phase("borrower") == "Failed", "the borrower to end", WITHIN)


def test_pods_share_a_claim_and_its_limit(stage, program):
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "shared"}}
    stage.pods.make("resourceclaims", {**head, "spec": {"devices": devices("2Gi")}})
    first = program("first", "", claim="shared").running()
    assert (first.do("total"), first.do(300)) == (2048, 0)
    second = program("second", "", claim="shared").running()
    began = time.monotonic()
    until(lambda: second.do(300) == 0, "the second pod to have a part of it", WITHIN)
    print(f"the second pod was refused for {time.monotonic() - began:.1f} s")
    assert second.do(1500) == OUT_OF_MEMORY and first.do(1500) == OUT_OF_MEMORY
    stage.pods.delete("pods", "first", 1)
    until(lambda: "pods first" not in stage.pods.names(), "the first to go", WITHIN)
    assert second.do(100) == 0


def test_a_gpu_that_is_sick_takes_no_claim_and_pods_of_one_that_is_lost_are_evicted(stage, program):
    health = stage.node.pool / "health"
    has = program("has", "1Gi").running()
    try:
        with health.open("a") as file:
            file.write("gpu0 rows failed\n")
        until(lambda: taints(stage) == ["NoSchedule"], "the taint", WITHIN)
        program("comes", "512Mi")
        until(lambda: "cannot allocate all claims" in stage.events("comes"), lambda: stage.events("comes"), WITHIN)
        assert stage.phase("has") == "Running" and has.do("total") == 1024
        with health.open("a") as file:
            file.write("gpu0 lost\n")
        until(lambda: taints(stage) == ["NoExecute"], "the other taint", WITHIN)
        until(lambda: "pods has" not in stage.pods.names(), lambda: stage.events("has"), WITHIN)
        print(stage.events("has"))
    finally:
        health.unlink()
        stage.node.kill("daemon")
        stage.start("daemon")
    until(lambda: not taints(stage), "the GPU to be well", WITHIN)


def taints(stage: Stage) -> list[str]:
    (found,) = stage.cluster.server.ask("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]
    return [taint["effect"] for one in found["spec"]["devices"] for taint in one.get("taints") or ()]


def test_a_pod_ends_while_kubelet_and_plugin_are_away(stage, program):
    """Its claim is released when they are back."""
    program("short", "1Gi").running()
    for part in ("plugin", "kubelet"):
        stage.node.kill(part)
    stage.pods.delete("pods", "short", 1)
    for part in ("kubelet", "plugin"):
        stage.node.start(part)
    until(lambda: not stage.node.leftovers(), lambda: f"nothing to be left: {stage.node.leftovers()}", WITHIN)


def test_claims_are_prepared_in_time_and_the_plugin_stays_small(stage):
    """What a start takes beyond the container's own is what the plugin says that it took."""
    before = stage.node.log("plugin", 10**7).count(" prepared ")
    count = 40
    stage.pods.make("resourceclaimtemplates", make_template("tiny", "64Mi"))
    for number in range(count):
        name = f"t{number}"
        stage.pods.make("pods", {"metadata": {"name": name}, "spec": pod_spec(["true"], template="tiny")})
        until(lambda name=name: stage.phase(name) == "Succeeded", f"{name} to have run", WITHIN)
    said = [line for line in stage.node.log("plugin", 10**7).splitlines() if "prepared " in line][before:]
    times = sorted(float(line.split()[-2]) for line in said if line.endswith(" ms"))[-count:]
    resident = next(
        int(line.split()[1]) / 1024
        for line in Path(f"/proc/{stage.node.parts['plugin'].pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    print(
        f"{len(times)} claims: p50 {times[len(times) // 2]:.0f} ms, p99 {times[-1]:.0f} ms; plugin {resident:.0f} MiB"
    )
    assert len(times) == count
