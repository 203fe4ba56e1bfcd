"""Pods and claims of the tests on real nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kube_stage import until
from real_nodes import IMAGE, RealNodes, from_host

from gpushare.errors import NoSuchJob
from gpushare.kubernetes.server import MERGE, Server

NAMESPACE = "team-a"
GROUPS = {
    "pods": "/api/v1",
    "events": "/api/v1",
    "replicasets": "/apis/apps/v1",
    "jobs": "/apis/batch/v1",
    "resourceclaims": "/apis/resource.k8s.io/v1",
    "resourceclaimtemplates": "/apis/resource.k8s.io/v1",
}
ANY_PRIORITY = {"apiVersion": "gpushare.dev/v1", "kind": "Budget", "priority": 1000}
WORKLOADS = ("DaemonSet", "Deployment")
WITHIN = 90.0


def deploy(cluster: RealNodes) -> None:
    """What deploy/kubernetes has, without the pods of plugin and scheduler: tests start these as processes."""
    for part in (".", "scheduler"):
        cluster.api.deploy(part, without=WORKLOADS)
    config = [{"opaque": {"driver": "gpushare.dev", "parameters": ANY_PRIORITY}}]
    classes = "/apis/resource.k8s.io/v1/deviceclasses/gpushare.dev"
    cluster.server.ask("PATCH", classes, {"spec": {"config": config}}, MERGE)
    cluster.server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"

    def is_there() -> bool:
        with contextlib.suppress(NoSuchJob):
            return bool(cluster.server.ask("GET", account))
        return False

    until(is_there, "the namespace's service account", WITHIN)


def devices(memory: str | None, count: int = 1, **said: Any) -> dict[str, Any]:
    """`spec.devices` of a claim: so much of each of `count` GPUs, and what its Budget says."""
    exactly: dict[str, Any] = {"deviceClassName": "gpushare.dev", "count": count}
    if memory is not None:
        exactly["capacity"] = {"requests": {"memory": memory}}
    parameters = {"apiVersion": "gpushare.dev/v1", "kind": "Budget", **said}
    config = [{"requests": ["gpu"], "opaque": {"driver": "gpushare.dev", "parameters": parameters}}]
    return {"requests": [{"name": "gpu", "exactly": exactly}], "config": config if said else []}


def template(name: str, memory: str | None, count: int = 1, **said: Any) -> dict[str, Any]:
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
    return {**head, "spec": {"spec": {"devices": devices(memory, count, **said)}}}


def pod_spec(
    command: Sequence[str], *, template: str = "", claim: str = "", folders: Iterable[Path] = ()
) -> dict[str, Any]:
    """Of one container, with what it has of this machine, and these folders of it."""
    mounts, volumes = [], []
    for name, path in from_host().items():
        volumes.append({"name": name, "hostPath": {"path": str(path)}})
        mounts.append({"name": name, "mountPath": str(path), "readOnly": True})
    for number, path in enumerate(folders):
        volumes.append({"name": f"own-{number}", "hostPath": {"path": str(path)}})
        mounts.append({"name": f"own-{number}", "mountPath": str(path)})
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command),
        "volumeMounts": mounts,
        "resources": {"claims": [{"name": "gpu"}]} if template or claim else {},
    }
    named = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 2,
        "containers": [container],
        "volumes": volumes,
        "resourceClaims": [{"name": "gpu", **named}] if template or claim else [],
    }


class Pods:
    """Objects of the tests' namespace."""

    def __init__(self, server: Server, *, claims: bool = True) -> None:
        """`claims`: the server has them."""
        self.server = server
        self.of_claims = ("resourceclaims", "resourceclaimtemplates") if claims else ()

    def path(self, kind: str, name: str = "") -> str:
        return f"{GROUPS[kind]}/namespaces/{NAMESPACE}/{kind}{f'/{name}' if name else ''}"

    def make(self, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.server.ask("POST", self.path(kind), body)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self.server.ask("GET", self.path(kind, name))

    def change(self, kind: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.server.ask("PATCH", self.path(kind, name), body, MERGE)

    def all(self, kind: str) -> list[dict[str, Any]]:
        return list(self.server.ask("GET", self.path(kind))["items"])

    def labelled(self, selector: str) -> list[dict[str, Any]]:
        return list(self.server.ask("GET", f"{self.path('pods')}?labelSelector={selector}")["items"])

    def delete(self, kind: str, name: str, grace: int | None = None) -> None:
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        with contextlib.suppress(NoSuchJob):
            self.server.ask("DELETE", self.path(kind, name), options)

    def evict(self, name: str) -> None:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        with contextlib.suppress(NoSuchJob):
            self.server.ask("POST", f"{self.path('pods', name)}/eviction", body)

    def clear(self) -> None:
        """All are told to go."""
        for kind in ("replicasets", "jobs", "pods", *self.of_claims):
            for one in self.all(kind):
                self.delete(kind, one["metadata"]["name"], 1 if kind == "pods" else None)

    def names(self) -> list[str]:
        """What there is that runs, or has GPUs."""
        return [
            f"{kind} {one['metadata']['name']}"
            for kind in ("replicasets", "jobs", "pods", *self.of_claims[:1])
            for one in self.all(kind)
        ]

    def picture(self) -> Iterator[str]:
        for one in self.all("pods"):
            meta, status = one["metadata"], one.get("status") or {}
            words = [meta["name"], str(meta.get("deletionTimestamp")), str(one["spec"].get("nodeName"))]
            states = [str(each.get("state")) for each in status.get("containerStatuses") or ()]
            said = [str(each.get("message")) for each in status.get("conditions") or () if each.get("message")]
            yield " ".join((*words, str(status.get("phase")), *states, *said))
        for one in self.all("events")[-10:]:
            yield f"{one['involvedObject']['name']}: {one['reason']}: {one['message']}"


__all__ = ["NAMESPACE", "Pods", "deploy", "devices", "pod_spec", "template"]
