"""Shapes: what placing a job depends on. Jobs of different queues share one, and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from gpushare.cluster.nouns import USUAL_MEMORY, Selector, Tasks
from gpushare.cluster.space import Need, NodeState, Space

if TYPE_CHECKING:
    from gpushare.cluster.jobs import JobClass


@dataclass(slots=True, frozen=True)
class TaskShape:
    """Tasks, worked out."""

    least: int
    top: int
    needs: tuple[Need, ...]
    """By rung."""


class Shape:
    """What placing a job depends on. Classes of different queues share it, and what is known about it."""

    __slots__ = (
        "asked",
        "backfill",
        "by_bytes",
        "cheapest",
        "classes",
        "elastic",
        "full",
        "groups",
        "key",
        "movable",
        "possible",
        "rungs",
        "selector",
        "simple",
        "tasks",
        "top",
    )

    def __init__(self, tasks: tuple[Tasks, ...], selector: Selector, backfill: bool) -> None:
        self.key = (tasks, selector, backfill)
        self.asked = tasks
        rungs = max(len(one.rungs) for one in tasks)
        self.rungs = rungs
        self.groups = tuple(
            TaskShape(
                one.least,
                one.top,
                tuple(
                    Need(one.gpus, one.rungs[min(rung, len(one.rungs) - 1)], one.memory is not None)
                    for rung in range(rungs)
                ),
            )
            for one in tasks
        )
        self.tasks = sum(group.least for group in self.groups)
        self.elastic = any(group.top > group.least for group in self.groups)
        self.top = sum(group.top for group in self.groups)
        """Tasks at most."""
        self.selector = selector
        self.backfill = backfill
        self.simple = self.groups[0].needs[0] if self.tasks == 1 and len(self.groups) == 1 and rungs == 1 else None
        """Its need, if it is one task without a choice."""
        self.by_bytes = any(group.needs[0].in_bytes for group in self.groups)
        self.cheapest = 0
        """What a gang of it costs at least (micro), as its classes know it."""
        self.possible = True
        """Some node could hold it, if empty; what none can does not count as demand."""
        self.full: dict[bool, None] = {}
        """There was no room when last tried, and nothing that would help has been freed since: False is here if that is
        so for a job that is to start, True for one further task of an elastic job."""
        self.movable = False
        """One of its jobs may be moved, or might."""
        self.classes: dict[JobClass, None] = {}

    @property
    def several(self) -> bool:
        """Takes one of its tasks parts of several GPUs?"""
        return any(need.gpus > 1 and not need.whole for group in self.groups for need in group.needs)

    @property
    def least_step(self) -> int:
        """The smallest part of a GPU by which a task of it goes up its ladder."""
        needs = [group.needs for group in self.groups]
        return min(up.amount - low.amount for one in needs for up, low in pairwise(one) if up.amount > low.amount)

    def memories(self, space: Space) -> list[int]:
        """The sizes of GPUs that it may run on, in rising order."""
        mask = space.reach(self.selector)
        found = [memory for memory, nodes in sorted(space.models.items()) if nodes & mask]
        if self.by_bytes:
            most = max(group.needs[-1].amount for group in self.groups if group.needs[0].in_bytes)
            found = [memory for memory in found if memory >= most]
        return found

    def usual_memory(self, space: Space) -> int:
        """Of the GPUs on which bytes cost least."""
        return max(self.memories(space), default=USUAL_MEMORY)

    def too_large(self, space: Space) -> tuple[Need, NodeState | None] | None:
        """Tasks of its gang that none of the nodes that it selects could hold, even if empty, and the largest of these
        nodes. None if all could be held; before there are nodes nobody can know."""
        if not space.alive:
            return None
        mask = space.reach(self.selector)
        for group in self.groups:
            if group.least and not space.could_hold(group.needs[-1], mask):
                return group.needs[-1], space.nearest(group.needs[-1], mask)
        return None

    def least_charge(self, space: Space, rung: int = -1) -> int:
        """What its gang costs at least: on the largest GPUs; on the last rung, or on another."""
        memory = self.usual_memory(space)
        return sum(group.least * group.needs[rung].charge(memory) for group in self.groups)

    def demand(self, space: Space) -> int:
        """What a job of it would hold if it had all that it asks for."""
        memory = self.usual_memory(space)
        return sum(group.top * group.needs[0].charge(memory) for group in self.groups) if self.possible else 0
