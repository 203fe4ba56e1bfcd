"""What the thread tells of notices, and what the handler of SIGTERM leaves to others."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
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


def step(when: float, event: str) -> dict[str, Any]:
    return {"time": when, "event": event}


def test_a_sigterm_is_excused_once_if_it_is_the_daemons_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    story: list[dict[str, Any]] = []
    patience: list[float] = []

    def find(timeout: float = 10.0) -> Any:
        patience.append(timeout)
        return SimpleNamespace(story=lambda job: {"story": story}), "a1"

    monkeypatch.setattr("gpushare.notebook.watch._find", find)
    woken: list[float] = []
    monkeypatch.setattr(Watch, "wake", lambda _self: woken.append(story[-1]["time"]))
    watch = Watch(print)
    for told, excused in (
        ([], False),
        ([step(1, "admitted")], False),
        ([step(2, "term")], True),
        ([], False),  # another SIGTERM within the same demand is somebody's own
        ([step(3, "relieved")], False),
        ([step(4, "term"), step(4.1, "trim")], True),
        ([step(4.05, "term")], False),  # the same record, by another clock
        ([step(4.15, "term")], True),  # another one
        ([step(5, "term"), step(5.5, "kill")], False),
        ([step(6, "term")], True),
    ):
        story += told
        assert watch.excuses() is excused, story
    assert set(patience) == {2.0}, "a handler of signals waits no longer"
    assert woken == [2, 4.1, 4.15, 6], "the thread gives memory back at once"

    def away(timeout: float = 10.0) -> Any:
        raise DaemonUnreachable("no daemon")

    monkeypatch.setattr("gpushare.notebook.watch._find", away)
    assert watch.excuses() is False


class Lent:
    """A daemon that shows what the job still has on loan, each time that it is asked."""

    def __init__(self, *loans: float, state: str = "asked_back", uuid: str = "GPU-a") -> None:
        self.left, self.state, self.uuid = [round(loan * GIB) for loan in loans], state, uuid

    def job(self, job: str) -> Any:
        loan = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if loan < 0:
            raise DaemonUnreachable("no daemon")
        gpus = [{"uuid": "GPU-b", "loan": 9 * GIB}, {"uuid": self.uuid, "loan": loan}]
        return {"state": self.state, "gpus": gpus}


@pytest.mark.parametrize(
    ("client", "asked", "wanted", "said"),
    [
        (Lent(3, 3, 1, 0), 2, [2, 0], ""),
        (Lent(3, 3, 2, 2), 2, [2, 1], "this kernel gave 1.0 GiB back, and still has 2.0 GiB on loan"),
        (Lent(3, 3, 3, 3), 8, [3, 3], "this kernel still has 3.0 GiB on loan"),  # no more is asked than is lent
        (Lent(3, 3, -1, -1), 2, [2, 0], ""),  # a daemon that is away asks for nothing
        (Lent(3, state="borrowing"), 2, [0, 0], ""),  # it no longer wants it
        (Lent(3, uuid="GPU-c"), 2, [0, 0], ""),  # the job has moved to another GPU
    ],
)
def test_a_demand_is_met_as_far_as_it_goes(
    client: Lent, asked: int, wanted: list[int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    seen: list[int] = []

    def release(gpu: str, still: Any, seconds: float, reason: str) -> list[str]:
        assert gpu == "GPU-a" and 25.0 < seconds <= 30.0 and reason == "memory is wanted back"
        seen.extend([still(), still()])
        return ["torch: it failed"]

    monkeypatch.setattr("gpushare.notebook.watch.release", release)
    facts = {"gpu": "GPU-a", "asked": asked * GIB, "grace": 30.0, "facts": [["asked", f"{asked} GiB"]]}
    demand = {"time": time.time(), "kind": "asked_back", "text": "memory is wanted back\nmore", "facts": facts}
    watch = Watch(told.append)
    watch._meet(client, "a1", demand)  # type: ignore[arg-type]
    assert seen == [amount * GIB for amount in wanted], "never below nothing, though more went back than was asked"
    assert told[0] == f"gpushare: memory is wanted back\n  asked  {asked} GiB"
    assert told[1] == "gpushare: memory is wanted back, and not everything could be given: torch: it failed"
    assert len(told) == (3 if said else 2) and (not said or said in told[2])
    assert watch._asked, "that it is relieved will be told"


def test_a_watch_that_is_gone_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    stand_in = SimpleNamespace(eventfd=lambda *_: 99, EFD_CLOEXEC=0, EFD_NONBLOCK=0, close=closed.append)
    monkeypatch.setattr("gpushare.notebook.watch.os", stand_in)
    one = Watch(print)
    assert closed == []
    del one
    assert closed == [99]
