"""A whole cluster without machines: users, a kind or unkind fate, and an engine that does what it is told.

The engine keeps its own books from the actions alone, and checks every action against them before it obeys: the
invariants here are stated on its own numbers, not on the allocator's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.model import (
    Code,
    ForeignUse,
    GpuHealth,
    Grow,
    Job,
    JobChanged,
    JobEnded,
    JobHeld,
    JobReleased,
    JobSubmitted,
    JobWithdrawn,
    Move,
    Node,
    NodeAdded,
    NodeCordoned,
    NodeDrained,
    NodeLost,
    NodeUncordoned,
    NodeUnknown,
    Policy,
    Preempt,
    Queue,
    QueueAdded,
    QueueChanged,
    Refuse,
    Selector,
    Shrink,
    Start,
    Started,
    StartFailed,
    Stop,
    Stopped,
    StopRefused,
    Tasks,
    TasksLost,
    TimePassed,
    Wait,
)
from gpushare.cluster.quantity import MICRO, gpus

GIB = 2**30
HOUR = 3600.0


@dataclass
class Running:
    """A job as the engine sees it."""

    attempt: int
    since: float
    places: dict = field(default_factory=dict)
    """By group and task."""


@dataclass(frozen=True)
class Taste:
    """What kind of cluster it is."""

    reported: bool = False
    ladders: bool = True
    elastic: bool = True
    bytes: bool = True
    gangs: bool = True
    fixed: bool = True
    limits: bool = True
    min_runtime: bool = True
    losses: bool = True
    changes: bool = True
    """Quotas and priorities change, and queues have priority classes."""
    selectors: bool = True
    reserve: bool = True
    depth: int = 2
    unit: bool = False
    """All jobs are one whole GPU, preemptible."""
    engine: bool = False
    """What engines report happens: nodes are closed and unknown, GPUs are used by others and exchanged, starts and
    stops fail, tasks are lost one by one, jobs are held."""
    tight: bool = False
    """Every queue has a quota of a few halves of a GPU, most have a limit that is as low, and jobs ask for bytes."""
    patient: bool = False
    """Jobs wait before others are stopped for their queues' shares, and time passes in hours."""


class World:
    def __init__(self, seed: int, taste: Taste) -> None:
        self.random = Random(seed)
        self.taste = taste
        self.now = 1000.0
        policy = Policy(
            endings="reported" if taste.reported else "instant",
            grow_hold=20.0,
            reserve_after=100.0 if taste.reserve else None,
            patience=4 * HOUR if taste.patient else 0.0,
        )
        self.policy = policy
        self.allocator = Allocator(policy)
        self.log: list[tuple[object, float]] = []
        self.actions: list[object] = []
        self.jobs: dict[str, Job] = {}
        self.running: dict[str, Running] = {}
        self.leaving: dict[tuple[str, int], list] = {}
        self.begun: dict[tuple[str, int], float] = {}
        self.claimed: set[str] = set()
        """Jobs that somebody was evicted for and that have not started yet."""
        self.foreign: Counter[tuple[str, int]] = Counter()
        """Bytes that others use."""
        self.closed: dict[str, set[str]] = {}
        """Why nothing may start on a node."""
        self.attempts: dict[str, int] = {}
        """The last one that was told to stop or given up: none that is started again may be earlier."""
        self.queues: dict[str, Queue] = {}
        self.nodes: dict[str, Node] = {}
        self.serial = 0
        self.seen: Counter[str] = Counter()
        self.pairs: set[tuple[str, str]] = set()
        """(evictor, victim) since demands last changed."""
        self._build()

    # ---- the beginning ---------------------------------------------------------------------------------

    def _build(self) -> None:
        random, taste = self.random, self.taste
        events: list[object] = []
        for index in range(random.randint(1, 5)):
            memory = random.choice([40, 80]) * GIB if taste.bytes else 80 * GIB
            size = random.choice([1, 2, 4, 8]) if not taste.unit else random.choice([2, 4])
            node = Node(f"n{index}", size, memory, type=random.choice(["a", "b"]), pool=random.choice(["x", "y"]))
            self.nodes[node.name] = node
            events.append(NodeAdded(node))
        total = sum(node.gpus for node in self.nodes.values())
        parents: list[str | None] = [None]
        if taste.depth > 1:
            for index in range(random.randint(0, 2)):
                events.append(QueueAdded(self._queue(f"d{index}", None, total)))
                parents.append(f"d{index}")
        for index in range(random.randint(2, 5)):
            events.append(QueueAdded(self._queue(f"q{index}", random.choice(parents), total)))
        if taste.unit:
            self._fit_quotas(events, total)
        for event in events:
            if isinstance(event, QueueAdded):
                self.queues[event.queue.name] = event.queue
        self.send(events)

    def _queue(self, name: str, parent: str | None, total: int) -> Queue:
        random, taste = self.random, self.taste
        quota = random.choice([0, random.randint(0, total), random.randint(0, total)]) * MICRO
        if random.random() < 0.3 and not taste.unit:
            quota += gpus(0.5)
        if taste.tight:
            quota = random.randint(1, 5) * gpus(0.5)
            return Queue(
                name, parent, quota, random.choice([None, quota, quota, 2 * quota]), priority=random.randint(0, 1)
            )
        limit = quota + random.randint(0, total) * MICRO if taste.limits and random.random() < 0.3 else None
        static = taste.limits and random.random() < 0.1 and quota > 0
        return Queue(
            name,
            parent,
            None if random.random() < 0.05 and not taste.unit and not static else quota,
            limit,
            weight=random.choice([None, MICRO, 2 * MICRO]),
            priority=random.choice([0, 0, 1]) if taste.changes else 0,
            static=static,
            min_runtime=30.0 if taste.min_runtime and random.random() < 0.2 else None,
            placement=random.choice([None, None, "spread"]),
        )

    def _fit_quotas(self, events: list, total: int) -> None:
        """Quotas of siblings add up to at most what there is."""
        left = total
        for index, event in enumerate(events):
            if isinstance(event, QueueAdded):
                quota = min(event.queue.quota, left * MICRO)
                left -= quota // MICRO
                events[index] = QueueAdded(replace(event.queue, quota=quota, limit=None, static=False))

    @property
    def leaves(self) -> list[str]:
        parents = {queue.parent for queue in self.queues.values()}
        return [name for name in self.queues if name not in parents]

    # ---- users and fate --------------------------------------------------------------------------------

    def step(self) -> None:
        """Something happens."""
        random = self.random
        roll = random.random()
        self.now += random.choice([0, 0, 60, 600, HOUR] if self.taste.patient else [0, 0, 1, 5, 30])
        if self.taste.engine and random.random() < 0.25:
            random.choice(HAPPENINGS)(self)
            return
        if self.taste.reported and self.leaving and roll < 0.35:
            name, attempt = random.choice(sorted(self.leaving))
            self.report(name, attempt)
        elif roll < 0.55:
            self.submit()
        elif roll < 0.78 and self.running:
            self.end(random.choice(sorted(self.running)))
        elif roll < 0.82 and self.jobs:
            self.withdraw(random.choice(sorted(self.jobs)))
        elif roll < 0.90:
            self.send(TimePassed())
        elif roll < 0.94 and self.taste.losses:
            self.lose_or_add()
        elif self.taste.changes and roll < 0.97:
            self.change_queue()
        elif self.taste.changes and self.jobs:
            self.change_job()

    def submit(self, job: Job | None = None) -> None:
        self.send(JobSubmitted(job or self.new_job()))

    def new_job(self) -> Job:
        random, taste = self.random, self.taste
        self.serial += 1
        name = f"j{self.serial}"
        queue = random.choice(self.leaves)
        if taste.unit:
            return Job(name, queue)
        groups = []
        for _ in range(2 if taste.gangs and random.random() < 0.1 else 1):
            least = random.choice([1, 1, 1, 2, 3]) if taste.gangs else 1
            most = least + random.randint(1, 3) if taste.elastic and random.random() < 0.2 else None
            kind = random.random()
            if taste.tight and kind < 0.5:
                groups.append(Tasks(least, None, 1, memory=random.choice([10, 20, 40, 60]) * GIB))
            elif taste.ladders and kind < 0.12:
                groups.append(Tasks(least, most, 1, share=MICRO, ladder=(gpus(0.7), gpus(0.4))))
            elif taste.bytes and kind < 0.3:
                groups.append(
                    Tasks(least, most, random.choice([1, 1, 2]), memory=random.choice([5, 10, 20, 40, 60]) * GIB)
                )
            elif kind < 0.55:
                share = gpus(random.choice([0.1, 0.2, 0.25, 0.3, 0.5, 0.5, 0.9]))
                groups.append(Tasks(least, most, random.choice([1, 1, 1, 2]), share=share))
            else:
                groups.append(Tasks(least, most, random.choice([1, 1, 1, 2, 4, 8])))
        if len({len(group.ladder) for group in groups if group.ladder}) > 1:
            groups = groups[:1]
        selector = Selector()
        if taste.selectors and random.random() < 0.15:
            selector = random.choice([Selector(pools=("x",)), Selector(types=("a",)), Selector(nodes=("n0", "n1"))])
        return Job(
            name,
            queue,
            tuple(groups),
            priority=random.choice([10, 50, 50, 50, 90]),
            preemptible=not taste.fixed or random.random() < 0.8,
            min_runtime=random.choice([0.0, 0.0, 0.0, 60.0]) if taste.min_runtime else 0.0,
            selector=selector,
            wait=random.random() < 0.93,
            backfill=taste.reserve and random.random() < 0.6,
            movable=random.random() < 0.8,
            checkpoint_every=random.choice([None, None, 45.0]),
        )

    def end(self, name: str) -> None:
        self._forget(name)
        for key in [key for key in self.leaving if key[0] == name]:
            del self.leaving[key]
        self.send(JobEnded(name))

    def withdraw(self, name: str) -> None:
        self.send(JobWithdrawn(name))

    def _forget(self, name: str) -> None:
        self.jobs.pop(name, None)
        self.running.pop(name, None)
        self.claimed.discard(name)

    def report(self, name: str, attempt: int) -> None:
        del self.leaving[name, attempt]
        self.send(Stopped(name, attempt))

    def report_all(self) -> None:
        while self.leaving:
            self.report(*min(self.leaving))

    def lose_or_add(self) -> None:
        random = self.random
        name = random.choice(sorted(self.nodes))
        view = self.allocator.nodes[name]
        if not view.alive:
            self.send(NodeAdded(self.nodes[name]))
        elif random.random() < 0.5:
            gpu = random.randrange(self.nodes[name].gpus)
            healthy = gpu in view.node.broken
            if not healthy:
                self._gone(name, gpu)
            self.send(GpuHealth(name, gpu, healthy))
        else:
            self._gone(name, None)
            self.send(NodeLost(name))

    def _gone(self, node: str, gpu: int | None) -> None:
        """What runs there is gone before anybody is told."""
        self.claimed.clear()
        if gpu is None:
            self.closed.get(node, set()).discard("unknown")
            for key in [key for key in self.foreign if key[0] == node]:
                del self.foreign[key]

        def lost(place) -> bool:
            return place.node == node and (gpu is None or gpu in place.gpus)

        for key in list(self.leaving):
            self.leaving[key] = [place for place in self.leaving[key] if not lost(place)]
            if not self.leaving[key]:
                del self.leaving[key]
        self.lost = {
            name: [key for key, place in one.places.items() if lost(place)] for name, one in self.running.items()
        }
        for name, keys in self.lost.items():
            for key in keys:
                del self.running[name].places[key]

    def change_queue(self) -> None:
        random = self.random
        name = random.choice(sorted(self.queues))
        total = sum(node.gpus for node in self.nodes.values())
        queue = replace(self._queue(name, self.queues[name].parent, total))
        self.queues[name] = queue
        self.send(QueueChanged(queue))

    def change_job(self) -> None:
        random = self.random
        name = random.choice(sorted(self.jobs))
        job = replace(self.jobs[name], priority=random.choice([10, 50, 90]), preemptible=random.random() < 0.8)
        self.jobs[name] = job
        self.send(JobChanged(name, job.priority, job.preemptible))

    # ---- what engines report -----------------------------------------------------------------------------

    def close_or_open(self) -> None:
        name = self.random.choice(sorted(self.nodes))
        if not self.allocator.nodes[name].alive:
            return
        why = self.closed.setdefault(name, set())
        kind = self.random.choice([NodeCordoned, NodeDrained, NodeUncordoned, NodeUncordoned, NodeUnknown, NodeAdded])
        if kind is NodeUncordoned:
            why.discard("cordoned")
        elif kind is NodeAdded:
            why.discard("unknown")
        else:
            why.add("unknown" if kind is NodeUnknown else "cordoned")
        self.claimed.clear()
        self.send(kind(self.nodes[name] if kind is NodeAdded else name))
        if kind is NodeDrained:
            runs = [one for one, run in self.running.items() if any(p.node == name for p in run.places.values())]
            assert not runs, f"{runs} run on {name}, which was drained"

    def use_from_outside(self) -> None:
        name = self.random.choice(sorted(self.nodes))
        if self.allocator.nodes[name].alive:
            node = self.nodes[name]
            gpu = self.random.randrange(node.gpus)
            self.foreign[name, gpu] = self.random.choice([0, 0, 0, 4 * GIB, node.memory // 2, node.memory])
            self.claimed.clear()
            self.send(ForeignUse(name, gpu, self.foreign[name, gpu]))

    def exchange_gpu(self) -> None:
        """A GPU is another one after a repair."""
        name = self.random.choice(sorted(self.nodes))
        view, random = self.allocator.nodes[name], self.random
        if not view.alive:
            return
        old = view.node.uuids or tuple(f"GPU-{name}-{gpu}" for gpu in range(view.node.gpus))
        gpu = random.randrange(view.node.gpus)
        if view.node.uuids:
            self._gone(name, gpu)
            self.foreign[name, gpu] = 0
            self.serial += 1
            old = (*old[:gpu], f"GPU-{self.serial}", *old[gpu + 1 :])
        self.closed.get(name, set()).discard("unknown")
        self.send(NodeAdded(replace(view.node, uuids=old)))

    def acknowledge(self) -> None:
        if self.running:
            name = self.random.choice(sorted(self.running))
            run = self.running[name]
            tasks = tuple(self.random.sample(sorted(run.places), self.random.randint(1, len(run.places))))
            self.send(Started(name, run.attempt, self.random.choice([(), tasks])))

    def fail_start(self) -> None:
        new = [name for name in sorted(self.running) if not self.allocator.jobs[name].seen]
        if not new:
            return
        name = self.random.choice(new)
        run = self.running[name]
        waits = self.allocator.jobs[name].unstarted
        node = self.random.choice([None, None, self.random.choice(sorted(run.places.values())).node])
        tasks = self.random.choice([(), (self.random.choice(sorted(run.places)),)])
        self.claimed.clear()
        self.send(StartFailed(name, run.attempt, tasks, node, "by fate"))
        view = self.allocator.jobs[name]
        if node is None and not tasks and not waits:
            assert view.held or view.until is not None, "its start failed, and it does not rest"

    def lose_tasks(self) -> None:
        if self.running:
            name = self.random.choice(sorted(self.running))
            run = self.running[name]
            tasks = tuple(self.random.sample(sorted(run.places), self.random.randint(1, len(run.places))))
            for task in tasks:
                del run.places[task]
            self.claimed.clear()
            self.send(TasksLost(name, run.attempt, tasks))

    def report_some(self) -> None:
        if self.leaving:
            key = self.random.choice(sorted(self.leaving))
            place = self.leaving[key].pop(self.random.randrange(len(self.leaving[key])))
            if not self.leaving[key]:
                del self.leaving[key]
            self.send(Stopped(*key, ((place.group, place.task),)))

    def refuse_stop(self) -> None:
        if self.leaving:
            self.claimed.clear()
            name, attempt = self.random.choice(sorted(self.leaving))
            self.send(StopRefused(name, attempt, self.random.choice([0.0, 40.0])))

    def hold_or_release(self) -> None:
        waiting = [name for name in sorted(self.jobs) if self.allocator.jobs[name].state == "pending"]
        if waiting:
            name = self.random.choice(waiting)
            held = self.allocator.jobs[name].held
            if self.random.random() < (0.9 if held else 0.4):
                self.send(JobReleased(name))
                assert not self.allocator.jobs[name].held
            else:
                self.claimed.discard(name)
                self.send(JobHeld(name, "by fate"))
                assert self.allocator.jobs[name].held

    def say_what_is_over(self) -> None:
        """What is late, or of nobody, changes nothing."""
        self.send(TimePassed())
        wake = self.allocator.next_wake
        if wake is not None and wake <= self.now:
            return
        before = self.allocator.dump()
        name = self.random.choice([*sorted(self.jobs), "nobody"])
        attempt = self.allocator.jobs[name].attempt + self.random.choice([1, 7]) if name in self.jobs else 1
        for kind in (Started, StartFailed, TasksLost, StopRefused, Stopped):
            self.send(kind(name, attempt))
        assert self.allocator.dump() == before

    # ---- the engine ------------------------------------------------------------------------------------

    def send(self, event) -> None:
        events = event if isinstance(event, list) else [event]
        if not all(isinstance(one, (Stopped, TimePassed)) for one in events):
            self.pairs.clear()
        for one in events:
            if isinstance(one, JobSubmitted):
                self.jobs[one.job.id] = one.job
        try:
            actions = self.allocator.handle(event, self.now)
        except Exception:
            for one in events:
                if isinstance(one, JobSubmitted):
                    del self.jobs[one.job.id]
            raise
        self.log.append((event, self.now))
        self.seen[type(events[0]).__name__] += 1
        self.allocator.validate()
        for one in events:
            if isinstance(one, StopRefused):
                self._runs_on(one)
        self.obey(actions)
        self.actions.append(tuple(actions))
        for one in events:
            if isinstance(one, JobWithdrawn):
                self._forget(one.job)
        if not self.leaving:
            self.compare()

    def _runs_on(self, event: StopRefused) -> None:
        """Whether the allocator could give it its places back, or has it stopped all the same."""
        key = event.job, event.attempt
        if key in self.leaving and key not in self.allocator.leaving:
            one = self.running.setdefault(event.job, Running(event.attempt, self.now))
            assert one.attempt == event.attempt
            self.attempts[event.job] = event.attempt - 1
            for place in self.leaving.pop(key):
                self._put(event.job, place)

    def obey(self, actions) -> None:
        evicted: Counter[str] = Counter()
        checked: set[tuple[str, str]] = set()
        given: dict[tuple[str, int, int], object] = {}
        for index, action in enumerate(actions):
            self.seen[type(action).__name__] += 1
            self._check_not_given(action, given)
            if isinstance(action, Preempt):
                evicted[action.job] += action.whole
                self.seen[action.reason.code.value] += 1
                self._check_victim(action)
                if action.reason.code is Code.RECLAIM and not self.taste.reported:
                    queue = self.jobs[action.job].queue
                    if (action.for_job, queue) not in checked:
                        checked.add((action.for_job, queue))
                        self._check_bound(action.for_job, queue, actions[index:])
                pair = (action.for_job, action.job)
                assert (action.job, action.for_job) not in self.pairs, f"{pair} was the other way round before"
                if action.reason.code is not Code.BACKFILL_OVER and action.for_job != action.job:
                    self.pairs.add(pair)
                self._take(action.job, action.attempt, action.places, action.whole)
                if action.for_job in self.jobs and action.for_job != action.job:
                    self.claimed.add(action.for_job)
            elif isinstance(action, Stop):
                if not action.places and action.job in self.running:
                    continue  # a later attempt, of which nothing was started
                self._take(action.job, action.attempt, action.places, True)
            elif isinstance(action, Move):
                self._check_movable(action)
                for place in action.places:
                    self._remove(action.job, place)
                self._left(action.job, action.attempt, action.places)
                if not self.taste.reported:
                    for place in action.to:
                        self._put(action.job, place)
            elif isinstance(action, Start):
                self._start(action)
                checked = {pair for pair in checked if pair[0] != action.job}
            elif isinstance(action, (Shrink, Grow)):
                self.running[action.job].places = {(place.group, place.task): place for place in action.places}
            elif isinstance(action, Refuse):
                self._forget(action.job)
            else:
                assert isinstance(action, Wait)
        for name in list(self.running):
            if not self.running[name].places:
                del self.running[name]
        assert all(count <= 1 for count in evicted.values()), evicted
        self._check_gpus()

    def _check_not_given(self, action, given: dict) -> None:
        """What is given in a turn is not taken in the same turn, neither whole nor in part."""
        if isinstance(action, (Preempt, Stop, Move, Shrink)):
            for place in action.places:
                task = (action.job, place.group, place.task)
                same = isinstance(action, Shrink) and given.get(task) == place
                assert same or task not in given, f"{task} is given and taken in one turn"
        places = action.to if isinstance(action, Move) else action.places if isinstance(action, (Start, Grow)) else ()
        for place in places:
            given[action.job, place.group, place.task] = place

    def _check_victim(self, action: Preempt) -> None:
        job, run = self.jobs[action.job], self.running[action.job]
        if action.reason.code in (Code.INCOMPLETE, Code.DRAINED, Code.START_FAILED, Code.CROWDED_OUT):
            return
        assert job.preemptible, "a job that is not preemptible"
        assert action.for_job != action.job
        if action.reason.code is Code.PREEMPT:
            winner = self.jobs[action.for_job]
            assert winner.queue == job.queue
            assert winner.priority > job.priority
        if action.reason.code is Code.RECLAIM:
            assert self.jobs[action.for_job].queue != job.queue
        assert run.since + self._min_runtime(job) <= self.now, "a victim within its minimum run time"

    def _check_bound(self, for_job: str, queue: str, actions) -> None:
        """Before each victim, the largest last, the queue was above its quota."""
        total = largest = 0
        for action in actions:
            if isinstance(action, Start) and action.job == for_job:
                break
            if isinstance(action, Preempt) and action.for_job == for_job and self.jobs[action.job].queue == queue:
                units = [place.charge for place in action.places]
                if action.whole:
                    units, core = [], 0
                    for group, tasks in enumerate(self.jobs[action.job].tasks):
                        mine = [place.charge for place in action.places if place.group == group]
                        core += sum(mine[: tasks.least])
                        units += mine[tasks.least :]
                    units.append(core)
                total += sum(units)
                largest = max(largest, *units)
        assert self.held(queue) - (total - largest) > self.queues[queue].quota, "a victim in quota"

    def _check_movable(self, action: Move) -> None:
        job, run = self.jobs[action.job], self.running[action.job]
        assert job.preemptible
        assert job.movable
        assert run.since + self._min_runtime(job) <= self.now

    def _min_runtime(self, job: Job) -> float:
        name: str | None = job.queue
        while name is not None:
            queue = self.queues[name]
            if queue.min_runtime is not None:
                return max(job.min_runtime, queue.min_runtime)
            name = queue.parent
        return job.min_runtime

    def held(self, queue: str) -> int:
        """What the engine sees a leaf hold."""
        return sum(
            place.charge
            for name, one in self.running.items()
            if self.jobs[name].queue == queue
            for place in one.places.values()
        )

    def _remove(self, name: str, place) -> None:
        assert self.running[name].places.pop((place.group, place.task)) == place

    def _take(self, name: str, attempt: int, places, whole: bool) -> None:
        if name in self.running:
            assert self.running[name].attempt == attempt
        still = []
        for place in places:
            if name in self.running and (place.group, place.task) in self.running[name].places:
                self._remove(name, place)
                still.append(place)
        if whole and places:
            self.attempts[name] = attempt
        if whole and name in self.running:
            assert not self.running[name].places, "something of it still runs"
            del self.running[name]
        self._left(name, attempt, still)

    def _left(self, name: str, attempt: int, places) -> None:
        if self.taste.reported and places:
            self.leaving.setdefault((name, attempt), []).extend(places)

    def _put(self, name: str, place) -> None:
        one = self.running[name]
        assert (place.group, place.task) not in one.places
        one.places[place.group, place.task] = place

    def _start(self, action: Start) -> None:
        assert action.job in self.jobs, "a start of a job that nobody wants"
        one = self.running.get(action.job)
        if one is None:
            # All of its tasks may have been on the move: then it is the same run.
            assert action.attempt > self.attempts.get(action.job, 0), f"{action.job}: an attempt that was before"
            since = self.begun.setdefault((action.job, action.attempt), self.now)
            one = self.running[action.job] = Running(action.attempt, since)
        assert one.attempt == action.attempt
        assert not any(name == action.job for name, _ in self.leaving), "its last attempt is still there"
        for place in action.places:
            self._put(action.job, place)
            self._check_open(place)
        self.claimed.discard(action.job)

    def _check_open(self, place) -> None:
        """Nothing starts on a closed node, or in the place of programs of others."""
        view = self.allocator.nodes[place.node]
        assert not self.closed.get(place.node), f"{place.node} is {self.closed[place.node]}"
        assert view.until is None, f"{place.node} rests"
        for gpu in place.gpus:
            used = sum(
                one.amount
                for run in self.running.values()
                for one in run.places.values()
                if one.node == place.node and gpu in one.gpus
            )
            assert used + self.foreign[place.node, gpu] <= self.nodes[place.node].memory, "others use that GPU"

    def _check_gpus(self) -> None:
        """No GPU holds more than it has, counting what has been told to stop and has not."""
        used: Counter[tuple[str, int]] = Counter()
        charged: Counter[tuple[str, int]] = Counter()
        for name, one in self.running.items():
            for place in one.places.values():
                assert len(set(place.gpus)) == len(place.gpus) == self.jobs[name].tasks[place.group].gpus
                for gpu in place.gpus:
                    used[place.node, gpu] += place.amount
                    charged[place.node, gpu] += place.charge // len(place.gpus)
        for places in self.leaving.values():
            for place in places:
                for gpu in place.gpus:
                    used[place.node, gpu] += place.amount
        for (name, gpu), amount in used.items():
            node = self.allocator.nodes[name]
            assert node.alive
            assert gpu not in node.node.broken
            assert amount <= self.nodes[name].memory, f"GPU {gpu} of {name} holds {amount}"
            assert charged[name, gpu] <= MICRO
        for name, queue in self.queues.items():
            if queue.cap is not None and not self.ever_over(name):
                assert self.allocator.queues[name].allocated <= queue.cap, f"{name} is over its limit"

    def ever_over(self, name: str) -> bool:
        """Its limit was lowered below what it held: it only shrinks by itself."""
        return self.taste.changes

    def compare(self) -> None:
        """With nothing under way, the engine and the allocator see the same."""
        views = self.allocator.jobs
        assert set(views) == set(self.jobs)
        for name, view in views.items():
            mine = self.running.get(name)
            assert (view.state != "pending") == (mine is not None), f"{name} is {view.state}"
            if mine is not None:
                assert tuple(mine.places[key] for key in sorted(mine.places)) == view.places

    def settle(self) -> None:
        """Let it come to rest: everything told to stop stops, and time stands still."""
        for _ in range(200):
            if self.leaving:
                self.report_all()
            wake = self.allocator.next_wake
            if wake is None or wake > self.now:
                break
            self.send(TimePassed())
        else:
            raise AssertionError("it does not come to rest")
        assert not self.claimed, f"evicted for them, and they did not start: {self.claimed}"


HAPPENINGS = (
    World.close_or_open,
    World.close_or_open,
    World.use_from_outside,
    World.exchange_gpu,
    World.acknowledge,
    World.fail_start,
    World.lose_tasks,
    World.report_some,
    World.refuse_stop,
    World.hold_or_release,
    World.say_what_is_over,
)

__all__ = ["GIB", "Taste", "World"]
