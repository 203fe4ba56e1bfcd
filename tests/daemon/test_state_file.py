"""What a daemon writes down of its jobs, as the next one reads it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX, NOTHING
from gpushared.core import persistence
from gpushared.core.node import NodeState
from gpushared.jobs.found_state import FoundState
from gpushared.jobs.placements import Placement, Placements
from gpushared.jobs.registry import JobRecord, JobState
from gpushared.jobs.state_file import StateFile

SPEC = JobSpec("train", 70001, "ada", ("x", "y"), NOTHING, MAX)


def process(pid: int) -> Any:
    return SimpleNamespace(pid=pid, start_time=10 * pid)


def read(path: Path) -> dict[str, dict[str, Any]]:
    return FoundState(path).jobs


@pytest.mark.parametrize("patience", [None, 30.0])
def test_a_job_that_waits_is_noted_with_its_submission_and_the_end_of_its_wait(tmp_path, patience) -> None:
    until = None if patience is None else time.monotonic() + patience
    record = JobRecord("00000000000000a1", SPEC, wrapper=process(5), patience=until)
    StateFile(tmp_path / "state.json").write(NodeState(), 5.0, [record])
    note = read(tmp_path / "state.json")["00000000000000a1"]
    assert persistence.spec_from_note(note["queued"]["spec"]) == SPEC
    assert note["queued"]["until"] == until
    if patience is None:
        assert note["queued"]["patience"] is None
    else:
        assert note["queued"]["patience"] == pytest.approx(time.time() + patience, abs=1.0)
    assert (note["wrapper"], note["main"], note["note"], note["placement"]) == ([5, 50], None, None, None)


def test_a_job_that_runs_waits_for_nothing(tmp_path) -> None:
    record = JobRecord("00000000000000a1", SPEC, main=process(6), state=JobState.RUNNING, started=7.0, began=8.0)
    StateFile(tmp_path / "state.json").write(NodeState(), 5.0, [record])
    note = read(tmp_path / "state.json")["00000000000000a1"]
    assert (note["queued"], note["wrapper"], note["main"]) == (None, None, [6, 60])
    assert (note["started"], note["began"]) == (7.0, 8.0)


def test_each_change_of_a_job_is_in_the_next_text_and_each_job_is_its_own(tmp_path) -> None:
    """Texts are kept from one write to the next."""
    file, path = StateFile(tmp_path / "state.json"), tmp_path / "state.json"
    first, second = (JobRecord(f"00000000000000a{number}", SPEC) for number in (1, 2))
    placements = Placements()
    file.write(NodeState(), 5.0, [first, second], placements=placements)
    before = read(path)
    assert before.keys() == {first.id, second.id}
    for change in (
        lambda: setattr(first, "wrapper", process(5)),
        lambda: setattr(first, "main", process(6)),
        lambda: setattr(first, "patience", time.monotonic() + 9.0),
        lambda: setattr(first, "state", JobState.RUNNING),
        lambda: placements.put(Placement("p", 3, first.id, ("/a",))),
    ):
        change()
        file.write(NodeState(), 5.0, [first, second], placements=placements)
        now = read(path)
        assert now[first.id] != before[first.id] and now[second.id] == before[second.id]
        before = now
    assert before[first.id]["placement"]["attempt"] == 3
    file.write(NodeState(), 5.0, [second])
    assert read(path).keys() == {second.id}


def test_the_last_attempts_of_placements_are_noted(tmp_path) -> None:
    placements = Placements()
    placements.attempts["p"] = 4
    StateFile(tmp_path / "state.json").write(NodeState(), 5.0, [], placements=placements)
    assert FoundState(tmp_path / "state.json").attempts == {"p": 4}
    assert json.loads((tmp_path / "state.json").read_text())["jobs"] == {}
