"""What each Xid means, number by number (xids.txt): if the table changes, this shows which numbers have changed.

When it is meant to change, GPUSHARE_TEST_UPDATE=1 writes the file again.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
from pathlib import Path

from gpushared.core import xid_catalog
from gpushared.core.health_issues import Condition
from gpushared.core.xid_catalog import XIDS, of_xid

GOLDEN = Path(__file__).with_name("xids.txt")
HIGHEST = 200
"""No Xid of the catalogue is higher."""


def listing() -> str:
    found = []
    for number in range(HIGHEST):
        if number in XIDS:
            told = of_xid(number)
            found.append(f"{number:>3} {told.condition.name.lower():<8} {XIDS[number].meaning}; {told.hint}")
    return "\n".join(found) + "\n"


def test_each_number_means_what_it_meant() -> None:
    text = listing()
    if os.environ.get("GPUSHARE_TEST_UPDATE"):
        GOLDEN.write_text(text)
    changes = difflib.unified_diff(GOLDEN.read_text().splitlines(), text.splitlines(), "xids.txt", "now", n=0)
    assert not (difference := "\n".join(changes)), f"{difference}\nif so it should be: GPUSHARE_TEST_UPDATE=1"
    assert max(XIDS) < HIGHEST


def exceptions() -> set[int]:
    """The numbers that the module's own words call degraded."""
    told = (xid_catalog.__doc__ or "").partition("which are degraded:")[2].partition("The others on that")[0]
    heads = [re.match(r" {4}(\d[\d, -]*\d)", line) for line in told.splitlines()]
    found: set[int] = set()
    for head in filter(None, heads):
        for part in head[1].split(","):
            first, _, last = part.strip().partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found


def test_the_exceptions_are_those_that_are_explained() -> None:
    degraded = {number for number in XIDS if XIDS[number].condition is Condition.DEGRADED}
    assert degraded == exceptions()


def test_each_number_stands_in_one_line() -> None:
    """A number in two lines would have the meaning of the second."""
    source = Path(xid_catalog.__file__).read_text()
    (table,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "XIDS"
    ]
    assert isinstance(table.value, ast.Call) and isinstance(table.value.args[0], ast.Tuple)
    names = vars(xid_catalog)
    numbers = [
        number
        for row in table.value.args[0].elts
        if isinstance(row, ast.Tuple)
        for number in eval(compile(ast.Expression(row.elts[0]), "numbers", "eval"), dict(names))
    ]
    assert sorted(numbers) == sorted(XIDS) and len(numbers) == len(set(numbers))


def test_what_is_not_in_the_table_is_to_be_looked_at() -> None:
    for number in (0, 1, 999):
        assert number not in XIDS
        told = of_xid(number)
        assert (told.condition, told.cause, told.data) == (Condition.DEGRADED, f"xid_{number}", {"xid": number})
    assert of_xid(79).cause == "lost" and of_xid(48).cause == "xid_48"
