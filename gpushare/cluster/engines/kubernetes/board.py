"""The cluster as one look shows it: pods of ours with their claims and seats, jobs, nodes, what is in use. No I/O."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushare.cluster.engines.kubernetes import (
    alike,
    bounds,
    groups,
    needs,
    queue_users,
    request,
    seen,
    sharing,
    volumes,
)
from gpushare.cluster.engines.kubernetes import mark as marks
from gpushare.cluster.engines.kubernetes.allocation import Device, for_pod, parts
from gpushare.cluster.engines.kubernetes.fitting import Wants
from gpushare.cluster.engines.kubernetes.groups import Group, Named
from gpushare.cluster.engines.kubernetes.mark import Mark
from gpushare.cluster.engines.kubernetes.member import Member
from gpushare.cluster.engines.kubernetes.names import MARK, Key, Thing, key_of, of_pod
from gpushare.cluster.engines.kubernetes.needs import NONE, Needs
from gpushare.cluster.engines.kubernetes.queue_users import Users
from gpushare.cluster.engines.kubernetes.request import claims_of
from gpushare.cluster.engines.kubernetes.seats import Seat, Seats
from gpushare.cluster.engines.kubernetes.seen import Held, Kept, Shape, is_over, seconds
from gpushare.cluster.engines.kubernetes.volumes import NOTHING, Storage, Unmade
from gpushare.cluster.engines.seam import SeenJob, SeenTask
from gpushare.cluster.model import Job
from gpushare.errors import UsageError
from gpushare.kubernetes.webhook.limits import USUAL_RULES, Rules, together

__all__ = ["Board", "Due", "Listed"]

log = logging.getLogger(__name__)

RANK: Mapping[str, int] = {"done": 0, "failed": 1, "stopping": 2, "starting": 3, "running": 4}
"""Of phases of a task's pods, which one is the task's."""
HOLDS = ("starting", "running", "stopping")
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading objects raises that are not as they should be."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What the API server has."""

    pods: Mapping[Key, Thing]
    claims: Mapping[Key, Thing]
    classes: Mapping[Key, Thing]
    nodes: Mapping[Key, Thing]
    slices: Mapping[Key, Thing]
    storage: Storage = field(default=NOTHING, kw_only=True)
    groups: Named = field(default=groups.NONE, kw_only=True)
    queues: Mapping[str, Thing] | None = field(default=None, kw_only=True)
    """By name; None: it keeps none."""
    namespaces: Mapping[str, Thing] | None = field(default=None, kw_only=True)
    """By name; None: they cannot be read."""


@dataclass(frozen=True, slots=True)
class Due:
    """A pod that is to start, or whose start is to be finished."""

    member: Member
    mark: Mark
    devices: Sequence[Device] | None
    """Of the mark; None: they are gone."""
    fits: bool = True
    """Its volumes are there, or may be made there."""
    blocks: Sequence[Sequence[Thing]] = ()
    """Of each of its claims, what its queue adds to the allocation."""
    unmade: Sequence[Unmade] | None = ()
    """Claims of volumes that get these only there; None: too few are there."""


@dataclass(slots=True)
class KnownJob:
    seat: Seat
    """Of one of its pods, or one that is free."""
    members: list[Member] = field(default_factory=list)
    free: bool = False
    """One of its seats has no pod."""

    def at(self, task: int, seats: Mapping[str, Seat]) -> list[Member]:
        """Pods of that seat, the newest last."""
        found = [one for one in self.members if seats[one.uid].task == task]
        return sorted(found, key=lambda one: (one.created, one.title))


class Board:
    """Kept from look to look, so that what has not changed is not read again."""

    def __init__(self, scheduler: str, rules: Rules = USUAL_RULES, *, open_queues: bool = True) -> None:
        self._scheduler = scheduler
        self._rules = rules
        self._open_queues = open_queues
        self._queues: Mapping[str, Thing] | None = None
        self._read: dict[str, tuple[tuple[object, ...], Member]] = {}
        self._made: dict[str, Job] = {}
        """The last job of each id, for those whose pods are gone."""
        self._taken: dict[str, Needs] = {}
        """CPUs and memory of each node that pods of others have."""
        self.seats = Seats()
        self.members: dict[str, Member] = {}
        """By uid: those that have a seat, wait for one, or are wrong."""
        self.jobs: dict[str, KnownJob] = {}
        self.nodes: dict[str, Kept] = {}
        self.foreign: Counter[tuple[str, int]] = Counter()
        self.used: Counter[tuple[str, int]] = Counter()
        """Bytes of each GPU that our tasks hold."""
        self.newest = 0
        """Of all terms in marks."""

    # ---- looking ---------------------------------------------------------------------------------------

    def look(self, listed: Listed, now: float) -> None:
        """`now`: seconds that only go forward."""
        self._queues = listed.queues
        self._look_at_pods(listed)
        self._look_at_nodes(listed)
        for one in self.members.values():
            one.lost = bool(one.bound) and self._is_lost(one.bound) and not is_over(one.pod)
            one.ended = one.ended or one.over
        sharing.tie(self.members.values(), self.nodes)
        for one in self.members.values():
            one.taken = "" if one.mark.node or one.follows else _taken(one)
        queue_users.bar(self.members.values(), Users(listed.queues or {}, listed.namespaces, self._open_queues))
        alike.compare(self.members.values())
        alike.find_nodes(self.members.values(), {name: listed.nodes["", name] for name in self.nodes})
        seated = [one for one in self.members.values() if not one.troubled and one.follows is None]
        self.seats.look((one.sitter for one in seated), now)
        self.jobs = {}
        for one in seated:
            seat = self.seats.taken.get(one.uid)
            if seat is not None:
                self.jobs.setdefault(seat.job, KnownJob(seat)).members.append(one)
        for seat in self.seats.free:
            self.jobs.setdefault(seat.job, KnownJob(seat)).free = True
        self._count(listed)
        self._made = {id: made for id, made in self._made.items() if id in self.jobs}

    def _count_other(self, pod: Thing, taken: dict[str, Needs]) -> None:
        node = pod["spec"].get("nodeName")
        if node and not is_over(pod):
            said = pod["spec"].get("needs")
            its = needs.of_pod(pod) if said is None else Needs(*said)
            taken[node] = taken.get(node, NONE).plus(its)

    def _look_at_pods(self, listed: Listed) -> None:
        taken: dict[str, Needs] = {}
        found: dict[str, Member] = {}
        kinds = {name: one for (_, name), one in listed.classes.items()}
        for pod in listed.pods.values():
            if pod["spec"].get("schedulerName") != self._scheduler:
                self._count_other(pod, taken)
                continue
            marked = bool(of_pod(pod, "annotations", MARK))
            if not marked and (pod["spec"].get("nodeName") or is_over(pod)):
                self._count_other(pod, taken)  # somebody else has started it, or nobody will
                continue
            member = self._member(pod, listed, kinds)
            found[member.uid] = member
            self.newest = max(self.newest, member.mark.token[0])
        self.members, self._taken = found, taken
        self._read = {uid: one for uid, one in self._read.items() if uid in found}

    def _member(self, pod: Thing, listed: Listed, classes: Mapping[str, Thing]) -> Member:
        uid, claims = pod["metadata"]["uid"], listed.claims
        theirs = tuple(claims[key] for key in claims_of(pod, claims) or () if key in claims)
        more = (*volumes.objects(pod, listed.storage), *groups.objects(pod, listed.groups))
        seen_by = (pod, *theirs, *classes.values(), *more)
        known = self._read.get(uid)
        if known is not None and len(known[0]) == len(seen_by) and all(map(_is, known[0], seen_by)):
            return known[1]
        mark = marks.read(of_pod(pod, "annotations", MARK))
        asked, wrong, size = None, "", mark.size or 1
        group = Group(groups.line_of(pod, listed.groups), size, size, open=bool(mark.size))
        try:
            asked = request.read(pod, claims, classes, listed.storage)
            group = groups.read(pod, listed.groups)
        except UsageError as error:
            wrong = f"{error.message} ({error.hint})" if error.hint else error.message
        except UNREADABLE as error:  # whatever its users have written, other pods go on
            log.exception("pod %s cannot be read", "/".join(key_of(pod)))
            wrong = f"it cannot be read: {type(error).__name__}"
        ended = known is not None and known[1].ended
        member = Member(pod, theirs, mark, asked, "" if mark.node else wrong, group, ended=ended)
        self._read[uid] = seen_by, member
        return member

    def _look_at_nodes(self, listed: Listed) -> None:
        wanted: dict[Wants, set[Shape]] = {}
        held: dict[str, Held] = {}
        counted: set[tuple[str, int, int]] = set()
        for one in self.members.values():
            phase = one.phase
            if one.asked is not None:
                shapes = wanted.setdefault(one.asked.wants, set())
                if phase is None and not one.leaves and not one.over:
                    shapes.add((one.asked.tasks.gpus, one.asked.tasks.memory))
            if phase in HOLDS:
                which = one.mark.job, one.mark.task, one.mark.attempt
                its = held.setdefault(one.mark.node, Held())
                its.needs = its.needs.plus(needs.of_pod(one.pod) if one.asked is None else one.asked.wants.needs)
                its.gpus.update(dict.fromkeys(() if which in counted else one.mark.gpus, one.mark.amount))
                counted.add(which)
        devices = seen.gpus_of(listed.slices.values())
        self.nodes = {}
        for (_, name), node in listed.nodes.items():
            kept = (
                seen.node_of(node, devices[name], wanted, self._taken.get(name, NONE), held.get(name))
                if name in devices
                else None
            )
            if kept is not None:
                self.nodes[name] = kept

    def _is_lost(self, name: str) -> bool:
        return name not in self.nodes or self.nodes[name].state == "lost"

    def _count(self, listed: Listed) -> None:
        """What our tasks hold, and what claims have that are not theirs."""
        self.used = Counter()
        ours: set[Key] = set()
        counted: set[tuple[str, int, int]] = set()
        for one in self.members.values():
            if self.task_of(one) is not None and one.phase in HOLDS:
                which = one.mark.job, one.mark.task, one.mark.attempt
                if which not in counted:  # pods that share a claim are one task
                    self.used.update({(one.mark.node, gpu): one.mark.amount for gpu in one.mark.gpus})
                counted.add(which)
                ours.update(one.keys)
        theirs = [part for key, claim in listed.claims.items() if key not in ours for part in parts(claim)]
        self.foreign = seen.used(theirs, self.nodes)

    # ---- what it means ---------------------------------------------------------------------------------

    def seen_jobs(self) -> Iterator[SeenJob]:
        for id, known in self.jobs.items():
            job = self._job(id, known)
            if job is not None:
                yield self._seen(job, known)

    def _seen(self, job: Job, known: KnownJob) -> SeenJob:
        members = known.members
        tasks = tuple(_together(task for one in members if (task := self.task_of(one)) is not None))
        at = {one.uid: self.seats.taken[one.uid].task for one in members}
        going = {at[one.uid] for one in members if not one.over and not one.leaves}
        over = {at[one.uid] for one in members if one.over} - going
        ended = bool(members) and len(over) >= known.seat.size
        starts = [time for one in members if (time := seconds((one.pod.get("status") or {}).get("startTime")))]
        waiting = [one for one in members if one.phase is None and not one.leaves]
        namespace = job.name.partition("/")[0]
        seats = [known.seat, *(self.seats.taken[one.uid] for one in members)]
        return SeenJob(
            job=job,
            submitted=min(seat.since for seat in seats),
            attempt=max([*(seat.attempt for seat in seats), *(one.mark.attempt for one in members)]),
            evictions=max(seat.evictions for seat in seats),
            rung=max((one.mark.rung for one in members), default=0),
            held=any(one.held for one in waiting) or (not tasks and len(waiting) < known.seat.size and not ended),
            tasks=tasks,
            ended=ended and not any(task.holds for task in tasks),
            note=next((one.told for one in waiting if one.told), ""),
            changes=bool(members),
            user=namespace,
            account=namespace,
            started=min(starts, default=None) if any(task.phase == "running" for task in tasks) else None,
        )

    def _job(self, id: str, known: KnownJob) -> Job | None:
        """As its first pod asks for it. None: its claims are not made yet."""
        asking = [one for one in known.members if one.asked is not None]
        if not asking:
            return self._made.get(id)
        first = min(asking, key=lambda one: (one.created, one.title))
        asked = first.asked
        assert asked is not None
        tasks, size = asked.tasks, known.seat.size
        least = min(first.group.least, size)
        made = Job(
            id=id,
            queue=first.queue,
            tasks=(replace(tasks, least=least, most=size if least < size else None),),
            priority=asked.priority,
            preemptible=asked.preemptible,
            min_runtime=asked.min_runtime,
            selector=alike.selector(asking),
            name=first.title,
            checkpoint_every=asked.checkpoint_every,
        )
        self._made[id] = made
        return made

    def due(self, member: Member, mark: Mark) -> Due:
        kept = self.nodes.get(mark.node)
        if kept is None or any(gpu not in kept.devices for gpu in mark.gpus):
            return Due(member, mark, None)
        labels, asked = dict(kept.node.labels), member.asked
        fits = asked is None or (set(asked.labels) <= labels.items() and asked.wants.matches(kept.node.name, labels))
        devices = [kept.devices[gpu] for gpu in mark.gpus]
        unmade = volumes.on_node(asked.unmade if asked else (), kept.node.name, labels)
        return Due(member, mark, devices, fits, self._blocks(member, devices), unmade)

    def _blocks(self, member: Member, devices: Sequence[Device]) -> Sequence[Sequence[Thing]]:
        """A whole GPU has no such limit, as with annotations."""
        asked = member.asked
        if asked is None or asked.tasks.memory is None:
            return ()
        try:
            limits = together(member.queue, member.key[0], self._queues, self._rules.limits)
        except UsageError:
            return ()  # its queue is not there, or makes no sense: that is told elsewhere
        usual = limits.usual_for(interactive=self._rules.is_interactive(member.pod))
        memory = min(one.memory for one in devices)
        found = [bounds.bounded(own, asked.tasks.memory, memory, usual, limits) for own in asked.limits]
        return [() if one is None else (bounds.block(one),) for one in found]

    def waits_for_volumes(self, member: Member) -> bool:
        """Another pod of the same start has volumes that are being made: none is bound before all are."""
        known = self.jobs.get(member.mark.job)
        return known is not None and any(
            one.phase == "starting" and not one.bound and one.asked is not None and bool(one.asked.unmade)
            for one in known.members
            if one is not member and one.mark.attempt == member.mark.attempt
        )

    def why_not(self, member: Member) -> str:
        """Why the allocator does not hear of it; "": it does."""
        said = member.troubled or member.waits
        if said or member.uid not in self.seats.short:
            return said
        there, size = self.seats.short[member.uid]
        if there == size:
            return f"it starts when the first {size} pods of its group have started"
        return f"its pod group has {there} of {size} pods"

    def task_of(self, member: Member) -> SeenTask | None:
        """What exists of it. What was bound to a node that is lost does not run."""
        phase, mark, seat = member.phase, member.mark, self.seats.taken.get(member.uid)
        if phase is None or seat is None or (member.bound and self._is_lost(member.bound)):
            return None
        if phase == "done" and member.leaves:
            return None
        failed = phase == "failed"
        return SeenTask(
            attempt=mark.attempt,
            group=0,
            task=seat.task,
            node=mark.node,
            gpus=mark.gpus,
            amount=mark.amount,
            phase=phase,
            why=mark.failed if failed else "",
            node_to_blame=failed and mark.blame,
            exit=exit_of(member.pod) if phase == "done" else None,
        )


def _together(tasks: Iterable[SeenTask]) -> Iterable[SeenTask]:
    """Of pods that share a claim one: it runs while one of them does."""
    found: dict[tuple[int, int], SeenTask] = {}
    for one in tasks:
        known = found.setdefault((one.task, one.attempt), one)
        if (RANK[one.phase], abs(one.exit or 0)) > (RANK[known.phase], abs(known.exit or 0)):
            found[one.task, one.attempt] = one
    return found.values()


def exit_of(pod: Thing) -> int | None:
    """The worst exit status of its containers; a signal as a negative number."""
    found = []
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated")
        if ended:
            found.append(-ended["signal"] if ended.get("signal") else int(ended.get("exitCode", 0)))
    return max(found, key=abs, default=None)


def _taken(member: Member) -> str:
    """Why it cannot have its claims; "": it can."""
    for one in member.claims:
        if (one.get("status") or {}).get("allocation") and not for_pod(one, member.uid):
            hint = "give each pod a claim of its own, by a ResourceClaimTemplate"
            return f"claim {'/'.join(key_of(one))} is allocated already, for another pod ({hint})"
    return ""


def _is(one: object, other: object) -> bool:
    return one is other
