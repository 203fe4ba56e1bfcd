"""What a sample of the usage history has of each job and GPU, and how it is shown to those who follow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpushared.api import history
from gpushared.api.history import HistoryHandler
from gpushared.api.history_question import point
from gpushared.core.visibility import Viewer
from gpushared.history.levels import OUTSIDE, TOTAL, Amounts, Point, SeriesKey, Who
from gpushared.history.usage import Change

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
EVERY = 1.0
WHILE_FOLLOWED = 0.5
WHOLE = 1000

ADA, BOB = 70001, 70002


def thing(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


def job(id: str, *, bounds: dict[str, tuple[int, int]], observed: dict[str, int] | None = None, uid: int = ADA) -> Any:
    spec = thing(observe=observed is not None, name=f"name of {id}", user="ada", uid=uid)
    found = {gpu: thing(request=request, limit=limit) for gpu, (request, limit) in bounds.items()}
    return thing(id=id, bounds=found, observed=observed or {}, spec=spec)


class Node:
    """GPU x has jobs a and b, and c, which is only observed; GPU y has job a alone."""

    def __init__(self) -> None:
        self.usage = {"x": {"a": 30, "b": 5}, "y": {"a": 4}}
        jobs = {
            "a": job("a", bounds={"x": (10, 50), "y": (4, 9)}),
            "b": job("b", bounds={"x": (8, 20)}, uid=BOB),
            "c": job("c", bounds={"x": (0, 99)}, observed={"x": 7}),
        }
        gpus = {id: thing(id=id, unmanaged=3, capacity=100, returning_total=0) for id in "xy"}
        self.times = {"a": {"x": 2.0, "y": 1.0}, "b": {"x": 0.5}}
        self.shell: Any = thing(
            core=thing(gpus=gpus, jobs=jobs, requested=lambda gpu: {"x": 18, "y": 4}[gpu.id]),
            credit=thing(usage_by_job=lambda gpu: self.usage[gpu.id]),
            registry=thing(live=lambda: [thing(id=id, totals=thing(gpu_time=one)) for id, one in self.times.items()]),
        )


def test_what_a_sample_has_of_each_job_and_gpu() -> None:
    found = history.seen(Node().shell)
    assert found == {
        SeriesKey("x", "a"): Amounts(30, 10, 50, 20),
        SeriesKey("x", "b"): Amounts(5, 8, 20, 0),
        SeriesKey("x", "c"): Amounts(7, 0, 99, 0),
        SeriesKey("x", TOTAL): Amounts(35, 18, 100, 20),
        SeriesKey("x", OUTSIDE): Amounts(3, 0, 0, 0),
        SeriesKey("y", "a"): Amounts(4, 4, 9, 0),
        SeriesKey("y", TOTAL): Amounts(4, 4, 100, 0),
        SeriesKey("y", OUTSIDE): Amounts(3, 0, 0, 0),
    }


def test_the_gpu_time_of_each_job_and_of_all_together() -> None:
    assert history.gpu_time(Node().shell) == {
        SeriesKey("x", "a"): 2.0,
        SeriesKey("y", "a"): 1.0,
        SeriesKey("x", "b"): 0.5,
        SeriesKey("x", TOTAL): 2.5,
        SeriesKey("y", TOTAL): 1.0,
    }


def test_a_look_takes_a_sample_and_says_when_to_look_again() -> None:
    node, taken = Node(), list[Any]()
    usage: Any = thing(look=lambda *told: taken.append(told), followers=set())
    handler: Any = HistoryHandler(node.shell, usage, lambda request: None, lambda request: None)  # type: ignore[arg-type, return-value]
    handler._gpu_time = thing(
        means=lambda times, now: {SeriesKey("x", "a"): 250, SeriesKey("x", "b"): 0, SeriesKey("z", "gone"): 9}
    )
    assert handler.look() == EVERY
    usage.followers.add(1)
    assert handler.look() == WHILE_FOLLOWED < EVERY
    (seen, whose, _), _ = taken
    assert seen[SeriesKey("x", "a")] == Amounts(30, 10, 50, 20, 250) and seen[SeriesKey("x", "b")].computing == 0
    assert SeriesKey("z", "gone") not in seen, "a job that has gone has no memory"
    assert whose(SeriesKey("x", "b")) == Who("name of b", "ada", BOB)
    for key in (SeriesKey("x", TOTAL), SeriesKey("x", OUTSIDE)):
        assert whose(key) == Who("", "", -1)


@pytest.mark.parametrize(
    ("reveal", "name", "user"), [("none", "-", "-"), ("user", "-", "bob"), ("name", "secret", "bob")]
)
def test_who_follows_sees_amounts_and_of_names_what_reveal_says(reveal, name, user) -> None:
    others, own, total, gone = (SeriesKey("x", id) for id in ("b", "a", TOTAL, "d"))
    changed = {others: Amounts(5, 8, 20, 0, 250), own: Amounts(1, 2, 3, 0), total: Amounts(6, 10, 100, 0), gone: None}
    who = {others: Who("secret", "bob", BOB), own: Who("train", "ada", ADA), total: Who("", "", -1)}
    line = history._line(Change(12_500, changed, who), Viewer(ADA, reveal))
    first, mine, whole, last = line["series"]  # type: ignore[misc]
    assert line["time"] == 12.5
    amounts = {"usage": 5, "request": 8, "limit": 20, "loan": 0, "computing": 250 / WHOLE}
    assert first == {"gpu": "x", "job": "b", "name": name, "user": user, "now": amounts}
    assert (mine["name"], mine["user"]) == ("train", "ada") and (whole["name"], whole["user"]) == ("", "")
    assert last == {"gpu": "x", "job": "d", "now": None}, "it has ended"


def test_a_point_of_the_past() -> None:
    key = SeriesKey("x", "a")
    assert point(Point(key, 2500, Amounts(5, 8, 20, 1, 250), 6)) == [2.5, 5, 6, 8, 20, 1, 0.25]
    assert point(Point(key, 2500, None)) == [2.5], "nothing is known from then on"
