"""What happened in a run, as numbers over time: GPUs held per queue, and each decision with its moment.

Text here, a picture in plot.py; both read the same samples. Times are seconds from the run's beginning, amounts
micro-GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.cluster.quantity import MICRO, format_gpus
from gpushare.quantity import format_duration

__all__ = ["Happening", "Sample", "Timeline", "moment_text"]

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


@dataclass(frozen=True, slots=True)
class Sample:
    time: float
    held: Mapping[str, int]
    capacity: int

    @property
    def idle(self) -> int:
        return self.capacity - sum(self.held.values())


@dataclass(slots=True)
class Timeline:
    """Samples are taken after every change; between two of them nothing changed."""

    queues: tuple[str, ...] = ()
    samples: list[Sample] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)

    def sample(self, time: float, held: Mapping[str, int], capacity: int) -> None:
        new = [queue for queue in held if queue not in self.queues]
        self.queues += tuple(new)
        sample = Sample(time, dict(held), capacity)
        if self.samples and self.samples[-1].time == time:
            self.samples[-1] = sample
        elif not self.samples or (self.samples[-1].held, self.samples[-1].capacity) != (sample.held, capacity):
            self.samples.append(sample)

    def note(self, happening: Happening) -> None:
        self.happenings.append(happening)

    @property
    def end(self) -> float:
        last = self.samples[-1].time if self.samples else 0.0
        return max(last, self.happenings[-1].time if self.happenings else 0.0)

    @property
    def passed(self) -> float:
        """Seconds from the first sample to the end."""
        return self.end - self.samples[0].time if self.samples else 0.0

    def used(self) -> float:
        """The part of all GPU time that was held, from the first sample to the end."""
        held = capacity = 0.0
        for sample, until in self._spans():
            held += sum(sample.held.values()) * (until - sample.time)
            capacity += sample.capacity * (until - sample.time)
        return held / capacity if capacity else 0.0

    def mean(self, queue: str) -> float:
        """GPUs that a queue held on average."""
        total = sum(sample.held.get(queue, 0) * (until - sample.time) for sample, until in self._spans())
        return total / self.passed / MICRO if self.passed else 0.0

    def steps(self, queue: str) -> tuple[list[float], list[float]]:
        """Seconds and GPUs for a step curve, the last value drawn to the end; IDLE is what nobody holds."""
        times = [sample.time for sample in self.samples]
        values = [(sample.idle if queue == IDLE else sample.held.get(queue, 0)) / MICRO for sample in self.samples]
        if times and self.end > times[-1]:
            times.append(self.end)
            values.append(values[-1])
        return times, values

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
        if not self.samples:
            return
        levels = PLAIN_LEVELS if plain else LEVELS
        most = max(sample.capacity for sample in self.samples) or 1
        rows = [*self.queues, IDLE]
        width = max(len(name) for name in rows)
        for name in rows:
            cells = self._cells(name)
            # Whatever is there shows, and only all of it is full.
            marks = (
                0 if not cell else max(1, min(len(levels) - 1, cell * (len(levels) - 1) // most)) for cell in cells
            )
            strip = "".join(levels[mark] for mark in marks)
            last = self.samples[-1].idle if name == IDLE else self.samples[-1].held.get(name, 0)
            yield f"{name:<{width}}  {f'|{strip}|  ' if self.passed else ''}{format_gpus(last)}"
        if self.passed:
            yield f"{'':<{width}}   {moment_text(self.samples[0].time):<{STRIP - 8}}{moment_text(self.end):>8}"

    def _cells(self, name: str) -> list[int]:
        """The value at the middle of each of the strip's cells."""
        first, length = self.samples[0].time, self.passed
        cells, index = [], 0
        for cell in range(STRIP):
            middle = first + length * (2 * cell + 1) / (2 * STRIP)
            while index + 1 < len(self.samples) and self.samples[index + 1].time <= middle:
                index += 1
            sample = self.samples[index]
            cells.append(sample.idle if name == IDLE else sample.held.get(name, 0))
        return cells

    def _spans(self) -> Iterator[tuple[Sample, float]]:
        untils: Sequence[float] = [sample.time for sample in self.samples[1:]] + [self.end]
        yield from zip(self.samples, untils, strict=False)


def moment_text(time: float) -> str:
    return format_duration(time).replace(" ", "")
