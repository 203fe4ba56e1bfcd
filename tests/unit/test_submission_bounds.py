"""How many jobs an array may have."""

from __future__ import annotations

import pytest

from gpushare.cluster.service.submission import read
from gpushare.errors import UsageError


@pytest.mark.parametrize("array", [1, 10_000])
def test_an_array_may_have_ten_thousand_jobs(array) -> None:
    assert read({"array": array}).array == array


@pytest.mark.parametrize(
    ("array", "words", "hint"),
    [
        (10_001, "an array of 10001 jobs is too large", "submit several arrays of at most 10000"),
        (0, "array is not a whole number from 1 to 10000", None),
        (True, "array is not a whole number from 1 to 10000", None),
        (1.5, "array is not a whole number from 1 to 10000", None),
    ],
)
def test_what_no_array_can_have_is_refused(array, words, hint) -> None:
    with pytest.raises(UsageError) as caught:
        read({"array": array})
    assert (caught.value.message, caught.value.hint) == (words, hint)
