"""What a daemon that starts takes up of the history: ended jobs, records, and what living jobs were told."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpushare.history import Stop
from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX, NOTHING
from gpushared.jobs.earlier import Before, note_of_cut, take_up
from gpushared.jobs.registry import JobRegistry, JobState
from gpushared.limits.byte_budget import ByteBudget

GPU = {"uuid": "GPU-a", "index": 0, "peak": 7}
KILLED = {"code": "reclaim", "time": 5.0, "grace": 1.0}


def shown(id: str, **outcome: Any) -> dict[str, Any]:
    ended = {"exit_code": 3, "signal": None, "killed": None, "peak": {"GPU-a": 7}, "refusals": 2, "duration": 60.0}
    return {
        **{"id": id, "name": "n", "user": "alice", "uid": 1001, "command": ["x", "y"], "state": "ended"},
        **{"since": 1000.0, "priority": 4, "lend": False, "grace": None, "on_reclaim": ["term", "kill"]},
        **{"request_source": None, "limit_source": "--limit", "gpus": [GPU], "processes": []},
        "outcome": {**ended, **outcome},
    }


def record(at: float, text: str = "said") -> dict[str, Any]:
    return {
        "time": at,
        "event": "e",
        "gpu": "GPU-a",
        "job": "j",
        "name": "n",
        "uid": 7,
        "text": text,
        "facts": {"a": 1},
    }


@pytest.fixture
def registry() -> JobRegistry:
    return JobRegistry(None, ByteBudget(lambda _: False))  # type: ignore[arg-type]


def test_an_ended_job_is_as_it_was_shown(registry: JobRegistry, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    whole = {"ended": 1060.0, "seen": False, "gpu_time": {"GPU-a": 1.5}, "killed": KILLED, "signal": 9}
    assert take_up(registry, Before([shown("a"), shown("b", **whole)], [])) == []
    first, second = registry.all()
    assert (first.id, first.state, first.started, first.of_earlier_daemon) == ("a", JobState.ENDED, 1000.0, True)
    spec = first.spec
    assert (spec.name, spec.uid, spec.command, spec.priority, spec.lend) == ("n", 1001, ("x", "y"), 4, False)
    assert (spec.request, spec.limit) == (NOTHING, MAX)
    end = first.ending
    assert (end.exit_code, end.exit_signal, end.reclaim, end.at, end.duration, end.seen) == (
        3,
        None,
        None,
        None,
        60,
        True,
    )
    assert end.last_seen == {"gpus": [GPU]}
    assert (first.totals.peak, first.totals.gpu_time, first.totals.refusals) == ({"GPU-a": 7}, {}, 2)
    end = second.ending
    assert (end.exit_signal, end.reclaim, end.at, end.seen) == (9, KILLED, 1060.0, False)
    assert second.totals.gpu_time == {"GPU-a": 1.5}
    (told,) = caplog.records
    assert (told.getMessage(), told.facts) == ("the history was read", {"ended_jobs": 2})


def test_a_job_that_lives_is_not_ended_by_its_history(registry: JobRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """It begins where it was: under a claim, or relieved of one that begins again."""
    caplog.set_level("INFO")
    spec = JobSpec("n", 1001, "alice", (), NOTHING, MAX)
    living = {name: registry.open(name, spec) for name in ("told", "killed", "free")}
    stops = {"told": Stop(KILLED, last=False), "killed": Stop(KILLED, last=True), "gone": Stop(KILLED, last=True)}
    take_up(registry, Before([shown("told")], [], stops))
    assert list(registry.all()) == list(living.values()) and all(one.of_earlier_daemon for one in living.values())
    found = {name: (one.ending.relieved, one.ending.reclaim) for name, one in living.items()}
    assert found == {"told": (KILLED, None), "killed": (None, KILLED), "free": (None, None)}
    assert caplog.records == [], "no ended job was taken up"


def test_records_are_in_the_cores_time(registry: JobRegistry) -> None:
    now = time.time()
    (one,) = take_up(registry, Before([], [record(now - 10)]))
    assert time.monotonic() - one.time == pytest.approx(10, abs=0.5)
    told = (one.event, one.gpu, one.text, one.facts, one.job, one.name, one.uid)
    assert told == ("e", "GPU-a", "said", {"a": 1}, "j", "n", 7)


def test_the_line_for_what_is_left_out_is_as_old_as_what_follows() -> None:
    follows: Any = [record(70.0), record(80.0)]
    (line,) = note_of_cut(follows)
    assert (line["time"], line["event"], line["job"]) == (70.0, "lost", None)
    assert line["text"] == "earlier events are left out here: there are too many"
    assert note_of_cut([])[0]["time"] == pytest.approx(time.time(), abs=5)
