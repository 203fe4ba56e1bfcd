"""Ageing: a job that has waited too long for room gets nodes reserved, and room collects there.

At most one job has a reservation. Queues of higher priority come first, then jobs of higher priority, then the job
that has waited longest. Its queue must be entitled to the job: if nothing else ran, the job would be within the share
of every queue above; and within that of its own queue, if the jobs did not run that have started there while it waited.
A gang that starts above its queue's share would soon be stopped. The nodes reserved are those on which the least is
still missing, one for each place that a task needs.

Other jobs start on these nodes in three cases only. A job with `backfill` may start there, and is stopped as soon as
the reserved room is complete without it; jobs have `backfill` unless they say otherwise or have a minimum run time. And
a job may start there that would otherwise stop a running job, and a claim within quota may stop jobs there: then the
reservation is made again.

So a gang starts at the latest when the jobs that ran on its nodes have ended. Jobs that come later cannot pass it for
ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from gpushare.cluster.candidates import Bounds, Candidate
from gpushare.cluster.jobs import JobClass, JobState
from gpushare.cluster.model import Code
from gpushare.cluster.order import ROOM
from gpushare.cluster.placement import forbidden, gang_of, wants_of
from gpushare.cluster.queues import QueueState
from gpushare.cluster.search import commit
from gpushare.cluster.shapes import Shape
from gpushare.cluster.space import FOREVER
from gpushare.cluster.state import State
from gpushare.cluster.turn import Turn
from gpushare.cluster.victims import Stopping


def collects(state: State, shape: Shape) -> bool:
    """Does it need room that must first collect? A job for one GPU starts when the next one is free, unless jobs for
    parts of a GPU come before it: its reservation would only keep a gang from having one."""
    if shape.tasks > 1:
        return True
    need = next(group.needs[-1] for group in shape.groups if group.least)
    return need.gpus > 1 or (need.whole and bool(state.space.with_shared()))


def may_reserve(state: State, job: JobState, cls: JobClass) -> bool:
    """Blocked by room alone, and entitled."""
    if cls.next.gate is None or cls.next.gate.code not in (Code.NO_SPACE, Code.RESERVED):
        return False
    if not cls.shape.possible or not collects(state, cls.shape):
        return False
    if not all(cls.charge <= queue.share for queue in job.queue.path) or forbidden(cls, cls.charge) is not None:
        return False
    beyond = job.queue.allocated + cls.charge - job.queue.share
    return beyond <= 0 or beyond <= sum(_passed(state, job))


def _passed(state: State, job: JobState) -> Iterator[int]:
    """What jobs of its queue hold that have started while it waited."""
    for cls in job.queue.classes.values():
        for _, _, seq in takewhile(lambda run: run[0] > job.since, cls.running.newest_first()):
            yield state.by_seq[seq].charge


def reserve(turn: Turn) -> bool:
    """Give the reservation to the job that has waited longest, and take it from a job that does not need it any more.

    True if it has changed: other jobs may start on these nodes now, or its holder in place of backfilling jobs.
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
    if turn.now < state.reserve_at:
        return False
    oldest = [state.by_seq[cls.pending.first] for cls in state.classes.values() if cls.pending]
    state.journal.set(state, "reserve_at", min((job.since + after for job in oldest), default=FOREVER))
    able = [job for job in oldest if turn.now >= job.since + after and may_reserve(state, job, job.cls)]
    if able:
        first = min(able, key=lambda job: (-job.queue.path[-1].spec.priority, -job.cls.priority, job.since, job.seq))
        nodes = choose(turn, first)
        if nodes:
            state.version += 1
            state.watch.loose = True  # other jobs have fewer nodes now, and the holder has some of its own
            state.journal.set(state, "reserver", first)
            state.journal.set(state.space, "reserved", nodes)
            return True
    return False


def release(turn: Turn) -> None:
    """There is no reservation any more: jobs that it held back are tried again."""
    state = turn.state
    state.journal.set(state, "reserver", None)
    state.journal.set(state.space, "reserved", 0)
    state.version += 1  # a move or a stop that was of no use may be of use now
    state.watch.publish_all()
    for shape in state.shapes.values():
        for more in (False, True):
            state.journal.drop(shape.full, more)
        for cls in shape.classes:
            if any(ask.gate is not None and ask.gate.code in ROOM for ask in cls.asks):
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
    found: dict[QueueState, dict[JobClass, None]] = {}
    for seq in sorted(state.backfills):
        cls = state.by_seq[seq].cls
        if cls.preemptible:
            found.setdefault(cls.queue, {})[cls] = None
    candidates = [Candidate(0, queue, list(classes)) for queue, classes in found.items()]
    nodes = state.space.mask(job.cls.shape.selector) & state.space.reserved
    gang = gang_of(state, job, more=False)
    search = Stopping(turn, gang, nodes, candidates, Bounds(), only=state.backfills)
    if not search.run():
        state.undo(search.mark)
        return False
    commit(turn, search)
    return True
