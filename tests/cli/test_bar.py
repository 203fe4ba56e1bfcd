"""The strip that `gpushare status` and notebooks draw for a GPU's memory."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare.cli.status import bar
from gpushare.cli.top import _strip


@pytest.mark.parametrize(
    ("usage", "lent", "unmanaged", "total", "strip"),
    [
        (0, 0, 0, 16, "[........]"),
        (0, 0, 0, 0, "[........]"),
        (5, 0, 0, 0, "[........]"),
        (8, 4, 4, 16, "[##++!!..]"),
        (16, 16, 0, 16, "[++++++++]"),
        (1, 0, 0, 1000, "[#.......]"),
        (1000, 1, 1, 1000, "[########]"),
        (2, 1, 1, 1000, "[#+!.....]"),
    ],
)
def test_each_kind_of_memory_has_its_marks_and_never_more_than_the_strip(
    usage: int, lent: int, unmanaged: int, total: int, strip: str
) -> None:
    gpu: Any = {"usage": usage, "lent": lent, "unmanaged": unmanaged, "total": total}
    assert bar(gpu, 8) == strip
    assert len(bar(gpu)) == 26


@pytest.mark.parametrize(
    ("requested", "total", "strip"),
    [
        (0, 16, "[|#++!...]"),
        (2, 16, "[#|++!...]"),
        (8, 16, "[##++|...]"),
        (14, 16, "[##++!..|]"),
        (16, 16, "[##++!..|]"),
        (99, 16, "[##++!..|]"),
        (0, 0, "[........]"),
    ],
)
def test_the_strip_of_top_has_a_mark_where_the_requests_end(requested: int, total: int, strip: str) -> None:
    gpu: Any = {"usage": 8, "lent": 4, "unmanaged": 2, "total": total, "requested": requested}
    assert _strip(gpu, 8) == strip
