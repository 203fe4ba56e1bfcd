"""A pytest plugin that runs the tests of a list, in its order, each for a limited time.

Some names of tests cannot be given as arguments.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    patience: dict[str, float] = json.loads(Path(os.environ["MUTATION_CHOSEN"]).read_text())
    rank = {id: number for number, id in enumerate(patience)}
    items[:] = sorted((item for item in items if item.nodeid in rank), key=lambda item: rank[item.nodeid])
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(patience[item.nodeid]))


def pytest_runtest_logstart(nodeid: str) -> None:
    Path(os.environ["MUTATION_STARTED"]).write_text(nodeid)


def pytest_sessionfinish() -> None:
    Path(os.environ["MUTATION_STARTED"]).unlink(missing_ok=True)
