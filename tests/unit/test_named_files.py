"""A file that a comment or a docstring names is there: what points to code leads nowhere once that has been renamed."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("gpushare", "daemon", "shim", "benchmarks", "tests", "web", "deploy", "docs")
OURS = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".c", ".h")}
OURS |= {path.name for path in ROOT.glob("*.py")}
EXAMPLES = {"train.py", "tarin.py", "queue.py", "types.py", "cuda.h"}
"""Programs of users, files of others."""

NAME = re.compile(r"(?<![\w/.\-*])([a-z][a-z_0-9]*\.(?:py|c|h))\b")
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)


def prose_of_python(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def named(path: Path) -> set[str]:
    text = path.read_text()
    parts = prose_of_python(text) if path.suffix == ".py" else C_COMMENT.findall(text)
    return {name for part in parts for name in NAME.findall(part)}


SOURCES = sorted(
    path
    for folder in ("gpushare", "daemon", "shim", "benchmarks")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".c", ".h", ".def") and "build" not in path.parts
)


def test_names_are_found_in_comments_and_docstrings_alone(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""As one.py does."""\nx = "two.py"  # see three.h, not /tmp/four.py\n')
    assert named(tmp_path / "a.py") == {"one.py", "three.h"}
    (tmp_path / "a.c").write_text('#include "two.h"\n/* one.c\n three.h */ // four.c\n')
    assert named(tmp_path / "a.c") == {"one.c", "three.h", "four.c"}


@pytest.mark.parametrize("folder", ["gpushare", "daemon", "shim", "benchmarks"])
def test_files_that_are_named_are_there(folder: str) -> None:
    sources = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == folder]
    assert len(sources) > 10
    gone = {str(path.relative_to(ROOT)): lost for path in sources if (lost := named(path) - OURS - EXAMPLES)}
    assert not gone
