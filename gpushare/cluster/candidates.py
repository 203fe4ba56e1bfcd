"""Selects candidates for eviction: what goes as one, of which queues, how much of each queue, and in which order.

    Reclaim: with the job, its queue and each ancestor below the common one stay within quota, and victims come from
    queues above their quota; or they stay within share, and victims come from queues above share and quota. The rule
    holds for each queue on the victim's path, before each single victim. So only a job that is itself larger than what
    its queue holds above the quota can take the queue below it.
    Preempt: jobs of the same queue with strictly lower priority.
    In both: what rules.py allows.

The order (lines.py): lower priority classes of queues first, of queues above their shares, then lower job priorities (a
stage is only left when it does not suffice); within a stage the queue most over its share, and of it who loses the
least work.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpushare.cluster.jobs import JobClass, JobState
from gpushare.cluster.model import Place
from gpushare.cluster.order import ENDLESS, ratio
from gpushare.cluster.queues import QueueState
from gpushare.cluster.space import NodeState, Space

NOTHING: Mapping[QueueState, int] = {}


# ---- what is taken as one --------------------------------------------------------------------------------


class Unit:
    """What is taken as one: a task above an elastic job's least, or a whole job."""

    __slots__ = ("charge", "freed", "here", "job", "last", "places", "rank")

    def __init__(self, job: JobState, places: Sequence[Place], node: str, rank: Any) -> None:
        self.job = job
        self.places = places
        if len(places) == 1:
            self.here = places if places[0].node == node else []
            self.charge = self.last = places[0].charge
            self.rank = rank
            self.freed = len(places[0].gpus) if self.here else 0
            return
        self.here = [place for place in places if place.node == node]
        self.charge = sum(place.charge for place in places)
        self.last = self.charge
        """Of it, what goes last: all, or of an elastic job its gang after the further tasks."""
        if len(places) > 1 and job.extra() > 0:
            self.last = job.cls.charge
        self.rank = rank
        """The smaller, the better a victim."""
        self.freed = sum(len(place.gpus) for place in self.here)


def units_on(job: JobState, node: NodeState, rank: Any, *, extras_first: bool) -> list[Unit]:
    """What of the job could be taken to make room on the node."""
    if not job.places:
        return []
    name = node.spec.name
    if extras_first and job.cls.shape.elastic:
        found = []
        for index, group in enumerate(job.cls.shape.groups):
            extra = job.count(index) - group.least
            if extra > 0:
                here = [place for place in job.ordered if place.group == index and place.node == name]
                found += [Unit(job, [place], name, rank) for place in here[::-1][:extra]]
        if found or job.extra() > 0:
            return found
    places = job.ordered if len(job.places) > 1 else list(job.places.values())
    unit = Unit(job, places, name, rank)
    return [unit] if unit.here else []


def units_of(job: JobState, space: Space, rank: Any) -> list[Unit]:
    """What of the job could be taken, wherever it is."""
    units: dict[tuple[int, int], Unit] = {}
    for node in dict.fromkeys(place.node for place in job.places.values()):
        for unit in units_on(job, space.by_name[node], rank, extras_first=True):
            units[unit.places[0].group, unit.places[0].task] = unit
    return [units[first] for first in sorted(units)]


# ---- how far ---------------------------------------------------------------------------------------------


class Bounds:
    """How far each queue may be taken from: until it is no longer above its bound."""

    def __init__(self) -> None:
        self.of: dict[QueueState, tuple[tuple[QueueState, int], ...]] = {}
        """By leaf: the queues of its path that must stay above a bound before each victim."""
        self.leaves: list[tuple[tuple[int, ...], QueueState]] = []
        """Leaves that may be taken from, each with its place in the order."""
        self.ceilings: list[tuple[QueueState, int, bool]] = []
        """The job's queue and its ancestors: with the job, each may hold so much if victims are taken outside of it;
        whether that is its quota."""
        self.late: Container[JobState] = ()
        """Jobs in quota: those before them in the order of victims would bring their queues down to their bounds."""
        self.strict = True
        """A queue that one of these is taken from keeps its bound ..."""
        self.spared = False
        """... and that has spared somebody."""

    def begin(self) -> None:
        """Another search begins."""
        self.late = ()
        self.strict, self.spared = True, False

    def permit(self, units: Iterable[Unit], before: Mapping[QueueState, int] = NOTHING) -> bool:
        """Can these be taken one after the other, the largest last? `before`: what queues held with all of them."""
        if not self.of:
            return True
        sums: dict[QueueState, tuple[int, int, bool]] = {}
        bounds: dict[QueueState, int] = {}
        for unit in units:
            late = unit.job in self.late
            for queue, bound in self.of.get(unit.job.queue, ()):
                total, most, any_late = sums.get(queue, (0, 0, False))
                sums[queue] = total + unit.charge, max(most, unit.last), any_late or late
                bounds[queue] = bound
        for queue, (total, most, any_late) in sums.items():
            left = before.get(queue, queue.allocated) - total
            if left + most <= bounds[queue]:
                return False
            if any_late and left < bounds[queue] and self.strict:
                self.spared = True
                return False
        return True


def entitled(cls: JobClass, charge: int) -> bool:
    """Would its queue be within share or quota with so much more?"""
    return cls.queue.entitled_to(cls.queue.allocated + charge)


def reclaimable(leaf: QueueState, charge: int, *, shares: bool = True) -> Bounds:
    """Leaves that must give to this one, and how far: for its quota, and for its share if `shares`."""
    bounds = Bounds()
    in_quota, in_share = True, shares
    inside = 0
    """What could at most be taken below the queue looked at: that makes room in it for the job."""
    for mine in leaf.path:
        after = mine.allocated + charge - inside
        in_quota = in_quota and mine.within_quota(after)
        in_share = in_share and after <= mine.share
        if not in_quota and not in_share:
            break
        ceiling = mine.share if not in_quota else ENDLESS if mine.quota is None else mine.quota
        bounds.ceilings.append((mine, ceiling, in_quota))
        parent = mine.parent
        assert parent is not None
        for other in parent.children.values():
            if other is not mine and not other.within_quota(other.allocated):
                inside += _over(other, in_quota, (), (), bounds)
    bounds.leaves.sort(key=lambda entry: entry[0])
    return bounds


def _over(
    queue: QueueState,
    quota_alone: bool,
    key: tuple[int, ...],
    chain: tuple[tuple[QueueState, int], ...],
    bounds: Bounds,
) -> int:
    """Find the leaves below a queue, as far as all on the way are above their bound; what they hold at most to take."""
    if queue.quota is None:
        return 0
    bound = queue.quota if quota_alone else max(queue.quota, queue.share)
    if queue.allocated <= bound:
        return 0
    key = (*key, queue.spec.priority, -ratio(queue.allocated, queue.share), queue.order)
    chain = (*chain, (queue, bound))
    if queue.children:
        return sum(_over(child, quota_alone, key, chain, bounds) for child in queue.children.values())
    bounds.of[queue] = chain
    bounds.leaves.append((key, queue))
    return queue.allocated


def within(queue: QueueState, top: QueueState) -> bool:
    return top in queue.path


# ---- whose jobs ------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """A leaf of which jobs may be victims."""

    group: int
    """Its priority class, in which its turn comes."""
    queue: QueueState
    classes: list[JobClass]

    @property
    def stages(self) -> list[tuple[int, int]]:
        """Priority classes of queues, and in each priorities of jobs, are tried in this order."""
        return [(self.group, cls.priority) for cls in self.classes]


def candidates_for_reclaim(cls: JobClass, charge: int, *, shares: bool) -> tuple[list[Candidate], Bounds]:
    bounds = reclaimable(cls.queue, charge, shares=shares)
    top = _full_ancestor(cls, charge)
    found = []
    highest = max((key[0] for key, _ in bounds.leaves), default=0)
    for key, leaf in bounds.leaves:
        if top is not None and not within(leaf, top):
            continue
        classes = [victim for victim in leaf.classes.values() if victim.preemptible and victim.running]
        if classes:
            # A queue at its share would take what it loses from one above its own: its class does not put it first.
            over = all(queue.allocated > queue.share for queue, _ in bounds.of[leaf])
            found.append(Candidate(key[0] if over else highest, leaf, classes))
    return found, bounds


def candidates_for_preempt(cls: JobClass) -> tuple[list[Candidate], Bounds]:
    lower = [
        victim
        for victim in cls.queue.classes.values()
        if victim.preemptible and victim.priority < cls.priority and victim.running
    ]
    return [Candidate(0, cls.queue, lower)] if lower else [], Bounds()


def _full_ancestor(cls: JobClass, charge: int) -> QueueState | None:
    """The lowest queue whose limit would be broken: only what is below it helps."""
    for queue in cls.queue.path:
        if queue.cap is not None and queue.allocated + charge > queue.cap:
            return queue
    return None
