"""Kubernetes on the conformance suite's stand, with a real API server, its controllers and real nodes: kubelets start
containers whose claims the plugin and the node daemon have prepared. GPUSHARE_TEST_KUBE_BIN names the binaries."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kubernetes"))

from conformance_stand import RUNS, Queued, Work
from local_conformance import script_of
from local_stage import alive
from real_api_server import missing as no_server
from real_nodes import RealNode, RealNodes, missing, too_old
from real_pods import NAMESPACE, Pods, deploy, pod_spec, template

from gpushare.cluster.engines.kubernetes import engine
from gpushare.cluster.engines.kubernetes.api import Api
from gpushare.cluster.engines.kubernetes.cache import version
from gpushare.cluster.engines.kubernetes.fitting import LOST
from gpushare.cluster.engines.kubernetes.names import CLAIMS, NODES, PODS, SLICES, key_of
from gpushare.cluster.engines.kubernetes.settings import Settings
from gpushare.cluster.engines.reconcile import Settings as Pace
from gpushare.kubernetes.server import MERGE

EVICTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
"""A job does not count a pod that was evicted as a failure."""
FIRST = {"metadata": {"name": "test-refuses"}}
NEVER = {
    "policy": {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        **FIRST,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
                ]
            },
            "validations": [
                {"expression": '!object.metadata.name.startsWith("broken-")', "message": "a policy forbids it"}
            ],
        },
    },
    "binding": {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        **FIRST,
        "spec": {"policyName": "test-refuses", "validationActions": ["Deny"]},
    },
}
"""Pods of this name are never bound."""


class Ground:
    """One cluster for one stand after the other."""

    features: Mapping[str, str] = {}

    def __init__(self, names: Iterable[str] = ("k1", "k2"), gpus: int = 2) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gs-kn-")
        folder = Path(self._folder.name)
        folder.chmod(0o755)
        self.cluster = RealNodes(folder, names, f"gpus={gpus},memory=4Gi", self.features)
        try:
            self.deploy()
            server = self.cluster.server
            policies = "/apis/admissionregistration.k8s.io/v1"
            server.ask("POST", f"{policies}/validatingadmissionpolicies", NEVER["policy"])
            server.ask("POST", f"{policies}/validatingadmissionpolicybindings", NEVER["binding"])
            for node in self.cluster.nodes.values():
                node.start("daemon")
                node.start("plugin")
            self.begin()
        except BaseException:
            self.stop()
            raise

    def deploy(self) -> None:
        deploy(self.cluster)

    def begin(self) -> None:
        KubernetesServerStand.about = self.cluster.about()

    def stop(self) -> None:
        self.cluster.end()
        self._folder.cleanup()


def ground(directory: Path, patch: pytest.MonkeyPatch) -> Ground:
    why = no_server() or missing() or too_old()
    if why:
        pytest.skip(why)
    return Ground()


class KubernetesServerStand(Queued):
    name = "kubernetes with a real server"
    cannot = engine.CANNOT
    within = 150.0
    step = 0.1
    settings = Pace(grace=5.0, start_within=60.0, stop_within=30.0, last_retry=2.0, annotate_every=0.1)
    ground = staticmethod(ground)
    about = ""
    paths: Sequence[str] = (PODS, CLAIMS, NODES, SLICES)
    """What its engine watches."""

    def __init__(self, directory: Path, ground: Ground) -> None:
        self.directory = directory
        self.cluster = ground.cluster
        self.server = self.cluster.server
        self.pods = self.make_pods()
        self.marks = self.cluster.folder / "jobs" / directory.name
        self.marks.mkdir(parents=True)
        self.owners: dict[str, tuple[str, str]] = {}
        """Of each job: the kind of its owner, and its name."""
        self.ended: dict[str, tuple[str, int | None]] = {}
        self.lost: set[str] = set()
        self.count = 0
        self.open_engine()
        self.memory = self.nodes()[0].node.memory
        self.open_ledger()

    def open_engine(self) -> None:
        settings = self.make_settings()
        self.woken = threading.Event()
        self.api = Api(settings, self.woken.set)
        self.engine = engine.Kubernetes(self.api, settings, self.woken)

    def make_pods(self) -> Pods:
        return Pods(self.server)

    def make_settings(self) -> Settings:
        return Settings(kubeconfig=str(self.cluster.api.schedulers))

    def seen_of_all(self) -> str:
        logs = [f"{name} plugin: {node.log('plugin', 500)}" for name, node in self.cluster.nodes.items()]
        return "\n".join((super().seen_of_all(), *self.pods.picture(), *logs))

    def settle(self) -> None:
        """The engine has seen what the API server has now."""

        def behind() -> bool:
            for path in self.paths:
                known = self.api.watched[path].objects(30.0)[0]
                for one in self.server.ask("GET", path)["items"]:
                    mine = known.get(key_of(one))
                    if mine is None or version(mine) < version(one):
                        return True
            return False

        deadline = time.monotonic() + self.within
        while behind():
            assert time.monotonic() < deadline, "the engine does not see what there is"
            time.sleep(0.02)

    # ---- jobs ------------------------------------------------------------------------------------------

    def submit(
        self,
        work: Work = RUNS,
        *,
        queue="a",
        gpus=1,
        tasks=1,
        share=None,
        limit=None,
        priority=50,
        held=False,
        preemptible=True,
    ) -> str:
        key = self._template(gpus, share, limit, priority)
        labels = {"gpushare.dev/queue": queue, "test": key}
        annotations = self._asks(key) | ({} if preemptible else {"gpushare.dev/preemptible": "false"})
        if tasks > 1:
            labels["gpushare.dev/pod-group"] = key
            annotations["gpushare.dev/pod-group-size"] = str(tasks)
        meta = {"labels": labels, "annotations": annotations}
        name = f"{'broken-' if work.broken else ''}{key}"
        kind, body = self._owner(name, tasks, work, meta, self._pod(work, key, held=held))
        self.server.ask("POST", f"/apis/{body['apiVersion']}/namespaces/{NAMESPACE}/{kind}", body)
        pods = self._until(lambda: self._made(key, tasks), f"pods of {key} with their claims", lambda: None)
        metas = sorted((one["metadata"] for one in pods), key=lambda meta: (meta["creationTimestamp"], meta["name"]))
        uid = str(metas[0]["uid"])
        self.owners[uid] = kind, name
        self.settle()
        return uid

    def submit_array(self, count: int, work: Work = RUNS, *, queue: str = "a") -> list[str]:
        """Pods of nobody."""
        first = self._template(1, None, None, 50)
        uids = []
        for index in range(count):
            key = f"{first}-{index}"
            meta = {"name": key, "labels": {"gpushare.dev/queue": queue, "test": key}, "annotations": self._asks(first)}
            body = {"metadata": meta, "spec": self._pod(work, key, claims=first)}
            made = self.server.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)
            uids.append(str(made["metadata"]["uid"]))
            self.owners[uids[-1]] = "pods", key
        self.settle()
        return uids

    def _template(self, gpus: int, share: float | None, limit: float | None, priority: int) -> str:
        self.count += 1
        key = f"j{self.count}"

        def amount(part: float | None) -> str | None:
            return None if part is None else f"{round(self.memory * part) // 2**20}Mi"

        said: dict[str, Any] = {"priority": priority - 50}
        if limit is not None:
            said["limit"] = amount(limit)
        self.pods.make("resourceclaimtemplates", template(key, amount(share), gpus, **said))
        return key

    def _asks(self, key: str) -> dict[str, str]:
        """Annotations that say what a pod asks for."""
        return {}

    def _spec(self, command: list[str], claims: str) -> dict[str, Any]:
        return pod_spec(command, template=claims, folders=[self.marks])

    def _pod(self, work: Work, key: str, *, claims: str = "", held: bool = False) -> dict[str, Any]:
        cwd = self.marks / f"work-{key}"
        cwd.mkdir()
        script = self.marks / f"{key}.sh"
        script.write_text(f"exec >> {cwd}/out 2>&1\n{script_of(work, self.marks / key)}")
        spec = self._spec(["sh", str(script)], claims or key)
        (container,) = spec["containers"]
        container |= {
            "workingDir": str(cwd),
            "env": [{"name": name, "value": value} for name, value in (work.env or {}).items()],
        }
        return {
            **spec,
            "schedulerName": "gpushare",
            "hostPID": True,
            "terminationGracePeriodSeconds": max(1, math.ceil(work.grace)),
            **({"schedulingGates": [{"name": "wait"}]} if held else {}),
        }

    def _owner(
        self, name: str, tasks: int, work: Work, meta: dict[str, Any], spec: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """What never ends has a ReplicaSet, else a Job: who makes a pod again that was evicted."""
        head = {"metadata": {"name": name, "namespace": NAMESPACE}}
        if work.seconds is None and (work.script is None or work.endless):
            more = {"replicas": tasks, "selector": {"matchLabels": {"test": meta["labels"]["test"]}}}
            pod = {"metadata": meta, "spec": {**spec, "restartPolicy": "Always"}}
            return "replicasets", {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                **head,
                "spec": {**more, "template": pod},
            }
        more = {"parallelism": tasks, "completions": tasks, "backoffLimit": 0, "podFailurePolicy": {"rules": [EVICTED]}}
        pod = {"metadata": meta, "spec": spec}
        return "jobs", {"apiVersion": "batch/v1", "kind": "Job", **head, "spec": {**more, "template": pod}}

    def _made(self, key: str, tasks: int) -> list[dict[str, Any]]:
        pods = self.pods.labelled(f"test={key}")
        ready = [one for one in pods if self._is_ready(one)]
        return ready if len(ready) >= tasks else []

    def _is_ready(self, pod: dict[str, Any]) -> bool:
        """Its claims are made."""
        return bool((pod.get("status") or {}).get("resourceClaimStatuses"))

    def cancel(self, uid: str) -> None:
        if self.result(uid) is not None:
            return
        kind, name = self.owners[uid]
        self.pods.delete(kind, name)
        self.ended[uid] = "cancelled", None

    def release(self, uid: str) -> None:
        for one in self._pods(uid):
            self.pods.change("pods", one["metadata"]["name"], {"spec": {"schedulingGates": None}})
        self.settle()

    def _pods(self, uid: str) -> list[dict[str, Any]]:
        return self.pods.labelled(f"test={self._key(uid)}")

    def _key(self, uid: str) -> str:
        return self.owners[uid][1].removeprefix("broken-")

    def _pids(self, uid: str, end: str = "") -> list[int]:
        path = self.marks / f"{self._key(uid)}{end}"
        return [int(one) for one in path.read_text().split()] if path.exists() else []

    def began(self, uid: str) -> int:
        return len(self._pids(uid)) if uid in self.owners else 0

    def alive(self, uid: str) -> int:
        return sum(alive(pid) for end in ("", ".left") for pid in self._pids(uid, end)) if uid in self.owners else 0

    def output(self, uid: str) -> str:
        path = self.marks / f"work-{self._key(uid)}" / "out"
        return path.read_text() if path.exists() else ""

    def result(self, uid: str) -> tuple[str, int | None] | None:
        if uid in self.ended:
            return self.ended[uid]
        kind, name = self.owners[uid]
        if kind == "replicasets":
            return None
        if kind == "pods":
            return ended(self.pods.get("pods", name))
        said = (self.pods.get("jobs", name).get("status") or {}).get("conditions") or ()
        over = {one["type"] for one in said if one["status"] == "True"}
        if "Complete" in over:
            return "done", 0
        return next((found for one in self._pods(uid) if (found := ended(one)) and found[0] == "failed"), None)

    # ---- the world -------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def clock(self) -> float:
        return time.time() + self.shift

    def cordon(self, node: str, *, draining: bool = False) -> None:
        """As kubectl cordon and kubectl drain do it."""
        self._change(node, unschedulable=True)
        for one in self.pods.labelled("test") if draining else ():
            if one["spec"].get("nodeName") == node:
                self.pods.evict(one["metadata"]["name"])
        self.settle()

    def uncordon(self, node: str) -> None:
        self._change(node, unschedulable=None)
        self.settle()

    def _change(self, node: str, **spec: Any) -> None:
        self.server.ask("PATCH", f"{NODES}/{node}", {"spec": spec}, MERGE)

    def foreign(self, node: str, gpu: int, amount: int) -> None:
        """A pod that kube-scheduler has placed."""
        name = f"other-{node}-{gpu}"
        if not amount:
            self.pods.delete("pods", name, 1)
            return
        where = f'device.attributes["gpushare.dev"].index == {gpu}'
        made = template(name, str(amount))
        made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": where}}]
        self.pods.make("resourceclaimtemplates", made)
        spec = {**pod_spec(["sleep", "1000"], template=name), "nodeSelector": {"kubernetes.io/hostname": node}}
        self.pods.make("pods", {"metadata": {"name": name, "labels": {"test": name}}, "spec": spec})

    def silence(self, node: str) -> None:
        self.cluster.nodes[node].kill("kubelet", signal.SIGSTOP)

    def lose(self, node: str) -> None:
        """It is off, and the administrator says so."""
        self.lost.add(node)
        self.cluster.nodes[node].kill("kubelet")
        self._kill_containers(node)
        taint = {"key": LOST, "value": "off", "effect": "NoExecute"}
        self._change(node, taints=[taint])

    def bring_back(self, node: str) -> None:
        one: RealNode = self.cluster.nodes[node]
        if node in self.lost:
            self.lost.discard(node)
            one.start("kubelet")
            self._change(node, taints=None)
        else:
            one.kill("kubelet", signal.SIGCONT)
        self._until(lambda: self.cluster.is_ready(node), f"{node} is ready", lambda: None)

    def kill_engine(self) -> None:
        """The API server is killed, and so is this process; both come back."""
        self.cluster.api.kill()
        self.engine.close()
        self.cluster.api.start()
        self.number = 0
        self.open_engine()
        if hasattr(self, "_store"):
            self.loop.engine = self.engine

    def clear(self) -> None:
        """No claim is left at the API server, and nothing of one on the nodes."""
        for name, node in self.cluster.nodes.items():
            node.kill("kubelet", signal.SIGCONT)
            if name in self.lost or not self.cluster.is_ready(name):
                self.bring_back(name)
            self._change(name, unschedulable=None)
        self.pods.clear()
        self._kill_containers()
        self._until(lambda: not any(self._left()), lambda: f"nothing is left: {self._left()}", lambda: None)
        self.engine.close()
        self.close()

    def _kill_containers(self, *names: str) -> None:
        for name in names or self.cluster.nodes:
            pids = self.cluster.nodes[name].pids()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._until(lambda pids=pids: not any(map(alive, pids)), "what was killed is gone", lambda: None)

    def _left(self) -> list[list[str]]:
        return [self.pods.names(), *(one.leftovers() for one in self.cluster.nodes.values())]


def ended(pod: Mapping[str, Any]) -> tuple[str, int | None] | None:
    if pod["status"].get("phase") not in ("Succeeded", "Failed"):
        return None
    states = [one.get("state") or {} for one in pod["status"].get("containerStatuses") or ()]
    codes = [int(one["terminated"]["exitCode"]) for one in states if "terminated" in one]
    worst = max(codes, default=1)
    return ("failed" if worst else "done"), -(worst - 128) if worst > 128 else worst


__all__ = ["Ground", "KubernetesServerStand"]
