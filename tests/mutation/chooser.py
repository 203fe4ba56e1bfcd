"""A pytest plugin that runs the tests of a list, in its order. Some names of tests cannot be given as arguments."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanted = {id: rank for rank, id in enumerate(json.loads(Path(os.environ["MUTATION_CHOSEN"]).read_text()))}
    items[:] = sorted((item for item in items if item.nodeid in wanted), key=lambda item: wanted[item.nodeid])
