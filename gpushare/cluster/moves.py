"""Consolidation: make room by moving running tasks, before anything is taken from anybody.

A node on which some GPUs are missing for a task is cleared of the fewest movable tasks, and these are placed again
elsewhere as if they were new. Nodes are tried in the order of the fewest moves, at most Policy.search_width of them
for each task; if all that was moved finds a place, the job starts. Nobody loses anything but the restart: movable
is what may also be evicted, so neither what is not preemptible nor what is within its minimum run time.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpushare.cluster.candidates import Bounds, Unit, evictable
from gpushare.cluster.clearing import Cost, clear
from gpushare.cluster.model import Code, Place, Reason
from gpushare.cluster.placement import Want, allowed_nodes, forbidden, more_charge, place_task, take, wants_of
from gpushare.cluster.space import Need, NodeState, fit_on
from gpushare.cluster.state import JobClass, JobState, State
from gpushare.cluster.turn import Turn, spread

ANYBODY = Bounds()

Choice = tuple[Cost, int, list[Unit]]
"""A node's number, who would have to leave it, and what that costs."""


def consolidate(turn: Turn, cls: JobClass, job: JobState, more: bool) -> bool:
    """Start the job with the fewest moves, if moving alone makes room for it."""
    state, shape = turn.state, cls.shape
    if not state.policy.consolidate or shape.stuck == state.version:
        return False
    free = state.space.capacity - state.root.allocated
    if not free or (not more and free < cls.charge):
        return False
    rung = job.rung if more else shape.rungs - 1
    wants = wants_of(job, rung, more)
    charge = more_charge(state, cls, wants) if more else cls.charge
    if state.space.capacity - state.root.allocated < charge or forbidden(cls, charge) is not None:
        return False
    mark = state.mark()
    search = _Search(turn, job, wants)
    if not search.run() or forbidden(cls, sum(place.charge for place in search.placed)) is not None:
        state.undo(mark)
        if not more:
            state.journal.set(shape, "stuck", state.version)
        return False
    search.placed.sort()
    for mover, places in search.moved.items():
        reason = Reason(Code.MOVED, {"for_job": job.job.id, "moves": sum(map(len, search.moved.values()))})
        turn.moved(mover, places, job.job.id, reason)
    why = Reason(
        Code.MOVED, {"moves": sum(map(len, search.moved.values())), "moved": tuple(one.job.id for one in search.moved)}
    )
    if more:
        turn.extend(job, search.placed, why)
    else:
        turn.begin(job, search.placed, rung, why)
    return True


def could_consolidate(turn: Turn, job: JobState) -> bool:
    """Would moves make room for such a job? Whether it is allowed to start is another question."""
    state, shape = turn.state, job.cls.shape
    if not state.policy.consolidate or shape.stuck == state.version:
        return False
    mark = state.mark()
    found = _Search(turn, job, wants_of(job, shape.rungs - 1, False)).run()
    state.undo(mark)
    if not found:
        state.journal.set(shape, "stuck", state.version)
    return found


class _Search:
    def __init__(self, turn: Turn, job: JobState, wants: list[Want]) -> None:
        self.turn = turn
        self.state: State = turn.state
        self.job = job
        self.wants = wants
        self.mask = allowed_nodes(turn.state, job)
        self.placed: list[Place] = []
        self.moved: dict[JobState, list[Place]] = {}
        """Old places of what was moved."""

    def run(self) -> bool:
        if not self._could_suffice():
            return False
        for want in self.wants:
            place = place_task(self.state, self.job, want, self.mask, spread(self.job.queue))
            if place is not None:
                self.placed.append(place)
            elif not self._clear_a_node(want):
                return False
        return bool(self.moved)

    def _could_suffice(self) -> bool:
        """Whole GPUs are only got by moving if so many are free somewhere, though scattered or in part."""
        space = self.state.space
        return space.capacity - self.state.root.allocated >= sum(
            want.need.charge(2**50) for want in self.wants if want.need.whole
        )

    def _clear_a_node(self, want: Want) -> bool:
        for _, number, units in self._choices(want.need):
            mark = self.state.mark()
            node = self.state.space.nodes[number]
            if self._try(want, node, units):
                for unit in units:
                    self.moved.setdefault(unit.job, []).extend(unit.places)
                return True
            self.state.undo(mark)
        return False

    def _choices(self, need: Need) -> list[Choice]:
        """Nodes that could be cleared and of whom, the cheapest first."""
        key = (need, self.mask)
        if not self.placed and not self.job.places:
            # Nothing has been changed yet: another search of this turn may have seen the same.
            version, kept = self.turn.choices.get(key, (-1, []))
            if version == self.state.version:
                return kept
        choices: list[Choice] = []
        for node in self._promising(need):
            found = clear(node, need, self._movable(node), ANYBODY)
            if found is not None:
                choices.append((found[0], node.number, found[1]))
        choices.sort(key=lambda choice: choice[:2])
        if not self.placed and not self.job.places:
            self.turn.choices[key] = self.state.version, choices
        return choices

    def _promising(self, need: Need) -> Iterator[NodeState]:
        """Nodes on which the least is missing, at most so many as the policy says."""
        space, left = self.state.space, self.state.policy.search_width
        if need.whole:
            sets = [space.whole[count] & self.mask for count in range(min(need.gpus, len(space.whole)) - 1, -1, -1)]
        else:
            shared = space.with_shared() & self.mask
            sets = [shared, self.mask & space.alive & ~shared]
        for nodes in sets:
            for node in space.among(nodes):
                if left <= 0:
                    return
                left -= 1
                yield node

    def _movable(self, node: NodeState) -> list[Unit]:
        """Tasks on the node that may move, the smallest and newest first; none twice."""
        units: list[Unit] = []
        name = node.spec.name
        for seq in sorted(node.jobs, reverse=True):
            job = self.state.by_seq[seq]
            if job is self.job or not job.cls.preemptible or not evictable(self.turn, job):
                continue
            if len(job.places) == 1 and job not in self.moved:
                units.append(Unit(job, list(job.places.values()), name, len(units)))
                continue
            gone = {(place.group, place.task) for place in self.moved.get(job, ())}
            for place in job.ordered:
                if place.node == name and (place.group, place.task) not in gone:
                    units.append(Unit(job, [place], name, len(units)))
        return units

    def _try(self, want: Want, node: NodeState, units: list[Unit]) -> bool:
        for unit in units:
            self.turn.lift(unit.job, unit.places[0])
        gpus = fit_on(node, want.need)
        assert gpus is not None
        place = take(self.state, self.job, want, node, gpus)
        for unit in sorted(units, key=lambda unit: (-unit.charge, unit.rank)):
            old, other = unit.places[0], unit.job
            need = other.cls.shape.groups[old.group].needs[other.rung]
            mask = allowed_nodes(self.state, other)
            new = place_task(self.state, other, Want(old.group, old.task, need), mask, spread(other.queue))
            if new is None:
                return False
            self.state.pay(other, new.charge)
            if new.charge > old.charge and any(
                one.cap is not None and one.allocated > one.cap for one in other.queue.path
            ):
                return False
        self.placed.append(place)
        return True
