"""A node for each file of tests, empty when a test begins; and a cluster with the scheduler."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_cluster import KubeCluster
from kube_stage import KubeNode, missing, node_in
from scheduler_stage import Ruled, Scheduler


@pytest.fixture(scope="module")
def _node() -> Iterator[KubeNode]:
    """In a short folder: sockets' paths are bounded."""
    if missing():
        pytest.skip(missing())
    with tempfile.TemporaryDirectory(prefix="gs-k-") as folder:
        Path(folder).chmod(0o755)
        with node_in(Path(folder)) as made:
            yield made


@pytest.fixture
def node(_node: KubeNode) -> Iterator[KubeNode]:
    _node.refresh()
    yield _node
    _node.clear()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KubeCluster]:
    """A node's plugin reads what its scheduler writes."""
    made = KubeCluster(tmp_path)
    yield made
    made.close()
    assert not made.unread, "the node's plugin reads what the scheduler writes"


@pytest.fixture
def scheduler(cluster: KubeCluster) -> Iterator[Scheduler]:
    """The cluster with an engine that does what a test commands."""
    made = Scheduler(cluster)
    yield made
    made.close()


@pytest.fixture
def ruled(cluster: KubeCluster, tmp_path: Path) -> Iterator[Ruled]:
    """The cluster with a service that decides."""
    made = Ruled(cluster, tmp_path)
    yield made
    made.close()


def pytest_terminal_summary(terminalreporter) -> None:
    """Which API server was asked."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, words in getattr(report, "user_properties", ()):
            if name == "kubernetes":
                terminalreporter.section("kubernetes")
                terminalreporter.line(words)
