"""What happened in a run, as numbers over time: GPUs held per queue, and each decision with its moment.

Text here, a picture in plot.py; both read the same tracks. Times are seconds from the run's beginning, amounts
micro-GPU.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpushare.cluster.quantity import MICRO, format_gpus
from gpushare.quantity import format_duration

__all__ = ["IDLE", "Happening", "Timeline", "Track", "moment_text"]

STRIP = 48
LEVELS = " ▁▂▃▄▅▆▇█"
PLAIN_LEVELS = " .:-=+*#@"
IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Happening:
    time: float
    kind: str
    """started, queued, refused, evicted, moved, shrunk, grown, ended, ... as the decision is called."""
    job: str
    queue: str
    text: str


@dataclass(slots=True)
class Track:
    """A number over time: what it becomes, at each moment when it changes."""

    times: list[float] = field(default_factory=list)
    values: list[int] = field(default_factory=list)

    def set(self, time: float, value: int) -> None:
        if self.times and self.times[-1] == time:
            self.values[-1] = value
        elif value != self.last:
            self.times.append(time)
            self.values.append(value)

    @property
    def last(self) -> int:
        return self.values[-1] if self.values else 0

    def at(self, time: float) -> int:
        """Nothing before the first moment."""
        index = bisect_right(self.times, time)
        return self.values[index - 1] if index else 0

    def integral(self, end: float) -> float:
        untils = [*self.times[1:], end]
        return sum(value * (until - time) for time, until, value in zip(self.times, untils, self.values, strict=False))


@dataclass(slots=True)
class Timeline:
    """Recorded after each decision, for the queues that it touched."""

    queues: dict[str, Track] = field(default_factory=dict)
    total: Track = field(default_factory=Track)
    capacity: Track = field(default_factory=Track)
    happenings: list[Happening] = field(default_factory=list)
    reached: float = 0.0
    """The time up to which nothing else happened."""

    def record(self, time: float, held: Mapping[str, int], capacity: int) -> None:
        """What some of the queues hold from now on; the others hold what they held."""
        total = self.total.last
        for queue, amount in held.items():
            track = self.queues.setdefault(queue, Track())
            total += amount - track.last
            track.set(time, amount)
        self.total.set(time, total)
        self.capacity.set(time, capacity)

    def reach(self, time: float) -> None:
        """What is held is held until then, whether or not a decision comes there."""
        self.reached = max(self.reached, time)

    def note(self, happening: Happening) -> None:
        self.happenings.append(happening)

    @property
    def start(self) -> float:
        return self.capacity.times[0] if self.capacity.times else 0.0

    @property
    def end(self) -> float:
        ends = [self.reached, *(track.times[-1] for track in (self.total, self.capacity) if track.times)]
        return max([*ends, *(happening.time for happening in self.happenings[-1:])], default=0.0)

    @property
    def passed(self) -> float:
        return self.end - self.start

    def used(self) -> float:
        """The part of all GPU time that was held, from the beginning to the end."""
        capacity = self.capacity.integral(self.end)
        return self.total.integral(self.end) / capacity if capacity else 0.0

    def mean(self, queue: str) -> float:
        """GPUs that a queue held on average."""
        return self.queues[queue].integral(self.end) / self.passed / MICRO if self.passed else 0.0

    def held(self, row: str, time: float) -> int:
        """By a queue, or by nobody: IDLE."""
        if row == IDLE:
            return self.capacity.at(time) - self.total.at(time)
        return self.queues[row].at(time)

    def lines(self, *, since: int = 0, most: int | None = None) -> Iterator[str]:
        """The decisions after the first `since`, one a line, at most `most` of them."""
        happenings = self.happenings[since:]
        shown = happenings if most is None else happenings[:most]
        if not shown:
            return
        times = [moment_text(happening.time) for happening in shown]
        width = max(len(time) for time in times)
        jobs = min(32, max(len(happening.job) for happening in shown))
        before = ""
        for time, happening in zip(times, shown, strict=True):
            stamp = "" if time == before else time
            before = time
            text = f"  {happening.text}" if happening.text else ""
            yield f"{stamp:>{width}}  {happening.kind:<8}  {happening.job:<{jobs}}{text}".rstrip()
        if len(shown) < len(happenings):
            yield f"{'':>{width}}  ... and {len(happenings) - len(shown)} more"

    def strips(self, *, plain: bool = False) -> Iterator[str]:
        """A line for each queue: GPUs held over time, from nothing to the most that the cluster has. Where no time has
        passed, only what is held in the end."""
        if not self.queues:
            return
        levels = PLAIN_LEVELS if plain else LEVELS
        most = max(self.capacity.values, default=0) or 1
        rows = [*self.queues, IDLE]
        width = max(len(name) for name in rows)
        moments = [self.start + self.passed * (2 * cell + 1) / (2 * STRIP) for cell in range(STRIP)]
        for name in rows:
            strip = ""
            if self.passed:
                amounts = (self.held(name, moment) for moment in moments)
                strip = f"|{''.join(levels[_level(amount, most, len(levels) - 1)] for amount in amounts)}|  "
            yield f"{name:<{width}}  {strip}{format_gpus(self.held(name, self.end))}"
        if self.passed:
            yield f"{'':<{width}}   {moment_text(self.start):<{STRIP - 8}}{moment_text(self.end):>8}   GPUs in the end"


def _level(amount: int, most: int, levels: int) -> int:
    """Whatever is there shows, and only all of it is full."""
    return 0 if amount <= 0 else max(1, min(levels, amount * levels // most))


def moment_text(time: float) -> str:
    return format_duration(time).replace(" ", "")
