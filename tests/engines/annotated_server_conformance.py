"""Kubernetes on the conformance suite's stand, with a real API server that has no claims: pods carry theirs, as the
webhook writes them, and kubelets start containers when the plugin has opened their gates."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kubernetes"))

from annotations_stage import FEATURES, deploy_older, webhook_of
from conformance_stand import RUNS, Work
from kube_stage import until
from kubernetes_conformance import CANNOT_ANNOTATED
from kubernetes_server_conformance import Ground, KubernetesServerStand
from real_api_server import missing as no_server
from real_nodes import missing, too_old
from real_pods import Pods, pod_spec

from gpushare.cluster.engines.kubernetes import engine
from gpushare.cluster.engines.kubernetes.names import NODES, PODS
from gpushare.cluster.engines.kubernetes.settings import Settings
from gpushare.kubernetes.names import NODE_GPUS
from gpushare.paths import software_driver_dir

QUEUES = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/queues.gpushare.dev"
BUDGET = '{"priority": 1000}'
TWO_LIMITS = "RUNAI_GPU_MEMORY_LIMIT"
"""A pod that says this beside its annotation is refused."""


class AnnotatedGround(Ground):
    features = FEATURES

    def deploy(self) -> None:
        """Without the kind Queue: the suite's queues are in its own ledger, and the webhook would miss them."""
        deploy_older(self.cluster)
        self.cluster.server.ask("DELETE", QUEUES)

    def begin(self) -> None:
        server, count = self.cluster.server, len(self.cluster.nodes)
        until(lambda: len(server.ask("GET", NODE_GPUS)["items"]) == count, "the plugins to tell of their GPUs", 60.0)
        self.webhook = webhook_of(self.cluster.api)
        AnnotatedServerStand.about = self.cluster.about()

    def stop(self) -> None:
        if hasattr(self, "webhook"):
            self.webhook.end(signal.SIGKILL)
        super().stop()


def ground(directory: Path, patch: pytest.MonkeyPatch) -> Ground:
    why = no_server() or missing() or too_old()
    if why:
        pytest.skip(why)
    return AnnotatedGround()


class AnnotatedServerStand(KubernetesServerStand):
    name = "kubernetes (annotations) with a real server"
    cannot = {**engine.CANNOT, "foreign": CANNOT_ANNOTATED["foreign"]}  # noqa: RUF012
    ground = staticmethod(ground)
    paths = (PODS, NODES, NODE_GPUS)

    def __init__(self, directory: Path, ground: Ground) -> None:
        self.asked: dict[str, dict[str, str]] = {}
        """Annotations, by the job's key."""
        super().__init__(directory, ground)

    def make_pods(self) -> Pods:
        return Pods(self.server, claims=False)

    def make_settings(self) -> Settings:
        return Settings(kubeconfig=str(self.cluster.api.schedulers), budget=BUDGET)

    def _template(self, gpus: int, share: float | None, limit: float | None, priority: int) -> str:
        self.count += 1
        key = f"j{self.count}"

        def amount(part: float) -> str:
            return str(round(self.memory * part) // 2**20)

        said = {"gpu-fraction": "1"} if share is None else {"gpu-memory": amount(share)}
        if limit is not None:
            said["gpu-memory-limit"] = amount(limit)
        if gpus > 1:
            said["gpu-fraction-num-devices"] = str(gpus)
        self.asked[key] = {**said, "gpushare.dev/budget": json.dumps({"priority": priority - 50})}
        return key

    def _asks(self, key: str) -> dict[str, str]:
        return self.asked[key]

    def _is_ready(self, pod: dict[str, Any]) -> bool:
        return True

    def _spec(self, command: list[str], claims: str) -> dict[str, Any]:
        return pod_spec(command, folders=[self.cluster.folder])

    def _pod(self, work: Work = RUNS, key: str = "", **more: Any) -> dict[str, Any]:
        """With a driver, which is this machine's, and the GPUs of the node that it gets."""
        env = {name: value for name, value in (work.env or {}).items() if name != TWO_LIMITS}
        spec = super()._pod(work, key, **more)
        env |= {"GPUSHARE_SIM": f"{self.cluster.gpus},pool={self.cluster.folder}/$(NODE)/pool"}
        env |= {"GPUSHARE_DRIVER": "sim", "LD_LIBRARY_PATH": str(software_driver_dir())}
        node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        spec["containers"][0]["env"] = [node, *({"name": name, "value": value} for name, value in env.items())]
        return spec


__all__ = ["AnnotatedServerStand"]
