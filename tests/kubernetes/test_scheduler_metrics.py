"""What Prometheus reads of the scheduler, at a port of its pod."""

from __future__ import annotations

import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_cluster import PODS, Program
from prometheus_client.parser import text_string_to_metric_families
from real_api_server import free_ports
from test_scheduler_service import DEPLOY, service  # noqa: F401  a fixture

from gpushared.cluster.settings import load

PAGE = (
    (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text().partition("## The cluster's service")[2]
)


@pytest.fixture
def port(service):  # noqa: F811
    (number,) = free_ports(1)
    service.config.write_text(f'metrics_listen = "127.0.0.1:{number}"\n{service.config.read_text()}')
    return number


def families(port: int) -> list[Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return list(text_string_to_metric_families(answer.read().decode()))


def read(port: int) -> dict[tuple[str, ...], float]:
    """Values by name and the values of the labels, which are sorted by their names."""
    return {(one.name, *one.labels.values()): one.value for family in families(port) for one in family.samples}


def test_starts_evictions_requests_and_watches_are_counted(service, port):  # noqa: F811
    cluster = service.cluster
    refused = []

    def refuses(_method, path, _body):
        if path.startswith(f"{PODS}/bad") and path.endswith("/binding"):
            refused.append(path)
            return 403, {"message": "a policy forbids it"}
        return None

    cluster.api.refuses = refuses
    service.start()
    cluster.submit("good", Program(), memory="8Gi")
    service.until(lambda: cluster.programs["good"].began)
    cluster.submit("bad", memory="8Gi")
    service.until(lambda: read(port).get(("gpushare_cluster_answers_total", "refused", "start")))
    before = read(port)
    cluster.api.forget()
    lists = "gpushare_cluster_kubernetes_lists_total", "pods"
    watches = "gpushare_cluster_kubernetes_watches_total", "pods"  # begins after the list
    service.until(lambda: all(read(port)[one] > before[one] for one in (lists, watches)))
    found = read(port)
    assert found["gpushare_cluster_leads",] == 1
    assert found["gpushare_cluster_answers_total", "accepted", "start"] == 1
    requests = "gpushare_cluster_kubernetes_requests_total"
    assert found[requests, "201", "post"] >= 2, "the binding and the lease"
    assert found[requests, "403", "post"] in (len(refused) - 1, len(refused))
    assert found[requests, "200", "patch"] >= 6
    cluster.api.stop()
    stale = "gpushare_cluster_kubernetes_stale", "pods"
    service.until(lambda: read(port)[stale])
    assert read(port)[requests, "none", "get"] >= 1
    cluster.api.start()
    service.until(lambda: not read(port)[stale])
    assert service.kill(signal.SIGTERM) == 0


def test_the_page_has_each_with_its_words(service, port):  # noqa: F811
    service.start()
    service.cluster.submit("good", Program(), memory="8Gi")
    service.until(lambda: service.cluster.programs["good"].began)
    shown = {
        (
            f"{one.name}_total" if one.type == "counter" else one.name,
            one.type,
            frozenset(f"`{name}`" for name in one.samples[0].labels),
            one.documentation,
        )
        for one in families(port)
    }
    found = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", PAGE, re.MULTILINE)
    rows = {(name, kind, frozenset(filter(None, labels.split(", "))), words) for name, kind, labels, words in found}
    assert rows == shown


def test_the_port_serves_nothing_else(service, port):  # noqa: F811
    service.start()
    for path in ("/v1/queues", "/v1/jobs", "/", "/v1/state"):
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30)
        assert error.value.code == 404
        error.value.close()
    assert "open to other machines" not in (service.folder / "log").read_text()


def test_the_manifest_sends_prometheus_to_the_port_that_the_settings_open(tmp_path):
    config, deployment = yaml.safe_load_all((DEPLOY / "scheduler.yaml").read_text())
    (tmp_path / "cluster.toml").write_text(config["data"]["cluster.toml"])
    settings = load(tmp_path / "cluster.toml")
    meta = deployment["spec"]["template"]["metadata"]["annotations"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    port = meta["prometheus.io/port"]
    assert (meta["prometheus.io/scrape"], meta["prometheus.io/path"]) == ("true", "/metrics")
    assert settings.metrics_listen == f"0.0.0.0:{port}" and settings.engine == "kubernetes"
    assert [str(one["containerPort"]) for one in container["ports"]] == [port]
