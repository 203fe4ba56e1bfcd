"""What has changed, and whom that wakes: shares are divided again, and keys are published (watch.py)."""

from __future__ import annotations

from gpushare.cluster.clearing import fits_without
from gpushare.cluster.jobs import Ask
from gpushare.cluster.queues import QueueState
from gpushare.cluster.shapes import Shape
from gpushare.cluster.space import NodeState
from gpushare.cluster.state import State
from gpushare.cluster.turn import Turn
from gpushare.cluster.watch import ANY, FREED, OVER, About, Key
from gpushare.cluster.widening import small_enough


def settle(turn: Turn) -> bool:
    """Divide the shares again; whether any has changed."""
    state, watch = turn.state, turn.state.watch
    changed = state.divide_shares()
    for queue in changed:
        if not queue.children and queue.allocated < queue.share:
            # What one arrival adds is shared by all queues that want more, and far too little for a job of any.
            if not queue.least or queue.entitled_to(queue.allocated + queue.least):
                watch.changed[queue] = None
        elif not queue.within_quota(queue.allocated):
            watch.publish(OVER)
        if queue.children:
            watch.publish(OVER)
    return bool(changed)


def hear(turn: Turn) -> None:
    """Wake those for whom something has changed since this was last asked."""
    state, watch = turn.state, turn.state.watch
    over = False
    if watch.dropped:
        over = True
        seen: set[QueueState] = set()
        for leaf in watch.dropped:
            watch.changed[leaf] = None
            for queue in leaf.path:
                if queue not in seen:
                    seen.add(queue)
                    open_limit(state, queue)
        watch.dropped.clear()
    if watch.freed:
        if state.tall:
            watch.publish_all()
        roomy = [node for node in dict.fromkeys(watch.freed) if any(left > 0 for left in node.free)]
        for ask in watch.heard(FREED):
            if any(_helps(state, ask, node) for node in roomy):
                watch.woken[ask] = None
        if roomy:
            over = watch.loose = True
            watch.publish(ANY)
        for shape in list(watch.crowded):
            if could_fit(state, shape):
                open_shape(state, shape)
        watch.freed.clear()
    if watch.changed and _any_takes_several(state):
        watch.loose = True
    for leaf in watch.changed:
        watch.publish(Key(About.QUEUE, leaf))
        over = over or any(not queue.within_quota(queue.allocated) for queue in leaf.path)
    if watch.changed:
        watch.publish(ANY)
    watch.changed.clear()
    if over:
        watch.publish(OVER)


def _helps(state: State, ask: Ask, node: NodeState) -> bool:
    """Might what is free there be of use to a job that may stop others of its queue? Yes, if the node would hold one of
    its tasks, as it is or without those of lower priority of its queue."""
    cls, shape = ask.cls, ask.cls.shape
    if ask.more or shape.elastic or shape.rungs > 1 or len(shape.groups) > 1:
        return True
    if not state.space.reach(shape.selector) >> node.number & 1:
        return False
    need, name = shape.groups[0].needs[0], node.spec.name
    jobs = [state.by_seq[seq] for seq in node.jobs]
    lower = [job for job in jobs if job.queue is cls.queue and job.cls.priority < cls.priority]
    if lower and small_enough(state):
        return True
    return fits_without(node, need, [place for job in lower for place in job.places.values() if place.node == name])


def _any_takes_several(state: State) -> bool:
    """Takes a task of some job parts of several GPUs? Searches do not look at all ways to place such tasks, so even a
    start, which takes room, may turn them to a way that works."""
    return any(shape.several and any(cls.busy for cls in shape.classes) for shape in state.shapes.values())


def open_limit(state: State, queue: QueueState) -> None:
    """Something was given back below the queue, or its numbers are others."""
    for ask in list(state.watch.heard(Key(About.LIMIT, queue))):
        state.open(ask.cls)


def open_shape(state: State, shape: Shape) -> None:
    """There may be room for it."""
    journal, watch = state.journal, state.watch
    journal.drop(watch.crowded, shape)
    for more in (False, True):
        journal.drop(shape.full, more)
    for cls in shape.classes:
        if cls.next.priced or cls.more.priced:
            state.open(cls)
        seqs = cls.pending  # bool() of it, written out: a thousand queues may wait for such room
        if seqs.head < len(seqs.items) or cls.short:
            watch.leaves[cls.queue] = None


def could_fit(state: State, shape: Shape) -> bool:
    """A quick look: False only if there is surely no room."""
    space = state.space
    mask = space.mask(shape.selector)
    if space.reserved and not shape.backfill:
        mask &= ~space.reserved
    if all(space.holds(group.needs[-1], group.least, mask) for group in shape.groups):
        return True
    return shape.elastic and any(
        space.holds(group.needs[-1], 1, mask) for group in shape.groups if group.top > group.least
    )
