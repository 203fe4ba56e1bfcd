"""What each queue holds, may have and asks for over a simulated run: for a report that is looked through moment by
moment.

Rows are taken after each decision and after each step of a scenario. A long run is thinned out as it grows, so that its
memory is bounded: of MOST rows every second one goes, and from then on every second one is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gpushare.cluster.amounts import Amounts, capacity, of_queues
from gpushare.cluster.scenario import Step
from gpushare.cluster.simulation import Simulation

__all__ = ["Recording", "Row"]

MOST = 2000


class Row(NamedTuple):
    """All queues at one moment."""

    time: float
    """Seconds from the run's beginning."""
    capacity: int
    """Micro-GPUs that work."""
    queues: dict[str, Amounts]
    happened: int
    """Decisions so far, those of this moment included."""


@dataclass(slots=True)
class Recording:
    """Of one run."""

    rows: list[Row] = field(default_factory=list)
    """In the order of time; the last of each moment counts."""
    steps: list[Row] = field(default_factory=list)
    """After each step of the scenario."""
    titles: list[str] = field(default_factory=list)
    """Of the steps."""
    parents: dict[str, str | None] = field(default_factory=dict)
    """Of each queue that there was."""
    _every: int = 1
    _seen: int = 0

    def after_decision(self, simulation: Simulation) -> None:
        if self.rows and self.rows[-1].time == simulation.now:
            self.rows.pop()
        elif self._seen % self._every:
            self._seen += 1
            return
        else:
            self._seen += 1
        self.rows.append(self._row(simulation))
        if len(self.rows) > MOST:
            del self.rows[1::2]
            self._every *= 2

    def after_step(self, step: Step, simulation: Simulation) -> None:
        self.steps.append(self._row(simulation))
        self.titles.append(step.title)

    @property
    def in_steps(self) -> bool:
        """Several steps are at one moment, so that the time does not tell them apart."""
        return len({row.time for row in self.steps}) < len(self.steps)

    def end(self, simulation: Simulation) -> None:
        """The run is over: its last moment is never thinned out."""
        if not self.rows or self.rows[-1].time < simulation.now or self.rows[-1].happened < _happened(simulation):
            self.rows.append(self._row(simulation))

    def _row(self, simulation: Simulation) -> Row:
        allocator = simulation.allocator
        for name, view in allocator.queues.items():
            self.parents.setdefault(name, view.queue.parent)
        return Row(simulation.now, capacity(allocator), dict(of_queues(allocator)), _happened(simulation))


def _happened(simulation: Simulation) -> int:
    return len(simulation.timeline.happenings)
