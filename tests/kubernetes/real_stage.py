"""Real nodes with all of gpushare's parts as processes, and programs in pods that do what they are told."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from enforced_stage import PROGRAM
from kube_stage import PYTHONPATH, until
from real_api_server import binary
from real_api_server import missing as no_server
from real_nodes import RealNode, RealNodes, missing, too_old
from real_pods import NAMESPACE, Pods, deploy, pod_spec
from real_pods import template as make_template

WHY = no_server() or missing() or too_old()
"""Why there can be none; "" if there can."""
OUT_OF_MEMORY = 2
WITHIN = 60.0
RECLAIM = {"grace": "1s", "onReclaim": ["term"]}
QUEUES = 'engine = "kubernetes"\n[kubernetes]\nkubeconfig = "{kubeconfig}"\n'
ON_NODE = ("kubelet", "containerd", "daemon", "plugin")


class Stage:
    """Nodes with GPUs of 3.75 GiB, and gpushare's scheduler beside kube-scheduler."""

    settings = ""
    """Of the scheduler, more than it needs."""

    def __init__(
        self,
        folder: Path,
        names: Iterable[str] = ("k1",),
        gpus: int = 1,
        *,
        features: Mapping[str, str] | None = None,
        before: Callable[[RealNodes], None] = lambda _: None,
    ) -> None:
        """`features`: of Kubernetes, which it has not by itself (real_api_server.py). `before`: what is done before
        daemons and plugins start."""
        self.folder = folder
        self.cluster = RealNodes(folder, names, f"gpus={gpus},memory=4Gi", features)
        self.service: subprocess.Popen[bytes] | None = None
        try:
            self.deploy()
            before(self.cluster)
            for node in self.cluster.nodes.values():
                node.start("daemon")
                node.start("plugin")
            self.pods = Pods(self.cluster.server)
            queue = {"metadata": {"name": NAMESPACE}, "spec": {"quota": 1}}
            head = {"apiVersion": "gpushare.dev/v1", "kind": "Queue"}
            self.cluster.server.ask("POST", "/apis/gpushare.dev/v1/queues", {**head, **queue})
            self.start_service()
        except BaseException:
            self.end()
            raise

    def deploy(self) -> None:
        deploy(self.cluster)

    @property
    def node(self) -> RealNode:
        """The first."""
        return next(iter(self.cluster.nodes.values()))

    def start_service(self) -> None:
        config = self.folder / "cluster.toml"
        config.write_text(QUEUES.format(kubeconfig=self.cluster.api.schedulers) + self.settings)
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
        until(lambda: self.cluster.is_ready(self.node.name), "the node to be ready", WITHIN)

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

    def node_of(self, name: str) -> str:
        """ "": it has none."""
        return str(self.pods.get("pods", name)["spec"].get("nodeName") or "")

    def waits(self, name: str) -> str:
        """Why, as its condition says."""
        found = self.pods.get("pods", name)["status"].get("conditions") or ()
        return next((str(one.get("message")) for one in found if one["type"] == "PodScheduled"), "")

    def events(self, name: str) -> str:
        found = [one for one in self.pods.all("events") if one["involvedObject"]["name"] == name]
        return "\n".join(f"{one['reason']}: {one['message']}" for one in found)

    def kubectl(self, *words: str) -> str:
        line = [str(binary("kubectl")), f"--kubeconfig={self.cluster.api.kubeconfig}", "-n", NAMESPACE, *words]
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=WITHIN).stdout

    def plug_in(self, *words: str) -> str:
        """What `kubectl gpushare` says."""
        line = [str(Path(sys.executable).parent / "kubectl-gpushare"), *words]
        environ = {**os.environ, "KUBECONFIG": str(self.cluster.api.kubeconfig)}
        return subprocess.run(line, env=environ, capture_output=True, text=True, check=True, timeout=WITHIN).stdout

    def clear(self) -> None:
        self.pods.clear()
        until(lambda: not self._left(), lambda: f"nothing to be left: {self._left()}", WITHIN)

    def _left(self) -> list[str]:
        """Objects, what of claims is on the node, and control groups of pods."""
        left = self.pods.names()
        for node in self.cluster.nodes.values():
            left += node.leftovers()
            with contextlib.suppress(FileNotFoundError):  # one goes just now
                left += map(str, Path("/sys/fs/cgroup/memory", node.cgroup).glob("kubepods/**/pod*"))
        return left


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
        needs: Mapping[str, str] | None = None,
        meta: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | None = None,
        disk: str = "",
        folders: Iterable[Path] = (),
        **said: Any,
    ) -> None:
        """`claim`, `template`: of one that is there already. `needs`: CPUs and memory of the host. `meta`, `spec`: more
        of the pod. `disk`: a claim of a volume, which it has at /data. `folders`: of this machine.
        `said`: by the Budget of its own."""
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
        body = pod_spec(["sh", "-c", script], template=template, claim=claim, folders=[self.folder, *folders])
        (container,) = body["containers"]
        container["env"] = [{"name": one, "value": value} for one, value in (env or {}).items()]
        container["resources"]["requests"] = dict(needs or {})
        if disk:
            body["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": disk}})
            container["volumeMounts"].append({"name": "data", "mountPath": "/data"})
        head = {"name": name, "labels": {"test": name}, **(meta or {})}
        stage.pods.make("pods", {"metadata": head, "spec": {**body, "schedulerName": scheduler, **(spec or {})}})

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
            assert ready, f"{self.name} does not answer: {self.told()}"
            line += os.read(self.answers, 1)
        return int(line)

    def told(self) -> str:
        folders = [node.folder / "log" for node in self.stage.cluster.nodes.values()]
        said = [path.read_text() for one in folders for path in one.glob(f"*_{self.name}_*/*/*.log")]
        return "\n".join((*said, *self.stage.pods.picture()))

    def close(self) -> None:
        os.close(self.orders)
        os.close(self.answers)


@contextlib.contextmanager
def stage_of(*arguments: Any, **more: Any) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="gs-kn-") as folder:
        Path(folder).chmod(0o755)
        made = Stage(Path(folder), *arguments, **more)
        try:
            yield made
        finally:
            made.end()


@contextlib.contextmanager
def empty(stage: Stage) -> Iterator[Stage]:
    """For one test, after which nothing of it is left."""
    stage.pods = Pods(stage.cluster.server)
    yield stage
    stage.clear()


@contextlib.contextmanager
def programs(stage: Stage) -> Iterator[Callable[..., PodProgram]]:
    made: list[PodProgram] = []

    def start(*arguments: Any, **more: Any) -> PodProgram:
        made.append(PodProgram(stage, *arguments, **more))
        return made[-1]

    yield start
    for one in made:
        one.close()


__all__ = [
    "ON_NODE",
    "OUT_OF_MEMORY",
    "RECLAIM",
    "WHY",
    "WITHIN",
    "PodProgram",
    "Stage",
    "empty",
    "programs",
    "stage_of",
]
