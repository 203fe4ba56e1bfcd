"""The webhook with a real API server: it is asked over HTTPS by the server itself, and has the rights of its manifest.

A server before 1.34 drops `resourceClaims` of pods, and one before 1.30 sends all pods. All else is as
it is.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

import pytest
from claims import GIB, gpu
from kube_stage import until
from real_api_server import RealApiServer, missing
from webhook_cases import pod, variable
from webhook_stage import CONFIGURATION, SECRET, TEMPLATES, Webhook

from gpushare.errors import NoSuchJob
from gpushare.kubernetes.server import MERGE, Access, Answer, Server
from gpushare.kubernetes.slices import resource_slice
from gpushare.kubernetes.webhook.makers import Templates
from gpushare.kubernetes.webhook.template import USED

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
PODS = "/api/v1/namespaces/team-a/pods"
LONG_AGO = {"metadata": {"annotations": {USED: "2026-01-01T00:00:00Z"}}}


class Asked:
    """What Webhook needs of a server, of a real one."""

    def __init__(self, server: RealApiServer) -> None:
        self.kubeconfig = server.webhooks
        self.server = server.server

    @property
    def objects(self) -> dict:
        return {CONFIGURATION: self.server.ask("GET", CONFIGURATION)}


@pytest.fixture(scope="module")
def cluster():
    with tempfile.TemporaryDirectory(prefix="gs-api-") as folder:
        api = RealApiServer(Path(folder))
        try:
            api.serve_claims()
            for part in (".", "scheduler", "webhook"):
                api.deploy(part)
            server = api.server
            server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "team-a"}})
            account = "/api/v1/namespaces/team-a/serviceaccounts"
            with contextlib.suppress(Answer):
                server.ask("POST", account, {"metadata": {"name": "default"}})
            server.ask("POST", "/api/v1/nodes", {"metadata": {"name": "n1", "labels": {"size": "big"}}})
            devices = [gpu("GPU-n1-0", 0, capacity=80 * GIB)]
            server.ask("POST", "/apis/resource.k8s.io/v1/resourceslices", resource_slice("n1", devices, "sim"))
            yield api
        finally:
            api.end()


@pytest.fixture
def webhook(cluster, tmp_path):
    """As the manifest says, but by a URL: there is no network of services here."""
    made = Webhook(Asked(cluster), tmp_path, "--name", "localhost")  # type: ignore[arg-type]
    try:
        made.ready()
        found = cluster.server.ask("GET", CONFIGURATION)
        (one,) = found["webhooks"]
        one["clientConfig"] = {
            "url": f"https://localhost:{made.port}/pods",
            "caBundle": one["clientConfig"]["caBundle"],
        }
        cluster.server.ask("PATCH", CONFIGURATION, {"webhooks": [one]}, MERGE)
        yield made
    finally:
        made.end(9)


@pytest.fixture
def server(cluster) -> Server:
    return cluster.server


def create(server: Server, name: str, annotations: dict[str, str], query: str = "", **more) -> dict:
    made = pod(annotations, **more)
    made["metadata"]["name"] = name
    for one in made["spec"]["containers"]:
        one["image"] = "x"
    return server.ask("POST", f"{PODS}{query}", made)


def names(server: Server) -> list[str]:
    return [one["metadata"]["name"] for one in server.ask("GET", TEMPLATES)["items"]]


def admitted(server: Server, name: str) -> dict:
    """The API server needs a moment to read a configuration."""

    def made() -> dict | None:
        found = create(server, name, {"gpu-fraction": "0.5"}, env=variable("0.8"))
        if names(server):
            return found
        server.ask("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        time.sleep(0.2)
        return None

    return until(made, "the API server to ask the webhook")


def test_the_server_asks_and_the_template_is_there(cluster, server, webhook, record_property):
    record_property("kubernetes", f"webhook: {cluster.version()}")
    found = admitted(server, "notebook")
    (name,) = names(server)
    spec = server.ask("GET", f"{TEMPLATES}/{name}")["spec"]["spec"]["devices"]
    assert spec["requests"][0]["exactly"]["capacity"]["requests"]["memory"] == "40Gi"
    assert spec["config"][0]["opaque"]["parameters"]["limit"] == "0.8"
    assert found["spec"]["restartPolicy"] == "Always"
    claims = [{"name": "gpushare", "resourceClaimTemplateName": name}]
    assert not cluster.own or found["spec"]["resourceClaims"] == claims

    with pytest.raises(Answer, match=r"denied the request: annotation gpu-fraction: cannot read '2\.5'"):
        create(server, "wrong", {"gpu-fraction": "2.5"})
    create(server, "dry", {"gpu-memory": "4096"}, "?dryRun=All")
    assert names(server) == [name]

    templates = Templates(Server(Access.of_kubeconfig(cluster.webhooks)))
    server.ask("PATCH", f"{TEMPLATES}/{name}", LONG_AGO, MERGE)
    templates.clean()
    kept = names(server) if cluster.own else [name]  # the pod names it, where the server keeps that
    assert kept == [name]
    server.ask("DELETE", f"{PODS}/notebook", {"gracePeriodSeconds": 0})
    templates.clean()
    assert names(server) == []


def test_the_server_sends_pods_with_annotations_of_a_container(cluster, server, webhook):
    admitted(server, "earlier")
    known = names(server)
    container = "nvidia.com/container.main"
    create(server, "kai", {f"{container}.gpu-memory.request": "3Gi", f"{container}.gpu-compute.mode": "time-slicing"})
    (name,) = set(names(server)) - set(known)
    found = server.ask("GET", f"{TEMPLATES}/{name}")["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert found["capacity"]["requests"]["memory"] == "3Gi"
    with pytest.raises(Answer, match=r"denied the request: annotations .*main.* and .*side.* are about two containers"):
        create(
            server, "two", {f"{container}.gpu-memory.limit": "3Gi", "nvidia.com/container.side.gpu-memory.request": "1"}
        )
    create(server, "other", {"nvidia.com/container.main.gpus.devices": "0"})
    for pod_name in ("earlier", "kai", "other"):
        server.ask("DELETE", f"{PODS}/{pod_name}", {"gracePeriodSeconds": 0})


def test_a_pod_is_refused_while_the_webhook_is_away(cluster, server, webhook):
    admitted(server, "before")
    assert webhook.end() == 0
    with pytest.raises(Answer, match="failed calling webhook"):
        create(server, "after", {"gpu-memory": "1024"})


def test_a_ca_that_is_lost_is_made_again_and_trusted(cluster, server, webhook):
    """The Secret is emptied: CA and certificate are made again."""
    admitted(server, "first")
    before = webhook.bundle
    server.ask("PATCH", SECRET, {"data": None}, MERGE)
    until(lambda: webhook.bundle != before, "a new CA")

    def answered() -> bool:
        with contextlib.suppress(Answer):
            create(server, "second", {"gpu-memory": "1024"})
            return True
        return False

    until(answered, "the API server to trust it")
    assert server.ask("GET", f"{PODS}/second")["metadata"]["name"] == "second"


def test_it_has_no_other_rights(cluster):
    own = Server(Access.of_kubeconfig(cluster.webhooks))
    for method, path in (
        ("GET", "/api/v1/namespaces/gpushare/secrets"),
        ("GET", "/api/v1/namespaces/gpushare/secrets/other"),
        ("GET", "/api/v1/namespaces/team-a/secrets/gpushare-webhook"),
        ("GET", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/other"),
        ("DELETE", CONFIGURATION),
    ):
        with pytest.raises((Answer, NoSuchJob), match="forbidden"):
            own.ask(method, path)
