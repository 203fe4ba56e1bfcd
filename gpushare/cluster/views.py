"""Views of the state: jobs, queues, nodes, shares, loans; the next time to wake; and the check of every invariant."""

from __future__ import annotations

from typing import Any

from gpushare.cluster.jobs import JobState
from gpushare.cluster.model import JobView, Loan, NodeView, Place, QueueView, Share
from gpushare.cluster.quantity import MICRO, bytes_of_share, charge_of_bytes
from gpushare.cluster.queues import QueueState, parts
from gpushare.cluster.rules import claims_share_from
from gpushare.cluster.space import BROKEN, FOREVER, NodeState
from gpushare.cluster.state import State


def job(one: JobState) -> JobView:
    state = "pending" if not one.places else "starting" if len(one.unstarted) == len(one.places) else "running"
    parked = one.until > -FOREVER
    gate = one.cls.next.gate
    reason = gate if not one.places and not parked and gate is not None else one.reason
    return JobView(
        one.job,
        state,  # type: ignore[arg-type]
        one.attempt,
        one.rung,
        tuple(one.ordered),
        one.since,
        one.charge,
        reason,
        one.backfill,
        unstarted=tuple(one.unstarted[key] for key in sorted(one.unstarted)),
        seen=tuple(sorted(one.seen)),
        evictions=one.evictions,
        failures=one.failures,
        held=one.until == FOREVER,
        until=one.until if parked and one.until < FOREVER else None,
    )


def limit(one: JobState, place: Place, memory: int) -> int:
    """The job's own limit, else the default of the nearest queue that has one, else the request; never above the
    least maximum on the path, nor below the request."""
    tasks, path = one.job.tasks[place.group], one.queue.path
    default = next((queue.spec.default_limit for queue in path if queue.spec.default_limit is not None), None)
    if tasks.limit is not None:
        found = tasks.limit if tasks.memory is not None else bytes_of_share(tasks.limit, memory)
    else:
        found = place.amount if default is None else bytes_of_share(default, memory)
    most = [bytes_of_share(queue.spec.max_limit, memory) for queue in path if queue.spec.max_limit is not None]
    return max(place.amount, min([found, memory, *most]))


def queue(one: QueueState) -> QueueView:
    pending = running = 0
    leaves = [one]
    while leaves:
        leaf = leaves.pop()
        leaves += leaf.children.values()
        pending += sum(len(cls.pending) for cls in leaf.classes.values())
        running += sum(len(cls.running) for cls in leaf.classes.values())
    return QueueView(one.spec, one.allocated, one.fixed, one.demand, pending, running)


def node(one: NodeState) -> NodeView:
    return NodeView(
        one.spec,
        tuple(max(0, left) for left in one.free) if one.alive else (0,) * len(one.free),
        one.alive,
        one.cordoned,
        one.unknown,
        one.until if one.until > -FOREVER else None,
        tuple(sorted(one.foreign.items())),
    )


# ---- shares and loans ----------------------------------------------------------------------------------


def shares(state: State) -> dict[str, Share]:
    state.divide_shares()
    found, of = {}, parts(state.root, state.queues.values(), state.space.capacity)
    for one in sorted(state.queues.values(), key=lambda one: one.order):
        part, parent = of[one.name], one.parent
        assert parent is not None
        found[one.name] = Share(
            queue=one.name,
            share=one.share,
            guaranteed=part.guaranteed,
            surplus=part.surplus,
            quota=one.quota,
            cap=one.useful,
            demand=one.demand,
            allocated=one.allocated,
            weight=one.weight,
            weights=part.weights,
            left=part.left,
            capped=part.capped,
            parent_share=state.space.capacity if parent is state.root else parent.share,
        )
    return found


def loans(state: State) -> list[Loan]:
    """What queues hold above their quota, matched with what their siblings leave unused of theirs, level by level.

    GPUs are alike, so each borrower owes each lender in proportion to what that lender leaves unused. What is promised
    to nobody counts as one more lender, None. The rest of a rounding goes to the first lenders.
    """
    found: list[Loan] = []
    levels = [state.root]
    while levels:
        parent = levels.pop(0)
        children = sorted(parent.children.values(), key=lambda one: one.order)
        levels += [child for child in children if child.children]
        borrowed = [(child, child.allocated - child.quota) for child in children if child.quota is not None]
        lent: list[tuple[str | None, int]] = [(child.name, -over) for child, over in borrowed if over < 0]
        over = [(child.name, amount) for child, amount in borrowed if amount > 0]
        total = sum(amount for _, amount in over)
        spare = sum(amount for _, amount in lent)
        if total > spare:
            lent.append((None, total - spare))
            spare = total
        for name, amount in over:
            parts = [amount * part // spare for _, part in lent]
            for index in range(amount - sum(parts)):
                parts[index] += 1
            found += [Loan(name, lender, part) for (lender, _), part in zip(lent, parts, strict=True) if part]
    return found


# ---- time --------------------------------------------------------------------------------------------


def next_wake(state: State, now: float) -> float | None:
    times: list[float] = []
    hold, after = state.policy.grow_hold, state.policy.reserve_after
    times += [state.by_seq[seq].changed + hold for seq in state.shrunk]
    times += [state.by_seq[seq].until for seq in state.parked if state.by_seq[seq].until < FOREVER]
    times += [state.space.nodes[number].until for number in state.resting]
    times += [stall.until for seq in state.stalled if (stall := state.by_seq[seq].stall) is not None]
    waiting = False
    for cls in state.classes.values():
        if cls.pending:
            waiting = True
            if after is not None and state.reserver is None:
                times.append(state.by_seq[cls.pending.first].since + after)
        waiting = waiting or bool(cls.short)
        if state.policy.patience:
            first = [state.by_seq[seqs.first] for seqs in (cls.pending, cls.short) if seqs]
            times += [claims_share_from(job, state.policy) for job in first]
    if waiting:
        times += state.guarded.values()
    return min((time for time in times if time > now), default=None)


# ---- invariants --------------------------------------------------------------------------------------


def validate(state: State) -> None:
    """Every sum is computed again from the places of the jobs, every index from the nodes."""
    _validate_nodes(state)
    _validate_index(state)
    _validate_queues(state)
    _validate_classes(state)
    _validate_jobs(state)
    assert state.watch.unread or state.watch.quiet(), "something is left undecided"


def _validate_nodes(state: State) -> None:
    used: dict[tuple[str, int], int] = {}
    charged: dict[tuple[str, int], int] = {}
    tasks: dict[str, dict[int, int]] = {}
    claimed: dict[tuple[str, int], int] = {}
    for one in state.jobs.values():
        for place in one.places.values():
            tasks.setdefault(place.node, {})[one.seq] = tasks.get(place.node, {}).get(one.seq, 0) + 1
            for gpu in place.gpus:
                used[place.node, gpu] = used.get((place.node, gpu), 0) + place.amount
                charged[place.node, gpu] = charged.get((place.node, gpu), 0) + place.charge // len(place.gpus)
        for place in one.unstarted.values():
            assert one.places[place.group, place.task] == place
            for gpu in place.gpus:
                claimed[place.node, gpu] = claimed.get((place.node, gpu), 0) + place.amount
    leaving: dict[tuple[str, int], int] = {}
    for places in state.leaving.values():
        for place in places:
            for gpu in place.gpus:
                leaving[place.node, gpu] = leaving.get((place.node, gpu), 0) + place.amount
    for node in state.space.nodes:
        name = node.spec.name
        if not node.alive:
            assert not node.jobs and name not in tasks, f"{name} is lost and has jobs"
            continue
        assert node.jobs == tasks.get(name, {}), f"{name}: jobs"
        for gpu, free in enumerate(node.free):
            key = (name, gpu)
            if gpu in node.spec.broken:
                assert free == BROKEN and key not in used, f"{key} is broken and used"
                continue
            foreign = node.foreign.get(gpu, 0)
            assert 0 <= foreign <= node.memory, f"{key}: foreign"
            assert free >= 0 or foreign, f"{key}: {free} bytes free"
            assert free == node.memory - used.get(key, 0) - foreign, f"{key}: free"
            assert free >= 0 or key not in claimed, f"{key}: something is to start where there is no room"
            assert charged.get(key, 0) <= MICRO, f"{key}: {charged[key]} micro-GPUs promised"
            assert node.claimed.get(gpu, 0) == claimed.get(key, 0), f"{key}: claimed"
            assert node.leaving.get(gpu, 0) == leaving.get(key, 0), f"{key}: leaving"
            physical = used.get(key, 0) - claimed.get(key, 0) + leaving.get(key, 0)
            assert physical <= node.memory, f"{key}: tasks that run and tasks that end do not fit together"


def _validate_index(state: State) -> None:
    space = state.space
    alive, closed, capacity = 0, 0, 0
    whole = [0] * len(space.whole)
    shared: dict[int, dict[int, int]] = {}
    for one in space.nodes:
        if one.alive:
            bit = 1 << one.number
            alive |= bit
            closed |= bit if one.cordoned or one.unknown or one.until > -FOREVER else 0
            capacity += _worth(state, one)
            assert one.whole == one.free.count(one.memory)
            whole[one.whole] |= bit
            for free in one.free:
                if 0 < free < one.memory:
                    table = shared.setdefault(one.memory, {})
                    table[free] = table.get(free, 0) | bit
    assert (space.alive, space.closed, space.whole) == (alive, closed, whole), "index"
    assert space.capacity == capacity, f"{space.capacity} micro-GPUs to divide, but the nodes have {capacity}"
    resting = {one.number for one in space.nodes if one.alive and one.until > -FOREVER}
    assert set(state.resting) == resting, "nodes that rest"
    assert {memory: table for memory, table in space.shared.items() if table} == shared, "index of shared GPUs"
    for memory, table in space.shared.items():
        assert space.sizes[memory] == sorted(table), "sizes"


def _worth(state: State, node: NodeState) -> int:
    """What a node adds to the capacity that is divided: its working GPUs, without what other programs use of them. A
    node where nothing may start adds only what our jobs hold."""
    held: dict[int, int] = {}
    for one in state.jobs.values():
        for place in one.places.values():
            if place.node == node.spec.name:
                for gpu in place.gpus:
                    held[gpu] = held.get(gpu, 0) + place.charge // len(place.gpus)
    left = 0 if node.closed else MICRO
    working = [gpu for gpu, free in enumerate(node.free) if free != BROKEN]
    foreign = {gpu: charge_of_bytes(used, node.memory) for gpu, used in node.foreign.items()}
    return sum(max(held.get(gpu, 0), left - foreign.get(gpu, 0)) for gpu in working)


def _validate_queues(state: State) -> None:
    by_class: dict[int, int] = {}
    for one in state.jobs.values():
        by_class[id(one.cls)] = by_class.get(id(one.cls), 0) + one.charge
    for cls in state.classes.values():
        assert cls.held == by_class.get(id(cls), 0), f"{cls.key}: held"
    held: dict[str, list[int]] = {name: [0, 0] for name in state.queues}
    for one in state.jobs.values():
        assert one.charge == sum(place.charge for place in one.places.values()), f"{one.job.id}: charge"
        for queue in one.queue.path:
            held[queue.name][0] += one.charge
            held[queue.name][1] += 0 if one.cls.preemptible else one.charge
    for name, queue in state.queues.items():
        assert [queue.allocated, queue.fixed] == held[name], f"{name}: sums"
        if queue.children:
            demand = sum(child.useful for child in queue.children.values())
        else:
            demand = sum(one.demand for one in state.jobs.values() if one.queue is queue)
        assert queue.demand == demand, f"{name}: demand"
    _validate_shares(state)


def _validate_shares(state: State) -> None:
    kept = {name: queue.share for name, queue in state.queues.items()}
    for name, part in parts(state.root, state.queues.values(), state.space.capacity).items():
        assert part.share == kept[name], f"{name}: its share and the sum that it comes from"
    totals = [(state.root, state.space.capacity)]
    while totals:
        parent, total = totals.pop()
        children = list(parent.children.values())
        assert sum(child.share for child in children) <= total, f"{parent.name}: shares exceed what there is"
        for child in children:
            assert child.share <= child.useful, f"{child.name}: share above limit or demand"
            totals.append((child, child.share))
        parent.divided = -1
    state.divide_shares()
    for name, queue in state.queues.items():
        assert queue.share == kept[name], f"{name}: its share was not divided again"
    state.journal.clear()


def _validate_classes(state: State) -> None:
    """Classes, their shapes, and who waits for what: each knows the others, and nothing is about one that is gone."""
    for key, cls in state.classes.items():
        assert cls.key == key and cls.queue.classes.get(key) is cls, f"{key}: its queue"
        assert state.shapes.get(cls.shape.key) is cls.shape and cls in cls.shape.classes, f"{key}: its shape"
    known = set(state.classes.values())
    for shape in state.shapes.values():
        assert shape.classes and known.issuperset(shape.classes), "a shape of classes that are gone"
    for queue in state.queues.values():
        mine = queue.classes.values()
        assert known.issuperset(mine), f"{queue.spec.name}: classes that are gone"
        assert queue.mixed or len({cls.priority for cls in mine}) < 2, f"{queue.spec.name}: several priorities"
        alike = not queue.mixed and not any(cls.shape.elastic for cls in mine)
        assert queue.least == (min((cls.charge for cls in mine), default=0) if alike else 0), (
            f"{queue.spec.name}: least"
        )
    watch = state.watch
    assert known.issuperset(ask.cls for ask in (*watch.keys, *state.patient)), "a class that is gone waits"
    assert known.issuperset(state.tall), "a class that is gone"
    assert set(state.shapes.values()).issuperset(watch.crowded), "a shape that is gone waits for room"
    heard = {(key, ask) for key, asks in watch.listening.items() for ask in asks}
    assert heard == {(key, ask) for ask, keys in watch.keys.items() for key in keys}, "who hears, and what"


def _validate_jobs(state: State) -> None:
    seqs: dict[int, str] = {}
    for cls in state.classes.values():
        for seq in cls.pending:
            assert not state.by_seq[seq].places and state.by_seq[seq].cls is cls
            seqs[seq] = "pending"
        for _, _, seq in cls.running:
            assert state.by_seq[seq].places and state.by_seq[seq].cls is cls and seq not in seqs
            seqs[seq] = "running"
        for seq in (*cls.short, *cls.tall):
            assert seqs[seq] == "running"
        assert cls.parked == sum(state.by_seq[seq].cls is cls for seq in state.parked), f"{cls.key}: parked"
        assert (cls in state.tall) == bool(cls.tall), "classes that can go down"
        assert not len(cls.pending) or cls.next.gate is not None, "a class waits and does not know why"
    for seq in state.parked:
        one = state.by_seq[seq]
        assert seq not in seqs and not one.places and not one.demand and one.until > -FOREVER, f"{one.job.id}: parked"
        seqs[seq] = "parked"
    assert sorted(seqs) == sorted(state.by_seq)
    for one in state.jobs.values():
        shape = one.cls.shape
        if one.places:
            for index, group in enumerate(shape.groups):
                assert group.least <= one.count(index) <= group.top, f"{one.job.id}: a part of a gang runs"
            listed = one.seq in one.cls.short
            fewer = len(one.places) < shape.top
            assert listed == (fewer and one.seq not in state.stalled), f"{one.job.id}: short"
            assert (one.seq in state.shrunk) == (one.rung > 0)
            tall = one.seq in one.cls.tall
            assert tall == (one.rung < shape.rungs - 1), f"{one.job.id}: on the ladder"
            assert not tall or one.cls in state.tall
        assert (one.seq in state.waiting) == bool(one.unstarted)
        assert set(one.seen) <= set(one.places) - set(one.unstarted), f"{one.job.id}: seen"
        assert (one.until > -FOREVER) == (one.seq in state.parked), f"{one.job.id}: held"
        assert one.stall is not None or one.seq not in state.stalled, f"{one.job.id}: stalled"
        assert one.stall is None or one.places, f"{one.job.id}: it waits, and is stalled"
        assert one.backfill == (one.seq in state.backfills), f"{one.job.id}: backfill"
    known = state.by_seq
    assert all(seq in known and known[seq].places for seq in (*state.guarded, *state.shrunk, *state.waiting)), "is gone"
    assert state.backfills.keys() <= known.keys(), "a backfilled job that is gone"


def dump(state: State) -> dict[str, Any]:
    """Plain data, sorted."""
    return {
        "nodes": [
            (
                *(one.spec.name, one.alive, list(one.free), sorted(one.leaving.items())),
                *(one.cordoned, one.unknown, one.until, one.failures, one.trouble, sorted(one.foreign.items())),
            )
            for one in state.space.nodes
        ],
        "queues": [
            (one.name, one.allocated, one.fixed, one.demand, one.share, repr(one.spec))
            for one in sorted(state.queues.values(), key=lambda one: one.order)
        ],
        "jobs": [
            (
                *(one.seq, repr(one.job), one.attempt, one.rung, one.since, one.changed, one.backfill),
                *(one.charge, one.demand, [tuple(place) for place in one.ordered], sorted(one.unstarted)),
                *(sorted(one.seen), one.evictions, one.disturbed, one.failures, one.spared, one.until),
                one.stall,
            )
            for _, one in sorted(state.by_seq.items())
        ],
        "leaving": sorted((key, sorted(map(tuple, places))) for key, places in state.leaving.items()),
        "reserved": (state.reserver.job.id if state.reserver else None, state.space.reserved),
        "gates": sorted(
            (repr(cls.key), repr(cls.next.gate.code if cls.next.gate else None))
            for cls in state.classes.values()
            if len(cls.pending)
        ),
    }
