"""Turns in computing as the daemon keeps them: which words are closed and opened, and how often it looks."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gpushared.clients.turn_words import Word
from gpushared.core.turns import Turn
from gpushared.runtime.turn_keeper import TurnKeeper

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
AT_REST = 0.25
AT_WORK = 0.004
AWAKE = 0.02

IDLE = Word(held=True, launched=False, waits=False, done=True)
LAUNCHES = IDLE._replace(launched=True, done=False)
WAITS = IDLE._replace(waits=True)
NOT_HELD = IDLE._replace(held=False)


class Words:
    """What processes did, as the test says, and what was written for each."""

    def __init__(self) -> None:
        self.did: dict[tuple[int, str], Word] = {}
        self.now: dict[tuple[int, str], str] = {}
        self.released_all = 0
        self.fails = False

    def read(self, process: int, gpu: str) -> Word:
        if self.fails:
            raise RuntimeError("a bug")
        return self.did.get((process, gpu), IDLE)

    def say(self, process: int, gpu: str, *, closed: bool, ask: bool = False) -> None:
        self.now[process, gpu] = f"{'closed' if closed else 'open'}{' asked' if ask else ''}"

    def release(self, process: int, gpu: str) -> None:
        self.now[process, gpu] = "released"

    def release_all(self) -> None:
        self.released_all += 1


class Node:
    def __init__(self) -> None:
        self.gpus: dict[str, Any] = {}
        self.jobs: dict[str, Any] = {}
        self.words = Words()
        self.pids: dict[int, int] = {}
        self.number = itertools.count(1)
        self.keeper = TurnKeeper(lambda: self, self.words, self)  # type: ignore[arg-type, return-value]
        self.keeper.start(on=True, turn=0.1)
        self.clock = 100.0

    def get(self, process: int) -> Any:
        """Of Clients."""
        pid = self.pids.get(process)
        return None if pid is None else SimpleNamespace(process=SimpleNamespace(pid=pid))

    def job(self, id: str, *gpus: str, compute: float | None = None, exclusive: float | None = None) -> int:
        """One process of the job on each of these GPUs. Returns the last one."""
        spec = SimpleNamespace(compute=compute, exclusive=exclusive)
        bounds = dict.fromkeys(gpus, None)
        self.jobs.setdefault(id, SimpleNamespace(id=id, spec=spec, bounds=bounds, suspension=None))
        process = 0
        for gpu in gpus:
            process = next(self.number)
            shares = self.gpus.setdefault(gpu, SimpleNamespace(id=gpu, shares={})).shares
            shares[process] = SimpleNamespace(job=id, process=process)
        return process

    def look(self, seconds: float = 0.004) -> float:
        self.clock += seconds
        return self.keeper.look(self.clock)

    def both_launch(self, *processes: int, gpu: str = "a") -> None:
        for process in processes:
            self.words.did[process, gpu] = LAUNCHES

    def until_closed(self, gpu: str = "a") -> None:
        for _ in range(10):
            self.look()
            if any(said.startswith("closed") for (_, on), said in self.words.now.items() if on == gpu):
                return
        raise AssertionError(f"nobody waits: {self.words.now}")


@pytest.fixture
def node() -> Node:
    return Node()


# ---- who takes turns -----------------------------------------------------------------------------------


def test_without_gpus_and_without_a_wish_for_turns_it_rests_and_writes_nothing(node: Node) -> None:
    assert node.look() == AT_REST == 0.25
    first, second = node.job("x", "a"), node.job("y", "a")
    node.both_launch(first, second)
    assert node.look() == AT_REST and node.words.now == {}
    assert node.keeper.turn_of(node.jobs["x"], "a") is None
    assert node.keeper.time_of("x", "a") == node.keeper.count_of("a") == 0


def test_a_job_alone_is_not_watched(node: Node) -> None:
    alone = node.job("x", "a", compute=0.5)
    node.both_launch(alone)
    assert node.look() == AT_REST and node.words.now == {(alone, "a"): "released"}
    assert node.keeper.turn_of(node.jobs["x"], "a") == Turn.FREE


@pytest.mark.parametrize("wish", [{"compute": 0.5}, {"exclusive": 0.1}])
def test_two_that_compute_take_turns_as_soon_as_one_has_asked(node: Node, wish: Any) -> None:
    first, second = node.job("x", "a", **wish), node.job("y", "a")
    assert node.look() == AWAKE
    assert node.words.now == {(first, "a"): "open", (second, "a"): "open"}
    node.both_launch(first, second)
    node.until_closed()
    assert node.look() == AT_WORK
    said = {key: text.partition(" ")[0] for key, text in node.words.now.items()}
    assert sorted(said.values()) == ["closed", "open"]
    holder, waiter = ("x", "y") if said[first, "a"] == "open" else ("y", "x")
    node.words.did[first if waiter == "x" else second, "a"] = WAITS
    node.look()
    assert node.keeper.turn_of(node.jobs[holder], "a") == Turn.HOLDS
    assert node.keeper.turn_of(node.jobs[waiter], "a") == Turn.WAITS
    assert node.keeper.count_of("a") >= 1
    node.look(0.05)
    assert node.keeper.time_of(holder, "a") > 0.04 and node.keeper.time_of(waiter, "a") == 0


def test_another_gpu_is_another_matter_and_the_soonest_look_counts(node: Node) -> None:
    first, second = node.job("x", "a", compute=0.5), node.job("y", "a")
    lone = node.job("z", "b")
    node.both_launch(first, second)
    node.until_closed()
    assert node.look() == AT_WORK and (lone, "b") not in node.words.now
    assert node.keeper.turn_of(node.jobs["z"], "b") is None


def test_when_nobody_asks_any_more_all_launch_freely(node: Node) -> None:
    first, second = node.job("x", "a", compute=0.5), node.job("y", "a")
    node.both_launch(first, second)
    node.until_closed()
    node.jobs["x"].spec.compute = None
    assert node.look() == AT_REST
    assert set(node.words.now.values()) == {"released"}
    node.words.now.clear()
    assert node.look() == AT_REST and node.words.now == {}, "once is enough"
    assert node.keeper.turn_of(node.jobs["x"], "a") is None


def test_a_gpu_that_is_gone_is_forgotten(node: Node) -> None:
    first, second = node.job("x", "a", compute=0.5), node.job("y", "a")
    node.both_launch(first, second)
    node.until_closed()
    gone = node.gpus.pop("a")
    assert node.look() == AT_REST and node.keeper.count_of("a") == 0
    node.gpus["a"] = gone
    node.words.did.clear()
    node.look()
    assert node.keeper.count_of("a") == 0, "its turns begin from the start"


# ---- who does not wait ---------------------------------------------------------------------------------


def wish(node: Node) -> tuple[int, int]:
    first, second = node.job("x", "a", compute=0.5), node.job("y", "a")
    node.both_launch(first, second)
    return first, second


def test_a_job_whose_launches_cannot_be_held_is_left_alone(node: Node) -> None:
    first, second = wish(node)
    node.words.did[second, "a"] = NOT_HELD._replace(launched=True)
    for _ in range(5):
        assert node.look() == AT_REST
    assert set(node.words.now.values()) == {"released"}
    assert node.keeper.turn_of(node.jobs["y"], "a") == Turn.NOT_HELD
    third = node.job("z", "a")
    node.both_launch(third)
    node.until_closed()
    assert node.words.now[second, "a"] == "released"
    assert "closed" in {node.words.now[one, "a"].partition(" ")[0] for one in (first, third)}


def test_one_process_that_cannot_be_held_speaks_for_its_job(node: Node) -> None:
    wish(node)
    other = node.job("y", "a")
    node.words.did[other, "a"] = NOT_HELD
    for _ in range(5):
        node.look()
    assert set(node.words.now.values()) == {"released"}
    assert node.keeper.turn_of(node.jobs["y"], "a") == Turn.NOT_HELD


@pytest.mark.parametrize("why", ["several GPUs", "suspended", "no process"])
def test_who_may_not_wait_takes_no_turns(node: Node, why: str) -> None:
    wish(node)
    if why == "several GPUs":
        node.jobs["y"].bounds["b"] = None
    elif why == "suspended":
        node.jobs["y"].suspension = object()
    else:
        node.gpus["a"].shares.popitem()
    for _ in range(5):
        assert node.look() == AT_REST
    assert set(node.words.now.values()) == {"released"}
    shown = Turn.SUSPENDED if why == "suspended" else Turn.NOT_HELD
    assert node.keeper.turn_of(node.jobs["y"], "a") == shown


def test_if_only_who_cannot_be_held_has_asked_nobody_waits(node: Node) -> None:
    first, second = node.job("x", "a", compute=0.5), node.job("y", "a")
    third = node.job("z", "a")
    node.both_launch(second, third)
    node.words.did[first, "a"] = NOT_HELD
    for _ in range(5):
        assert node.look() == AT_REST
    assert set(node.words.now.values()) == {"released"}


def test_a_share_of_a_job_that_is_gone_counts_for_nothing(node: Node) -> None:
    wish(node)
    del node.jobs["y"]
    assert node.look() == AT_REST


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_what_a_stopped_program_has_launched_is_waited_for_by_nobody(node: Node, sleeper: Any) -> None:
    """Its turn ends as if the GPU were done; that of a living one is waited for."""
    first, second = wish(node)
    node.until_closed()
    holder, waiter = (first, second) if node.words.now[first, "a"].startswith("open") else (second, first)
    node.words.did[waiter, "a"] = WAITS
    node.pids[holder] = sleeper.pid
    node.words.did[holder, "a"] = IDLE._replace(done=False)
    for _ in range(12):
        node.look()
    assert node.words.now[waiter, "a"].startswith("closed"), "the GPU has work of the holder"
    os.kill(sleeper.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    for _ in range(12):
        node.look()
    assert node.words.now[waiter, "a"].startswith("open")


# ---- the loop ------------------------------------------------------------------------------------------


def test_it_begins_and_ends_with_all_words_open(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """And looks as often as it said."""
    assert node.words.released_all == 1
    looks: list[float] = []

    def look(now: float) -> float:
        assert abs(now - time.monotonic()) < 5
        looks.append(now)
        return 0.05

    monkeypatch.setattr(node.keeper, "look", look)

    async def main() -> None:
        task = asyncio.create_task(node.keeper.keep())
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert 2 <= len(looks) <= 7 and all(b - a > 0.04 for a, b in itertools.pairwise(looks))
    assert node.words.released_all == 2 and node.keeper.on


def test_off_it_only_opens_what_was_left_closed(node: Node) -> None:
    node.keeper.start(on=False, turn=0.1)
    wish(node)
    asyncio.run(node.keeper.keep())
    assert node.words.now == {} and node.words.released_all == 3 and not node.keeper.on


def test_a_bug_costs_turns_and_nothing_else(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    wish(node)
    node.words.fails = True
    asyncio.run(node.keeper.keep())
    assert not node.keeper.on and node.words.released_all == 2
    (record,) = caplog.records
    assert record.getMessage() == "jobs take no turns in computing any more" and record.exc_info
