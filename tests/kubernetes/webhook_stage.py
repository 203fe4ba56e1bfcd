"""The webhook as a process, and the stand-in for the API server that asks it as deploy/kubernetes/webhook says."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from api_double import ApiDouble
from cluster_double import ClusterDouble
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store
from kube_stage import PYTHONPATH, ROOT, WITHIN, until
from real_api_server import free_ports
from webhook_cases import cluster, patched

DEPLOY = ROOT / "deploy" / "kubernetes" / "webhook"
SECRET = "/api/v1/namespaces/gpushare/secrets/gpushare-webhook"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpushare-webhook"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaimtemplates"
NAME = "gpushare-webhook.gpushare.svc"


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def deploy(api: ApiDouble) -> None:
    """What `kubectl apply -k` makes that the webhook reads."""
    (configuration,) = objects("configuration.yaml")
    api.put(CONFIGURATION, configuration)
    api.put(SECRET, next(one for one in objects("webhook.yaml") if one["kind"] == "Secret"))


def published(api: ApiDouble) -> None:
    """Nodes and their GPUs, as webhook_cases.py has them."""
    known = cluster()
    for name, node in known.nodes.items():
        api.put(f"/api/v1/nodes/{name}", node)
    for one in known.slices:
        api.put(f"/apis/resource.k8s.io/v1/resourceslices/{one['metadata']['name']}", dict(one))


class Webhook:
    """One replica."""

    def __init__(self, api: ApiDouble, folder: Path, *words: str, every: str = "0.1") -> None:
        self.api = api
        self.file = folder / f"webhook-{uuid.uuid4()}.log"
        (self.port,) = free_ports(1)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSHARE", "KUBE"))}
        said = ("--kubeconfig", str(api.kubeconfig), "--port", str(self.port), "--every", every)
        with self.file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpushare.kubernetes.webhook", *said, *words],
                env={**kept, "PYTHONPATH": PYTHONPATH},
                stderr=log,
                stdout=log,
            )

    @property
    def log(self) -> str:
        return self.file.read_text()

    def ready(self) -> None:
        until(self._is_ready, lambda: f"the webhook to be ready: {self.log}")

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log
        with contextlib.suppress(OSError, KeyError, ValueError):
            return self.request("GET", "/ready")[0] == 200
        return False

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(WITHIN)

    # ---- as the API server -----------------------------------------------------------------------------

    @property
    def bundle(self) -> str:
        """The CAs that its configuration trusts."""
        (webhook,) = self.api.objects[CONFIGURATION]["webhooks"]
        return base64.b64decode(webhook["clientConfig"]["caBundle"]).decode()

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Raises ssl.SSLError where the certificate is not one of the configuration's CAs."""
        context = ssl.create_default_context(cadata=self.bundle)
        with (
            socket.create_connection(("127.0.0.1", self.port), WITHIN) as plain,
            context.wrap_socket(plain, server_hostname=NAME) as secure,
        ):
            connection = http.client.HTTPConnection(NAME)
            connection.sock = secure
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def review(self, pod: Any, *, dry: bool = False) -> dict[str, Any]:
        (webhook,) = self.api.objects[CONFIGURATION]["webhooks"]
        asked = {"uid": str(uuid.uuid4()), "namespace": "team-a", "operation": "CREATE", "object": pod, "dryRun": dry}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
        path = webhook["clientConfig"]["service"]["path"]
        status, data = self.request("POST", path, json.dumps(review).encode())
        assert status == 200, data
        content = json.loads(data)
        assert (content["kind"], content["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
        response = dict(content["response"])
        assert response.pop("uid") == asked["uid"]
        return response

    def admit(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The pod as it is stored. AssertionError for one that is refused."""
        response = self.review(pod)
        assert response["allowed"], response
        return patched(pod, json.loads(base64.b64decode(response["patch"]))) if "patch" in response else pod

    def served(self) -> x509.Certificate:
        """Whoever signed it."""
        return x509.load_pem_x509_certificate(ssl.get_server_certificate(("127.0.0.1", self.port)).encode())

    def is_trusted(self) -> bool:
        """At the time of the API server, by the CAs of the configuration."""
        now = datetime.now(UTC) + timedelta(seconds=self.api.ahead)
        store = Store(x509.load_pem_x509_certificates(self.bundle.encode()))
        try:
            PolicyBuilder().time(now).store(store).build_server_verifier(x509.DNSName(NAME)).verify(self.served(), [])
        except x509.verification.VerificationError:
            return False
        return True


@contextlib.contextmanager
def webhook_at(api: ClusterDouble, folder: Path, *words: str, **more: Any) -> Iterator[Webhook]:
    made = Webhook(api, folder, *words, **more)
    try:
        yield made
    finally:
        made.end(signal.SIGKILL)
