"""What is recorded of a simulated run: a row for each moment, thinned out as it grows, and one for each step."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.cluster import recording
from gpushare.cluster.recording import Recording


class Run:
    """A simulation as far as it is recorded."""

    def __init__(self) -> None:
        self.now = 0.0
        self.allocator = SimpleNamespace(queues={"a": SimpleNamespace(queue=SimpleNamespace(parent=None))})
        self.timeline = SimpleNamespace(happenings=[])

    def happens(self, after: float = 0.0) -> Any:
        self.now += after
        self.timeline.happenings.append(self.now)
        return self


@pytest.fixture(autouse=True)
def amounts(monkeypatch):
    monkeypatch.setattr(recording, "capacity", lambda allocator: 4)
    monkeypatch.setattr(recording, "of_queues", lambda allocator: [("a", "amounts")])


def times(one: Recording) -> list[float]:
    return [row.time for row in one.rows]


def test_of_each_moment_the_last_row_counts():
    one, run = Recording(), Run()
    for after in (0.0, 5.0, 0.0, 0.0, 2.0):
        one.after_decision(run.happens(after))
    assert times(one) == [0.0, 5.0, 7.0]
    assert [row.happened for row in one.rows] == [1, 4, 5]
    assert one.rows[0][1:3] == (4, {"a": "amounts"})


def test_a_long_run_is_thinned_out(monkeypatch):
    monkeypatch.setattr(recording, "MOST", 8)
    one, run = Recording(), Run()
    for _ in range(8):
        one.after_decision(run.happens(1.0))
    assert times(one) == [1, 2, 3, 4, 5, 6, 7, 8] and one._every == 1
    one.after_decision(run.happens(1.0))
    assert times(one) == [1, 3, 5, 7, 9] and one._every == 2
    for _ in range(9):
        one.after_decision(run.happens(1.0))
    assert len(one.rows) <= 9 and times(one)[0] == 1 and one._every in (2, 4)
    assert {after - before for before, after in pairwise(times(one))} == {one._every}


@pytest.mark.parametrize("most", [3, 10, 50])
def test_a_run_of_any_length_has_a_bounded_number_of_rows_at_equal_distances(monkeypatch, most):
    monkeypatch.setattr(recording, "MOST", most)
    one, run = Recording(), Run()
    for _ in range(1000):
        one.after_decision(run.happens(1.0))
        assert len(one.rows) <= most
    assert len(one.rows) > most // 2 - 1


def test_the_last_moment_is_always_there():
    one, run = Recording(), Run()
    one.end(run)
    assert times(one) == [0.0]
    one.after_decision(run.happens(3.0))
    one.end(run)
    assert times(one) == [0.0, 3.0], "it is there"
    run.now = 9.0
    one.end(run)
    assert times(one) == [0.0, 3.0, 9.0]
    run.happens()
    one.end(run)
    assert [row.happened for row in one.rows] == [0, 1, 1, 2], "a decision that was not recorded"


def test_a_row_for_each_step_and_whether_time_tells_them_apart():
    one, run = Recording(), Run()
    assert not one.in_steps
    for title, after in (("first", 0.0), ("second", 5.0)):
        one.after_step(SimpleNamespace(title=title), run.happens(after))  # type: ignore[arg-type]
    assert one.titles == ["first", "second"] and not one.in_steps and one.rows == []
    one.after_step(SimpleNamespace(title="third"), run.happens())  # type: ignore[arg-type]
    assert one.in_steps and [row.happened for row in one.steps] == [1, 2, 3]


def test_the_parent_that_a_queue_had_first():
    one, run = Recording(), Run()
    one.after_decision(run.happens())
    run.allocator.queues["b"] = SimpleNamespace(queue=SimpleNamespace(parent="a"))
    one.after_decision(run.happens(1.0))
    run.allocator.queues = {"b": SimpleNamespace(queue=SimpleNamespace(parent="c"))}
    one.after_decision(run.happens(1.0))
    assert one.parents == {"a": None, "b": "a"}
