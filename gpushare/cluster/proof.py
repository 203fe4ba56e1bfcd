"""The check of a final set of victims: every inequality once more, and that reclaims come to an end.

Why they do (no ping-pong)
    Shares depend on demand, quotas and nodes, not on what runs (shares.py). A job whose gang costs more than a queue's
    quota is *oversized* there: it borrows as a whole. Let, over the queues of one level,

        PhiD = sum of min(held by jobs that are not oversized, quota)
        PhiS = sum of min(allocated, share)

    A reclaim is done only if (PhiD, PhiS) of every level at which it moves something from one queue to another rises in
    lexicographic order, on the final set of victims. Starting a job where there is room lowers neither. Both are
    bounded integers, so with demands unchanged reclaims come to an end, and v, evicted for j, cannot evict j in return:
    that would lower what has risen. A claim within quota raises PhiD, and an oversized victim does not lower it: so no
    guarantee waits for a job that is larger than its own queue's.
    One exception, for quotas: PhiD may stay as it is when a queue that gets its quota displaces a job so large that
    its own queue cannot have it back within quota: that job cannot evict in return either.
    Preemption raises the priorities of what a queue runs, in lexicographic order, and needs no share at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpushare.cluster.candidates import Bounds, Candidate, Unit, within
from gpushare.cluster.jobs import JobClass, JobState
from gpushare.cluster.placement import forbidden
from gpushare.cluster.queues import QueueState


def holds(
    job: JobState,
    charge: int,
    taken: Sequence[Unit],
    before: Mapping[QueueState, int],
    bounds: Bounds,
) -> bool:
    """May the job have what it would pay so much for, with these taken? `before`: what queues held with them."""
    if forbidden(job.cls, charge) is not None:
        return False
    for queue, _, in_quota in bounds.ceilings:
        parent = queue.parent
        assert parent is not None
        victims = [unit for unit in taken if parent.parent is None or within(unit.job.queue, parent)]
        others = {one for unit in victims for one in unit.job.queue.path if one.parent is parent} - {queue}
        if others:
            rise = gain(before, [queue, *others], job, charge, taken)
            if rise <= (0, 0) and not (in_quota and rise[0] == 0 and not any(map(_can_return, victims))):
                return False
    return True


def harmless(cls: JobClass, charge: int, candidates: Sequence[Candidate], bounds: Bounds) -> list[Candidate]:
    """Without the classes of which one job alone lowers PhiD by more than the taker raises it: no answer that has such
    a job holds. A queue above its quota by its oversized jobs has them."""
    rises = {}
    for mine, _, _ in bounds.ceilings:
        if mine.quota is not None:
            own = mine.allocated - oversized(mine, mine.quota)
            comes = 0 if cls.charge > mine.quota else charge
            rises[mine.parent] = mine, min(own + comes, mine.quota) - min(own, mine.quota)
    spare: dict[QueueState, int] = {}
    found = []
    for one in candidates:
        limits = []
        for other in one.queue.path:
            mine, rise = rises.get(other.parent, (other, 0))
            if other is not mine and other.quota is not None:
                if other not in spare:
                    spare[other] = max(0, other.allocated - oversized(other, other.quota) - other.quota)
                limits.append((other.quota, spare[other] + rise))
        may_go = [victim for victim in one.classes if _made_good(victim, limits)]
        if may_go:
            found.append(Candidate(one.group, one.queue, may_go))
    return found


def _made_good(victim: JobClass, limits: Iterable[tuple[int, int]]) -> bool:
    """`limits`: the quota of each queue that loses, and what one job of those within it may cost."""
    if victim.shape.elastic or victim.shape.rungs > 1:
        return True  # what goes may be less than `charge`
    return all(victim.charge > quota or victim.charge <= most for quota, most in limits)


def _can_return(unit: Unit) -> bool:
    """Could its queue take back by right of quota what it loses?"""
    return all(queue.within_quota(queue.allocated + unit.last) for queue in unit.job.queue.path)


def gain(
    before: Mapping[QueueState, int],
    queues: Iterable[QueueState],
    job: JobState,
    charge: int,
    taken: Sequence[Unit],
) -> tuple[int, int]:
    """By how much (PhiD, PhiS) of these siblings rises, with the job counted that is still to pay so much."""
    quota = share = 0
    for queue in queues:
        coming = charge if within(job.queue, queue) else 0
        old, new = before[queue], queue.allocated + coming
        share += min(new, queue.share) - min(old, queue.share)
        most = queue.quota
        if most is None:
            quota += new - old
            continue
        large = oversized(queue, most)
        lost = sum(unit.charge for unit in taken if unit.job.cls.charge > most and within(unit.job.queue, queue))
        comes = coming if job.cls.charge > most else 0
        quota += min(new - large - comes, most) - min(old - large - lost, most)
    return quota, share


def oversized(queue: QueueState, quota: int) -> int:
    """What jobs hold here or below that cost more than the quota each."""
    held, queues = 0, [queue]
    for one in queues:
        queues += one.children.values()
        held += sum([cls.held for cls in one.classes.values() if cls.charge > quota])
    return held
