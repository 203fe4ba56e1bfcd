"""Around the allocator's core: one module knows the database, one the pictures, one each format."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CLUSTER = Path(__file__).resolve().parents[2] / "gpushare" / "cluster"


def imports(path: Path) -> set[str]:
    """Top-level packages that are imported anywhere in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize(
    ("package", "user"),
    [
        ("matplotlib", "plot"),
        ("sqlite3", "store_file"),
        ("cattrs", "codec"),
        ("yaml", "yaml_source"),
        ("csv", "spec_parser"),
    ],
)
def test_each_is_known_in_one_place(package: str, user: str) -> None:
    assert [path.stem for path in CLUSTER.glob("*.py") if package in imports(path)] == [user]
