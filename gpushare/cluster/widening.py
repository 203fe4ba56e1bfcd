"""The wider search: the fewest tasks to stop and to move so that a gang can start.

The first answer (search.py) takes the way that looks best at each step, which is what a large cluster has the time for.
This looks for less: for one task to disturb, then two, and so on.

    Some tasks need a place: first those of the gang, then tasks that have had to leave theirs, the hardest first. Each
    goes where there is room; or it is stopped, if it may be; or it takes the place of other tasks, which then need one.
    Only sets in which every task must leave are tried. Tasks of one class on one node are alike: of them
    the best victims go.

Where there is no first answer it is tried on small clusters only (FEW_NODES).

So what is found is the least: the fewest tasks disturbed, then of them the fewest stopped. That holds for tasks of
whole GPUs and of a part of one GPU, and for gangs of them. Of parts of several GPUs only the best fit on each node is
tried; of an elastic job what goes is a task above its least, or all; nobody is stopped only for a limit. And it holds
while the search keeps within its numbers: steps, victims, and nodes (Policy.search_width). Steps are counted, not
timed, so that the same events lead to the same decisions everywhere, and for each number of tasks only two thirds of
those left are spent: on a large cluster more are disturbed then than need be, or the first answer stands.

It works on the ledger, and takes back each step that leads nowhere. Bounds.permit() is asked after each victim, as what
it forbids for some it forbids for more; all other rules when the answer is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from gpushare.cluster.candidates import Unit
from gpushare.cluster.jobs import JobState
from gpushare.cluster.model import Place
from gpushare.cluster.placement import Want, allowed_nodes
from gpushare.cluster.plan import NOWHERE, Landed, Plan, Task
from gpushare.cluster.rules import How
from gpushare.cluster.space import Need, NodeState, Space, parts_of
from gpushare.cluster.state import State
from gpushare.cluster.turn import allows, spread

if TYPE_CHECKING:
    from gpushare.cluster.search import Search

MOST = 10
"""So many tasks are disturbed at most where there is no first answer."""

FEW_NODES = 16
"""On more nodes only less is looked for than what was found first."""

STEPS = 1500
"""Nodes and sets that one search looks at; all searches of a turn have no more than Turn.steps together."""

VICTIMS = 1000
"""The best so many may be stopped; others only move."""


def small_enough(state: State) -> bool:
    """Is it likely that the steps suffice where there is no first answer? On more nodes they are nearly always spent,
    and one search in a hundred finds something."""
    return state.space.alive.bit_count() <= FEW_NODES


class Widening:
    """One search for the least that must be disturbed for one gang. It leaves the ledger as it was."""

    def __init__(self, search: Search, victims: Mapping[JobState, int]) -> None:
        self.search = search
        self.turn, self.state, self.space = search.turn, search.state, search.state.space
        self.victims = victims
        """Jobs that may be stopped, the best victims first, with their ranks."""
        memory, wants = max(self.space.models), search.gang.wants
        self.wants = tuple([Task(search.job, want, NOWHERE, want.need.charge(memory), search.mask) for want in wants])
        self.most_stops = sum(len(one.places) for one in victims)
        self.largest = max((place.charge for one in victims for place in one.places.values()), default=0)
        self.tasks: dict[tuple[int, int, int], Task] = {}
        self.residents: dict[int, list[list[Task]]] = {}
        """By node, tasks that may leave: in groups of those that are alike, the best to disturb first."""
        self.whole: dict[JobState, Unit] = {}
        """Of those jobs all that they had when the search began."""
        self.landed: list[Landed] = []
        self.stopped: list[Unit] = []
        self.answer: Plan | None = None
        self.steps = min(STEPS, self.turn.steps)
        self.mark = self.state.mark()

    def find(self, limit: tuple[int, int]) -> Plan | None:
        """The best answer smaller than the limit (tasks disturbed, of these stopped); none if no task is in the way."""
        most, fewer = limit
        if self._begin(0, 0):
            return None
        for left in range(1, most + 1):
            stops = min(left, self.most_stops) if left < most else fewer - 1
            self.answer = None
            kept = self.steps // 3  # for more tasks, should it come to nothing with so few
            self.steps -= kept
            while stops >= 0 and self._begin(left, stops):
                assert self.answer is not None
                stops = self.answer.size[1] - 1
            if self.answer is not None:
                return self.answer
            self.turn.spent = self.turn.spent or self.steps <= 0
            self.steps = max(0, self.steps) + kept
        return None

    def _begin(self, left: int, stops: int) -> bool:
        """Search once from the start; the ledger is as it was then."""
        self.landed.clear()
        self.stopped.clear()
        found = self._settle(self.wants, left, stops)
        self.state.undo(self.mark)
        return found

    def _settle(self, pending: tuple[Task, ...], left: int, stops: int) -> bool:
        """Find places for all of these, with so many more tasks disturbed and so many stopped at most."""
        if not self._step() or self._hopeless(pending, left, stops):
            return False
        if not pending:
            return self._accepted()
        task, rest, mark = pending[0], pending[1:], self.state.mark()
        movable = task.movable and not any(unit.job is task.job for unit in self.stopped)
        if movable:
            # No other task may be disturbed: it does not matter what runs on a node, only what is free there.
            uniform = sum(map(bool, self.space.models.values())) == 1  # all GPUs have the same memory
            alike = not left and uniform and all(one.mask == task.mask for one in rest)
            for node, gpus in self._open_places(task, alike=alike):
                self._land(task, node, gpus)
                if self._settle(rest, left, stops):
                    return True
                self.landed.pop()
                self.state.undo(mark)
        if task.stoppable and stops and self._stop(task, rest, left, stops):
            return True
        if movable and left:
            for node, gpu, leaving in self._sets(task, left, stops):
                self._lift(leaving)
                self._land(task, node, fit(node, node.free, task.want.need, gpu))
                if self._settle(in_line(rest, leaving), left - len(leaving), stops):
                    return True
                self.landed.pop()
                self.state.undo(mark)
        return False

    def _step(self) -> bool:
        """Count what is looked at; whether it may go on."""
        self.steps -= 1
        self.turn.steps -= 1
        return self.steps >= 0

    def _hopeless(self, pending: Sequence[Task], left: int, stops: int) -> bool:
        """By sums alone: all that could still be stopped leaves too little for those that need a place."""
        unpaid = sum(place.charge for task, place in self.landed if task.old is NOWHERE)
        free = self.space.capacity - self.state.root.allocated - unpaid
        missing = sum(task.charge for task in pending) - free
        if missing <= 0:
            return False
        if not stops:
            return True
        return missing > sum(task.charge for task in pending if task.stoppable) + left * self.largest

    # ---- what happens to one task ------------------------------------------------------------------------

    def _land(self, task: Task, node: NodeState, gpus: tuple[int, ...]) -> None:
        self._residents(node)
        want, memory = task.want, node.memory
        place = Place(want.group, want.task, node.spec.name, gpus, want.need.on(memory), want.need.charge(memory))
        if task.old is NOWHERE:
            self.state.occupy(self.search.job, place)
        else:
            self.turn.put_back(task.job, place)
        self.landed.append((task, place))

    def _lift(self, tasks: Iterable[Task]) -> None:
        """Off their places."""
        for task in tasks:
            self._residents(self.space.by_name[task.old.node])
            for queue in task.job.queue.path:
                self.search.before.setdefault(queue, queue.allocated)
            self.turn.lift(task.job, task.old)

    def _stop(self, task: Task, rest: tuple[Task, ...], left: int, stops: int) -> bool:
        """It alone if its gang can do without, else all of its job; and go on."""
        job, old = task.job, task.old
        if any(one.job is job for one, _ in self.landed):
            return False
        whole, mark = self.whole[job], self.state.mark()
        had = sum(place.group == old.group for place in whole.places)
        gone = [unit for unit in self.stopped if unit.job is job]
        spare = sum(unit.places[0].group == old.group for unit in gone)
        others: list[Task] = []
        if job.cls.shape.elastic and had - spare > job.cls.shape.groups[old.group].least:
            unit = Unit(job, [old], old.node, task.rank)
        elif gone:
            return False
        else:
            unit = whole
            others = [one for one in (self._task(job, place) for place in unit.places) if not one.away]
            rest = tuple([one for one in rest if one.job is not job])
        if len(others) > left or len(unit.places) > stops:
            return False
        if not self.search.bounds.permit([*self.stopped, unit], self.search.before):
            return False
        self.stopped.append(unit)
        self._lift(others)
        if self._settle(rest, left - len(others), stops - len(unit.places)):
            return True
        self.state.undo(mark)
        self.stopped.pop()
        return False

    def _accepted(self) -> bool:
        """Do all rules allow it? Then it is the answer."""
        plan = Plan.of(self.landed, self.stopped)
        if not self.search.accepts(plan):
            return False
        self.answer = plan
        return True

    # ---- where there is room, and where it could be made -------------------------------------------------

    def _mask(self, task: Task) -> int:
        """Nodes where it is looked for a place: equal tasks of the gang go to nodes in their order."""
        if task.old is NOWHERE and self.landed and self.landed[-1][0].want.need == task.want.need:
            return task.mask & -1 << self.space.by_name[self.landed[-1][1].node].number
        return task.mask

    def _open_places(self, task: Task, *, alike: bool) -> list[tuple[NodeState, tuple[int, ...]]]:
        """The best fit first; of nodes that are alike for all who still need a place one."""
        need, old = task.want.need, task.old
        found: list[tuple[int, int, tuple[int, ...]]] = []
        mask, width = self._mask(task), self.state.policy.search_width
        for node in nodes_for(self.space, need, mask, width, open_=True, each=1 if alike else width):
            if not self._step():
                break
            if old is not NOWHERE and need.charge(node.memory) > task.charge:
                continue
            free = node.free
            for gpu in each_gpu(need, free):
                gpus = fit(node, free, need, gpu)
                if gpus and not (node.spec.name == old.node and (need.whole or gpus == old.gpus)):
                    over = free.count(node.memory) if need.whole else sum([free[one] for one in gpus])
                    found.append((over, node.number, gpus))
        apart = -1 if spread(task.job.queue) else 1
        found.sort(key=lambda one: (apart * one[0], one[1:]))
        return [(self.space.nodes[number], gpus) for _, number, gpus in found]

    def _sets(self, task: Task, left: int, stops: int) -> Iterator[tuple[NodeState, int | None, tuple[Task, ...]]]:
        """Nodes, of each the GPU if the task needs a part of one, and the tasks that would have to leave."""
        need, width = task.want.need, self.state.policy.search_width
        landing: dict[tuple[Need, int], bool] = {}

        def lands(one: Task) -> bool:
            key = one.want.need, one.mask
            if key not in landing:
                landing[key] = self.space.fits(*key)
            return landing[key]

        nodes = nodes_for(self.space, need, self._mask(task), width, open_=False, each=width)
        for node in islice(nodes, width):
            if not self._step():
                return
            if task.old is not NOWHERE and need.charge(node.memory) > task.charge:
                continue
            groups = self._residents(node)
            # The last task to leave must go where there is room, or be stopped: none can leave after it.
            last = [group for group in groups if (group[0].stoppable and stops) or lands(group[0])]
            if not (groups if left > 1 else last):
                continue
            for gpu in each_gpu(need, node.free):
                if not fit(node, node.free, need, gpu):
                    for leaving in self._minimal(node, task, gpu, left, (groups, last), stops=stops):
                        yield node, gpu, leaving

    def _minimal(
        self,
        node: NodeState,
        task: Task,
        gpu: int | None,
        most: int,
        able: tuple[list[list[Task]], list[list[Task]]],
        *,
        stops: int,
    ) -> Iterator[tuple[Task, ...]]:
        """Sets of tasks that could leave so that it fits: of the residents, or at the last step of those that can be
        last. Smallest sets first, and none of which a part would do."""
        need, before = task.want.need, list(node.free)
        residents, last = able

        def helps(one: Task) -> bool:
            if one.away or (gpu is not None and gpu not in one.old.gpus):
                return False
            # A task of the same size need not leave: the task itself can go where that one would go.
            return one.want.need != need or bool(one.mask & ~task.mask) or (one.stoppable and stops > 0)

        def helping(some: list[list[Task]]) -> list[list[Task]]:
            return [found for group in some if (found := [one for one in group if helps(one)])]

        groups = helping(residents) if most > 1 else []

        def enough(leaving: Iterable[Task]) -> bool:
            free = before[:]
            for one in leaving:
                for index in one.old.gpus:
                    free[index] += one.old.amount
            return bool(fit(node, free, need, gpu))

        for count in range(1, most + 1):
            for leaving in choices(helping(last) if count == most else groups, count):
                if not self._step():
                    return
                if enough(leaving) and not (
                    count > 1 and any(enough(leaving[:index] + leaving[index + 1 :]) for index in range(count))
                ):
                    yield leaving

    def _residents(self, node: NodeState) -> list[list[Task]]:
        """Noted before anything changes there."""
        found = self.residents.get(node.number)
        if found is None:
            name = node.spec.name
            jobs = [self.state.by_seq[seq] for seq in node.jobs]
            tasks = [
                self._task(job, place)
                for job in jobs
                if job in self.victims or (self.search.may_move and self._movable(job))
                for place in job.places.values()
                if place.node == name
            ]
            tasks.sort(key=lambda task: (task.rank, task.old))
            groups: dict[object, list[Task]] = {}
            for task in tasks:
                groups.setdefault(task.alike, []).append(task)
            found = self.residents[node.number] = list(groups.values())
        return found

    def _movable(self, job: JobState) -> bool:
        return job is not self.search.job and allows(self.turn, job, How.MOVE)

    def _task(self, job: JobState, place: Place) -> Task:
        key = (job.seq, place.group, place.task)
        task = self.tasks.get(key)
        if task is None:
            if job not in self.whole:
                self.whole[job] = Unit(job, job.ordered, place.node, self.victims.get(job, 0))
            need = job.cls.shape.groups[place.group].needs[job.rung]
            task = Task(job, Want(place.group, place.task, need), place, place.charge, allowed_nodes(self.state, job))
            task.stoppable = job in self.victims
            task.movable = self.search.may_move and self._movable(job)
            task.rank = self.victims.get(job, len(self.victims) + self.state.sequence - job.seq)
            task.alike = key
            if len(self.whole[job].places) == 1:
                where = len(place.gpus) if need.whole else place.gpus
                task.alike = job.cls, job.rung, task.stoppable, task.movable, job in self.search.bounds.late, where
            self.tasks[key] = task
        return task


def nodes_for(space: Space, need: Need, mask: int, width: int, *, open_: bool, each: int) -> Iterator[NodeState]:
    """Where there is room for it, or where it might be made; of nodes with equally many free GPUs so many."""
    if open_ and not space.fits(need, mask):
        return
    top = len(space.whole)
    counts = range(need.gpus, top) if open_ else range(min(need.gpus, top) - 1, -1, -1)
    if not need.whole:
        shared = space.with_shared() & mask
        yield from islice(space.among(shared), width)
        mask &= ~shared
        counts = range(1, top) if open_ else range(top)
    for count in counts:
        yield from islice(space.among(space.whole[count] & mask), each)


def each_gpu(need: Need, free: Sequence[int]) -> Sequence[int | None]:
    """A part of one GPU may go to any of them; of other tasks it does not matter which GPUs of a node they get."""
    return (None,) if need.whole or need.gpus != 1 else range(len(free))


def fit(node: NodeState, free: Sequence[int], need: Need, gpu: int | None) -> tuple[int, ...]:
    """GPUs of the node for one task where so much is free, or that very one; none if it does not fit."""
    if gpu is None:
        return parts_of(node, free, need) or ()
    return (gpu,) if need.on(node.memory) <= min(free[gpu], node.memory) else ()


def in_line(pending: tuple[Task, ...], more: Iterable[Task]) -> tuple[Task, ...]:
    """The gang's tasks first, then those that can only move, then the largest."""
    return tuple(sorted((*pending, *more), key=lambda task: (task.old is not NOWHERE, task.stoppable, -task.charge)))


def choices(groups: Sequence[list[Task]], count: int) -> Iterator[tuple[Task, ...]]:
    """Ways to take so many, of each group the first ones."""
    if not count:
        yield ()
        return
    for index, group in enumerate(groups):
        for taken in range(min(count, len(group)), 0, -1):
            for others in choices(groups[index + 1 :], count - taken):
                yield (*group[:taken], *others)
