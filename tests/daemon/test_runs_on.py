"""A job that was told to end, and then is suspended or runs on after all: its later end is not that of a reclaim."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from gpushare.history import Stop
from gpushare.job_spec import JobSpec
from gpushare.quantity import MAX, NOTHING
from gpushare.reasons import Code, Reason
from gpushared.core.instructions import Notify
from gpushared.jobs.lifecycle import JobLifecycle
from gpushared.jobs.registry import JobRecord, JobRegistry
from gpushared.limits.byte_budget import ByteBudget


class Noted:
    """The history: what was written of the job's stop, in order."""

    def __init__(self) -> None:
        self.stops: list[Any] = []

    def job(self, uid: int, picture: Any, now: float, stop: Any) -> None:
        self.stops.append(stop)


@pytest.fixture
def told() -> tuple[JobLifecycle, JobRecord, Noted]:
    noted = Noted()
    registry = JobRegistry(None, ByteBudget(lambda _: False))  # type: ignore[arg-type]
    jobs = JobLifecycle(registry, lambda _: None, noted)  # type: ignore[arg-type]
    jobs.picture_of = lambda _: {"gpus": []}  # type: ignore[assignment, return-value]
    record = registry.open("a" * 16, JobSpec("train", 1001, "ada", (), NOTHING, MAX))
    jobs.told_to_end(record, Stop({"time": time.time(), "grace": 60.0}, last=False))
    return jobs, record, noted


@pytest.mark.parametrize("kind", ["relieved", "suspended", "not_suspended", "resumed"])
def test_it_need_not_end_any_more(told: tuple[JobLifecycle, JobRecord, Noted], kind: str) -> None:
    jobs, record, noted = told
    assert record.ending.reclaim is not None
    jobs.notify(Notify(record.id, kind, Reason(Code.SUSPENDED, "said")))
    record.ending.note_exit(None, signal.SIGKILL)
    assert record.outcome(0)["killed"] is None
    assert len(noted.stops) == 2 and noted.stops[1] is None, "the next daemon must know, too"
    jobs.notify(Notify(record.id, "resumed", Reason(Code.RESUMED, "said")))
    assert len(noted.stops) == 2, "it was told nothing meanwhile"


@pytest.mark.parametrize("kind", ["relieved", "suspended"])
def test_if_its_sigterm_ends_it_all_the_same_that_was_the_reclaim(
    told: tuple[JobLifecycle, JobRecord, Noted], kind: str
) -> None:
    jobs, record, _ = told
    for one in (kind, "resumed"):
        jobs.notify(Notify(record.id, one, Reason(Code.SUSPENDED, "said")))
    record.ending.note_exit(None, signal.SIGTERM)
    assert record.outcome(0)["killed"] is not None


@pytest.mark.parametrize("kind", ["waiting", "hook", "unhooked"])
def test_other_notices_change_nothing(told: tuple[JobLifecycle, JobRecord, Noted], kind: str) -> None:
    jobs, record, noted = told
    jobs.notify(Notify(record.id, kind, Reason(Code.SUSPENDED, "said")))
    assert record.ending.reclaim is not None and len(noted.stops) == 1
