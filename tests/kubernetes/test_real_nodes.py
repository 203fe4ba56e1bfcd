"""Claims on real nodes: a real API server, controllers, kube-scheduler, kubelet and containerd, with the plugin and the
node daemon on software GPUs. GPUSHARE_TEST_KUBE_BIN names the binaries."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from enforced_stage import PROGRAM
from kube_stage import PYTHONPATH, until
from real_api_server import binary
from real_api_server import missing as no_server
from real_nodes import RealNode, RealNodes, missing, too_old
from real_pods import NAMESPACE, Pods, deploy, devices, pod_spec
from real_pods import template as make_template

pytestmark = [
    pytest.mark.skipif(bool(no_server() or missing() or too_old()), reason=no_server() or missing() or too_old()),
    pytest.mark.timeout(400),
]

OUT_OF_MEMORY = 2
WITHIN = 60.0
RECLAIM = {"grace": "1s", "onReclaim": ["term"]}
QUEUES = 'engine = "kubernetes"\n[kubernetes]\nkubeconfig = "{kubeconfig}"\n'
ON_NODE = ("kubelet", "containerd", "daemon", "plugin")
ELSEWHERE = ("API server", "kube-controller-manager", "kube-scheduler", "gpushare's scheduler")


SCHEDULERS = ("default-scheduler", "gpushare")


class Stage:
    """One node with one GPU of 3.75 GiB, and gpushare's scheduler beside kube-scheduler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = RealNodes(folder, ["k1"], "gpus=1,memory=4Gi")
        self.service: subprocess.Popen[bytes] | None = None
        try:
            deploy(self.cluster)
            self.node.start("daemon")
            self.node.start("plugin")
            self.pods = Pods(self.cluster.server)
            queue = {"metadata": {"name": NAMESPACE}, "spec": {"quota": 1}}
            head = {"apiVersion": "gpushare.dev/v1", "kind": "Queue"}
            self.cluster.server.ask("POST", "/apis/gpushare.dev/v1/queues", {**head, **queue})
            self.start_service()
        except BaseException:
            self.end()
            raise

    @property
    def node(self) -> RealNode:
        return self.cluster.nodes["k1"]

    def start_service(self) -> None:
        config = self.folder / "cluster.toml"
        config.write_text(QUEUES.format(kubeconfig=self.cluster.api.schedulers))
        words = ["--config", config, "--store", self.folder / "cluster.db", "--socket", self.folder / "cluster.sock"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSHARE", "KUBE"))}
        with (self.folder / "service.log").open("ab") as log:
            self.service = subprocess.Popen(
                [sys.executable, "-P", "-m", "gpushared.cluster", *map(str, words)],
                env={**environ, "PYTHONPATH": PYTHONPATH},
                stderr=log,
                stdout=log,
            )

    def stop_service(self) -> None:
        if self.service is not None:
            self.service.kill()
            self.service.wait()

    def end(self) -> None:
        self.stop_service()
        self.cluster.end()

    def kill(self, part: str) -> None:
        if part in ON_NODE:
            self.node.kill(part)
        elif part == "API server":
            self.cluster.api.kill()
        elif part in self.cluster.processes:
            self.cluster.kill(part)
        else:
            self.stop_service()

    def start(self, part: str) -> None:
        if part in ON_NODE:
            self.node.start(part)
        elif part == "API server":
            self.cluster.api.start()
        elif part in self.cluster.processes:
            self.cluster.start(part)
        else:
            self.start_service()
        until(lambda: self.cluster.is_ready("k1"), "the node to be ready", WITHIN)

    # ---- claims and pods -------------------------------------------------------------------------------

    def claims(self) -> list[dict[str, Any]]:
        return self.pods.all("resourceclaims")

    def borrowing(self, of: str) -> dict[str, Any]:
        """What the claim of a pod says about its use."""
        for one in self.claims():
            if one["metadata"]["name"].startswith(f"{of}-gpu"):
                for device in (one.get("status") or {}).get("devices") or ():
                    return {**device["conditions"][0], **device["data"]}
        return {}

    def told(self) -> str:
        return f"{[one.get('status') for one in self.claims()]} {self.node.log('plugin')}"

    def phase(self, name: str) -> str:
        return str(self.pods.get("pods", name)["status"].get("phase"))

    def events(self, name: str) -> str:
        found = [one for one in self.pods.all("events") if one["involvedObject"]["name"] == name]
        return "\n".join(f"{one['reason']}: {one['message']}" for one in found)

    def kubectl(self, *words: str) -> str:
        line = [str(binary("kubectl")), f"--kubeconfig={self.cluster.api.kubeconfig}", "-n", NAMESPACE, *words]
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=WITHIN).stdout

    def clear(self) -> None:
        self.pods.clear()
        until(lambda: not self._left(), lambda: f"nothing to be left: {self._left()}", WITHIN)

    def _left(self) -> list[str]:
        """Objects, what of claims is on the node, and control groups of pods."""
        groups = [str(path) for path in Path("/sys/fs/cgroup/memory", self.node.cgroup).glob("kubepods/**/pod*")]
        return [*self.pods.names(), *self.node.leftovers(), *groups]


class PodProgram:
    """A program in a pod, which does what it is told."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        memory: str,
        *,
        scheduler: str = "default-scheduler",
        claim: str = "",
        template: str = "",
        env: Mapping[str, str] | None = None,
        **said: Any,
    ) -> None:
        """`claim`, `template`: of one that is there already. `said`: by the Budget of its own."""
        self.stage, self.name = stage, name
        self.folder = stage.folder / "programs" / f"{name}-{time.monotonic_ns()}"
        self.folder.mkdir(parents=True)
        for one in ("orders", "answers"):
            os.mkfifo(self.folder / one)
        self.orders = os.open(self.folder / "orders", os.O_RDWR)
        self.answers = os.open(self.folder / "answers", os.O_RDWR)
        (self.folder / "program.py").write_text(PROGRAM)
        script = f"exec {sys.executable} {self.folder}/program.py < {self.folder}/orders > {self.folder}/answers"
        if memory:
            stage.pods.make("resourceclaimtemplates", make_template(name, memory, **said))
            template = name
        spec = pod_spec(["sh", "-c", script], template=template, claim=claim, folders=[self.folder])
        spec["containers"][0]["env"] = [{"name": one, "value": value} for one, value in (env or {}).items()]
        spec["schedulerName"] = scheduler
        stage.pods.make("pods", {"metadata": {"name": name, "labels": {"test": name}}, "spec": spec})

    def running(self) -> PodProgram:
        def runs() -> bool:
            return self.stage.phase(self.name) == "Running"

        until(runs, lambda: "\n".join(self.stage.pods.picture()) + self.stage.node.log("plugin"), WITHIN)
        return self

    def do(self, order: object, within: float = WITHIN) -> int:
        os.write(self.orders, f"{order}\n".encode())
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.answers], [], [], within)
            assert ready, f"{self.name} does not answer: {self.stage.events(self.name)}"
            line += os.read(self.answers, 1)
        return int(line)

    def close(self) -> None:
        os.close(self.orders)
        os.close(self.answers)


@pytest.fixture(scope="module")
def _stage():
    with tempfile.TemporaryDirectory(prefix="gs-kn-") as folder:
        Path(folder).chmod(0o755)
        made = Stage(Path(folder))
        yield made
        made.end()


@pytest.fixture
def stage(_stage):
    _stage.pods = Pods(_stage.cluster.server)
    yield _stage
    _stage.clear()


@pytest.fixture
def program(stage):
    made: list[PodProgram] = []

    def start(*arguments: Any, **more: Any) -> PodProgram:
        made.append(PodProgram(stage, *arguments, **more))
        return made[-1]

    yield start
    for one in made:
        one.close()


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


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
