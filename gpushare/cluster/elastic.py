"""Jobs with a ladder: they shrink before any job is evicted, and grow back when there is room and time has passed.

A job says with its ladder that it can do with less. So jobs with a ladder give first: those of the lowest priority,
of these the newest, each only as far down as is needed. A job may ask this of every job of its own queue; of jobs of
other queues where reclaim may take from these queues. A job that was shrunk, or started small, stays so for
Policy.grow_hold. After that it grows as far as there is room that no waiting job can use: highest priority first,
oldest first. While an entitled job waits, nothing grows above what its queue may keep: it would lose that at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby, islice

from gpushare.cluster.candidates import entitled, reclaimable
from gpushare.cluster.jobs import JobClass, JobState
from gpushare.cluster.model import Code, Reason
from gpushare.cluster.placement import Gang, Want, allowed_nodes, forbidden, next_charge
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.queues import QueueState
from gpushare.cluster.rules import How
from gpushare.cluster.search import Search, Way
from gpushare.cluster.space import NodeState, Space, fit_on
from gpushare.cluster.turn import Turn, allows
from gpushare.cluster.watch import OVER


def shrink(turn: Turn, gang: Gang) -> Search | None:
    """The room for the gang that others give up on their ladders."""
    if not turn.state.tall:
        return None
    search = Shrinking(turn, gang, _givers(turn, gang.job.cls, gang.charge))
    if search.givers and search.place_all() and search.shrunk and search.holds():
        return search
    turn.state.undo(search.mark)
    return None


def _givers(turn: Turn, cls: JobClass, charge: int) -> list[JobClass]:
    """Classes of jobs that may be shrunk for it, those of the lowest priority first."""
    others = {queue for _, queue in reclaimable(cls.queue, charge).leaves}
    found = [giver for giver in turn.state.tall if giver.queue is cls.queue or giver.queue in others]
    return sorted(found, key=_by_priority)


def _by_priority(cls: JobClass) -> int:
    return cls.priority


class Shrinking(Search):
    """Those who are in the way shrink, and stay where they are."""

    def __init__(self, turn: Turn, gang: Gang, givers: list[JobClass]) -> None:
        super().__init__(turn, gang, allowed_nodes(turn.state, gang.job))
        self.givers = givers
        self.allowed = set(givers)

    def ways(self, want: Want) -> Iterator[Way]:
        """The node on which the fewest have to shrink, of the first so many."""
        best: tuple[int, int] | None = None
        for node in islice(self._nodes(want), self.state.policy.search_width):
            mark = self.state.mark()
            changed = self._on(want, node)
            self.state.undo(mark)
            if changed is not None and (best is None or (len(changed), node.number) < best):
                best = len(changed), node.number
                if len(changed) == 1:
                    break
        if best is not None:
            yield Way(self.state.space.nodes[best[1]], ())

    def clear(self, want: Want, way: Way) -> bool:
        self.shrunk.update(dict.fromkeys(self._on(want, way.node) or ()))
        self.land(want, way.node)
        return True

    def _nodes(self, want: Want) -> Iterator[NodeState]:
        """Where there would be room if all went down as far as they can, in the order in which jobs are to shrink."""
        seen = 0
        by_seq, by_name = self.state.by_seq, self.state.space.by_name
        for _, classes in groupby(self.givers, key=_by_priority):
            for seq in merge(*(cls.tall.falling() for cls in classes), reverse=True):
                for place in by_seq[seq].ordered:
                    node = by_name[place.node]
                    bit = 1 << node.number
                    if self.mask & bit and not seen & bit:
                        seen |= bit
                        if self._could_hold(node, want):
                            yield node

    def _could_hold(self, node: NodeState, want: Want) -> bool:
        reach = list(node.free)
        for giver in self._giving(node):
            needs = [group.needs[-1] for group in giver.cls.shape.groups]
            for place in giver.places.values():
                if place.node == node.spec.name:
                    for gpu in place.gpus:
                        reach[gpu] += place.amount - needs[place.group].on(node.memory)
        amount = want.need.on(node.memory)
        return sum(left >= amount for left in reach) >= want.need.gpus

    def _giving(self, node: NodeState) -> list[JobState]:
        """Jobs on the node that may shrink, in the order in which they do."""
        jobs = [self.state.by_seq[seq] for seq in node.jobs]
        able = [one for one in jobs if one.cls in self.allowed and one is not self.job]
        found = [one for one in able if allows(self.turn, one, How.SHRINK)]
        return sorted(found, key=lambda one: (one.cls.priority, -one.seq))

    def _on(self, want: Want, node: NodeState) -> list[JobState] | None:
        """Shrink jobs on the node until the task fits; then those go up again that need not have. None: no fit."""
        changed: list[tuple[JobState, int]] = []
        for giver in self._giving(node):
            before = giver.rung
            while giver.rung < giver.cls.shape.rungs - 1 and fit_on(node, want.need) is None:
                self.turn.resize(giver, giver.rung + 1)
            if giver.rung != before:
                changed.append((giver, before))
        if fit_on(node, want.need) is None:
            return None
        for giver, before in reversed(changed):
            while giver.rung > before and self._still_fits(want, node, giver):
                pass
        return [giver for giver, before in changed if giver.rung != before]

    def _still_fits(self, want: Want, node: NodeState, giver: JobState) -> bool:
        mark = self.state.mark()
        if room_for(self.turn, giver, giver.rung - 1):
            self.turn.resize(giver, giver.rung - 1)
            if fit_on(node, want.need) is not None:
                return True
        self.state.undo(mark)
        return False


def room_for(turn: Turn, job: JobState, rung: int) -> bool:
    """May the job go up to this rung where it is?"""
    shape, extra = job.cls.shape, 0
    more: dict[tuple[str, int], int] = {}
    for place in job.places.values():
        node = turn.state.space.by_name[place.node]
        need = shape.groups[place.group].needs[rung]
        extra += need.charge(node.memory) - place.charge
        for gpu in place.gpus:
            more[place.node, gpu] = more.get((place.node, gpu), 0) + need.on(node.memory) - place.amount
    for (name, gpu), amount in more.items():
        node = turn.state.space.by_name[name]
        # What tasks that are told to stop still hold is promised to others or free later, not now.
        still = node.claimed.get(gpu, 0) - node.leaving.get(gpu, 0)
        if node.free[gpu] + min(0, still) < amount:
            return False
    return forbidden(job.cls, extra) is None


def grow(turn: Turn) -> None:
    """Let jobs grow that were shrunk, or started small, long enough ago."""
    state = turn.state
    heard = [ask for ask in state.watch.heard(OVER) if ask.seqs]
    rightful = [ask.cls for ask in heard if entitled(ask.cls, next_charge(state, ask))]
    for job in growing(turn):
        for rung in range(job.rung):
            if room_for(turn, job, rung):
                mark = turn.state.mark()
                turn.resize(job, rung)
                if exposed(job.queue, rightful):
                    turn.state.undo(mark)
                    continue
                share = job.ordered[0].charge // max(1, len(job.ordered[0].gpus))
                turn.grown(job, Reason(Code.GROWN, {"share": share}))
                break


def growing(turn: Turn) -> list[JobState]:
    """Jobs that may grow by now and have a GPU with room for it, in the order in which they grow."""
    state, space = turn.state, turn.state.space
    if not state.shrunk:
        return []
    nodes = 0
    for memory, table in space.shared.items():
        for free, some in table.items():
            if free >= state.least_step * memory // MICRO:
                nodes |= some
    held = turn.now - state.policy.grow_hold
    found: dict[JobState, None] = {}
    for node in space.among(nodes & ~space.reserved):
        for job in map(state.by_seq.__getitem__, node.jobs):
            if job.rung and job.changed <= held and not job.unstarted:
                found[job] = None
    jobs = [job for job in found if not _on_any(job, space.reserved, space)]
    return sorted(jobs, key=lambda job: (-job.cls.priority, job.seq))


def _on_any(job: JobState, nodes: int, space: Space) -> bool:
    return bool(nodes) and any(nodes >> space.by_name[place.node].number & 1 for place in job.places.values())


def exposed(queue: QueueState, rightful: Iterable[JobClass]) -> bool:
    """Does the queue hold something that one of these entitled jobs, which wait, might take from it?"""
    if queue.quota is None:
        return False
    return any(
        queue.allocated > (queue.quota if in_quota(cls) else max(queue.quota, queue.share))
        for cls in rightful
        if cls.queue is not queue
    )


def in_quota(cls: JobClass) -> bool:
    """Its queue would be, with one job more."""
    return cls.queue.within_quota(cls.queue.allocated + cls.charge)
