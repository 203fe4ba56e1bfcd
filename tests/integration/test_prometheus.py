"""Metrics in a real Prometheus (Debian's package): it takes them, and each query of ours finds what it asks for."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.quantity import format_bytes
from integration.node import GIB, ROOT, Node, wait_for

DEPLOY = ROOT / "daemon" / "deploy"
RULES = DEPLOY / "gpushare-alerts.yml"
DASHBOARD = DEPLOY / "grafana-dashboard.json"
PAGE = ROOT / "docs" / "metrics.md"
SCRAPED_EVERY = 0.2
"""Seconds."""

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs prometheus and promtool (Debian: prometheus)",
)


class Prometheus:
    """One that scrapes a daemon's port, with our alert rules."""

    def __init__(self, directory: Path, target: int) -> None:
        self.port = free_port()
        directory.mkdir()
        (directory / "prometheus.yml").write_text(
            f"global: {{scrape_interval: {int(SCRAPED_EVERY * 1000)}ms, evaluation_interval: 1s}}\n"
            f'scrape_configs: [{{job_name: gpushare, static_configs: [{{targets: ["127.0.0.1:{target}"]}}]}}]\n'
            f"rule_files: [{RULES}]\n"
        )
        command = ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
        command.append(f"--web.listen-address=127.0.0.1:{self.port}")
        with (directory / "log").open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def api(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        return list(self.api("query", query=expression)["result"])

    def is_ready(self) -> bool:
        try:
            return bool(self.query("gpushare_build_info"))
        except OSError:
            return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory, puppets: Path) -> Iterator[tuple[Node, Prometheus]]:
    """A Prometheus that has seen a lending story: two loans, a trim, a stopped borrower, a refusal at a limit."""
    directory = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    (directory / "node").mkdir()
    with Node(directory / "node", puppets) as node:
        node.start_daemon(f'[metrics]\nlisten = "127.0.0.1:{port}"\n')
        prometheus = Prometheus(directory / "server", port)
        try:
            wait_for(prometheus.is_ready, "Prometheus to have scraped")
            tell(node)
            end = 'gpushare_denials_total{reason="over_limit"} > 0'
            wait_for(lambda: prometheus.query(end), "Prometheus to have scraped the end of the story")
            yield node, prometheus
        finally:
            prometheus.stop()


def tell(node: Node) -> None:
    lender = node.puppet("cache", "--request", "1Gi", "--limit", "9Gi")
    lender.do(f"cache {GIB // 2} 8")
    borrower = node.puppet("borrower", "--request", "1Gi", "--limit", "11Gi", "--grace", "100ms")
    borrower.do("term ignore")
    for _ in range(8):
        borrower.alloc(GIB)
    owner = node.puppet("owner", "--request", "10Gi")
    for _ in range(9):
        owner.alloc(GIB)
    assert owner.try_(f"alloc {4 * GIB}")[0] != "ok", "above its limit"
    assert borrower.wait() == 137


def test_prometheus_finds_nothing_to_correct(scraped: tuple[Node, Prometheus]) -> None:
    """promtool also prints advice: none is left."""
    node, _ = scraped
    done = subprocess.run(["promtool", "check", "metrics"], input=node.metrics(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_story_is_told(scraped: tuple[Node, Prometheus]) -> None:
    _, prometheus = scraped

    def value(expression: str) -> float:
        (found,) = prometheus.query(expression)
        return float(found["value"][1])

    assert value('gpushare_reclaims_total{step="trim"}') >= 1
    assert value('gpushare_reclaims_total{step="term"}') == 1
    assert value('gpushare_reclaims_total{step="kill"}') == 1
    assert value('gpushare_claim_wait_seconds_count{step="kill"}') == 1
    assert 0.1 <= value('gpushare_claim_wait_seconds_sum{step="kill"}') < 60
    assert value('gpushare_denials_total{reason="over_limit"}') >= 1
    assert value("sum(gpushare_guarantee_violations_total)") == 0
    joined = "gpushare_gpu_memory_capacity_bytes * on(gpu_uuid) group_left(gpu, model, hostname) gpushare_gpu_info"
    (gpu,) = prometheus.query(joined)
    assert gpu["metric"]["gpu"] == "0"
    assert gpu["metric"]["hostname"] == os.uname().nodename
    assert format_bytes(int(float(gpu["value"][1]))).endswith("GiB")


VARIABLES = {"$__range": "1h", "$__rate_interval": "1m", "$host": ".*", "$gpu": ".*", "$name": ".*"}


def filled_in(query: str) -> str:
    for name, text in VARIABLES.items():
        query = query.replace(name, text)
    return query


def queries_of_the_dashboard() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_each_query_of_the_dashboard_finds_something(scraped: tuple[Node, Prometheus]) -> None:
    nothing = [query for query in queries_of_the_dashboard() if not scraped[1].query(filled_in(query))]
    assert nothing == []


def test_a_gpus_memory_adds_up_in_the_dashboard(scraped: tuple[Node, Prometheus]) -> None:
    """The stacked panel is as high as the GPU."""
    _, prometheus = scraped
    panel = next(one for one in json.loads(DASHBOARD.read_text())["panels"] if one["title"].startswith("Memory of"))
    parts = [target["expr"].replace("$gpu", ".*") for target in panel["targets"]]
    (sum_,) = prometheus.query(" + ".join(f"({part})" for part in parts))
    (capacity,) = prometheus.query("sum(gpushare_gpu_memory_capacity_bytes)")
    assert float(sum_["value"][1]) == float(capacity["value"][1])


def test_the_dashboards_variables_find_something(scraped: tuple[Node, Prometheus]) -> None:
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    asked = [one["definition"] for one in variables if one["type"] == "query"]
    assert len(asked) == 3
    for definition in asked:
        found = re.fullmatch(r"label_values\((\w+)(\{.*\})?, (\w+)\)", definition)
        assert found is not None, definition
        series = found[1] + (found[2] or "").replace("$host", ".*").replace("$gpu", ".*")
        assert all(found[3] in one["metric"] for one in scraped[1].query(series))
        assert scraped[1].query(series), definition


def test_each_alert_watches_series_that_are_there(scraped: tuple[Node, Prometheus]) -> None:
    """Without its threshold, each expression has a value. An alert on a misspelt series would never come."""
    groups = scraped[1].api("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == RULES.read_text().count("- alert:") > 5
    for rule in rules:
        watched, threshold = re.fullmatch(r"(.+) ([<>] [0-9.]+)", rule["query"]).groups()  # type: ignore[union-attr]
        assert scraped[1].query(watched), rule["query"]
        assert threshold
        assert rule["health"] in ("ok", "unknown"), rule


def test_no_alert_comes_from_a_lending_story(scraped: tuple[Node, Prometheus]) -> None:
    """Lending, reclaims and a refusal at a limit are usual."""
    _, prometheus = scraped
    rules = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
    usual = {rule["name"] for rule in rules if not prometheus.query(rule["query"])}
    assert usual == {rule["name"] for rule in rules}


def test_the_page_has_examples_that_work(scraped: tuple[Node, Prometheus]) -> None:
    """All of them but the one for another exporter."""
    blocks = re.findall(r"\n\n((?:    .+\n)+)", PAGE.read_text())
    queries = [block for block in blocks if "gpushare_" in block and "DCGM" not in block]
    assert len(queries) == 3
    for query in queries:
        assert scraped[1].query(query), query
