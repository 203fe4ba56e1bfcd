"""A queue's fair share in words: the sum that it comes from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushare.cluster.answers import Share

ONE = 1_000_000
SHARE = Share(
    queue="a",
    share=4 * ONE,
    guaranteed=4 * ONE,
    surplus=0,
    quota=4 * ONE,
    cap=8 * ONE,
    demand=8 * ONE,
    allocated=0,
    weight=2 * ONE,
    weights=6 * ONE,
    left=3 * ONE,
    capped=False,
    parent_share=16 * ONE,
)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "4 = 4 of its quota"),
        ({"share": 5 * ONE, "surplus": ONE}, "5 = 4 of its quota + 1 of the surplus (2/6 of 3)"),
        (
            {"share": 5 * ONE, "surplus": ONE, "capped": True},
            "5 = 4 of its quota + 1 of the surplus, all that it can use",
        ),
        ({"capped": True}, "4 = 4 of its quota"),
        ({"share": 3 * ONE, "guaranteed": 3 * ONE}, "3 = 3 of its quota of 4 (quotas exceed what there is)"),
        ({"share": 3 * ONE, "guaranteed": 3 * ONE, "cap": 3 * ONE}, "3 = 3 of its quota"),  # it wants no more
        ({"share": 0, "guaranteed": 0, "quota": 0}, "0 = 0 of its quota"),
        ({"quota": None}, "4 = 4 of its quota"),
        (
            {"share": ONE // 4, "guaranteed": 0, "surplus": ONE // 4, "capped": True, "quota": 0},
            "0.25 = 0 of its quota + 0.25 of the surplus, all that it can use",
        ),
    ],
)
def test_a_share_is_told_as_its_sum(more: dict[str, object], words: str) -> None:
    said = replace(SHARE, **more).words  # type: ignore[arg-type]
    assert said == words
