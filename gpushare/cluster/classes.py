"""Classes of equal jobs, and shapes that classes share: how they are found, made and forgotten."""

from __future__ import annotations

from gpushare.cluster.jobs import JobClass
from gpushare.cluster.nouns import Job
from gpushare.cluster.queues import QueueState
from gpushare.cluster.rules import may_backfill
from gpushare.cluster.shapes import Shape
from gpushare.cluster.state import FEW_CLASSES, State

__all__ = ["class_of", "forget", "weigh"]


def class_of(state: State, job: Job, queue: QueueState) -> JobClass:
    journal = state.journal
    backfill = may_backfill(job.preemptible, job.backfill, job.min_runtime)
    shape_key = (job.tasks, job.selector, backfill)
    key = (queue.name, job.priority, job.preemptible, shape_key)
    cls = state.classes.get(key)
    if cls is None:
        if len(state.classes) >= state.tidy_at:
            _tidy(state)
        shape = state.shapes.get(shape_key)
        if shape is None:
            shape = Shape(job.tasks, job.selector, backfill)
            shape.possible = shape.too_large(state.space) is None
            journal.put(state.shapes, shape_key, shape)
        cls = JobClass(key, queue, job, shape)
        cls.charge = shape.least_charge(state.space)
        cls.demand = shape.demand(state.space)
        shape.cheapest = cls.charge
        if shape.rungs > 1:
            state.least_step = min(state.least_step, shape.least_step)
        journal.put(state.classes, key, cls)
        if not queue.mixed and any(one.priority != cls.priority for one in queue.classes.values()):
            journal.set(queue, "mixed", True)
        journal.put(queue.classes, key, cls)
        weigh(state, queue)
        journal.put(shape.classes, cls, None)
    return cls


def forget(state: State, cls: JobClass) -> None:
    """A class without jobs, and its shape if it was the last of it."""
    journal, shape = state.journal, cls.shape
    journal.drop(state.classes, cls.key)
    for ask in cls.asks:
        state.watch.forget(ask)
        state.watch.woken.pop(ask, None)
        journal.drop(state.patient, ask)
    journal.drop(cls.queue.classes, cls.key)
    weigh(state, cls.queue)
    journal.drop(shape.classes, cls)
    if not shape.classes:
        journal.drop(state.shapes, shape.key)
        journal.drop(state.watch.crowded, shape)


def weigh(state: State, queue: QueueState) -> None:
    """The classes of the queue or what they cost have changed."""
    alike = not queue.mixed and not any(cls.shape.elastic for cls in queue.classes.values())
    least = min((cls.charge for cls in queue.classes.values()), default=0) if alike else 0
    state.journal.set(queue, "least", least)


def _tidy(state: State) -> None:
    """Forget the classes that have no jobs: where no two jobs are alike there would be one for every job that ever
    came. Seldom, since a class is dear to make and the next such job may come soon."""
    for cls in [cls for cls in state.classes.values() if not cls.busy]:
        forget(state, cls)
    state.journal.set(state, "tidy_at", max(FEW_CLASSES, 2 * len(state.classes)))
