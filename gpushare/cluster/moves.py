"""Room by moving running tasks, before anything is taken from anybody.

A node on which some GPUs are missing for a task is cleared of the fewest movable tasks, and these are placed again
elsewhere as if they were new. Nodes are tried in the order of the fewest moves, at most Policy.search_width of them
for each task; if all that was moved finds a place, the job starts. Nobody loses anything: only jobs that say that they
are movable move, and of these only such as might be stopped.

If no node works, or the first that works is not one with the fewest moves, the search is widened: it also makes room on
other nodes for tasks that must leave theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from gpushare.cluster.candidates import Unit
from gpushare.cluster.clearing import Cost, clear
from gpushare.cluster.holes import holes
from gpushare.cluster.jobs import JobState
from gpushare.cluster.model import Place
from gpushare.cluster.placement import Gang, Want, affordable, allowed_nodes, forbidden
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.rules import How
from gpushare.cluster.search import Search, Way, elsewhere
from gpushare.cluster.shapes import Shape
from gpushare.cluster.space import Need, NodeState
from gpushare.cluster.state import State
from gpushare.cluster.turn import Turn, allows
from gpushare.cluster.widening import small_enough

Batch = tuple[list[NodeState], tuple[int, int] | None]
"""Nodes to look at, and what clearing any later one costs at least (tasks, excess)."""


def consolidate(turn: Turn, gang: Gang) -> Search | None:
    """The fewest moves that make room for the gang, if moving alone does."""
    state, job, more = turn.state, gang.job, gang.more
    shape = job.cls.shape
    free = state.space.capacity - state.root.allocated
    if not free or free < gang.charge or not state.policy.consolidate:
        return None
    if not more and (not could_move(state, shape) or holes(state).failed_for(shape, allowed_nodes(state, job))):
        return None
    if forbidden(job.cls, gang.charge) is not None:
        return None
    search = Moving(turn, gang)
    if search.could_suffice() and search.run():
        return search
    if not more and not turn.spent:
        holes(state).failed[shape] = search.mask
    return None


def could_move(state: State, shape: Shape) -> bool:
    """A quick look: False only if moves cannot make room for a job of the shape."""
    return small_enough(state) or shape.elastic or holes(state).allow(state.space.models, shape.cheapest, shape.tasks)


class Moving(Search):
    """Those who must leave move. Nobody is stopped."""

    def __init__(self, turn: Turn, gang: Gang) -> None:
        job = gang.job
        super().__init__(turn, gang, affordable(turn.state, job.cls, gang.wants, allowed_nodes(turn.state, job)))
        self.floor = 0
        """No answer moves fewer."""
        self.holes = holes(turn.state)
        """Before the search."""
        self.lands: dict[tuple[Shape, int], bool] = {}
        """Whether there was room for a task of such a job on this rung before anything was lifted for the gang's next
        task: nobody else moves."""

    def run(self) -> bool:
        found = self.plan() if self.place_all() and self.moved and self.holds() else None
        if found is not None and found.size[0] <= self.floor:
            return True
        return self.widen(self.mark, found)

    def could_suffice(self) -> bool:
        """Is so much free somewhere, though scattered or in part, and is there room for anybody who may move?"""
        state, wants = self.state, self.gang.wants
        if not small_enough(state):
            charge = sum(one.need.charge(max(state.space.models)) for one in wants)
            memories = [memory for memory, nodes in state.space.models.items() if nodes & self.mask]
            return self.holes.allow(memories, charge, len(wants))
        whole = sum(one.need.charge(2**50) for one in wants if one.need.whole)
        if state.space.capacity - state.root.allocated < whole:
            return False
        movers = [one for one in state.shapes.values() if one.movable and any(cls.running for cls in one.classes)]
        return any(self._could_land(shape, rung) for shape in movers for rung in range(shape.rungs))

    def ways(self, want: Want) -> Iterator[Way]:
        """None is looked at that cannot be the next."""
        self.lands.clear()
        choices: list[tuple[Cost, int, list[Unit]]] = []
        for nodes, bound in self._promising(want.need):
            for node in nodes:
                if not self._could_clear(node, want.need):
                    continue
                found = clear(node, want.need, self._movable(node), self.bounds)
                if found is not None:
                    choices.append((found[0], node.number, found[1]))
            choices.sort(key=lambda choice: choice[:2], reverse=True)
            while choices and (bound is None or choices[-1][0][:2] < bound):
                cost, number, units = choices.pop()
                # What the first task of a gang finds says nothing of what all of them need.
                self.floor = self.floor or (cost.tasks if len(self.gang.wants) == 1 else 1)
                yield Way(self.state.space.nodes[number], units)

    def _could_clear(self, node: NodeState, need: Need) -> bool:
        """By sums alone: is what is missing on the node not more than all who move can have elsewhere?"""
        if small_enough(self.state):
            return True
        missing = need.gpus * need.on(node.memory) - sum([left for left in node.free if left > 0])
        return self.holes.allow((node.memory,), missing * MICRO // node.memory, len(self.placed))

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
        for seq in sorted(node.jobs, reverse=True):
            job = self.state.by_seq[seq]
            if job is self.job or not self._could_land(job.cls.shape, job.rung) or not allows(self.turn, job, How.MOVE):
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
            found = any(space.fits(group.needs[rung], space.alive) for group in shape.groups)
            self.lands[shape, rung] = found
        return found

    def clear(self, want: Want, way: Way) -> bool:
        """Who leaves finds a place elsewhere, the largest first."""
        state, mark = self.state, self.state.mark()
        lifted: dict[JobState, list[Place]] = {}
        for unit in sorted(way.units, key=lambda unit: (-unit.charge, unit.rank)):
            lifted.setdefault(unit.job, []).append(unit.places[0])
            self.turn.lift(unit.job, unit.places[0])
        self.land(want, way.node)
        if not all(elsewhere(self.turn, job, places) for job, places in lifted.items()):
            state.undo(mark)
            self.placed.pop()
            return False
        for job, places in lifted.items():
            self.moved.setdefault(job, []).extend(places)
        return True
