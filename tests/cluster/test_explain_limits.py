"""What `explain` proposes where a limit or a quota is in the way: named by its kind, and it starts the job."""

from __future__ import annotations

import pytest
from allocator_stage import Stage

from gpushare.cluster.model import Queue, QueueAdded
from gpushare.cluster.quantity import gpus


def queue(stage: Stage, name: str, **fields) -> None:
    given = {
        key: gpus(value) if key in ("quota", "limit") and value is not None else value for key, value in fields.items()
    }
    stage.send(QueueAdded(Queue(name, **given)))


@pytest.mark.parametrize(
    ("fields", "preemptible", "expected"),
    [
        ({"quota": 1, "limit": 2}, True, "raise the limit of q from 2 to 3"),
        ({"quota": 2, "static": True}, True, "raise the quota of q from 2 to 3"),
        ({"quota": 2, "limit": 8}, False, "raise the quota of q from 2 to 3"),
        (
            {"quota": 1, "limit": 2},
            False,
            "raise the limit of q from 2 to 3 and the quota of q from 1 to 3",
        ),
    ],
)
def test_what_is_raised_is_what_stands_in_the_way_and_no_further(fields, preemptible, expected) -> None:
    stage = Stage({"n": 8})
    queue(stage, "q", **fields)
    stage.job("q", 3, name="j", preemptible=preemptible)
    assert stage.waiting() == ["j"]
    why = stage.allocator.explain("j")
    assert why.change == expected
    stage.send(list(why.changes))
    assert stage.running() == ["j"]


def test_a_quota_is_raised_at_once_for_the_equal_jobs_ahead() -> None:
    """They start before it, so less would not do."""
    stage = Stage({"n": 8})
    queue(stage, "owner", quota=0, weight=0)
    queue(stage, "borrower", quota=0)
    for index in range(8):
        stage.job("borrower", 1, name=f"b{index}")
    names = ["first", "second", "third"]
    for name in names:
        stage.job("owner", 2, name=name)
    assert stage.waiting() == names
    why = stage.allocator.explain("third")
    raised = {text: changes for text, changes in ((why.change, why.changes), *why.others) if "quota" in text}
    assert list(raised) == ["raise the quota of owner from 0 to 6"]
    stage.send(list(*raised.values()))
    assert set(names) <= set(stage.running())
