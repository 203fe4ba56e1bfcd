"""One victim that is enough, for a job of one task: the quick answer, and on large clusters the usual one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpushare.cluster.candidates import Unit
from gpushare.cluster.clearing import frees_enough
from gpushare.cluster.jobs import JobState
from gpushare.cluster.shapes import Shape

if TYPE_CHECKING:
    from gpushare.cluster.victims import Stopping


def singles(search: Stopping) -> Iterator[JobState]:
    """Jobs that free enough alone and hold no more than is needed, in the order of victims. The ledger is as it was
    whenever the next is asked for."""
    state, need = search.state, search.wants[0].need
    if len(search.wants) > 1 or state.space.find(need, search.mask) is not None:
        return  # or there is room: then it is a limit that is in the way
    # With many queues most hold nothing of the right size, and would be gone through before the one that does.
    able = {
        cls.queue
        for shape in state.shapes.values()
        if shape.cheapest <= search.charge and _could_do_alone(search, shape)
        for cls in shape.classes
        if search.may_take(cls)
    }
    least, most = search.deficit(), search.charge
    for job in search.order.jobs(able):
        if len(job.places) == 1 and least <= job.charge <= most and _frees_enough(search, job):
            yield job


def _could_do_alone(search: Stopping, shape: Shape) -> bool:
    """Could one job of the shape free enough? By the numbers of its tasks and GPUs alone."""
    need = search.wants[0].need
    if need.gpus == 1 or shape.tasks > 1 or not need.whole:
        return need.gpus == 1 or shape.tasks == 1
    return max(group.needs[0].gpus for group in shape.groups) + search.state.space.largest(search.mask) >= need.gpus


def _frees_enough(search: Stopping, job: JobState) -> bool:
    (place,) = job.places.values()
    node = search.state.space.by_name[place.node]
    if job.cls.priority != search.reach.stage[1] or not search.mask >> node.number & 1:
        return False
    unit = Unit(job, [place], place.node, 0)
    return frees_enough(node, search.wants[0].need, place) and search.bounds.permit([unit])
