"""Answers of the daemon are checked against their types before anybody reads them."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from gpushare.api import check
from gpushare.errors import DaemonUnreachable


class Counted(TypedDict):
    count: int


class Inner(Counted, total=False):
    ratio: float


class Outer(TypedDict):
    name: str
    flag: bool
    one: Inner | None
    many: list[Inner]
    by_name: dict[str, int]
    anything: Any


GOOD: dict[str, Any] = {
    "name": "x",
    "flag": True,
    "one": {"count": 1},
    "many": [{"count": 1, "ratio": 2}, {"count": 2, "ratio": 0.5}],
    "by_name": {"a": 1},
    "anything": object,
    "of a later version": 1,
}


def test_an_answer_with_its_types_is_taken() -> None:
    check(GOOD, Outer)
    check(GOOD | {"one": None, "many": [], "by_name": {}}, Outer)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("$.name", {"name": 1}),
        ("$.name", {"name": None}),
        ("$.flag", {"flag": 1}),
        ("$.one", {"one": 3}),
        ("$.one", {"one": {"count": "1"}}),
        ("$.many", {"many": {}}),
        ("$.many", {"many": "text"}),
        ("$.many[1].count", {"many": [{"count": 1}, {"count": True}]}),
        ("$.many[0].ratio", {"many": [{"count": 1, "ratio": True}]}),
        ("$.many[0].ratio", {"many": [{"count": 1, "ratio": "1"}]}),
        ("$.by_name", {"by_name": []}),
        ("$.by_name.b", {"by_name": {"a": 1, "b": 1.5}}),
    ],
)
def test_a_wrong_type_is_named_by_its_path(path: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(DaemonUnreachable) as caught:
        check(GOOD | wrong, Outer)
    assert f": {path} is " in str(caught.value) and caught.value.code == "garbage"


@pytest.mark.parametrize("name", [name for name in GOOD if name != "of a later version"])
def test_a_field_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(DaemonUnreachable, match=f"{name} is missing"):
        check({key: value for key, value in GOOD.items() if key != name}, Outer)
