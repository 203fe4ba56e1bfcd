"""When and for whom it is published how much could be granted."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpushared.core import instructions as do
from gpushared.runtime import publisher
from gpushared.runtime.publisher import Publisher

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
PUBLISH_AT_ONCE = 32
PUBLISH_EVERY = 0.005
PUBLISH_SHARE = 0.05

A, B = "GPU-a", "GPU-b"


class Loop:
    """A loop whose time passes only where the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.soon: list[Callable[[], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        self.soon.append(lambda: function(*arguments))

    def call_at(self, when: float, function: Callable[[], None]) -> None:
        self.timers.append((when, function))

    def go(self) -> None:
        """To the next timer, and one step of what it begins."""
        [(self.now, function)] = self.timers
        self.timers.clear()
        function()


class Node:
    """GPUs with so many processes; what is published takes `takes` seconds."""

    def __init__(self, loop: Loop, **gpus: int) -> None:
        self.loop, self.takes = loop, 0.0
        self.gpus = {f"GPU-{name}": SimpleNamespace(shares=dict.fromkeys(range(count))) for name, count in gpus.items()}
        self.rounds: list[tuple[str, list[int]]] = []
        self.told: list[tuple[int, str, str]] = []
        self.during: Callable[[], None] = lambda: None

    def published(self, gpu: str, processes: list[int]) -> dict[int, str]:
        self.rounds.append((gpu, list(processes)))
        self.loop.now += self.takes
        self.during()
        return {one: f"figures of {one}" for one in processes}

    def publish(self, process: int, gpu: str, figures: str) -> None:
        self.told.append((process, gpu, figures))


@pytest.fixture
def loop(monkeypatch) -> Loop:
    one = Loop()
    monkeypatch.setattr(publisher.asyncio, "get_running_loop", lambda: one)
    return one


def of(node: Any) -> Publisher:
    return Publisher(lambda: node, node)


def test_many_wishes_in_a_moment_cost_one_round(loop) -> None:
    node = Node(loop, a=3, b=0)
    one = of(node)
    for gpu in (A, B, A, A):
        one.publish_soon(do.Publish(gpu))
    assert [when for when, _ in loop.timers] == [100.0 + PUBLISH_EVERY] and node.rounds == []
    loop.go()
    assert node.rounds == [(A, [0, 1, 2])] and loop.soon == []
    assert node.told == [(process, A, f"figures of {process}") for process in range(3)]
    one.publish_soon(do.Publish(A))
    assert [when for when, _ in loop.timers] == [loop.now + PUBLISH_EVERY], "the last one cost nothing"
    loop.go()
    assert node.rounds[1:] == [(A, [0, 1, 2])]


def test_a_round_goes_a_few_processes_at_a_time_and_pays_for_all_of_them(loop) -> None:
    node = Node(loop, a=2 * PUBLISH_AT_ONCE + 1)
    node.takes = 0.002
    one = of(node)
    one.publish_soon(do.Publish(A))
    loop.go()
    while loop.soon:
        assert loop.timers == [], "the round lasts"
        one.publish_soon(do.Publish(A))  # for the next round
        loop.soon.pop(0)()
    assert [len(processes) for _, processes in node.rounds] == [PUBLISH_AT_ONCE, PUBLISH_AT_ONCE, 1]
    assert [process for _, some in node.rounds for process in some] == list(range(2 * PUBLISH_AT_ONCE + 1))
    [(when, _)] = loop.timers
    assert when == pytest.approx(loop.now + 3 * node.takes / PUBLISH_SHARE)
    node.takes = 0.0
    loop.go()
    while loop.soon:
        loop.soon.pop(0)()
    assert len(node.rounds) == 6 and loop.timers == [], "nobody has wished more"
    one.publish_soon(do.Publish(A))
    assert [when for when, _ in loop.timers] == [pytest.approx(loop.now + PUBLISH_EVERY)], "each round pays for itself"


def test_what_changes_in_the_last_step_of_a_round_is_for_the_next(loop) -> None:
    node = Node(loop, a=1, b=1)
    one = of(node)
    node.during = lambda: one.publish_soon(do.Publish(B))
    one.publish_soon(do.Publish(A))
    loop.go()
    assert [gpu for gpu, _ in node.rounds] == [A] and len(loop.timers) == 1
    node.during = lambda: None
    loop.go()
    assert [gpu for gpu, _ in node.rounds] == [A, B] and loop.timers == []


def test_a_failure_ends_neither_the_round_nor_the_rounds(loop) -> None:
    def fails() -> None:
        raise ValueError("no")

    node = Node(loop, a=PUBLISH_AT_ONCE + 1)
    one = of(node)
    one.publish_soon(do.Publish(A))
    node.during = fails
    with pytest.raises(ValueError, match="no"):
        loop.go()
    with pytest.raises(ValueError, match="no"):
        loop.soon.pop(0)()
    assert [len(some) for _, some in node.rounds] == [PUBLISH_AT_ONCE, 1] and loop.soon == []
    node.during = lambda: None
    one.publish_soon(do.Publish(A))
    loop.go()
    assert len(node.rounds) == 3 and len(loop.soon) == 1
