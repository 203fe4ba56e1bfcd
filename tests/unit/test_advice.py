"""What to ask for, by what was seen."""

from __future__ import annotations

import pytest

from gpushare.advice import NOTHING_SEEN, limit_for, of_peaks
from gpushare.quantity import Quantity

MIB, GIB = 2**20, 2**30
TOTAL = 16 * GIB


@pytest.mark.parametrize(
    ("peak", "limit"),
    [
        (1, "256Mi"),
        (232 * MIB, "256Mi"),
        (240 * MIB, "512Mi"),
        (900 * MIB, "1Gi"),
        (int(1.8 * GIB), "2Gi"),
        (int(1.9 * GIB), "3Gi"),
        (int(3.3 * GIB), "4Gi"),
        (int(3.7 * GIB), "5Gi"),
        (14 * GIB, "max"),
        (TOTAL, "max"),
    ],
)
def test_a_tenth_more_and_round(peak, limit):
    assert limit_for(peak, TOTAL) == limit


def test_the_limit_always_suffices_and_is_not_far():
    for peak in range(MIB, 13 * GIB, 97 * MIB):
        limit = Quantity.parse(limit_for(peak, TOTAL)).resolve(TOTAL)
        assert peak * 1.1 - 1 <= limit <= max(peak * 1.1 + 256 * MIB, peak * 1.1 + GIB if peak > 1.8 * GIB else 0)


def test_the_largest_of_several_gpus_decides():
    assert of_peaks([(0, GIB, TOTAL), (3, int(3.3 * GIB), TOTAL), (5, 2 * GIB, TOTAL)]) == (
        "peak 3.3 GiB on GPU 3: ask for it with --limit 4Gi",
        "4Gi",
    )
    assert of_peaks([]) == (NOTHING_SEEN, None)
    assert of_peaks([(0, 0, TOTAL)]) == (NOTHING_SEEN, None)
