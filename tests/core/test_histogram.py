"""Durations in classes: a bound belongs to the class below it, as in Prometheus (`le`)."""

from __future__ import annotations

from gpushared.core.histogram import BOUNDS, Histogram


def test_each_duration_is_in_one_class_and_below_all_later_bounds() -> None:
    waits = Histogram()
    for seconds in (0.0, BOUNDS[0], BOUNDS[0] * 1.01, BOUNDS[-1], BOUNDS[-1] + 1):
        waits.add(seconds)
    at_most = dict(waits.cumulative())
    assert at_most[BOUNDS[0]] == 2
    assert at_most[BOUNDS[1]] == 3 == at_most[BOUNDS[-2]]
    assert at_most[BOUNDS[-1]] == 4
    assert at_most[float("inf")] == 5 == waits.count
    assert waits.seconds == 2.01 * BOUNDS[0] + 2 * BOUNDS[-1] + 1
    assert list(at_most) == sorted(at_most)
