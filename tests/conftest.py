"""For all tests: what their names must not have in them."""

from __future__ import annotations

import re

import pytest

ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Several workers share the tests by their names, so these must be the same in each process."""
    named = [item.nodeid for item in items if ADDRESS.search(item.nodeid)]
    if named:
        raise pytest.UsageError(f"names of tests with an address in them: {', '.join(named[:3])}")
