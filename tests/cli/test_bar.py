"""The strip that `gpushare status` and notebooks draw for a GPU's memory."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare.cli.status import bar


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
