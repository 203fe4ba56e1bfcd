"""May a job start, and where: limits and quotas along its queue's path, then a place for every task of its gang.

Everything here leaves the places occupied in the ledger (not yet paid for) or nothing changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from gpushare.cluster.jobs import Ask, JobClass, JobState
from gpushare.cluster.model import Code, Place, Reason, Selector
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.queues import QueueState
from gpushare.cluster.shapes import Shape, TaskShape
from gpushare.cluster.space import Need, NodeState
from gpushare.cluster.state import State
from gpushare.quantity import count, format_bytes


class Want(NamedTuple):
    """One task that needs a place."""

    group: int
    task: int
    need: Need


class Gang(NamedTuple):
    """Tasks of one job that get places together, or none does."""

    job: JobState
    more: bool
    """The job runs: what its gang lacks, or its next task. Else all tasks that it needs to start."""
    rung: int
    wants: list[Want]
    charge: int
    """What they cost at least (micro)."""


def gang_of(state: State, job: JobState, *, more: bool) -> Gang:
    """What the job needs: on its rung if it runs, else on the last."""
    cls = job.cls
    rung = job.rung if more else cls.shape.rungs - 1
    wants = wants_of(job, rung, more)
    return Gang(job, more, rung, wants, more_charge(state, cls, wants) if more else cls.charge)


def forbidden(cls: JobClass, charge: int) -> tuple[Code, QueueState] | None:
    """The limit, or for non-preemptible jobs the quota, that so much more would break; the nearest to the job."""
    for queue in cls.queue.path:
        if queue.cap is not None and queue.allocated + charge > queue.cap:
            return Code.LIMIT, queue
        if not cls.preemptible and not queue.within_quota(queue.fixed + charge):
            return Code.QUOTA, queue
    return None


def forbidden_reason(code: Code, queue: QueueState, need: int) -> Reason:
    if code is Code.LIMIT:
        return Reason(code, {"queue": queue.name, "limit": queue.cap, "allocated": queue.allocated, "need": need})
    return Reason(code, {"queue": queue.name, "quota": queue.quota, "allocated": queue.fixed, "need": need})


def allowed_nodes(state: State, job: JobState, *, backfill: bool = False) -> int:
    """Nodes that it may use now: those that it selects, without those reserved for others. A job that starts may
    `backfill` these; what moves, grows or is taken from others never goes there."""
    shape = job.cls.shape
    mask = state.space.mask(shape.selector)
    if state.space.reserved and not (backfill and shape.backfill) and job is not state.reserver:
        mask &= ~state.space.reserved
    return mask


def place_all(
    state: State, job: JobState, wants: Sequence[Want], masks: Sequence[int], spread: bool
) -> list[Place] | None:
    """Places for all of these tasks; each on the first of these sets of nodes that has room for it."""
    mark = state.mark()
    places: list[Place] = []
    for want in wants:
        for mask in masks:
            place = place_task(state, job, want, mask, spread)
            if place is not None:
                break
        else:
            state.undo(mark)
            return None
        places.append(place)
    places.sort()
    return places


def hardest_first(shape: Shape, rung: int) -> list[int]:
    """Groups in the order in which they are placed: those that need the largest GPUs, then large blocks."""
    if len(shape.groups) == 1:
        return [0]

    def hardness(index: int) -> tuple[int, int, int, int]:
        need = shape.groups[index].needs[rung]
        return -need.amount * need.in_bytes, -need.gpus, -weight(shape.groups[index], rung), index

    return sorted(range(len(shape.groups)), key=hardness)


def weight(group: TaskShape, rung: int) -> int:
    need = group.needs[rung]
    return need.amount if need.in_bytes else need.amount * 80 * 1024  # as if bytes of a common GPU, for an order only


def place_task(state: State, job: JobState, want: Want, mask: int, spread: bool) -> Place | None:
    found = state.space.find(want.need, mask, spread)
    return None if found is None else take(state, job, want, *found)


def take(state: State, job: JobState, want: Want, node: NodeState, gpus: tuple[int, ...]) -> Place:
    """Occupy these GPUs for one task."""
    memory, need = node.memory, want.need
    if need.whole:
        place = Place(want.group, want.task, node.spec.name, gpus, memory, need.gpus * MICRO)
    else:
        place = Place(want.group, want.task, node.spec.name, gpus, need.on(memory), need.charge(memory))
    state.occupy(job, place)
    return place


def affordable(state: State, cls: JobClass, wants: Sequence[Want], mask: int) -> int:
    """Of these nodes those on which one of the tasks breaks no limit, even if the others are where they cost least.

    Bytes are a larger part of a smaller GPU."""
    if not cls.shape.by_bytes or len(state.space.models) == 1:
        return mask
    memories = cls.shape.memories(state.space)
    if not memories:
        return mask
    least = sum(want.need.charge(memories[-1]) for want in wants)
    for memory, nodes in state.space.models.items():
        dearer = min((want.need.charge(memory) - want.need.charge(memories[-1]) for want in wants), default=0)
        if dearer > 0 and forbidden(cls, least + dearer) is not None:
            mask &= ~nodes
    return mask


def by_price(state: State, shape: Shape, mask: int) -> list[int]:
    """The sets of nodes to try one after another: all, then only those with the larger GPUs, where bytes cost less."""
    if not shape.by_bytes or len(state.space.models) == 1:
        return [mask]
    left = [nodes & mask for _, nodes in sorted(state.space.models.items()) if nodes & mask]
    return [sum(left[index:]) for index in range(len(left))]


def place_within(state: State, job: JobState, wants: Sequence[Want], mask: int, spread: bool) -> list[Place] | None:
    """The same on some of these nodes, if the queues may pay for it. Where bytes are too dear each task goes where it
    costs least, on the largest GPUs that have room."""
    shape = job.cls.shape
    if not shape.by_bytes:
        if len(wants) > 1:
            return place_all(state, job, wants, (mask,), spread)
        place = place_task(state, job, wants[0], mask, spread)
        return None if place is None else [place]
    mark = state.mark()
    mask = affordable(state, job.cls, wants, mask)
    sets = by_price(state, shape, mask)
    for masks in ((mask,), sets[::-1]):
        places = place_all(state, job, wants, masks, spread)
        if places is None:
            break
        if forbidden(job.cls, sum(place.charge for place in places)) is None:
            return places
        state.undo(mark)
    return None


def no_space(state: State, shape: Shape) -> Reason:
    """Why there is no room: in numbers of what is asked for."""
    space, mask = state.space, state.space.mask(shape.selector)
    hardest = max(shape.groups, key=lambda group: (group.needs[-1].gpus, group.needs[-1].amount))
    need = hardest.needs[-1]
    tasks = {"tasks": shape.tasks} if shape.tasks > 1 else {}
    closed = (space.reach(shape.selector) & space.closed).bit_count()
    least: dict[str, int] = {"closed": closed} if closed else {}
    if not need.whole:
        least |= {
            "bytes" if need.in_bytes else "share": need.amount,
            "part": space.largest_part(mask, need.in_bytes),
        }
    return Reason(
        Code.NO_SPACE,
        {
            "free": space.free_whole(mask) * MICRO,
            "largest": space.largest(mask) * MICRO,
            "need": need.gpus * MICRO,
            **least,
            **tasks,
        },
    )


def largest_possible(state: State, shape: Shape) -> Reason | None:
    """A reason why no node that it selects could hold one of its tasks, even if empty; None if one can."""
    found = shape.too_large(state.space)
    if found is None and state.space.alive:
        return None
    need, node = found or (shape.groups[0].needs[-1], None)
    asked = _blocks(need.gpus, need.amount if need.in_bytes else None)
    if node is None:
        selects = _selected(shape.selector)
        return Reason(Code.NO_NODE, {"need": asked, **({"selects": selects} if selects else {})})
    largest = _blocks(len(node.free) - len(node.spec.broken), node.memory if need.in_bytes else None)
    return Reason(Code.NO_NODE, {"need": asked, "largest": f"{node.spec.name} with {largest}", "node": node.spec.name})


def _blocks(gpus: int, memory: int | None) -> str:
    return count(gpus, "GPU") + ("" if memory is None else f" of {format_bytes(memory)}")


def _selected(selector: Selector) -> str:
    """What it asks of a node, as people write it."""
    named = (("pool", selector.pools), ("type", selector.types), ("node", selector.nodes))
    parts = [f"{what} {' or '.join(names)}" for what, names in named if names]
    parts += [f"label {key}={value}" for key, value in selector.labels]
    return " and ".join(parts)


def why_no_room(state: State, cls: JobClass, job: JobState) -> Reason:
    """No place was found: because there is none, because it is reserved, or because no node is large enough."""
    shape = cls.shape
    never = largest_possible(state, shape)
    if never is not None:
        return never
    if state.space.reserved and not shape.backfill and state.reserver is not None and job is not state.reserver:
        mask = state.space.mask(shape.selector)
        if all(state.space.holds(group.needs[-1], group.least, mask) for group in shape.groups):
            return Reason(Code.RESERVED, {"for_job": state.reserver.job.id})
    return no_space(state, shape)


def wants_of(job: JobState, rung: int, more: bool) -> list[Want]:
    """The whole gang, or of a job that runs what its gang lacks, else its next task."""
    shape = job.cls.shape
    if shape.simple is not None and not more:
        return [Want(0, 0, shape.simple)]
    if more and job.complete:
        for index, group in enumerate(shape.groups):
            taken = {task for one, task in job.places if one == index}
            if len(taken) < group.top:
                task = next(task for task in range(group.top) if task not in taken)
                return [Want(index, task, group.needs[rung])]
        return []
    wants: list[Want] = []
    for index in hardest_first(shape, rung):
        group = shape.groups[index]
        lacking = group.least - job.count(index) if more else group.least
        free = (task for task in range(group.top) if (index, task) not in job.places)
        wants += [Want(index, task, group.needs[rung]) for task in islice(free, max(0, lacking))]
    return wants


def next_charge(state: State, ask: Ask) -> int:
    """What the next of those who ask costs at least."""
    if not ask.more:
        return ask.cls.charge
    job = state.by_seq[ask.seqs.first]
    return more_charge(state, ask.cls, wants_of(job, job.rung, True))


def more_charge(state: State, cls: JobClass, wants: list[Want]) -> int:
    memory = cls.shape.usual_memory(state.space)
    return sum(want.need.charge(memory) for want in wants)
