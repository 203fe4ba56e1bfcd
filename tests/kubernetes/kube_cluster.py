"""What controllers and kubelets of a cluster do, on the stand-in for its API server, when a test lets time pass.

A pod that is bound starts only if the node's plugin can read its claims: with its own reader.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from claims import budget, gpu
from cluster_double import ClusterDouble, Object

from gpushare.errors import GpushareError
from gpushare.kubernetes import claim as claims
from gpushare.kubernetes.slices import resource_slice

GIB = 2**30
NAMESPACE = "team-a"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
NODES = "/api/v1/nodes"


@dataclass
class Program:
    """What runs in pods of one owner, one after the other."""

    seconds: float | None = None
    exit: int = 0
    stubborn: bool = False
    requeue: bool = True
    """Its owner makes another pod of one that is evicted."""
    pods: int = 1
    """So many its owner keeps."""
    make: Any = None
    began: int = 0
    starts: dict[str, float] = field(default_factory=dict)
    """When each of its pods began, by uid."""
    asked: dict[str, float] = field(default_factory=dict)
    """When each was asked to stop."""


class KubeCluster:
    """Two nodes of two GPUs of 80 GiB, unless said otherwise."""

    def __init__(self, folder: Path, nodes: tuple[str, ...] = ("n1", "n2"), gpus: int = 2) -> None:
        self.api = ClusterDouble(folder)
        self.now = 1.8e9
        self.programs: dict[str, Program] = {}
        """By the owner's name."""
        self.unread: dict[str, str] = {}
        """Claims that the plugin could not read."""
        self.away: set[str] = set()
        self.lost: set[str] = set()
        self.gpus: dict[str, list[Object]] = {}
        self.count = 0
        self.settings: dict[str, str] = {}
        """Of its scheduler."""
        selector = {"cel": {"expression": 'device.driver == "gpushare.dev"'}}
        self.api.put(
            f"{CLASSES}/gpushare.dev", {"metadata": {"name": "gpushare.dev"}, "spec": {"selectors": [selector]}}
        )
        for name in nodes:
            self.add_node(name, gpus)

    def close(self) -> None:
        self.api.stop()

    # ---- nodes -----------------------------------------------------------------------------------------

    def add_node(self, name: str, gpus: int = 2, **labels: str) -> None:
        self.gpus[name] = [
            gpu(f"GPU-{name}-{index}", index, capacity=80 * GIB, total=81 * GIB) for index in range(gpus)
        ]
        ready = [{"type": "Ready", "status": "True"}]
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
        self.api.put(f"{NODES}/{name}", {"metadata": meta, "spec": {}, "status": {"conditions": ready}})
        self.publish(name)

    def publish(self, name: str) -> None:
        made = resource_slice(name, self.gpus[name], "sim")
        self.api.put(f"{SLICES}/{made['metadata']['name']}", made)

    def unpublish(self, name: str) -> None:
        self.api.remove(f"{SLICES}/{name}-gpushare.dev")

    def set_ready(self, name: str, *, ready: bool) -> None:
        said = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
        self.api.change(f"{NODES}/{name}", lambda node: node["status"].update(conditions=said))
        (self.away.discard if ready else self.away.add)(name)

    def lose(self, name: str) -> None:
        """Its node object is deleted, and so are its slices and its pods."""
        self.lost.add(name)
        for path, pod in self.pods():
            if pod["spec"].get("nodeName") == name:
                self._gone(path, pod, self.programs[self._owner(pod)])
        self.api.remove(f"{NODES}/{name}")
        self.unpublish(name)

    # ---- pods ------------------------------------------------------------------------------------------

    def submit(self, name: str, program: Program | None = None, *, memory: str | None = "8Gi", **more: Any) -> str:
        """As a user does. The uid of the pod."""
        made = program or Program(requeue=False)
        self.programs.setdefault(name, made)
        made.make = lambda pod: self._make(pod, name, made, memory=memory, **more)
        return str(made.make(more.pop("pod", name)))

    def submit_group(self, name: str, size: int, there: int | None = None, **more: Any) -> str:
        """Pods `name`-0 and so on that start together; `there`: how many of them there are at first."""
        program = more.pop("program", None) or Program(requeue=False)
        more["labels"] = {**more.get("labels", {}), "gpushare.dev/pod-group": name}
        more["annotations"] = {**more.get("annotations", {}), "gpushare.dev/pod-group-size": str(size)}
        uid = self.submit(name, program, pod=f"{name}-0", **more)
        for number in range(1, size if there is None else there):
            program.make(f"{name}-{number}")
        return uid

    def _make(
        self,
        pod: str,
        owner: str,
        program: Program,
        *,
        memory: str | None,
        count: int | None = 1,
        queue: str = "",
        said: Any = None,
        annotations: Any = None,
        labels: Any = None,
        spec: Any = None,
        gates: Any = (),
        shared: str = "",
    ) -> str:
        """`shared`: the claim of that name, which stays when its pods go; else one of its own."""
        self.count += 1
        claim = shared or f"{pod}-gpu-{self.count}"
        exactly: Object = {"deviceClassName": "gpushare.dev"} | ({} if count is None else {"count": count})
        if memory is not None:
            exactly["capacity"] = {"requests": {"memory": memory}}
        config = [{key: value for key, value in budget(**said).items() if key != "source"}] if said else []
        devices = {"requests": [{"name": "gpu", "exactly": exactly}], "config": config}
        meta: Object = {"name": claim, "namespace": NAMESPACE, "annotations": {} if shared else {"owner": pod}}
        owners = [{"kind": "Job", "name": owner, "uid": f"owner-{owner}", "controller": True}]
        hours, minutes, seconds = self.count // 3600, self.count // 60 % 60, self.count % 60
        body = {
            "metadata": {
                "name": pod,
                "namespace": NAMESPACE,
                "creationTimestamp": f"2026-11-23T{hours:02}:{minutes:02}:{seconds:02}Z",
                "labels": {**(labels or {}), **({"gpushare.dev/queue": queue} if queue else {})},
                "annotations": dict(annotations or {}),
                "ownerReferences": owners if program.requeue else [],
            },
            "spec": {
                "schedulerName": "gpushare",
                "terminationGracePeriodSeconds": 30,
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": owner}],
                "schedulingGates": list(gates),
                **(spec or {}),
            },
            "status": {"phase": "Pending", "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim}]},
        }
        self._put_pod(pod, body, {"metadata": meta, "spec": {"devices": devices}})
        return str(self.api.objects[f"{PODS}/{pod}"]["metadata"]["uid"])

    def _put_pod(self, pod: str, body: Object, claim: Object) -> None:
        path = f"{CLAIMS}/{claim['metadata']['name']}"
        if path not in self.api.objects:
            self.api.put(path, claim)
        self.api.put(f"{PODS}/{pod}", body)

    def pod(self, name: str) -> Object | None:
        return self.api.objects.get(f"{PODS}/{name}")

    def claim_of(self, name: str) -> Object:
        pod = self.pod(name)
        assert pod is not None
        return self.api.objects[f"{CLAIMS}/{pod['status']['resourceClaimStatuses'][0]['resourceClaimName']}"]

    def cancel(self, owner: str) -> None:
        """Owner and pods are deleted."""
        self.programs[owner].requeue = False
        for path, _ in self.pods_of(owner):
            self.api.handle("DELETE", path, {}, {})

    def pods(self) -> list[tuple[str, Object]]:
        return [(path, one) for path, one in list(self.api.objects.items()) if path.startswith(f"{PODS}/")]

    def pods_of(self, owner: str) -> list[tuple[str, Object]]:
        return [(path, pod) for path, pod in self.pods() if self._owner(pod) == owner]

    def _owner(self, pod: Object) -> str:
        return str(pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"])

    # ---- time ------------------------------------------------------------------------------------------

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        for path, pod in self.pods():
            self._kubelet(path, pod)
        self._controllers()

    def _kubelet(self, path: str, pod: Object) -> None:
        program, node, uid = self.programs[self._owner(pod)], pod["spec"].get("nodeName"), pod["metadata"]["uid"]
        if not node or node in self.away:
            return
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            if pod["metadata"].get("deletionTimestamp"):
                self._gone(path, pod, program)
        elif pod["metadata"].get("deletionTimestamp"):
            asked = program.asked.setdefault(uid, self.now)
            grace = pod["metadata"]["deletionGracePeriodSeconds"] if program.stubborn else 0
            if uid not in program.starts or self.now >= asked + grace:
                self._gone(path, pod, program)
        elif uid not in program.starts:
            if self._prepared(pod, node):
                program.starts[uid] = self.now
                program.began += 1
                self.api.change(path, lambda one: one["status"].update(phase="Running"))
        elif program.seconds is not None and self.now >= program.starts[uid] + program.seconds:
            del program.starts[uid]
            ended = {"name": "main", "state": {"terminated": {"exitCode": program.exit}}}
            phase = "Failed" if program.exit else "Succeeded"
            self.api.change(path, lambda one: one["status"].update(phase=phase, containerStatuses=[ended]))

    def _prepared(self, pod: Object, node: str) -> bool:
        """By what the plugin of the node does with the claim."""
        claim = self.claim_of(pod["metadata"]["name"])
        try:
            read = claims.read(claim, node)
            claims.body(read, claims.gpus_of(read, self.gpus[node]))  # type: ignore[arg-type]
        except GpushareError as error:
            self.unread[claim["metadata"]["name"]] = str(error)
            return False
        return pod["metadata"]["uid"] in read.pods

    def _gone(self, path: str, pod: Object, program: Program) -> None:
        program.starts.pop(pod["metadata"]["uid"], None)
        self.api.remove(path)

    def _controllers(self) -> None:
        pods = {pod["metadata"]["uid"]: pod for _, pod in self.pods()}
        self._free_claims(pods)
        owned = Counter(self._owner(pod) for pod in pods.values())
        for owner, program in self.programs.items():
            for _ in range(program.pods - owned[owner] if program.requeue else 0):
                self.count += 1
                program.make(f"{owner}-{self.count}")

    def _free_claims(self, pods: dict[str, Object]) -> None:
        for path, claim in list(self.api.objects.items()):
            if not path.startswith(f"{CLAIMS}/"):
                continue
            reserved = claim.get("status", {}).get("reservedFor") or []
            live = [one for one in reserved if one["uid"] in pods and not is_over(pods[one["uid"]])]
            if live != reserved:
                self.api.change(path, partial(_keep_for, pods=live))
            if claim["metadata"].get("annotations", {}).get("owner") and not any(
                pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"] == claim["metadata"]["name"]
                for pod in pods.values()
            ):
                self.api.remove(path)


def _keep_for(claim: Object, pods: list[Object]) -> None:
    if pods:
        claim["status"]["reservedFor"] = pods
    else:
        claim.pop("status")


def is_over(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")
