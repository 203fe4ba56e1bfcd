"""One victim that is enough, for a job of one task: the quick answer, and on large clusters the usual one."""

from __future__ import annotations

from collections.abc import Container, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

from gpushare.cluster.candidates import Unit
from gpushare.cluster.clearing import frees_enough
from gpushare.cluster.jobs import JobClass, JobState
from gpushare.cluster.order import ENDLESS
from gpushare.cluster.queues import QueueState

if TYPE_CHECKING:
    from gpushare.cluster.victims import Stopping


def singles(search: Stopping) -> Iterator[JobState]:
    """Jobs that free enough alone: those with the least excess first, then in the order of victims. The ledger is
    as it was whenever the next is asked for."""
    if len(search.wants) > 1 or search.state.space.find(search.wants[0].need, search.mask) is not None:
        return  # or there is room: then it is a limit that is in the way
    if search.wants[0].need.gpus > 1 and not any(
        one.stage == search.reach.stage and _could_do_alone(search, one.cls) for one in search.candidates
    ):
        return
    least, cheap = _least_excess(search)
    # With many queues most hold nothing of the right size, and would be gone through before the one that does.
    found: dict[JobState, None] = {}
    for excess, job in _able(search, cheap):
        if excess <= least:
            found[job] = None
            yield job
    others: list[tuple[int, JobState]] = []
    for excess, job in _able(search, None):
        if excess > least:
            others.append((excess, job))
        elif job not in found:
            yield job
    for _, job in sorted(others, key=itemgetter(0)):
        yield job


def _could_do_alone(search: Stopping, cls: JobClass) -> bool:
    """Could one job of the class free enough? By the numbers of its tasks and GPUs alone."""
    need, shape = search.wants[0].need, cls.shape
    if shape.tasks > 1:
        return False
    if not need.whole:
        return True
    gpus = max(group.needs[0].gpus for group in shape.groups)
    return gpus + search.state.space.largest(search.mask) >= need.gpus


def _able(search: Stopping, leaves: Container[QueueState] | None) -> Iterator[tuple[int, JobState]]:
    """Jobs of these leaves that free enough alone, in the order of victims, each with the excess of its charge."""
    need, charge, deficit = search.wants[0].need, search.charge, search.deficit()
    for job in search.victims() if leaves is None else search.look(leaves):
        if len(job.places) != 1 or job.charge < deficit or job.cls.priority != search.reach.stage[1]:
            continue
        (place,) = job.places.values()
        node = search.state.space.by_name[place.node]
        enough = search.mask >> node.number & 1 and frees_enough(node, need, place)
        if enough and search.bounds.permit([Unit(job, [place], place.node, 0)]):
            yield max(0, job.charge - charge), job


def _least_excess(search: Stopping) -> tuple[int, Container[QueueState]]:
    """The least excess that a victim of the stage can have, and the leaves that may have such a victim."""
    least, charge = ENDLESS, search.charge
    alike: set[QueueState] = set()
    """Where the jobs of a class cost the same, and so little."""
    unlike: set[QueueState] = set()
    for one in search.candidates:
        if one.stage == search.reach.stage:
            shape, queue = one.cls.shape, one.cls.queue
            sample = search.state.by_seq[one.cls.running.first[2]].charge
            excess = sample - charge if sample > charge else 0
            if excess < least:
                least, alike = excess, set()
            if excess == least:
                alike.add(queue)
            if shape.by_bytes or shape.elastic or shape.rungs > 1:
                unlike.add(queue)
    return least, alike | unlike
