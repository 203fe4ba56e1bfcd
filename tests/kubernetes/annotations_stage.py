"""Real nodes of an API server without claims, with all of gpushare's parts as processes.

The API server is of 1.36 and does as 1.33 did, which had no resource.k8s.io/v1. Kubelets and controllers are of 1.36.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from kube_stage import until
from real_api_server import DEPLOY, RealApiServer, binary
from real_nodes import RealNodes
from real_pods import NAMESPACE, WORKLOADS
from real_stage import WITHIN, PodProgram, Stage
from webhook_stage import CONFIGURATION, Webhook

from gpushare.errors import NoSuchJob
from gpushare.kubernetes.server import MERGE
from gpushare.paths import software_driver_dir

FEATURES = {"emulated-version": "1.33"}
HOST = "localhost"
ASKED_AT = f"https://{HOST}:{{}}/pods"


class AnnotationsStage(Stage):
    settings = """budget = '{"grace": "1s", "onReclaim": ["term"], "priority": 1000}'\n"""

    def __init__(self, folder: Path, gpus: int = 1) -> None:
        super().__init__(folder, ("k1",), gpus, features=FEATURES)
        self.webhook: Webhook | None = None
        try:
            self.start_webhook()
        except BaseException:
            self.end()
            raise

    def deploy(self) -> None:
        deploy_older(self.cluster)

    def start_webhook(self) -> None:
        self.webhook = webhook_of(self.cluster.api)

    def kill(self, part: str) -> None:
        if part == "webhook":
            assert self.webhook is not None
            self.webhook.end(9)
        else:
            super().kill(part)

    def start(self, part: str) -> None:
        if part == "webhook":
            self.start_webhook()
        else:
            super().start(part)

    def end(self) -> None:
        if getattr(self, "webhook", None) is not None:
            assert self.webhook is not None
            self.webhook.end(9)
        super().end()

    # ---- pods ------------------------------------------------------------------------------------------

    def program(self, name: str, env: Mapping[str, str] | None = None, **annotations: str) -> PodProgram:
        """A pod as its user writes it: with annotations, and with a driver, which is this machine's."""
        driver = {**self.node.driver, "LD_LIBRARY_PATH": str(software_driver_dir())}
        said = {one.replace("_", "-"): value for one, value in annotations.items()}
        meta = {"annotations": said, "labels": {"test": name}}
        pools = [self.node.pool]
        return PodProgram(self, name, "", scheduler="gpushare", env={**driver, **(env or {})}, meta=meta, folders=pools)

    def clear(self) -> None:
        for one in self.pods.all("pods"):
            self.pods.delete("pods", one["metadata"]["name"], 1)
        until(lambda: not self._left(), lambda: f"nothing to be left: {self._left()}", WITHIN)

    def _left(self) -> list[str]:
        left = [one["metadata"]["name"] for one in self.pods.all("pods")]
        return [*left, *self.node.leftovers()]


class Asking:
    """Whose rights the webhook has."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig


def deploy_older(cluster: RealNodes) -> None:
    """What `kubectl apply -k` makes of deploy/kubernetes-1.33, without its pods: processes do their work."""
    made = kubectl(cluster, "kustomize", str(DEPLOY.with_name("kubernetes-1.33")))
    those = [one for one in yaml.safe_load_all(made) if one["kind"] not in WORKLOADS]
    path = cluster.folder / "applied.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": those}))
    until(lambda: is_applied(cluster, path), "everything to be applied", WITHIN)
    cluster.server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    until(lambda: is_there(cluster, account), "the namespace's service account", WITHIN)


def is_applied(cluster: RealNodes, path: Path) -> bool:
    with contextlib.suppress(subprocess.CalledProcessError):
        kubectl(cluster, "apply", "-f", str(path))
        return True
    return False


def is_there(cluster: RealNodes, path: str) -> bool:
    with contextlib.suppress(NoSuchJob):
        return bool(cluster.server.ask("GET", path))
    return False


def webhook_of(api: RealApiServer) -> Webhook:
    """The webhook as a process that the API server asks."""
    server = api.server
    made = Webhook(Asking(api.webhooks), api.folder, "--name", HOST)  # type: ignore[arg-type]
    (webhook,) = server.ask("GET", CONFIGURATION)["webhooks"]
    there = {**webhook, "clientConfig": {"url": ASKED_AT.format(made.port)}}
    server.ask("PATCH", CONFIGURATION, {"webhooks": [there]}, MERGE)

    def trusted() -> bool:
        (found,) = server.ask("GET", CONFIGURATION)["webhooks"]
        return bool(found["clientConfig"].get("caBundle")) and "answers the API server" in made.log

    until(trusted, lambda: f"the webhook: {made.log}", WITHIN)
    return made


def kubectl(cluster: RealNodes, *words: str) -> str:
    line = [str(binary("kubectl")), f"--kubeconfig={cluster.api.kubeconfig}", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=WITHIN, env=dict(os.environ))
    return done.stdout


@contextlib.contextmanager
def annotations_stage(folder: Path, gpus: int = 1) -> Iterator[AnnotationsStage]:
    made = AnnotationsStage(folder, gpus)
    try:
        yield made
    finally:
        made.end()


def annotation(pod: Mapping[str, Any], name: str) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(f"gpushare.dev/{name}", ""))
