"""Why a job waits, and the smallest change that would start it. Nothing here guesses.

The constraint is the one that the allocator itself has found, looked for again with today's numbers. A change is only
named if a turn in which it is made, undone afterwards, starts the job. Where one change uncovers the next constraint
(a limit is raised, and now there is no room) they are taken together. What is tried, the smaller first:

    closed nodes      uncordoned; programs of others gone
    limits, quotas    raised to what the job needs, along its queue's path
    priority          just above the lowest that would make room by preemption in its own queue
    quota             raised so that the job, and the equal ones ahead of it, are in their queue's right and may reclaim
    nodes             as many GPUs more as are missing for these

Time is tried out, too: where only minimum run times of others are in the way, it starts by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from gpushare.cluster import obstacles, views
from gpushare.cluster.candidates import candidates_for_preempt, candidates_for_reclaim
from gpushare.cluster.jobs import JobClass, JobState
from gpushare.cluster.model import (
    Code,
    Event,
    Explanation,
    JobChanged,
    JobReleased,
    Node,
    NodeAdded,
    QueueChanged,
    Reason,
)
from gpushare.cluster.nouns import USUAL_MEMORY
from gpushare.cluster.order import ENDLESS
from gpushare.cluster.placement import forbidden, forbidden_reason, why_no_room
from gpushare.cluster.quantity import MICRO, format_gpus
from gpushare.cluster.queues import QueueState
from gpushare.cluster.rules import Barrier, How, barrier, claims_share_from, guarded_until
from gpushare.cluster.space import FOREVER
from gpushare.cluster.state import State
from gpushare.cluster.transaction import Transactions
from gpushare.quantity import count, format_bytes, format_duration

MOST_WAITS = 8
"""So many moments are tried out."""
MOST_NODES = 1000
"""More than these are not proposed."""
STEPS = 16
"""So many constraints behind each other are looked through, and others that come first and take what is added."""


def explain(turns: Transactions, job: JobState) -> Explanation:
    view = views.job(job)
    name = job.job.id
    state = turns.state
    if view.state == "running":
        return Explanation(name, view.state, view.reason, tuple(_fewer(state, job, turns.now)))
    if view.state == "starting":
        return Explanation(name, view.state, _ending(state, job))
    if job.seq in state.parked:
        release = (JobReleased(name),)
        with turns.tried(release):
            helps = bool(job.places)
        return Explanation(name, view.state, view.reason, (), release if helps else (), "release it" if helps else "")
    reason = binding(state, job)
    found = list(_options(turns, job, reason))
    (change, changes), others = (found[0], tuple(found[1:])) if found else (("", ()), ())
    who = tuple(_who(state, job, turns.now))
    return Explanation(name, view.state, reason, who, changes, change, others, _by_itself(turns, job))


def _fewer(state: State, job: JobState, now: float) -> Iterator[str]:
    """Why an elastic job that runs has not all of its tasks."""
    places, top, cls = len(job.places), job.shape.top, job.cls
    if places == top:
        return
    said = f"{places} of its {count(top, 'task')} {'has' if places == 1 else 'have'} places"
    if job.seq in state.stalled and job.stall is not None:
        again = format_duration(max(0.0, job.stall.until - now))
        yield f"{said}: further ones did not start ({job.stall.why}) and are tried again in {again}"
        return
    gate = cls.more.gate
    yield f"{said}: {gate.message}" if gate is not None else said
    yield from obstacles.said(state, job, now)


def binding(state: State, job: JobState) -> Reason:
    """The constraint that keeps it, in today's numbers."""
    cls = job.cls
    broken = forbidden(cls, cls.charge)
    if broken is not None:
        return forbidden_reason(*broken, cls.charge)
    if cls.next.gate is not None and cls.next.gate.code in (Code.LIMIT, Code.QUOTA):
        return cls.next.gate
    return why_no_room(state, cls, job)


def _ending(state: State, job: JobState) -> Reason:
    """It has its places and waits for those who still hold them."""
    mine = {(place.node, gpu) for place in job.unstarted.values() for gpu in place.gpus}
    names = [
        name
        for (name, _), places in sorted(state.leaving.items())
        if name == job.job.id or any((place.node, gpu) in mine for place in places for gpu in place.gpus)
    ]
    return Reason(Code.ENDING, {"waits_for": tuple(dict.fromkeys(names))})


# ---- who is in the way -----------------------------------------------------------------------------------


def _who(state: State, job: JobState, now: float) -> Iterator[str]:
    yield from obstacles.said(state, job, now)
    cls, queue = job.cls, job.queue
    ahead = _ahead(job)
    if ahead:
        yield f"{count(ahead, 'equal job')} of {queue.name} {'is' if ahead == 1 else 'are'} ahead of it"
    after = queue.allocated + cls.charge
    would = f"with it {queue.name} would hold {format_gpus(after)} GPU{'' if after == MICRO else 's'}"
    right = f"its share is {format_gpus(queue.share)}, its quota {_amount(queue.quota)}"
    if not queue.entitled_to(after):
        yield f"{would}; {right}: it may not take from others"
    else:
        due = claims_share_from(job, state.policy)
        patient = now < due and not queue.within_quota(after)
        only = f"; for {format_duration(due - now)} more only jobs that lose at most an hour of work" if patient else ""
        yield f"{would}; {right}: it may take from those above theirs{only}"
        candidates, _ = candidates_for_reclaim(cls, cls.charge, shares=True)
        if not candidates:
            yield "nobody from whom it may take is above share and quota"
        for one in sorted(candidates, key=lambda one: min(one.stages)):
            yield from _protected(state, one.queue, now)
    lower = [seq for one in candidates_for_preempt(cls)[0] for victim in one.classes for _, _, seq in victim.running]
    jobs = count(len(lower), "preemptible job of lower priority runs", "preemptible jobs of lower priority run")
    guards = "".join(f", {words}" for words in _guards(Counter(), (state.by_seq[seq] for seq in lower), now))
    yield f"{jobs if lower else 'no preemptible job of lower priority runs'} in {queue.name}{guards}"


def _ahead(job: JobState) -> int:
    """Equal jobs that start before it."""
    return sum(seq < job.seq for seq in job.cls.pending)


def _amount(quota: int | None) -> str:
    return "unlimited" if quota is None else format_gpus(quota)


def _protected(state: State, queue: QueueState, now: float) -> Iterator[str]:
    """What of a queue above its right can be taken, and by which rules the rest cannot."""
    over = queue.allocated - max(queue.share, queue.quota or 0)
    found: Counter[Barrier | None] = Counter()
    running = (state.by_seq[seq] for cls in queue.classes.values() for _, _, seq in cls.running)
    guards = list(_guards(found, running, now))
    free = found[None]
    parts = [f"{free} of its jobs can be stopped" if free else "none of its jobs can be stopped", *guards]
    yield f"{queue.name} is {format_gpus(max(0, over))} above its share: {', '.join(parts)}"


def _guards(found: Counter[Barrier | None], running: Iterable[JobState], now: float) -> Iterator[str]:
    """Count these jobs by what forbids to stop them, and say it."""
    ends: dict[Barrier, float] = {}
    for job in running:
        why = barrier(job, How.STOP, now)
        found[why] += 1
        if why in (Barrier.MIN_RUNTIME, Barrier.REFUSED):
            ends[why] = min(guarded_until(job), ends.get(why, FOREVER))
    for why, one, many in (
        (Barrier.NOT_PREEMPTIBLE, "is not preemptible", "are not preemptible"),
        (Barrier.STARTING, "has not started yet", "have not started yet"),
        (Barrier.MIN_RUNTIME, "is within its minimum run time,", "are within their minimum run time, the first"),
        (Barrier.REFUSED, "could not be stopped by its engine,", "could not be stopped by their engine, the first"),
    ):
        if found[why]:
            until = f" for {format_duration(ends[why] - now)} more" if why in ends else ""
            yield f"{count(found[why], one, many)}{until}"


# ---- what would change it --------------------------------------------------------------------------------


def _options(turns: Transactions, job: JobState, reason: Reason) -> Iterator[tuple[str, tuple[Event, ...]]]:
    """Changes that start the job, each tried out."""
    remedies: list[Remedy] = [
        *(obstacles.open_a_node, obstacles.without_others),
        *(_more_priority, _more_quota, _more_nodes),
    ]
    if reason.code in (Code.LIMIT, Code.QUOTA):
        remedies.insert(0, _none)
    seen: set[tuple[Event, ...]] = set()
    for remedy in remedies:
        found = _follow(turns, job, remedy)
        if found is not None and found[1] not in seen:
            seen.add(found[1])
            yield found


def _by_itself(turns: Transactions, job: JobState) -> float | None:
    """Seconds until it starts: jobs that it may stop are only guarded for a time."""
    state, now = turns.state, turns.now
    running = (state.by_seq[seq] for cls in _takes_from(job) for _, _, seq in cls.running)
    ends = {guarded_until(one) for one in running if barrier(one, How.STOP, now) is Barrier.MIN_RUNTIME}
    try:
        for end in sorted(ends)[:MOST_WAITS]:
            turns.now = end
            with turns.tried(()):
                if job.places:
                    return end - now
    finally:
        turns.now = now
    return None


def _takes_from(job: JobState) -> Iterator[JobClass]:
    """Classes of jobs that may be stopped for it by their priority or their queue's share."""
    for one in (*candidates_for_preempt(job.cls)[0], *candidates_for_reclaim(job.cls, job.cls.charge, shares=True)[0]):
        yield from one.classes


Remedy = Callable[[State, JobState], list[tuple[str, Event]]]


def _follow(turns: Transactions, job: JobState, remedy: Remedy) -> tuple[str, tuple[Event, ...]] | None:
    """Lift limits and quotas as they come up, apply the remedy when it is room that is lacking."""
    words: list[str] = []
    changes: list[Event] = []
    left = STEPS
    while left >= 0:
        with turns.tried(changes):
            if job.places:
                return _joined(words), tuple(changes)
            reason = binding(turns.state, job)
            over = reason.code in (Code.LIMIT, Code.QUOTA)
            # A quota may be too small only for the dear places that are free: then it is cheaper ones that lack.
            steps = _raise(job, reason) if over else []
            left -= 1
            if not steps:
                steps = remedy(turns.state, job)
                left -= _ahead(job) if remedy in FOR_ALL_AHEAD else 0
        if not steps or left < 0:
            break
        for text, event in steps:
            changes = [one for one in changes if not _same(one, event)]
            words.append(text)
            changes.append(event)
    return None


def _joined(words: list[str]) -> str:
    """The changes in one sentence; nodes that are alike are counted."""
    counted = Counter(words)
    said = [text if n == 1 else f"{text.replace('a node', f'{n} nodes', 1)} each" for text, n in counted.items()]
    return ", and ".join(said)


def _same(one: Event, other: Event) -> bool:
    """Does the second replace the first?"""
    if isinstance(one, QueueChanged) and isinstance(other, QueueChanged):
        return one.queue.name == other.queue.name
    return False


def _none(*_: object) -> list[tuple[str, Event]]:
    """Room is not what is lacking."""
    return []


def _raise(job: JobState, reason: Reason) -> list[tuple[str, Event]]:
    """All limits and quotas on the path that the job would break, just as far as it needs."""
    steps: list[tuple[str, Event]] = []
    need = max(job.cls.charge, reason.data.get("need", 0))
    for queue in job.queue.path:
        spec, words = queue.spec, []
        if queue.cap is not None and queue.allocated + need > queue.cap:
            limit = queue.allocated + need
            quota = limit if spec.static else spec.quota
            spec = replace(spec, limit=None if spec.limit is None else max(limit, spec.limit), quota=quota)
            what = "quota" if spec.static else "limit"
            words.append(f"the {what} of {queue.name} from {format_gpus(queue.cap)} to {format_gpus(limit)}")
        if not job.cls.preemptible and spec.quota is not None and queue.fixed + need > spec.quota:
            quota = queue.fixed + need
            limit_now = None if spec.limit is None else max(spec.limit, quota)
            words.append(f"the quota of {queue.name} from {format_gpus(spec.quota)} to {format_gpus(quota)}")
            spec = replace(spec, quota=quota, limit=limit_now)
        if words:
            steps.append((f"raise {' and '.join(words)}", QueueChanged(spec)))
    return steps


def _more_priority(_: State, job: JobState) -> list[tuple[str, Event]]:
    """Just above the lowest priorities that run in its queue; the next call goes one step higher."""
    lower = sorted(
        cls.priority
        for cls in job.queue.classes.values()
        if cls.preemptible and len(cls.running) and cls.priority >= job.cls.priority
    )
    if not lower:
        return []
    return [
        (f"give the job priority {lower[0] + 1} instead of {job.cls.priority}", JobChanged(job.job.id, lower[0] + 1))
    ]


def _more_quota(_: State, job: JobState) -> list[tuple[str, Event]]:
    """So much that the job, and the equal ones ahead of it, are in the right of their queue and of all above it."""
    steps: list[tuple[str, Event]] = []
    for queue in job.queue.path:
        need = min(queue.allocated + (_ahead(job) + 1) * job.cls.charge, ENDLESS if queue.cap is None else queue.cap)
        if queue.quota is not None and queue.quota < need:
            text = f"raise the quota of {queue.name} from {format_gpus(queue.quota)} to {format_gpus(need)}"
            steps.append((text, QueueChanged(replace(queue.spec, quota=need))))
    return steps


def _gpus_of(node: Node, in_bytes: bool) -> str:
    """What a node that is to be added must have."""
    wanted = [f"of {format_bytes(node.memory)}"] if in_bytes else []
    wanted += [f"of type {node.type}"] if node.type else []
    wanted += [f"in pool {node.pool}"] if node.pool != "default" else []
    wanted += [f"with label {key}={value}" for key, value in node.labels]
    return " ".join([count(node.gpus, "GPU"), *wanted])


def _more_nodes(state: State, job: JobState) -> list[tuple[str, Event]]:
    """For every task of the job, and of the equal ones ahead of it, a block of its size: more than is missing at times,
    but never less."""
    shape, selector, jobs = job.cls.shape, job.job.selector, _ahead(job) + 1
    if selector.nodes:
        return []
    memories = shape.memories(state.space)
    in_bytes = [group.needs[-1].amount for group in shape.groups if group.needs[0].in_bytes]
    memory = max([*memories, *in_bytes], default=USUAL_MEMORY)
    steps: list[tuple[str, Event]] = []
    number = len(state.space.nodes)
    for group in shape.groups:
        need = group.needs[-1]
        mask = state.space.mask(selector)
        room = 0
        if need.whole and need.gpus:
            room = sum((nodes & mask).bit_count() * (k // need.gpus) for k, nodes in enumerate(state.space.whole))
        lacking = jobs * group.least - (room if len(shape.groups) == 1 else 0)
        if lacking <= 0 or not need.gpus:
            continue
        sizes = [len(node.free) for node in state.space.among(mask)]
        size = max([need.gpus, *sizes])
        per_node = size // need.gpus
        if lacking > MOST_NODES * per_node:
            return []  # nobody buys so many, and to try it out would take minutes
        while lacking > 0:
            tasks = min(lacking, per_node)
            lacking -= tasks
            number += 1
            node = Node(
                f"new-{number}",
                tasks * need.gpus,
                memory,
                selector.types[0] if selector.types else "",
                selector.pools[0] if selector.pools else "default",
                selector.labels,
            )
            steps.append((f"add a node with {_gpus_of(node, need.in_bytes)}", NodeAdded(node)))
    return steps


FOR_ALL_AHEAD = (_more_quota, _more_nodes)
"""Remedies that help a job only if they help the equal ones ahead of it as well."""
