"""What the thread tells of notices, and what the handler of SIGTERM leaves to others."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from gpushare.errors import DaemonUnreachable
from gpushare.notebook.sigterm import Handler
from gpushare.notebook.watch import Watch
from integration.node import GIB


def notice(when: float, kind: str, text: str = "") -> Any:
    return {"time": when, "kind": kind, "text": text, "facts": {}}


def test_a_demand_stands_until_it_is_relieved_and_is_new_once() -> None:
    said: list[str] = []
    watch = Watch(said.append)
    old = [notice(1, "asked_back"), notice(2, "relieved", "no longer needed")]
    assert watch._news(old) is None and said == [], "it was over before this notebook listened"
    first, second = notice(3, "asked_back"), notice(4, "asked_back")
    assert watch._news([*old, first, second]) is second
    assert watch._news([*old, first, second]) is None, "all are read again when the daemon is reached again"
    watch._asked = True
    assert watch._news([notice(5, "relieved", "no longer needed")]) is None
    assert said == ["gpushare: no longer needed; this kernel goes on"]
    assert watch._news([notice(6, "relieved", "once more")]) is None
    assert len(said) == 1


def test_a_gpu_that_ails_is_told_of_and_the_rest_is_not() -> None:
    said: list[str] = []
    watch = Watch(said.append)
    sick, lost = notice(1, "gpu_sick", "GPU 0 is sick\n  xid  79"), notice(2, "gpu_lost", "GPU 0 is lost")
    assert watch._news([sick, notice(1.5, "changed", "limit"), lost]) is None
    assert said == ["gpushare: GPU 0 is sick\n  xid  79", "gpushare: GPU 0 is lost"]


def test_a_job_that_steps_aside_because_it_is_idle_is_told_in_the_cell() -> None:
    said: list[str] = []
    text = "this job has not computed for 30m: 2.0 GiB that its programs only kept are lent to others now"
    assert Watch(said.append)._news([notice(1, "idle", text), notice(2, "suspended", "by hand")]) is None
    assert said == [f"gpushare: {text}"]


def test_what_is_left_is_told_with_the_time_that_is_left() -> None:
    said: list[str] = []
    watch = Watch(said.append)
    until = time.time() + 100
    watch._say_what_is_left(3 * GIB, 0, until)
    assert said == [], "the daemon says it"
    watch._say_what_is_left(3 * GIB, 2 * GIB, until)
    watch._say_what_is_left(3 * GIB, 3 * GIB, until)
    watch._say_what_is_left(3 * GIB, 3 * GIB, time.time() - 100)
    when = time.strftime("%H:%M:%S", time.localtime(until))
    first, *_ = said[0].splitlines()
    assert first.startswith(
        "gpushare: this kernel gave 1.0 GiB back, and still has 2.0 GiB on loan: it is stopped in 1m"
    )
    assert first.endswith(f", at {when}")
    assert said[1].startswith("gpushare: this kernel still has 3.0 GiB on loan: it is stopped in 1m")
    assert "stopped in 0 s" in said[2]


def test_its_thread_ends_soon_after_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it has no job to listen to, and would look for one again after a while only."""
    looked, ended = threading.Event(), threading.Event()

    class Followed(Watch):
        def _follow(self) -> None:
            super()._follow()
            ended.set()

    def no_job() -> Any:
        looked.set()
        raise DaemonUnreachable("no daemon")

    monkeypatch.setattr("gpushare.notebook.watch._find", no_job)
    monkeypatch.setattr("gpushare.notebook.watch.RETRY_FIRST", 600.0)
    monkeypatch.setattr("gpushare.notebook.watch.RETRY_LAST", 600.0)
    watch = Followed(print)
    watch.start()
    assert looked.wait(10.0) and not ended.wait(0.1)
    watch.stop()
    assert ended.wait(10.0)


@pytest.fixture
def sigterm() -> Iterator[list[int]]:
    """A handler of the program's own; what it was called with."""
    called: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: called.append(number))
    yield called
    signal.signal(signal.SIGTERM, before)


def test_only_what_is_excused_does_not_reach_the_handler_before(sigterm: list[int]) -> None:
    excuse = [True, False]
    before = signal.getsignal(signal.SIGTERM)
    handler = Handler(lambda: excuse.pop(0))
    assert handler.install()
    os.kill(os.getpid(), signal.SIGTERM)
    assert sigterm == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert sigterm == [signal.SIGTERM] and excuse == []
    handler.remove()
    handler.remove()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_handler_on_top_stays_and_what_is_below_it_only_passes_on(sigterm: list[int]) -> None:
    handler = Handler(lambda: True)
    handler.install()
    top = partial(handler)
    signal.signal(signal.SIGTERM, top)
    handler.remove()
    assert signal.getsignal(signal.SIGTERM) is top
    os.kill(os.getpid(), signal.SIGTERM)
    assert sigterm == [signal.SIGTERM]


def test_a_signal_that_was_ignored_stays_so(sigterm: list[int]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    handler = Handler(lambda: False)
    handler.install()
    os.kill(os.getpid(), signal.SIGTERM)
    handler.remove()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN and sigterm == []


def test_another_thread_cannot_install_it(sigterm: list[int]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    installed: list[bool] = []
    handler = Handler(lambda: True)
    thread = threading.Thread(target=lambda: installed.append(handler.install()))
    thread.start()
    thread.join()
    assert installed == [False] and signal.getsignal(signal.SIGTERM) is before
    handler.remove()
    assert signal.getsignal(signal.SIGTERM) is before
