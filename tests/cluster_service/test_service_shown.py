"""The state that the service shows of a job, by what the ledger has of it and what the engine shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import pytest
from service_stage import GIB, Stage

from gpushare.cluster.engines.runner import Result
from gpushare.cluster.engines.seam import SeenTask
from gpushare.cluster.model import JobView
from gpushare.cluster.service.shown import live_job

Phase = Literal["starting", "running", "stopping", "done", "failed"]
Has = Literal["places", "held", "waits", "nothing"]

STATES: list[tuple[Has, Sequence[Phase], bool, str]] = [
    ("waits", (), False, "pending"),
    ("held", (), False, "held"),
    ("nothing", (), False, "pending"),
    ("places", (), False, "starting"),
    ("places", ("starting", "starting"), False, "starting"),
    ("places", ("starting", "running"), False, "running"),
    ("places", ("failed",), False, "starting"),
    # It has lost its places, and its programs still hold the GPUs.
    ("waits", ("stopping",), False, "stopping"),
    ("waits", ("running", "done"), False, "stopping"),
    ("held", ("stopping",), False, "stopping"),
    ("nothing", ("running",), False, "stopping"),
    ("waits", ("done", "failed"), False, "pending"),
    ("held", ("done",), False, "held"),
    # It has its result.
    ("places", ("running",), True, "stopping"),
    ("places", ("stopping",), True, "stopping"),
    ("nothing", ("stopping",), True, "stopping"),
    ("places", ("done",), True, "ended"),
    ("held", (), True, "ended"),
    ("nothing", (), True, "ended"),
]


@pytest.mark.parametrize(("has", "phases", "over", "state"), STATES)
def test_the_state_says_what_holds_gpus(
    stage: Stage, has: Has, phases: Sequence[Phase], over: bool, state: str
) -> None:
    stage.submit(gpus=2, tasks=2)
    stage.rounds()
    allocator = stage.store.allocator
    view: JobView | None = allocator.jobs["1"]
    assert view is not None and view.places
    if has == "nothing":
        view = None
    elif has != "places":
        view = replace(view, places=(), held=has == "held")
    entry = stage.service.book.entries["1"]
    entry = replace(entry, result=Result("cancelled") if over else None)
    tasks = [SeenTask(1, 0, number, "n1", (number,), 80 * GIB, phase) for number, phase in enumerate(phases)]
    shown = live_job(entry, allocator.jobs["1"].job, view, tasks)
    assert shown["state"] == state
    assert [one["phase"] for one in shown["tasks"]] == list(phases)
    assert (shown["result"] is not None) == over and (shown["reason"] is None or not over)


def test_a_job_that_makes_room_is_stopping_until_it_has_stopped(tmp_path: Any) -> None:
    """And waits again then."""
    stage = Stage(tmp_path, nodes=1, queues=[("lab", 1), ("web", 1)])
    stage.runner.stubborn = True
    stage.submit(queue="lab", gpus=2, requeue=True)
    stage.rounds()
    assert stage.states() == {"1": "running"}
    stage.submit(queue="web", gpus=1)
    stage.rounds()
    assert stage.states() == {"1": "stopping", "2": "starting"}
    (path,) = stage.runner.directory.glob("1.*.task")
    path.unlink()
    stage.rounds()
    assert stage.states() == {"1": "pending", "2": "running"}
    shown = cast(list[dict[str, Any]], stage.service.shown(["1"]))[0]
    assert (shown["evictions"], shown["tasks"], shown["places"]) == (1, [], []) and shown["reason"]
    stage.store.close()


def test_what_ends_between_two_pieces_of_a_list_is_in_the_next_piece(stage: Stage) -> None:
    first, second = stage.submit(gpus=2), stage.submit(gpus=2)
    stage.rounds()
    over, ids = stage.service.listed(ended=True)
    assert (over, ids) == ([], [first, second])
    stage.runner.finish(first)
    stage.rounds()
    assert stage.service.ids() == [second]
    assert [one["state"] for one in stage.service.shown(ids, ended=True)] == ["ended", "running"]
    assert [one["id"] for one in stage.service.shown(ids)] == [second]
