"""The system's clock is set while the daemon runs, or between two daemons: what counts seconds does not notice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from daemon_harness import GPU, InProcess, until

from gpushare.errors import DaemonUnreachable, GpushareError
from gpushared.gpus.nvml import Nvml
from gpushared.runtime.rebuild import submission

DAY = 86400.0
JUMPS = pytest.mark.parametrize("jump", [DAY, -DAY, -50 * 365 * DAY], ids=["forward", "back", "to 1976"])


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """By so many seconds. Of this process, in which the daemon is a thread."""
    real, real_ns = time.time, time.time_ns
    offset = [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(offset[0] * 1e9))

    def jump(seconds: float) -> None:
        offset[0] += seconds

    return jump


def submit(daemon: InProcess, name: str, request: str = "4Gi", **fields: Any) -> dict[str, Any]:
    body = {"name": name, "command": [name], "request": request, "limit": request, "gpus": 1, "devices": ["0"]}
    return daemon.client.register(body | fields)


def queue(daemon: InProcess, seconds: float) -> Callable[[], Any]:
    """A job that waits for room; how that ended, as soon as it has."""
    ended: list[Any] = []

    def ask() -> None:
        try:
            ended.append(submit(daemon, "q", "14Gi", wait=seconds)["state"])
        except DaemonUnreachable:
            return
        except GpushareError as error:
            ended.append(error.code)

    threading.Thread(target=ask, daemon=True).start()
    until(lambda: len(daemon.client.jobs()) == 2)
    return lambda: ended and ended[0]


@JUMPS
def test_a_wait_in_the_queue_is_as_long_as_was_asked(make_daemon, set_clock, jump):
    daemon = make_daemon()
    submit(daemon, "a")
    started = time.monotonic()
    ended = queue(daemon, 1.5)
    set_clock(jump)
    assert until(ended) == "wait_over"
    assert 1.4 < time.monotonic() - started < 4


@JUMPS
def test_a_job_in_the_queue_keeps_its_time_over_a_restart(make_daemon, set_clock, jump):
    first = make_daemon()
    submit(first, "a")
    queue(first, 60.0)
    (before,) = first.shell.core.state.queue.values()
    first.stop()
    set_clock(jump)
    second = make_daemon()
    (after,) = second.shell.core.state.queue.values()
    assert abs(after.since - before.since) < 0.5 and abs(after.until - before.until) < 0.5


@JUMPS
def test_a_job_in_the_queue_keeps_its_time_when_the_core_begins_again(make_daemon, set_clock, jump):
    daemon = make_daemon()
    submit(daemon, "a")
    queue(daemon, 60.0)
    (entry,) = (one for one in daemon.shell.registry.live() if one.state == "queued")
    set_clock(jump)
    again = submission(entry)
    assert again.wait == pytest.approx(60.0, abs=3) and again.age == pytest.approx(0.0, abs=3)
    (running,) = (one for one in daemon.shell.registry.live() if one.state == "running")
    assert again.wait + again.age == pytest.approx(60.0, abs=0.01) and running.began <= entry.began


@JUMPS
def test_ages_and_reservations_keep_their_time_over_a_restart(make_daemon, set_clock, jump):
    first = make_daemon()
    job = submit(first, "a")["id"]
    first.client.checkpointed(job)
    first.client.reserve({"request": "1Gi", "name": "r", "lasting": 3600.0})
    state = first.shell.core.state
    before = state.jobs[job].since, state.jobs[job].saved_at, next(iter(state.reservations.values())).until
    first.stop()
    set_clock(jump)
    state = make_daemon().shell.core.state
    after = state.jobs[job].since, state.jobs[job].saved_at, next(iter(state.reservations.values())).until
    assert after == pytest.approx(before, abs=0.5)


@JUMPS
def test_how_long_a_job_ran_and_the_daemon_is_up(make_daemon, set_clock, jump):
    daemon = make_daemon()
    job = submit(daemon, "a")["id"]
    time.sleep(0.3)
    set_clock(jump)
    assert 0.2 < daemon.client.status()["daemon"]["uptime"] < 5
    daemon.client.end(job, 0, None)
    ended = daemon.client.job(job)["outcome"]
    assert 0.2 < ended["duration"] < 5
    set_clock(-jump)
    assert daemon.client.job(job)["outcome"]["duration"] == ended["duration"], "it has ended"


@JUMPS
def test_what_has_happened_since_is_told_in_the_time_of_now(make_daemon, set_clock, jump):
    daemon = make_daemon()
    set_clock(jump)
    submit(daemon, "a")
    (admitted,) = (one for one in daemon.client.records() if one["event"] == "admitted")
    assert abs(admitted["time"] - time.time()) < 5
    assert [one["event"] for one in daemon.client.records(time.time() - 5) if one["name"] == "a"] == ["admitted"]


def test_who_computes_is_seen_after_the_clock_was_set_back(monkeypatch, set_clock):
    """NVML's samples have the time of the system's clock; what is newer than the last one is asked for."""

    class One:
        def __init__(self) -> None:
            self.timeStamp, self.pid, self.smUtil, self.memUtil = time.time_ns() // 1000, 7, 50, 0

    def utilization(handle: object, since: int) -> list[One]:
        if time.time_ns() // 1000 <= since:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return [One()]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", utilization)
    driver = Nvml.__new__(Nvml)
    driver._sees_pids, driver._busy_until = True, {}
    assert driver._utilisation(GPU, None) == {7: (50, 0)}
    set_clock(-DAY)
    driver._utilisation(GPU, None)
    time.sleep(0.01)
    assert driver._utilisation(GPU, None) == {7: (50, 0)}
