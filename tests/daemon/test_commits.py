"""When the notes are written: by a clock of the test's own, with a disk that is as slow and as full as it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.errors import NotNoted
from gpushared.jobs.commits import Commits
from gpushared.jobs.state_file import NOTHING_PLANNED

# Numbers, not the daemon's own names for them: that they stay is a part of what is tested.
AGAIN = 1.0
SOON = 0.01


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call, self.cancelled = at, call, False

    def when(self) -> float:
        return self.at

    def cancel(self) -> None:
        self.cancelled = True


class Stand:
    """Of the loop it has the clock and the timers."""

    def __init__(self) -> None:
        self.now, self.takes, self.problem = 100.0, 0.0, None
        self.timers: list[Timer] = []
        self.written: list[tuple[float, Any]] = []
        self.commits = Commits(self, self.write, "/run/state.json")  # type: ignore[arg-type]

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(at, call))
        return self.timers[-1]

    def create_future(self) -> Any:
        return asyncio.get_running_loop().create_future()

    def write(self, planned: Any) -> None:
        self.written.append((round(self.now, 3), planned))
        self.now += self.takes
        if self.problem is not None:
            raise self.problem

    def due(self) -> list[float]:
        return [round(one.at, 3) for one in self.timers if not one.cancelled]

    def run(self, until: float) -> None:
        while waiting := [one for one in self.timers if not one.cancelled and one.at <= until]:
            first = min(waiting, key=lambda one: one.at)
            self.timers.remove(first)
            self.now = max(self.now, first.at)
            first.call()
        self.now = max(self.now, until)


@pytest.fixture
def stand() -> Stand:
    return Stand()


def times(stand: Stand) -> list[float]:
    return [at for at, _ in stand.written]


def test_a_burst_of_changes_is_one_write_a_moment_later(stand: Stand) -> None:
    assert not stand.commits.pending
    for _ in range(5):
        stand.commits.soon()
    assert stand.commits.pending and stand.due() == [100 + SOON]
    stand.run(101)
    assert stand.written == [(100.01, NOTHING_PLANNED)] and not stand.commits.pending and stand.due() == []


def test_writing_takes_half_of_the_time_at_most(stand: Stand) -> None:
    stand.takes = 0.3
    stand.commits.now()
    stand.commits.soon()
    assert stand.due() == [100.6], "a pause as long as the write"
    stand.now = 100.595
    stand.commits.soon()
    assert stand.due() == [100.6]
    stand.run(100.6)
    stand.takes = 0.0
    assert times(stand) == [100, 100.6]
    stand.now = 105.0
    stand.commits.soon()
    assert stand.due() == [105 + SOON], "the pause is over"


def test_what_was_planned_is_written_at_once_and_with_all_that_waits(stand: Stand) -> None:
    planned: Any = object()
    stand.commits.soon()
    stand.commits.now(planned)
    assert stand.written == [(100, planned)] and stand.due() == [] and not stand.commits.pending


def test_many_answers_wait_for_one_write_that_comes_before_what_is_only_soon(stand: Stand) -> None:
    async def main() -> None:
        stand.commits.soon()
        waiting = [asyncio.ensure_future(stand.commits.done()) for _ in range(3)]
        await asyncio.sleep(0)
        assert stand.due() == [0.0], "at once"
        stand.commits.soon()
        assert stand.due() == [0.0]
        waiting.pop().cancel()
        await asyncio.sleep(0)
        stand.run(100)
        await asyncio.gather(*waiting)
        assert times(stand) == [100]
        later = asyncio.ensure_future(stand.commits.done())
        await asyncio.sleep(0)
        assert not later.done() and len(stand.due()) == 1, "what changes afterwards is another write"
        stand.run(101)
        await later
        assert len(stand.written) == 2

    asyncio.run(main())


def test_a_failure_is_told_to_all_who_wait_and_tried_again(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        stand.problem = OSError(28, "No space left on device")
        waiting = [asyncio.ensure_future(stand.commits.done()) for _ in range(2)]
        await asyncio.sleep(0)
        stand.run(100)
        for told in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(told, NotNoted)
            assert told.message == "the daemon cannot write its notes: No space left on device"
            assert told.hint == "nothing was changed; make room for /run/state.json, or make it writable"
        assert stand.due() == [100 + AGAIN] and stand.commits.pending
        with pytest.raises(NotNoted):
            stand.commits.now()
        assert stand.due() == [100 + AGAIN]
        stand.run(102)
        assert times(stand) == [100, 100, 101, 102] and stand.due() == [103]
        stand.problem = None
        stand.run(103)
        assert stand.due() == [] and not stand.commits.pending
        stand.commits.now()

    asyncio.run(main())
    told = [(one.getMessage(), one.facts) for one in caplog.records]
    assert told == [
        (
            "cannot write the notes: nothing new is promised",
            {"file": "/run/state.json", "error": "No space left on device"},
        ),
        ("the notes are written again", {"file": "/run/state.json"}),
    ]
    caplog.clear()
    stand.problem = OSError("odd")
    with pytest.raises(NotNoted, match="cannot write its notes: odd"):
        stand.commits.now()
    assert [one.getMessage() for one in caplog.records] == ["cannot write the notes: nothing new is promised"]


def test_a_write_that_is_needed_earlier_than_the_next_try_is_made(stand: Stand) -> None:
    stand.problem = OSError(28, "full")
    with pytest.raises(NotNoted):
        stand.commits.now()
    stand.problem = None
    stand.commits.soon()
    assert stand.due() == [100 + SOON]
    stand.run(100.5)
    assert times(stand) == [100, 100.01] and stand.due() == []


def test_the_last_changes_are_written_and_nothing_after_that(stand: Stand) -> None:
    stand.commits.close()
    assert stand.written == []
    stand.commits.soon()
    stand.commits.close()
    assert times(stand) == [100] and stand.due() == []
    stand.commits.soon()
    stand.problem = OSError(28, "full")
    stand.commits.close()
    assert len(stand.written) == 2 and stand.due() == [] and not stand.commits.pending
