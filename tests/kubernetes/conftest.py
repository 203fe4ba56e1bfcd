"""The node of the tests: one for each file, with nothing on it when a test begins."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_stage import KubeNode, missing, node_in


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


def pytest_terminal_summary(terminalreporter) -> None:
    """Which API server was asked."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, words in getattr(report, "user_properties", ()):
            if name == "kubernetes":
                terminalreporter.section("kubernetes")
                terminalreporter.line(words)
