"""Ageing: a job that lack of room has blocked for too long gets nodes reserved, and room collects there.

At most one job has a reservation: of the classes of highest queue priority and then highest job priority, the one
that has waited longest. Its queue must be entitled to the job: with nothing else running, job and queue would be
within share at every level. The nodes are those on which the least is still missing, one for each place a task needs.
Others start there only if they may be stopped as soon as without them all is complete (`backfill`, which jobs have
unless they say otherwise or have a minimum run time), or if they would else stop somebody for whom nothing is reserved.

So a gang starts at the latest when the jobs that ran on its nodes have ended: newcomers cannot overtake it for ever.
"""

from __future__ import annotations

from gpushare.cluster.candidates import Bounds, Candidate
from gpushare.cluster.model import Code
from gpushare.cluster.order import ROOM
from gpushare.cluster.placement import forbidden, wants_of
from gpushare.cluster.space import FOREVER
from gpushare.cluster.state import JobClass, JobState, Shape, State
from gpushare.cluster.turn import Turn
from gpushare.cluster.victims import Plan, Search, commit


def collects(state: State, shape: Shape) -> bool:
    """Does it need room that must first collect? A job for one GPU starts when the next one is free, unless jobs for
    parts of a GPU come before it: its reservation would only keep a gang from having one."""
    if shape.tasks > 1:
        return True
    need = next(group.needs[-1] for group in shape.groups if group.least)
    return need.gpus > 1 or (need.whole and bool(state.space.with_shared()))


def may_reserve(state: State, job: JobState, cls: JobClass) -> bool:
    """Blocked by room alone, and entitled."""
    if cls.gate is None or cls.gate.code not in (Code.NO_SPACE, Code.RESERVED):
        return False
    if not cls.shape.possible or not collects(state, cls.shape):
        return False
    return all(cls.charge <= queue.share for queue in job.queue.path) and forbidden(cls, cls.charge) is None


def reserve(turn: Turn) -> bool:
    """Give the reservation to who has waited longest, and take it from who does not need it any more.

    True if it has changed: others may start on these nodes now, or its holder in place of backfilling jobs.
    """
    state = turn.state
    after = state.policy.reserve_after
    if after is None:
        return False
    holder = state.reserver
    if holder is not None:
        if holder.places or holder.seq not in state.by_seq or not may_reserve(state, holder, holder.cls):
            release(turn)
            return True
        return False
    if turn.now >= state.reserve_at:
        _find_aged(turn, after)
    best: tuple[tuple[int, int, float, int], JobState] | None = None
    for cls in state.aged:
        if len(cls.pending) and cls.gate is not None:
            job = state.by_seq[cls.pending.first]
            if turn.now >= job.since + after and may_reserve(state, job, cls):
                key = (-cls.queue.path[-1].spec.priority, -cls.priority, job.since, job.seq)
                if best is None or key < best[0]:
                    best = key, job
    if best is not None:
        nodes = choose(turn, best[1])
        if nodes:
            state.version += 1
            state.watch.loose = True  # others have fewer nodes, and the holder's are its own
            state.journal.set(state, "reserver", best[1])
            state.journal.set(state.space, "reserved", nodes)
            return True
    return False


def _find_aged(turn: Turn, after: float) -> None:
    """Classes of which one has waited long enough, and when there will be another."""
    state = turn.state
    aged: dict[JobClass, None] = {}
    later = FOREVER
    for cls in state.classes.values():
        if len(cls.pending):
            due = state.by_seq[cls.pending.first].since + after
            if due <= turn.now:
                aged[cls] = None
            else:
                later = min(later, due)
    state.journal.set(state, "aged", aged)
    state.journal.set(state, "reserve_at", later)


def release(turn: Turn) -> None:
    """Nodes are for everybody again: whoever was held back by it tries again."""
    state = turn.state
    state.journal.set(state, "reserver", None)
    state.journal.set(state.space, "reserved", 0)
    state.version += 1  # who could not be moved or stopped for any good may be now
    state.watch.publish_all()
    for shape in state.shapes.values():
        for name in ("full", "full_more"):
            if getattr(shape, name):
                state.journal.set(shape, name, False)
        for cls in shape.classes:
            for gate in (cls.gate, cls.more_gate):
                if gate is not None and gate.code in ROOM:
                    state.open(cls)


def choose(turn: Turn, job: JobState) -> int:
    """Nodes for all its tasks, as if only what cannot be stopped for it were there: the least missing first."""
    state, shape = turn.state, job.cls.shape
    wants = wants_of(job, shape.rungs - 1, False)
    mask = state.space.mask(shape.selector)
    nodes = 0
    room: dict[int, int] = {}
    order = sorted(state.space.among(mask), key=lambda node: (-node.whole, len(node.jobs), node.number))
    for want in wants:
        for node in order:
            if want.need.on(node.memory) > node.memory:
                continue
            left = room.get(node.number)
            if left is None:
                left = node.fitting(want.need)
            if left >= want.need.gpus:
                room[node.number] = left - want.need.gpus
                nodes |= 1 << node.number
                break
        else:
            return 0
    return nodes


def complete(turn: Turn) -> bool:
    """Start the holder of the reservation if only backfilling jobs are in its way; these are stopped."""
    state = turn.state
    job = state.reserver
    if job is None or job.places or not state.backfills:
        return False
    shape = job.cls.shape
    rung = shape.rungs - 1
    found = {}
    for seq in sorted(state.backfills):
        cls = state.by_seq[seq].cls
        if not cls.preemptible:
            continue
        found[cls] = Candidate((0, 0), 0, cls)
    mark = state.mark()
    search = Search(turn, job, wants_of(job, rung, False), list(found.values()), Bounds())
    search.mask = state.space.mask(shape.selector) & state.space.reserved
    search.only = state.backfills
    if not search.run():
        state.undo(mark)
        return False
    commit(turn, Plan(search, rung, False, mark), Code.BACKFILL_OVER)
    return True
