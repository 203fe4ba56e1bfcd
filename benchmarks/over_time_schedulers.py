"""Who decides in the world of over_time_world.py: the allocator, and small schedulers to compare it with.

fifo         first come, first served, with EASY backfill: nobody may delay the first who waits. Durations are known
quota_first  the same, but jobs that fit into their queue's quota come before all others; nobody is stopped
reclaim      a job within its queue's quota takes at once from queues above theirs, the newest jobs first; the
             queue that holds the least of its quota comes first, and nothing is kept for anybody
kai          the same, and a job within its queue's fair share takes from queues above theirs, too: the rules of
             KAI-Scheduler (its strategies GuaranteeDeservedQuota and MaintainFairShare)
durations    it knows how long each job runs that has come, but not what comes: a job within quota takes at once from
             queues above theirs, from who loses the least work; of the others the largest start first, of these the
             shortest
gpushare     the allocator
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from over_time_traces import NODE, Job
from over_time_world import EDGE, RESTORE, Command, Move, Start, Stop, World, fits, place

from gpushare.cluster import model
from gpushare.cluster.allocator import Allocator
from gpushare.cluster.quantity import gpus


class Backfill:
    """First come, first served, with EASY backfill; `quota_first`: within quota before all others."""

    def __init__(self, world: World, *, quota_first: bool = False) -> None:
        self.world = world
        self.quota_first = quota_first

    def wake(self) -> float | None:
        return None

    def decide(self, now: float, *_: object) -> list[Command]:
        world = self.world
        free = [len(one) for one in world.free]
        held = dict(world.held)
        ends = [(one.end, one.job, Counted.of(one.places)) for one in world.running.values()]
        commands: list[Command] = []
        due, later = 0.0, None
        for job in self._order(held):
            nodes = place(job, free)
            if nodes is not None and later is not None and now + remaining(world, job) > due:
                nodes = place(job, [min(one, other) for one, other in zip(free, later, strict=True)])
            if nodes is None:
                if later is None:
                    due, later = reservation(job, free, ends)
                continue
            if later is not None and now + remaining(world, job) > due:
                for node in nodes:
                    later[node] -= job.gpus
            for node in nodes:
                free[node] -= job.gpus
            ends.append((now + remaining(world, job), job, Counted(dict.fromkeys(nodes, 0), nodes, job.gpus)))
            commands.append(Start(job.name, nodes))
        return commands

    def _order(self, held: dict[str, int]) -> list[Job]:
        waiting = list(self.world.waiting.values())
        if not self.quota_first:
            return waiting
        first, others = [], []
        for job in waiting:
            if held[job.queue] + job.size <= self.world.trace.quotas[job.queue]:
                held[job.queue] += job.size
                first.append(job)
            else:
                others.append(job)
        return first + others


class Counted:
    """GPUs of a job on each node."""

    def __init__(self, of: dict[int, int], nodes: tuple[int, ...] = (), each: int = 0) -> None:
        for node in nodes:
            of[node] += each
        self.of_node = of

    @classmethod
    def of(cls, places: Sequence[tuple[int, int]]) -> Counted:
        return cls(dict.fromkeys((node for node, _ in places), 0), tuple(node for node, _ in places), 1)


def remaining(world: World, job: Job) -> float:
    done = world.books[job.name].done
    return job.work - done + (RESTORE if done else 0.0)


def reservation(job: Job, free: list[int], ends: list[tuple[float, Job, Counted]]) -> tuple[float, list[int]]:
    """When the job can start at the latest, and what others may hold on each node then."""
    left = list(free)
    for end, _, counted in sorted(ends, key=lambda one: one[0]):
        for node, count in counted.of_node.items():
            left[node] += count
        nodes = place(job, left)
        if nodes is not None:
            for node in nodes:
                left[node] -= job.gpus
            return end, left
    return float("inf"), left


class Reclaim:
    """At once from queues above quota, the newest jobs first; `fair`: for fair shares, too."""

    dearest_stay = False
    """Of those that turn out not to be needed, those taken last stay first; otherwise those taken first."""

    def __init__(self, world: World, *, fair: bool = False) -> None:
        self.world = world
        self.fair = fair

    def wake(self) -> float | None:
        return None

    def decide(self, *_: object) -> list[Command]:
        world, quotas = self.world, self.world.trace.quotas
        free = [len(one) for one in world.free]
        held = dict(world.held)
        running = {name: (one.job, [node for node, _ in one.places]) for name, one in world.running.items()}
        waiting = dict(world.waiting)
        commands: list[Command] = []

        def start(job: Job, nodes: tuple[int, ...]) -> None:
            for node in nodes:
                free[node] -= job.gpus
            held[job.queue] += job.size
            del waiting[job.name]
            commands.append(Start(job.name, nodes))

        def by_standing() -> list[Job]:
            return sorted(waiting.values(), key=lambda job: (held[job.queue] / quotas[job.queue], job.arrival))

        rights: list[Mapping[str, float]] = [quotas]
        if self.fair:
            rights.append(fair_shares(world))
        for job, right in [(job, right) for right in rights for job in by_standing()]:
            if job.name not in waiting or held[job.queue] + job.size > right[job.queue]:
                continue
            nodes = place(job, free)
            victims = [] if nodes is not None else self._victims(job, right, free, held, running)
            if nodes is None and not victims:
                continue
            for victim in victims:
                for node in running.pop(victim.name)[1]:
                    free[node] += 1
                held[victim.queue] -= victim.size
                commands.append(Stop(victim.name, job.name))
            chosen = place(job, free)
            assert chosen is not None
            start(job, chosen)
        while True:
            for job in by_standing():
                nodes = place(job, free)
                if nodes is not None:
                    start(job, nodes)
                    break
            else:
                return commands

    def _first(self, victim: Job, *_: Job) -> tuple[float, ...]:
        """The smaller, the earlier it is taken; the other is the job for which."""
        return (-victim.arrival,)

    def _victims(
        self,
        job: Job,
        right: Mapping[str, float],
        free: list[int],
        held: dict[str, int],
        running: Mapping[str, tuple[Job, list[int]]],
    ) -> list[Job]:
        """The newest of queues above what is theirs, until there is room; who turns out not to be needed stays.

        For a quota the last job of a queue may be larger than what the queue holds above its own; for a share not."""
        left, after = list(free), dict(held)
        by_quota = right is self.world.trace.quotas
        taken: list[Job] = []
        for victim in sorted((one for one, _ in running.values()), key=lambda one: (*self._first(one, job), one.name)):
            above = after[victim.queue] - right[victim.queue]
            if victim.queue == job.queue or above < (EDGE if by_quota else victim.size):
                continue
            after[victim.queue] -= victim.size
            for node in running[victim.name][1]:
                left[node] += 1
            taken.append(victim)
            if fits(job, left):
                break
        else:
            return []
        for victim in taken[::-1] if self.dearest_stay else list(taken):
            without = list(left)
            for node in running[victim.name][1]:
                without[node] -= 1
            if fits(job, without):
                left = without
                taken.remove(victim)
        return taken


class Durations(Reclaim):
    """What knowledge of durations brings."""

    dearest_stay = True

    def decide(self, now: float, *_: object) -> list[Command]:
        world, quotas = self.world, self.world.trace.quotas
        free = [len(one) for one in world.free]
        held = dict(world.held)
        running = {name: (one.job, [node for node, _ in one.places]) for name, one in world.running.items()}
        self.loss = {name: one.job.size * (one.worked(now) - one.safe(now)) for name, one in world.running.items()}
        commands: list[Command] = []

        def start(job: Job) -> None:
            nodes = place(job, free)
            if nodes is not None:
                for node in nodes:
                    free[node] -= job.gpus
                held[job.queue] += job.size
                commands.append(Start(job.name, nodes))

        others = []
        for job in world.waiting.values():
            if held[job.queue] + job.size > quotas[job.queue]:
                others.append(job)
                continue
            for victim in [] if fits(job, free) else self._victims(job, quotas, free, held, running):
                for node in running.pop(victim.name)[1]:
                    free[node] += 1
                held[victim.queue] -= victim.size
                commands.append(Stop(victim.name, job.name))
            start(job)
        for job in sorted(others, key=lambda one: (-one.size, remaining(world, one))):
            start(job)
        return commands

    def _first(self, victim: Job, *takers: Job) -> tuple[float, ...]:
        (taker,) = takers
        return self.loss[victim.name] / min(taker.size, victim.size), -victim.arrival


def fair_shares(world: World) -> dict[str, float]:
    """Quotas as far as they are asked for, and what is left over by quota among those who ask for more."""
    quotas = world.trace.quotas
    demand = dict(world.held)
    for job in world.waiting.values():
        demand[job.queue] += job.size
    shares = {queue: float(min(quota, demand[queue])) for queue, quota in quotas.items()}
    left = world.trace.capacity - sum(shares.values())
    while left > EDGE:
        asking = {queue: quotas[queue] for queue in quotas if demand[queue] - shares[queue] > EDGE}
        if not asking:
            break
        total = sum(asking.values())
        part = min(left / total, *((demand[queue] - shares[queue]) / weight for queue, weight in asking.items()))
        for queue, weight in asking.items():
            shares[queue] += part * weight
        left -= part * total
    return shares


class Gpushare:
    """The allocator; what a job says about itself is handed on as far as its model has words for it."""

    def __init__(self, world: World, policy: model.Policy | None = None) -> None:
        self.world = world
        self.allocator = Allocator(policy)
        known = {one.name for one in fields(model.Job)}
        self._says = {"duration", "checkpoint_every", "movable"} & known
        trace = world.trace
        nodes = [model.NodeAdded(model.Node(str(node), NODE)) for node in range(trace.nodes)]
        queues = [model.QueueAdded(model.Queue(name, quota=gpus(quota))) for name, quota in trace.quotas.items()]
        self.allocator.handle([*nodes, *queues], 0.0)

    def wake(self) -> float | None:
        return self.allocator.next_wake

    def _job(self, job: Job) -> model.Job:
        safe = job.checkpoint is not None
        said = {"duration": None, "checkpoint_every": job.checkpoint, "movable": safe}
        shape = (model.Tasks(job.tasks, gpus=job.gpus),)
        return model.Job(job.name, job.queue, shape, **{name: said[name] for name in self._says})  # type: ignore[arg-type]

    def decide(self, now: float, ended: Sequence[str], came: Sequence[Job]) -> list[Command]:
        events: list[model.Event] = [model.JobEnded(name) for name in ended]
        events += [model.JobSubmitted(self._job(job)) for job in came]
        actions = self.allocator.handle(events or [model.TimePassed()], now)
        commands: list[Command] = []
        moved: dict[str, Command] = {}  # all tasks of a job begin again when one of them moves
        for action in actions:
            match action:
                case model.Start(job=job, places=places):
                    commands.append(Start(job, *where(places)))
                case model.Preempt(job=job, for_job=taker):
                    commands.append(Stop(job, taker))
                case model.Stop(job=job):
                    commands.append(Stop(job))
                case model.Move(job=job):
                    moved[job] = Move(job, *where(self.allocator.jobs[job].places))
                case _:
                    pass
        return [*commands, *moved.values()]


def where(places: Sequence[model.Place]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    return tuple(int(one.node) for one in places), tuple(one.gpus for one in places)


__all__ = ["Backfill", "Durations", "Gpushare", "Reclaim"]
