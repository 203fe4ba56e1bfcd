"""Jobs with a ladder: shrink them before anybody is evicted, grow them back when there is room and time has passed.

A rung below the top is what its owner can do with, so what lies between is lent, and goes first: lowest priority
first, newest first, each only as far down as is needed. Within a queue everyone may ask for it; between queues the
rule is that of reclaim. A job that was shrunk, or started small, stays so for Policy.grow_hold and grows after that as
far as there is room that no waiting job can use: highest priority first, oldest first. While somebody waits who is in
his right nothing grows above what its queue may keep: it would be taken from it at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpushare.cluster.candidates import reclaimable
from gpushare.cluster.model import Code, Place, Reason
from gpushare.cluster.placement import Want, allowed_nodes, forbidden, more_charge, take, wants_of
from gpushare.cluster.space import NodeState, fit_on
from gpushare.cluster.state import JobClass, JobState, QueueState
from gpushare.cluster.turn import Turn


def shrink(turn: Turn, cls: JobClass, job: JobState, more: bool) -> bool:
    """Start the job in the room that others give up on their ladders."""
    state = turn.state
    if not state.ladders:
        return False
    rung = job.rung if more else cls.shape.rungs - 1
    wants = wants_of(job, rung, more)
    charge = more_charge(state, cls, wants) if more else cls.charge
    givers = _givers(turn, cls, job, charge)
    if not givers:
        return False
    mark = state.mark()
    search = _Search(turn, job, wants, givers)
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


def _givers(turn: Turn, cls: JobClass, job: JobState, charge: int) -> list[JobState]:
    """Who may be shrunk for it, in order."""
    state = turn.state
    others = {queue for _, queue in reclaimable(cls.queue, charge).leaves}
    found = [
        giver
        for giver in (state.by_seq[seq] for seq in state.ladders)
        if giver is not job and not giver.unstarted and (giver.queue is cls.queue or giver.queue in others)
    ]
    return sorted(found, key=lambda giver: (giver.cls.priority, -giver.seq))


class _Search:
    def __init__(self, turn: Turn, job: JobState, wants: list[Want], givers: list[JobState]) -> None:
        self.turn = turn
        self.state = turn.state
        self.job = job
        self.wants = wants
        self.givers = givers
        self.placed: list[Place] = []
        self.shrunk: dict[JobState, None] = {}

    def run(self) -> bool:
        mask = allowed_nodes(self.state, self.job)
        for want in self.wants:
            found = self.state.space.find(want.need, mask)
            if found is not None:
                self.placed.append(take(self.state, self.job, want, *found))
            elif not self._squeeze(want, mask):
                return False
        return bool(self.shrunk)

    def _squeeze(self, want: Want, mask: int) -> bool:
        """The node on which the fewest have to shrink."""
        best: tuple[int, int] | None = None
        numbers = {
            self.state.space.by_name[place.node].number for giver in self.givers for place in giver.places.values()
        }
        for number in sorted(numbers)[: self.state.policy.search_width]:
            if mask >> number & 1:
                mark = self.state.mark()
                changed = self._on(want, self.state.space.nodes[number])
                if changed is not None and (best is None or (len(changed), number) < best):
                    best = len(changed), number
                self.state.undo(mark)
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

    def _on(self, want: Want, node: NodeState) -> list[JobState] | None:
        """Shrink those on the node until the task fits, then let go up again whoever need not have."""
        changed: list[tuple[JobState, int]] = []
        for giver in self.givers:
            if giver.seq not in node.jobs:
                continue
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
    reserved = state.space.reserved
    rightful = [cls for cls in state.starving if cls.pending or cls.short]
    for job in sorted((state.by_seq[seq] for seq in state.shrunk), key=lambda job: (-job.cls.priority, job.seq)):
        if job.unstarted or turn.now < job.changed + state.policy.grow_hold:
            continue
        if any(reserved >> state.space.by_name[place.node].number & 1 for place in job.places.values()):
            continue
        for rung in range(job.rung):
            if room_for(turn, job, rung):
                mark = state.mark()
                turn.resize(job, rung)
                if exposed(job.queue, rightful):
                    state.undo(mark)
                    continue
                turn.grown(
                    job, Reason(Code.GROWN, {"share": job.ordered[0].charge // max(1, len(job.ordered[0].gpus))})
                )
                break


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
