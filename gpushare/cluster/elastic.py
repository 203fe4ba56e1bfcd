"""Jobs with a ladder: shrink them before anybody is evicted, grow them back when there is room and time has passed.

A rung below the top is what its owner can do with, so what lies between is lent, and goes first: lowest priority
first, newest first, each only as far down as is needed. Within a queue everyone may ask for it; between queues the
rule is that of reclaim. A job that was shrunk, or started small, stays so for Policy.grow_hold and grows after that as
far as there is room that no waiting job can use: highest priority first, oldest first. While somebody waits who is in
his right nothing grows above what its queue may keep: it would be taken from it at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby, islice

from gpushare.cluster.candidates import allows, entitled, reclaimable
from gpushare.cluster.model import Code, Place, Reason
from gpushare.cluster.placement import Want, allowed_nodes, forbidden, more_charge, next_charge, take, wants_of
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.rules import How
from gpushare.cluster.space import NodeState, Space, fit_on
from gpushare.cluster.state import JobClass, JobState, QueueState
from gpushare.cluster.turn import Turn
from gpushare.cluster.watch import OVER


def shrink(turn: Turn, cls: JobClass, job: JobState, more: bool) -> bool:
    """Start the job in the room that others give up on their ladders."""
    state = turn.state
    if not state.tall:
        return False
    rung = job.rung if more else cls.shape.rungs - 1
    wants = wants_of(job, rung, more)
    charge = more_charge(state, cls, wants) if more else cls.charge
    mark = state.mark()
    search = _Search(turn, job, wants, _givers(turn, cls, charge))
    if not search.run() or forbidden(cls, sum(place.charge for place in search.placed)) is not None:
        state.undo(mark)
        return False
    names = []
    for giver in search.shrunk:
        data = {"for_job": job.job.id, "shrunk": giver.job.id}
        turn.shrunk(giver, job.job.id, Reason(Code.SHRUNK, data))
        names.append(giver.job.id)
    why = Reason(Code.SHRUNK, {"shrunk": tuple(names)})
    search.placed.sort()
    if more:
        turn.extend(job, search.placed, why)
    else:
        turn.begin(job, search.placed, rung, why)
    return True


def _givers(turn: Turn, cls: JobClass, charge: int) -> list[JobClass]:
    """Classes of jobs that may be shrunk for it, those of the lowest priority first."""
    others = {queue for _, queue in reclaimable(cls.queue, charge).leaves}
    found = [giver for giver in turn.state.tall if giver.queue is cls.queue or giver.queue in others]
    return sorted(found, key=_by_priority)


def _by_priority(cls: JobClass) -> int:
    return cls.priority


class _Search:
    def __init__(self, turn: Turn, job: JobState, wants: list[Want], givers: list[JobClass]) -> None:
        self.turn = turn
        self.state = turn.state
        self.job = job
        self.wants = wants
        self.givers = givers
        self.allowed = set(givers)
        self.placed: list[Place] = []
        self.shrunk: dict[JobState, None] = {}

    def run(self) -> bool:
        if not self.givers:
            return False
        mask = allowed_nodes(self.state, self.job)
        for want in self.wants:
            found = self.state.space.find(want.need, mask)
            if found is not None:
                self.placed.append(take(self.state, self.job, want, *found))
            elif not self._squeeze(want, mask):
                return False
        return bool(self.shrunk)

    def _squeeze(self, want: Want, mask: int) -> bool:
        """The node on which the fewest have to shrink, of the first so many."""
        best: tuple[int, int] | None = None
        for node in islice(self._nodes(want, mask), self.state.policy.search_width):
            mark = self.state.mark()
            changed = self._on(want, node)
            self.state.undo(mark)
            if changed is not None and (best is None or (len(changed), node.number) < best):
                best = len(changed), node.number
                if len(changed) == 1:
                    break
        if best is None:
            return False
        node = self.state.space.nodes[best[1]]
        changed = self._on(want, node)
        assert changed is not None
        self.shrunk.update(dict.fromkeys(changed))
        gpus = fit_on(node, want.need)
        assert gpus is not None
        self.placed.append(take(self.state, self.job, want, node, gpus))
        return True

    def _nodes(self, want: Want, mask: int) -> Iterator[NodeState]:
        """Where there would be room if all went down as far as they can, in the order in which jobs are to shrink."""
        seen = 0
        by_seq, by_name = self.state.by_seq, self.state.space.by_name
        for _, classes in groupby(self.givers, key=_by_priority):
            for seq in merge(*(cls.tall.falling() for cls in classes), reverse=True):
                for place in by_seq[seq].ordered:
                    node = by_name[place.node]
                    bit = 1 << node.number
                    if mask & bit and not seen & bit:
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
        """Those on the node that may shrink, in their order."""
        jobs = [self.state.by_seq[seq] for seq in node.jobs]
        able = [one for one in jobs if one.cls in self.allowed and one is not self.job]
        found = [one for one in able if allows(self.turn, one, How.SHRINK)]
        return sorted(found, key=lambda one: (one.cls.priority, -one.seq))

    def _on(self, want: Want, node: NodeState) -> list[JobState] | None:
        """Shrink those on the node until the task fits, then let go up again whoever need not have."""
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
    """Give back what was lent, to those whose hold is over."""
    state = turn.state
    rightful = [
        cls
        for cls, more in state.watch.heard(OVER)
        if (cls.short if more else cls.pending) and entitled(cls, next_charge(state, cls, more))
    ]
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
    """Jobs whose hold is over and on one of whose GPUs there is so much room, in the order in which they grow."""
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
    """Does it hold what one of these, which wait and are in their right, might take from it?"""
    if queue.quota is None:
        return False
    return any(
        queue.allocated > (queue.quota if in_quota(cls) else max(queue.quota, queue.share))
        for cls in rightful
        if cls.queue is not queue
    )


def in_quota(cls: JobClass) -> bool:
    """Its queue would be, with one job more."""
    return cls.queue.quota is None or cls.queue.allocated + cls.charge <= cls.queue.quota
