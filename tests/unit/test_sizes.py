"""How large the parts of the node and of the cluster's allocator may be, and that none of the node is written twice."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import cluster_lines
import pytest
from test_architecture import CLUSTER

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sorted(
    path.relative_to(ROOT)
    for folder in ("daemon", "gpushare")
    for path in (ROOT / folder).rglob("*.py")
    if (ROOT / "gpushare" / "cluster") not in path.parents
)
CLUSTER_PYTHON = sorted(path.relative_to(ROOT) for path in (ROOT / "gpushare" / "cluster").rglob("*.py"))
SLURM = sorted(path.relative_to(ROOT) for path in (ROOT / "gpushare/cluster/engines/slurm").glob("*.py"))
PRELOAD = sorted(path.relative_to(ROOT) for path in (ROOT / "shim" / "preload").glob("*.[ch]"))

ALLOCATOR = [ROOT / "gpushare" / "cluster" / f"{name}.py" for name in CLUSTER]

LONGEST_FILE = 450
"""Of those that decide in a cluster."""
LONGEST_CLASS = 300
LONGEST_FUNCTION = 60
DECIDING = cluster_lines.Size(lines=4608, code=3250)
"""The cluster's files that decide, together, by the counting rule of cluster_lines.py. A ratchet: these numbers only
fall. The aim is 2,200 lines, so that a stranger reads them in an afternoon."""
ALLOCATING = cluster_lines.Size(lines=7164, code=5153)
"""The same with the ledger and with what events mean for it."""
SLACK = 30
"""When a sum is so far below its bound, the bound is lowered."""
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


@pytest.mark.parametrize("path", PYTHON + CLUSTER_PYTHON, ids=str)
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


def test_every_file_of_the_allocator_is_counted_once() -> None:
    counted = [name for names in cluster_lines.PARTS.values() for name in names]
    assert sorted(counted) == sorted(CLUSTER)


@pytest.mark.parametrize(
    ("parts", "bound"),
    [(("decides",), DECIDING), (("ledger", "events", "decides"), ALLOCATING)],
    ids=["decides", "all"],
)
def test_what_decides_in_a_cluster_only_shrinks(parts: tuple[str, ...], bound: cluster_lines.Size) -> None:
    found = cluster_lines.total(*parts)
    assert found.lines <= bound.lines, f"{found} is above {bound}: what can go for it?"
    assert found.code <= bound.code, f"{found} is above {bound}: what can go for it?"
    assert found.lines > bound.lines - SLACK, f"lower the bound to {found}"
    assert found.code > bound.code - SLACK, f"lower the bound to {found}"


def test_comments_docstrings_and_blank_lines_are_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_lines, "CORE", tmp_path)
    lines = [
        '"""What it is.',
        "",
        'More."""',
        "",
        "x = (  # why",
        "    1,",
        "",
        "    # a remark",
        "    2,",
        ")",
        '"""X."""',
    ]
    (tmp_path / "one.py").write_text("\n".join([*lines, 'text = """a', 'b"""', ""]))
    assert cluster_lines.size("one") == cluster_lines.Size(lines=13, code=6)


def public_attributes(node: ast.ClassDef) -> set[str]:
    """Those that __init__ sets on self, and the fields of a dataclass, without the private ones."""
    made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    found = {
        one.attr
        for body in made
        for one in ast.walk(body)
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
        if isinstance(one.value, ast.Name) and one.value.id == "self"
    }
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        found |= {
            one.target.id for one in node.body if isinstance(one, ast.AnnAssign) if isinstance(one.target, ast.Name)
        }
    return {name for name in found if not name.startswith("_")}


RECORDS = {
    "daemon/gpushared/core/model.py": {"Ask", "Counters", "Gpu", "Job", "Share"},
    "daemon/gpushared/core/policy.py": {"Policy"},
    "daemon/gpushared/core/state.py": {"State"},
}
"""Classes with more attributes: numbers, counters, and what the core knows of jobs and GPUs. They are data without
behaviour, which the core alone changes. No class joins them."""


@pytest.mark.parametrize("path", PYTHON, ids=str)
def test_no_object_has_too_many_attributes_that_others_touch(path: Path) -> None:
    large = {
        node.name: sorted(found)
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and len(found := public_attributes(node)) > MOST_ATTRIBUTES
    }
    assert large.keys() == RECORDS.get(str(path), set()), large


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
