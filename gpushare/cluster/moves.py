"""Consolidation: room by moving running tasks, before anything is taken from anybody.

A node on which some GPUs are missing for a task is cleared of the fewest movable tasks, and these are placed again
elsewhere as if they were new. Nodes are tried in the order of the fewest moves, at most Policy.search_width of them
for each task; if all that was moved finds a place, the job starts. Nobody loses anything: only jobs that say that they
are movable move, and of these only such as might be stopped.

If a node that had to be left by more is the first from which all find a place, or none is, the exact search (exact.py)
looks for less: it also makes place for those who must leave, on other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from gpushare.cluster import exact
from gpushare.cluster.candidates import Unit, allows
from gpushare.cluster.clearing import Cost, clear
from gpushare.cluster.exact import ANYBODY, MOST, Answer, answer_of
from gpushare.cluster.model import Code, Place, Reason
from gpushare.cluster.placement import (
    Want,
    affordable,
    allowed_nodes,
    forbidden,
    more_charge,
    place_task,
    take,
    wants_of,
)
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.rules import How
from gpushare.cluster.space import Need, NodeState, fit_on
from gpushare.cluster.state import JobClass, JobState, Shape, State
from gpushare.cluster.turn import Turn, spread

Choice = tuple[Cost, int, list[Unit]]
"""A node's number, who would have to leave it, and what that costs."""

Batch = tuple[list[NodeState], tuple[int, int] | None]
"""Nodes to look at, and what clearing any later one costs at least (tasks, excess)."""


def consolidate(turn: Turn, cls: JobClass, job: JobState, more: bool) -> bool:
    """Start the job with the fewest moves, if moving alone makes room for it."""
    state, shape = turn.state, cls.shape
    if not state.policy.consolidate or (job is not state.reserver and shape.stuck == state.version):
        return False
    free = state.space.capacity - state.root.allocated
    if not free or (not more and free < cls.charge):
        return False
    rung = job.rung if more else shape.rungs - 1
    wants = wants_of(job, rung, more)
    charge = more_charge(state, cls, wants) if more else cls.charge
    if state.space.capacity - state.root.allocated < charge or forbidden(cls, charge) is not None:
        return False
    found = _find(turn, job, wants, lambda placed: forbidden(cls, sum(place.charge for place in placed)) is None)
    if found is None:
        if not more and not shape.by_bytes and not turn.spent:  # bytes may only be too dear for this one's queue
            state.journal.set(shape, "stuck", state.version)
        return False
    moved = {one: old for one, old, _ in found.moved}
    tell_moved(turn, job, moved)
    why = Reason(Code.MOVED, how_moved(moved))
    if more:
        turn.extend(job, sorted(found.placed), why)
    else:
        turn.begin(job, sorted(found.placed), rung, why)
    return True


def could_consolidate(turn: Turn, job: JobState) -> bool:
    """Would moves make room for such a job? Whether it is allowed to start is another question."""
    state, shape = turn.state, job.cls.shape
    if not state.policy.consolidate or shape.stuck == state.version:
        return False
    mark = state.mark()
    found = _find(turn, job, wants_of(job, shape.rungs - 1, False), bool)
    state.undo(mark)
    if found is None and not turn.spent:
        state.journal.set(shape, "stuck", state.version)
    return found is not None


def _find(turn: Turn, job: JobState, wants: list[Want], allowed: Callable[[list[Place]], bool]) -> Answer | None:
    """The fewest moves that make room for it, which are on the ledger then."""
    state = turn.state
    mark = state.mark()
    search = Search(turn, job, wants)
    if not search.could_suffice():
        return None
    found = search.answer() if search.run() and allowed(search.placed) else None
    if found is not None and found.size[0] <= search.floor:
        return found
    state.undo(mark)
    if found is None and not exact.small_enough(state):
        return None
    less = exact.Search(turn, job, wants, lambda answer: allowed(answer.placed), mask=search.mask)
    found = less.find((MOST + 1, 0) if found is None else found.size) or found
    if found is not None:
        found.carry_out(turn, job, {})
    return found


def tell_moved(turn: Turn, job: JobState, moved: Mapping[JobState, list[Place]]) -> None:
    for mover, places in moved.items():
        reason = Reason(Code.MOVED, {"for_job": job.job.id, "moves": sum(map(len, moved.values()))})
        turn.moved(mover, places, job.job.id, reason)


def how_moved(moved: Mapping[JobState, list[Place]]) -> dict[str, object]:
    return {"moves": sum(map(len, moved.values())), "moved": tuple(one.job.id for one in moved)}


def elsewhere(turn: Turn, job: JobState, places: Sequence[Place]) -> bool:
    """Places for these of a job's tasks, which were lifted, wherever there is room; all or none."""
    state, mark = turn.state, turn.state.mark()
    mask, apart = allowed_nodes(state, job), spread(job.queue)
    for old in sorted(places, key=lambda place: (-place.charge, place)):
        need = job.cls.shape.groups[old.group].needs[job.rung]
        new = place_task(state, job, Want(old.group, old.task, need), mask, apart)
        if new is None:
            state.undo(mark)
            return False
        state.pay(job, new.charge)
        if new.charge > old.charge and any(one.cap is not None and one.allocated > one.cap for one in job.queue.path):
            state.undo(mark)
            return False
    return True


class Search:
    """One attempt to make room for one job by moving others. Changes the ledger; the caller undoes it."""

    def __init__(self, turn: Turn, job: JobState, wants: list[Want]) -> None:
        self.turn = turn
        self.state: State = turn.state
        self.job = job
        self.wants = wants
        self.mask = affordable(turn.state, job.cls, wants, allowed_nodes(turn.state, job))
        self.placed: list[Place] = []
        self.moved: dict[JobState, list[Place]] = {}
        """Old places of what was moved."""
        self.floor = 0
        """No answer moves fewer."""
        self.lands: dict[tuple[Shape, int], bool] = {}
        """Whether there was room for a task of such a job on this rung when the search began: nobody else moves."""

    def run(self) -> bool:
        for want in self.wants:
            place = place_task(self.state, self.job, want, self.mask, spread(self.job.queue))
            if place is not None:
                self.placed.append(place)
            elif not self._clear_a_node(want):
                return False
        return bool(self.moved)

    def could_suffice(self) -> bool:
        """Is so much free somewhere, though scattered or in part, and is there room for anybody who may move?"""
        state = self.state
        whole = sum(one.need.charge(2**50) for one in self.wants if one.need.whole)
        if state.space.capacity - state.root.allocated < whole:
            return False
        movers = (cls for cls in state.classes.values() if cls.movable and cls.running)
        return any(self._could_land(cls.shape, rung) for cls in movers for rung in range(cls.shape.rungs))

    def _clear_a_node(self, want: Want) -> bool:
        """The first node, in the order of those who must leave it, that all of these can leave."""
        for cost, number, units in self._choices(want.need):
            self.floor = self.floor or cost.tasks
            mark = self.state.mark()
            if self._try(want, self.state.space.nodes[number], units):
                return True
            self.state.undo(mark)
        return False

    def answer(self) -> Answer:
        """What was found and is on the ledger."""
        return answer_of(self.placed, [], self.moved)

    def _choices(self, need: Need) -> Iterator[Choice]:
        """Nodes that could be cleared and of whom, the cheapest first; none is looked at that cannot be the next."""
        choices: list[Choice] = []
        for nodes, bound in self._promising(need):
            for node in nodes:
                found = clear(node, need, self._movable(node), ANYBODY)
                if found is not None:
                    choices.append((found[0], node.number, found[1]))
            choices.sort(key=lambda choice: choice[:2], reverse=True)
            while choices and (bound is None or choices[-1][0][:2] < bound):
                yield choices.pop()

    def _promising(self, need: Need) -> Iterator[Batch]:
        """Nodes on which the least is missing, at most so many; and what no later one costs less than: at least one
        task, and all GPUs that are missing there."""
        space, mask, left = self.state.space, self.mask, self.state.policy.search_width
        shared = space.with_shared() & mask
        if need.whole:
            counts = range(min(need.gpus, len(space.whole)) - 1, -1, -1)
            sets = [(space.whole[count] & mask, (1, (1 - count) * MICRO)) for count in counts]
        else:
            sets = [(shared, (0, 0)), (mask & space.alive & ~shared, (0, 0))]
        for index, (nodes, bound) in enumerate(sets):
            found = list(islice(space.among(nodes), left))
            left -= len(found)
            last = not left or index == len(sets) - 1
            yield found, None if last else (0, 0) if shared else bound  # a part of a GPU may clear the whole of it
            if last:
                return

    def _movable(self, node: NodeState) -> list[Unit]:
        """Tasks on the node that may move, the newest first; none twice."""
        units: list[Unit] = []
        name = node.spec.name
        for job in [self.state.by_seq[seq] for seq in sorted(node.jobs, reverse=True)]:
            if job is self.job or not self._could_land(job.cls.shape, job.rung):
                continue
            if not allows(self.turn, job, How.MOVE):
                continue
            if len(job.places) == 1 and job not in self.moved:
                units.append(Unit(job, list(job.places.values()), name, len(units)))
                continue
            gone = {(place.group, place.task) for place in self.moved.get(job, ())}
            for place in job.ordered:
                if place.node == name and (place.group, place.task) not in gone:
                    units.append(Unit(job, [place], name, len(units)))
        return units

    def _could_land(self, shape: Shape, rung: int) -> bool:
        found = self.lands.get((shape, rung))
        if found is None:
            space = self.state.space
            found = any(space.find(group.needs[rung], space.alive) is not None for group in shape.groups)
            self.lands[shape, rung] = found
        return found

    def _try(self, want: Want, node: NodeState, units: list[Unit]) -> bool:
        """Give the task its place there, and all who must leave others, the largest first."""
        lifted: dict[JobState, list[Place]] = {}
        for unit in sorted(units, key=lambda unit: (-unit.charge, unit.rank)):
            lifted.setdefault(unit.job, []).append(unit.places[0])
            self.turn.lift(unit.job, unit.places[0])
        gpus = fit_on(node, want.need)
        assert gpus is not None
        place = take(self.state, self.job, want, node, gpus)
        if not all(elsewhere(self.turn, job, places) for job, places in lifted.items()):
            return False
        self.placed.append(place)
        for job, places in lifted.items():
            self.moved.setdefault(job, []).extend(places)
        return True
