"""The resolutions of the usage history, and how a series of steps becomes a coarser one. No I/O.

A series is the memory of one job on one GPU over time, or of a whole GPU. It is kept as points: a point holds until the
next one of its series, so a constant value costs nothing. But each series has a point at least every FRAME steps: a
reader that begins anywhere finds all values within one frame.

Times are whole milliseconds since 1970, amounts are bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpushare.api import OUTSIDE, TOTAL

__all__ = [
    "FRAME",
    "LEVELS",
    "OUTSIDE",
    "TOTAL",
    "WHOLE",
    "Amounts",
    "Found",
    "Level",
    "Point",
    "SeriesKey",
    "Steps",
    "Who",
    "level_for",
]

HOUR = 3600
DAY = 24 * HOUR
FRAME = 60
"""Steps."""


class Level(NamedTuple):
    """One resolution."""

    step: int
    """Seconds."""
    kept: int
    """Seconds."""
    rows: int
    """The most rows. The oldest are removed first."""


LEVELS = (
    Level(1, HOUR + 5 * 60, 300_000),
    Level(10, DAY, 300_000),
    Level(60, 30 * DAY, 300_000),
    Level(HOUR, 30 * DAY, 100_000),
)
"""From fine to coarse. The first is kept a little longer than one step of the last: from it a daemon that starts makes
the steps that an earlier one had not finished."""


class SeriesKey(NamedTuple):
    gpu: str
    job: str
    """A job's id; TOTAL for all jobs together, OUTSIDE for unmanaged memory."""


class Amounts(NamedTuple):
    """The amounts of a job or of a whole GPU (TOTAL). A GPU's limit is what can be lent of it."""

    usage: int
    request: int
    limit: int
    loan: int
    computing: int = 0
    """The part of the time that it has the GPU compute, in parts of WHOLE."""


WHOLE = 1000


class Point(NamedTuple):
    """The value from this time on; `amounts` are means if the step is longer than a second. None: there is no value."""

    series: SeriesKey
    time: int
    amounts: Amounts | None
    most: int = 0
    """The highest usage in the step."""


class Who(NamedTuple):
    """The owner of a series: decides which viewers see it."""

    name: str
    user: str
    uid: int
    """-1: nobody's, a whole GPU."""


class Found(NamedTuple):
    """A series in an answer: its points within the range, the first at its beginning or later."""

    key: SeriesKey
    who: Who
    points: list[Point]


def level_for(step: float, age: float) -> int:
    """The index of the coarsest level that is at least as fine as `step` and reaches `age` back; both in seconds."""
    fitting = [index for index, level in enumerate(LEVELS) if level.kept >= age]
    if not fitting:
        return len(LEVELS) - 1
    return max((index for index in fitting if LEVELS[index].step <= step), default=fitting[0])


@dataclass(slots=True)
class _Sum:
    """A series within the step that is not over."""

    now: Amounts | None
    since: int
    known: int = 0
    """Milliseconds in which there was a value."""
    usage: int = 0
    """Byte milliseconds."""
    loan: int = 0
    computing: int = 0
    most: int = 0
    changed: bool = True
    """It needs a point for this step: its value differs from the one before."""

    def advance(self, time: int) -> None:
        if self.now is not None and time > self.since:
            lasted = time - self.since
            self.known += lasted
            self.usage += lasted * self.now.usage
            self.loan += lasted * self.now.loan
            self.computing += lasted * self.now.computing
            self.most = max(self.most, self.now.usage)
        self.since = max(self.since, time)

    def begin(self) -> None:
        """The next step."""
        self.known = self.usage = self.loan = self.computing = self.most = 0


class Steps:
    """Makes the points of one level from changes, which come in the order of time."""

    def __init__(self, step: int, start: int) -> None:
        """`step`: seconds. `start`: milliseconds; steps begin at whole multiples of their length."""
        self._step = step * 1000
        self._begun = start // self._step * self._step
        self._sums: dict[SeriesKey, _Sum] = {}

    @property
    def begun(self) -> int:
        """When the step that is not over began."""
        return self._begun

    def take(self, series: SeriesKey, time: int, amounts: Amounts | None) -> None:
        """The value from `time` on. Call finish() first for all steps that are over by then."""
        found = self._sums.get(series)
        if found is None:
            if amounts is None:
                return
            found = self._sums[series] = _Sum(None, time)
        found.advance(time)
        found.now = amounts
        found.changed = True

    def finish(self, now: int) -> Iterator[Point]:
        """The points of the steps that are over by `now`."""
        while self._begun + self._step <= now:
            end = self._begun + self._step
            frame = self._begun // self._step % FRAME == 0
            for series, found in list(self._sums.items()):
                found.advance(end)
                if found.changed or frame:
                    yield self._point(series, found)
                    if found.now is None and not found.known:
                        del self._sums[series]
                    # The present value holds in the next step: a point is needed only if it differs from this mean.
                    found.changed = not self._is_steady(found)
                found.begin()
            self._begun = end
            if not self._sums:
                self._begun = max(self._begun, now // self._step * self._step)

    def so_far(self, now: int) -> Iterator[Point]:
        """The points of the step that is not over, of what is known by `now`. They change until it is."""
        for series, found in self._sums.items():
            if found.changed:
                known = replace(found)
                known.advance(now)
                if known.known or known.now is None:  # else it has just begun; one that has ended needs its end
                    yield self._point(series, known)

    def _point(self, series: SeriesKey, found: _Sum) -> Point:
        if not found.known:
            return Point(series, self._begun, None)
        last = found.now
        usage, loan, computing = (sum // found.known for sum in (found.usage, found.loan, found.computing))
        request, limit = (last.request, last.limit) if last is not None else (0, 0)
        return Point(series, self._begun, Amounts(usage, request, limit, loan, computing), found.most)

    def _is_steady(self, found: _Sum) -> bool:
        now = found.now
        return (
            now is not None
            and found.known == self._step
            and (found.usage, found.loan) == (now.usage * self._step, now.loan * self._step)
            and found.computing == now.computing * self._step
            and found.most == now.usage
        )
