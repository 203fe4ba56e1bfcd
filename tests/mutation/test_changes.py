"""What the sampler can change, on small sources, and that it draws the same for the same seed."""

from __future__ import annotations

import ast
import contextlib
from itertools import islice
from pathlib import Path

import pytest

from mutation import c_changes, known, python_changes, record, sample
from mutation.change import Change
from mutation.groups import BY_NAME, GROUPS, ROOT


def python(source: str) -> set[tuple[str, str]]:
    """Each change of the first line: its operator, and what the line becomes."""
    text = source.encode()
    return {(one.operator, one.line_after(text)) for one in python_changes.changes("x.py", text)}


def c(source: str) -> set[tuple[str, str]]:
    """The same for a line in a C function."""
    text = f"int f(void)\n{{\n\t{source}\n\treturn x;\n}}\n".encode()
    return {(one.operator, one.line_after(text)) for one in c_changes.changes("x.c", text)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", {("comparison", "x = a <= b"), ("comparison", "x = a >= b")}),
        ("x = a not in b", {("comparison", "x = a in b")}),
        ("x = a and b", {("operand dropped", "x = (a)"), ("operand dropped", "x = (b)")}),
        ("x = a + b", {("sign", "x = a - b")}),
        ("x += a", {("sign", "x -= a")}),
        ("x = min(a)", {("min, max, any, all", "x = max(a)")}),
        ("x = 3", {("constant", "x = 4")}),
        ("x = 0.5", {("constant", "x = 1.0")}),
        ("x = True", {("boolean", "x = False")}),
        ("f(a)", {("call dropped", "pass")}),
        ("x.y = a", {("assignment dropped", "pass")}),
        ("x = a if b else c", {("branches swapped", "x = a if not (b) else c")}),
        ('"a docstring"', set()),
        ("assert a < b", set()),
        ("def _validate_all(): return a < b", set()),
        ("x = zip(a, b, strict=True)", set()),
    ],
)
def test_changes_of_python(source: str, expected: set[tuple[str, str]]) -> None:
    assert python(source) == expected


def test_an_early_exit_is_dropped_and_the_last_return_is_not() -> None:
    text = b"if a:\n    return\n"
    assert [one.apply(text) for one in python_changes.changes("x", text) if one.operator == "early exit dropped"] == [
        b"if a:\n    pass\n"
    ]
    assert python("def f():\n    return a") == set()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b;", {("comparison", "x = a <= b;"), ("comparison", "x = a >= b;"), ("assignment dropped", ";")}),
        ("g(a->b);", {("call dropped", ";")}),
        ("x->y = z;", {("assignment dropped", ";")}),
        ("g(a && b);", {("call dropped", ";"), ("operand dropped", "g(a);"), ("operand dropped", "g(b);")}),
        ("g(a + b);", {("call dropped", ";"), ("sign", "g(a - b);")}),
        ('g("3 < 4 && 5"); /* 3 < 4 */', {("call dropped", "; /* 3 < 4 */")}),
        ("int y = a << 3;", {("constant", "int y = a << 4;")}),
        (
            "f(__builtin_expect(a, 0), 1);",
            {("call dropped", ";"), ("constant", "f(__builtin_expect(a, 0), 2);")},
        ),
    ],
)
def test_changes_of_c(source: str, expected: set[tuple[str, str]]) -> None:
    assert c(source) == expected


def test_an_if_in_c_is_negated_and_its_exit_dropped() -> None:
    assert c("if (x)\n\t\treturn y;") == {("branches swapped", "if (!(x))"), ("early exit dropped", ";")}


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_every_change_keeps_the_lines_of_the_source_and_is_a_change(group) -> None:
    sources = {path: (ROOT / path).read_bytes() for path in group.files()}
    assert sources
    for change in sample.every(group):
        source = sources[change.path]
        changed = change.apply(source)
        assert changed != source
        assert changed.count(b"\n") == source.count(b"\n")


def test_nearly_every_change_of_python_is_another_program() -> None:
    drawn = [*islice(sample.draw(BY_NAME["allocator"], 1), 60)]
    programs = 0
    for change in drawn:
        with contextlib.suppress(SyntaxError):
            ast.parse(change.apply((ROOT / change.path).read_bytes()))
            programs += 1
    assert programs >= 0.95 * len(drawn)


def test_a_seed_draws_the_same_changes_and_another_seed_others() -> None:
    first, again, other = ([*islice(sample.draw(BY_NAME["core"], seed), 20)] for seed in (1, 1, 2))
    assert first == again != other
    assert len({(one.path, one.line_number((ROOT / one.path).read_bytes())) for one in first}) == 20


def test_no_source_is_in_two_groups() -> None:
    files = [path for group in GROUPS for path in group.files()]
    assert len(files) == len(set(files))


def test_every_source_is_in_a_group_but_for_the_engine_of_slurm() -> None:
    """Only real servers test that one."""
    found = {str(path.relative_to(ROOT)) for top in ("gpushare", "daemon") for path in (ROOT / top).rglob("*.py")}
    left_out = found - {path for group in GROUPS for path in group.files()}
    assert {str(Path(path).parent) for path in left_out} == {"gpushare/cluster/engines/slurm"}


def test_each_group_asks_every_test_below_its_folders() -> None:
    """A folder inside one of them has to be named, too."""
    for group in GROUPS:
        below = {path for folder in group.tests for path in (ROOT / folder).rglob("test_*.py")}
        asked = set(record.test_files(group))
        assert {str(path.relative_to(ROOT)) for path in below} <= asked, group.name


def test_the_list_of_what_cannot_matter_names_changes_that_exist() -> None:
    """An entry about a line that has changed since is to be taken out."""
    for one in known.read():
        source = (ROOT / one.file).read_bytes()
        assert one.why
        assert any(one.is_about(change, source) for change in sample.find(one.file, source)), one


def test_a_diff_can_be_applied() -> None:
    source = b"a = 1\nb = 2\nc = 3\n"
    change = Change("x.py", 10, 11, b"3", "constant")
    assert change.diff(source) == "--- a/x.py\n+++ b/x.py\n@@ -1,3 +1,3 @@\n a = 1\n-b = 2\n+b = 3\n c = 3\n"
