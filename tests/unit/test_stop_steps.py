"""Stopping a job: what is said of it, how long it has, and when SIGKILL follows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpushare import stop
from gpushare.errors import GpushareError, NoSuchJob


class Daemon:
    """It has a job that ends at a time; `knows`: that it does not forget the job by then."""

    def __init__(self, monkeypatch, ends_at: float | None, *, knows=True, killed_at: float | None = None) -> None:
        self.ends_at, self.knows, self.killed_at = ends_at, knows, killed_at
        self.now, self.asked, self.stops = 100.0, 0, []
        monkeypatch.setattr(stop.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(stop.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 6)

    def job(self, identity: str):
        assert identity == "a1"
        self.asked += 1
        if self.ends_at is None or self.now - 100.0 < self.ends_at - 1e-9:
            return {"state": "running"}
        if not self.knows:
            raise NoSuchJob("no such job")
        return {"state": "ended"}

    def stop(self, identity: str, *, now: bool):
        self.stops.append((identity, now))
        if self.killed_at is not None:
            self.ends_at = self.now - 100.0 + self.killed_at
        return {"job": {"name": "train"}}


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize(("ends_at", "took"), [(0.0, 0.0), (0.3, 0.3), (2.0, 2.0)])
def test_who_ends_in_its_time_is_not_killed(monkeypatch, ends_at, took, knows):
    daemon = Daemon(monkeypatch, ends_at, knows=knows)
    assert stop.stop(daemon, "a1", 2.0, 5.0) is False
    assert daemon.stops == [] and daemon.now - 100.0 == pytest.approx(took)
    assert daemon.asked == round(took * 10) + 1, "ten times a second"


def test_who_does_not_is_killed_once_its_time_is_over(monkeypatch):
    daemon = Daemon(monkeypatch, None, killed_at=0.3)
    assert stop.stop(daemon, "a1", 2.0, 5.0) is True
    assert daemon.stops == [("a1", True)] and daemon.now - 100.0 == pytest.approx(2.3)


def test_who_ends_just_before_it_is_killed_was_not(monkeypatch):
    daemon = Daemon(monkeypatch, None)

    def gone(identity, *, now):
        raise NoSuchJob("no such job")

    monkeypatch.setattr(daemon, "stop", gone)
    assert stop.stop(daemon, "a1", 1.0, 5.0) is False


def test_who_outlives_sigkill_is_told_with_what_may_hold_it(monkeypatch):
    daemon = Daemon(monkeypatch, None)
    with pytest.raises(GpushareError) as caught:
        stop.stop(daemon, "a1", 1.0, 2.5)
    assert caught.value.message == "job train has not ended 2.5 s after SIGKILL"
    assert caught.value.code == "does_not_end" and "the kernel holds a process of it" in caught.value.hint
    assert daemon.now - 100.0 == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("state", "reached", "spared", "said"),
    [
        ("queued", 0, 0, "job train has left the queue"),
        ("running", 1, 0, "asked job train to stop: SIGTERM to 1 process"),
        ("running", 0, 0, "asked job train to stop: SIGTERM to 0 processes"),
        (
            "running",
            3,
            1,
            "asked job train to stop: SIGTERM to 3 processes; 1 process left alone: another user's by now",
        ),
        (
            "running",
            1,
            2,
            "asked job train to stop: SIGTERM to 1 process; 2 processes left alone: another user's by now",
        ),
    ],
)
def test_what_was_done_is_said(state, reached, spared, said):
    asked = []

    def answer(identity, *, now):
        asked.append((identity, now))
        return {"job": {"name": "train", "state": state}, "processes": reached, "spared": spared}

    assert stop.ask_to_stop(SimpleNamespace(stop=answer), "a1") == said
    assert asked == [("a1", False)]
