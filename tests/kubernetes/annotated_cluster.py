"""A cluster whose API server has no claims: pods carry theirs, and nodes publish objects of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kube_cluster import PODS, KubeCluster, Object, Program

from gpushare.kubernetes import carried
from gpushare.kubernetes.carried import CLAIM
from gpushare.kubernetes.names import NODE_GPUS
from gpushare.kubernetes.publish import node_gpus

OWNER = "test/owner"


class AnnotatedCluster(KubeCluster):
    def __init__(self, folder: Path, nodes: tuple[str, ...] = ("n1", "n2"), gpus: int = 2) -> None:
        super().__init__(folder, nodes, gpus)
        self.api.lacks = ("/apis/resource.k8s.io/",)
        for path in [one for one in self.api.objects if "/resource.k8s.io/" in one]:
            self.api.remove(path)

    def publish(self, name: str) -> None:
        self.api.put(f"{NODE_GPUS}/{name}", node_gpus(name, self.gpus[name], "sim"))

    def unpublish(self, name: str) -> None:
        self.api.remove(f"{NODE_GPUS}/{name}")

    def _make(self, pod: str, owner: str, program: Program, **more: Any) -> str:
        """As the webhook has it."""
        asked: Object = {"count": more.pop("count", 1) or 1, **(more.pop("said", None) or {})}
        memory = more.pop("memory")
        if memory is not None:
            asked["memory"] = memory
        annotations = {**(more.pop("annotations", None) or {}), CLAIM: json.dumps(asked), OWNER: owner}
        assert not more.pop("shared", "")
        return super()._make(pod, owner, program, memory=None, annotations=annotations, **more)

    def _put_pod(self, pod: str, body: Object, claim: Object) -> None:
        del body["spec"]["resourceClaims"], body["status"]["resourceClaimStatuses"]
        self.api.put(f"{PODS}/{pod}", body)

    def claim_of(self, name: str) -> Object:
        pod = self.pod(name)
        assert pod is not None
        claim = carried.of_pod(pod)
        assert claim is not None
        return claim

    def _owner(self, pod: Object) -> str:
        return str(pod["metadata"]["annotations"][OWNER])

    def _free_claims(self, pods: dict[str, Object]) -> None:
        """They are gone with their pods."""


__all__ = ["AnnotatedCluster"]
