"""How large the parts of the node and of the cluster's allocator may be, and that none of the node is written twice."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_architecture import CLUSTER

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sorted(
    path.relative_to(ROOT)
    for folder in ("daemon", "gpushare")
    for path in (ROOT / folder).rglob("*.py")
    if (ROOT / "gpushare" / "cluster") not in path.parents
)
PRELOAD = sorted(path.relative_to(ROOT) for path in (ROOT / "shim" / "preload").glob("*.[ch]"))

ALLOCATOR = [ROOT / "gpushare" / "cluster" / f"{name}.py" for name in CLUSTER]

LONGEST_FILE = 450
"""Of those that decide in a cluster."""
LONGEST_CLASS = 300
LONGEST_FUNCTION = 60
MOST_ATTRIBUTES = 15
"""Of one object, that others may touch."""
MOST_BESIDE = 6
"""Modules of the daemon beside its folders."""
EQUAL_LINES = 6


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse((ROOT / path).read_text()))


def length(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("path", PYTHON, ids=str)
def test_no_class_and_no_function_is_too_long(path: Path) -> None:
    for node in nodes(path):
        if isinstance(node, ast.ClassDef):
            assert length(node) <= LONGEST_CLASS, f"{path}: class {node.name} has {length(node)} lines"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert length(node) <= LONGEST_FUNCTION, f"{path}: {node.name}() has {length(node)} lines"


@pytest.mark.parametrize("path", ALLOCATOR, ids=lambda path: path.stem)
def test_no_file_and_no_function_that_decides_in_a_cluster_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef):
            assert length(node) <= LONGEST_FUNCTION, f"{path}: {node.name}() has {length(node)} lines"


def public_attributes(node: ast.ClassDef) -> set[str]:
    """Those that __init__ sets on self, without the private ones."""
    made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    return {
        one.attr
        for body in made
        for one in ast.walk(body)
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
        if isinstance(one.value, ast.Name) and one.value.id == "self" and not one.attr.startswith("_")
    }


@pytest.mark.parametrize("path", PYTHON, ids=str)
def test_no_object_has_too_many_attributes_that_others_touch(path: Path) -> None:
    for node in nodes(path):
        if isinstance(node, ast.ClassDef):
            found = public_attributes(node)
            assert len(found) <= MOST_ATTRIBUTES, f"{path}: class {node.name}: {sorted(found)}"


def test_few_modules_of_the_daemon_stand_beside_its_folders() -> None:
    assert len(list((ROOT / "daemon" / "gpushared").glob("*.py"))) <= MOST_BESIDE


def test_no_lines_are_written_twice() -> None:
    """Six or more in a row, the indentation aside. Imports may be alike."""
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in (*PYTHON, *PRELOAD):
        lines = [
            (number, line.strip())
            for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
            if line.strip() and not line.startswith(("import ", "from "))
        ]
        for at in range(len(lines) - EQUAL_LINES + 1):
            run = lines[at : at + EQUAL_LINES]
            places[tuple(line for _, line in run)].append(f"{path}:{run[0][0]}")
    assert len(places) > 20_000, "the code is not where it is looked for"
    twice = {" = ".join(found): run[0] for run, found in places.items() if len(found) > 1}
    assert not {place: first for place, first in twice.items() if len(first) > 3}, twice
