"""One victim that is enough, for a job of one task: the quick answer, and on large clusters the usual one."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING

from gpushare.cluster.candidates import Unit
from gpushare.cluster.clearing import frees_enough
from gpushare.cluster.jobs import JobState
from gpushare.cluster.order import ENDLESS
from gpushare.cluster.queues import QueueState
from gpushare.cluster.shapes import Shape

if TYPE_CHECKING:
    from gpushare.cluster.victims import Stopping


def singles(search: Stopping) -> Iterator[JobState]:
    """Jobs that free enough alone: those with the least excess first, then in the order of victims. The ledger is
    as it was whenever the next is asked for."""
    if len(search.wants) > 1 or search.state.space.find(search.wants[0].need, search.mask) is not None:
        return  # or there is room: then it is a limit that is in the way
    least, cheap = _least_excess(search)
    if not cheap:
        return
    # With many queues most hold nothing of the right size, and would be gone through before the one that does.
    found: dict[JobState, None] = {}
    for excess, job in _able(search, search.order.jobs(cheap)):
        if excess <= least:
            found[job] = None
            yield job
    others = []
    for number in search.holders.could_clear(search.wants[0].need):
        jobs = [search.state.by_seq[seq] for seq in search.state.space.nodes[number].jobs]
        others += [
            (excess, rank, job)
            for excess, job in _able(search, jobs)
            if job not in found and (rank := search.order.rank(job)) is not None
        ]
    for _, _, job in sorted(others):
        yield job


def _could_do_alone(search: Stopping, shape: Shape) -> bool:
    """Could one job of the shape free enough? By the numbers of its tasks and GPUs alone."""
    need = search.wants[0].need
    if need.gpus == 1 or shape.tasks > 1 or not need.whole:
        return need.gpus == 1 or shape.tasks == 1
    return max(group.needs[0].gpus for group in shape.groups) + search.state.space.largest(search.mask) >= need.gpus


def _able(search: Stopping, jobs: Iterable[JobState]) -> Iterator[tuple[int, JobState]]:
    """Of these jobs those that free enough alone, each with the excess of its charge."""
    need, charge, deficit = search.wants[0].need, search.charge, search.deficit()
    for job in jobs:
        if len(job.places) != 1 or job.charge < deficit or job.cls.priority != search.reach.stage[1]:
            continue
        (place,) = job.places.values()
        node = search.state.space.by_name[place.node]
        enough = search.mask >> node.number & 1 and frees_enough(node, need, place)
        if enough and search.bounds.permit([Unit(job, [place], place.node, 0)]):
            yield max(0, job.charge - charge), job


def _least_excess(search: Stopping) -> tuple[int, Container[QueueState]]:
    """The least excess that a victim of this stage can have, and the leaves that may have such a victim."""
    least, charge, by_seq = ENDLESS, search.charge, search.state.by_seq
    alike: set[QueueState] = set()
    """Where the jobs of a class cost the same, and so little."""
    unlike: set[QueueState] = set()
    for shape in search.state.shapes.values():
        varied = shape.by_bytes or shape.elastic or shape.rungs > 1
        if not (varied or shape.cheapest - charge <= least) or not _could_do_alone(search, shape):
            continue
        for cls in shape.classes:
            if not search.may_take(cls):
                continue
            excess = max(0, by_seq[cls.running.first[2]].charge - charge)
            if excess < least:
                least, alike = excess, set()
            if excess == least:
                alike.add(cls.queue)
            if varied:
                unlike.add(cls.queue)
    return least, alike | unlike
