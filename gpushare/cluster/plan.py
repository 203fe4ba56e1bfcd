"""What is done so that a gang can start: tasks that need a place, and where they go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpushare.cluster.candidates import Unit
from gpushare.cluster.jobs import JobState
from gpushare.cluster.nouns import Place
from gpushare.cluster.placement import Want
from gpushare.cluster.queues import QueueState
from gpushare.cluster.turn import Turn

NOWHERE = Place(-1, -1, "", (), 0, 0)


class Task:
    """One that needs a place."""

    __slots__ = ("alike", "charge", "job", "mask", "movable", "old", "rank", "stoppable", "want")

    def __init__(self, job: JobState, want: Want, old: Place, charge: int, mask: int) -> None:
        self.job = job
        self.want = want
        self.old = old
        """Its place, or NOWHERE if it is of the job that is to start."""
        self.charge = charge
        self.mask = mask
        self.stoppable = False
        self.movable = True
        self.rank = 0
        """The smaller, the better a victim."""
        self.alike: object = None
        """Equal for tasks of a node of which it does not matter which one goes."""

    @property
    def away(self) -> bool:
        """Has it left its place?"""
        return self.job.places.get((self.want.group, self.want.task)) is not self.old


Landed = tuple[Task, Place]
"""A task, and the place that it has found."""


class Plan(NamedTuple):
    """What makes the room: where the job's tasks go, who is stopped, and who moves from where to where."""

    placed: list[Place]
    stopped: list[Unit]
    moved: list[tuple[JobState, list[Place], list[Place]]]

    @classmethod
    def of(cls, landed: Iterable[Landed], stopped: Iterable[Unit]) -> Plan:
        placed: list[Place] = []
        moved: dict[JobState, tuple[list[Place], list[Place]]] = {}
        for task, new in landed:
            if task.old is NOWHERE:
                placed.append(new)
            else:
                old_ones, new_ones = moved.setdefault(task.job, ([], []))
                old_ones.append(task.old)
                new_ones.append(new)
        return cls(placed, list(stopped), [(job, old, new) for job, (old, new) in moved.items()])

    @property
    def size(self) -> tuple[int, int]:
        """Tasks that are disturbed, and of these stopped."""
        stopped = sum(len(unit.places) for unit in self.stopped)
        return stopped + sum(len(old) for _, old, _ in self.moved), stopped

    def carry_out(self, turn: Turn, job: JobState, before: dict[QueueState, int]) -> None:
        """On the ledger; `before` is told what the queues held that are taken from."""
        leaving = [(unit.job, unit.places) for unit in self.stopped] + [(one, old) for one, old, _ in self.moved]
        for one, _ in leaving:
            for queue in one.queue.path:
                before.setdefault(queue, queue.allocated)
        for one, places in leaving:
            for place in places:
                turn.lift(one, place)
        for one, _, new in self.moved:
            for place in new:
                turn.put_back(one, place)
        for place in self.placed:
            turn.state.occupy(job, place)
