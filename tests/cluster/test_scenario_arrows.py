"""What decides does no I/O and knows nothing of files, clocks and screens; they know it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CLUSTER = Path(__file__).resolve().parents[2] / "gpushare" / "cluster"
AROUND = {"codec", "document", "plot", "reading", "scenario", "simulation", "store", "timeline"}
"""Modules that stand around the core. Every other one is core."""
CORE = sorted(path.stem for path in CLUSTER.glob("*.py") if path.stem not in AROUND)
PURE = {
    "__future__",
    "bisect",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "fractions",
    "decimal",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "typing",
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("module", CORE)
def test_the_core_is_pure(module: str) -> None:
    allowed = {f"gpushare.cluster.{name}" for name in CORE} | {
        "gpushare.errors",
        "gpushare.quantity",
        "gpushare.cluster",
    }
    for name in imports(CLUSTER / f"{module}.py"):
        assert name in allowed or name.split(".")[0] in PURE, f"{module} imports {name}"


def test_only_plots_know_matplotlib_and_only_the_store_sqlite() -> None:
    for name, user in (("matplotlib", "plot"), ("sqlite3", "store"), ("cattrs", "codec"), ("yaml", "document")):
        users = [path.stem for path in CLUSTER.glob("*.py") if name in {each.split(".")[0] for each in imports(path)}]
        assert users == [user]
