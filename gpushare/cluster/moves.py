"""Room by moving running tasks: alone (consolidation, before anything is taken from anybody) or beside a reclaim.

A node on which some GPUs are missing for a task is cleared of the fewest movable tasks, and these are placed again
elsewhere as if they were new. Nodes are tried in the order of the fewest moves, at most Policy.search_width of them
for each task; if all that was moved finds a place, the job starts. Nobody loses anything but the restart: movable
is what may also be evicted, so neither what is not preemptible nor what is within its minimum run time.

Who finds no place elsewhere is stopped, where there are victims and he is one of them. Else place is made for him on
another node in the same way, but for those who must leave that one no further. Of the nodes that one counts on which
the fewest are stopped or moved in all.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from gpushare.cluster.candidates import Bounds, Unit, evictable
from gpushare.cluster.clearing import Cost, clear
from gpushare.cluster.model import Code, Place, Reason
from gpushare.cluster.placement import Want, allowed_nodes, forbidden, more_charge, place_task, take, wants_of
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.space import Need, NodeState, fit_on
from gpushare.cluster.state import JobClass, JobState, QueueState, State
from gpushare.cluster.turn import Turn, spread

ANYBODY = Bounds()
NOBODY: Mapping[JobState, int] = {}

FEW = 8
"""Nodes that are tried where some would be stopped as well, and nodes that are looked at for each of the job's tasks to
make place for those who must leave another: both are dearer than a plain move."""

Choice = tuple[Cost, int, list[Unit]]
"""A node's number, who would have to leave it, and what that costs."""

Seen = dict[NodeState, tuple[Cost, list[Unit]] | None]

Batch = tuple[list[NodeState], tuple[int, int] | None]
"""Nodes to look at, and what clearing any later one costs at least (tasks, excess)."""


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
    search = Search(turn, job, wants)
    if not search.run() or forbidden(cls, sum(place.charge for place in search.placed)) is not None:
        state.undo(mark)
        if not more:
            state.journal.set(shape, "stuck", state.version)
        return False
    search.placed.sort()
    tell_moved(turn, job, search.moved)
    why = Reason(Code.MOVED, how_moved(search.moved))
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
    found = Search(turn, job, wants_of(job, shape.rungs - 1, False)).run()
    state.undo(mark)
    if not found:
        state.journal.set(shape, "stuck", state.version)
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


class Trial(NamedTuple):
    """What clearing one node for one task led to."""

    placed: list[Place]
    moved: dict[JobState, list[Place]]
    """Old places of what was moved."""
    taken: list[Unit]
    busy: set[JobState]
    """Whose tasks have been looked at and are left alone from then on."""

    @property
    def disturbed(self) -> int:
        """Tasks that were stopped or moved."""
        return sum(map(len, self.moved.values())) + sum(len(unit.places) for unit in self.taken)


class Search:
    """One attempt to make room for one job by moving others. Changes the ledger; the caller undoes it."""

    def __init__(
        self,
        turn: Turn,
        job: JobState,
        wants: list[Want],
        victims: Mapping[JobState, int] = NOBODY,
        bounds: Bounds = ANYBODY,
    ) -> None:
        self.turn = turn
        self.state: State = turn.state
        self.job = job
        self.wants = wants
        self.victims = victims
        """Who may be stopped, the best victims first, with their ranks."""
        self.bounds = bounds
        self.mask = allowed_nodes(turn.state, job)
        self.placed: list[Place] = []
        self.moved: dict[JobState, list[Place]] = {}
        """Old places of what was moved."""
        self.taken: list[Unit] = []
        self.before: dict[QueueState, int] = {}
        """What queues that were taken from held."""
        self.looks = 0
        """So many nodes may still be looked at to make place for those who must leave another."""

    def run(self) -> bool:
        if not self._could_suffice():
            return False
        for want in self.wants:
            place = place_task(self.state, self.job, want, self.mask, spread(self.job.queue))
            if place is not None:
                self.placed.append(place)
            elif not self._clear_a_node(want):
                return False
        return bool(self.moved or self.taken)

    def _could_suffice(self) -> bool:
        """Whole GPUs are only got by moving if so many are free somewhere, though scattered or in part."""
        space = self.state.space
        free = space.capacity - self.state.root.allocated + sum(job.charge for job in self.victims)
        return free >= sum(want.need.charge(2**50) for want in self.wants if want.need.whole)

    def _clear_a_node(self, want: Want) -> bool:
        """The node on which the fewest are disturbed: at least those who must leave it."""
        best: tuple[int, int, list[Unit], int] | None = None
        self.looks = FEW
        for cost, number, units in islice(self._choices(want.need), FEW if self.victims else None):
            if best is not None and cost.tasks >= best[0]:
                break
            looks = self.looks
            mark = self.state.mark()
            trial = self._try(want, self.state.space.nodes[number], units)
            if trial is not None:
                if trial.disturbed <= cost.tasks:
                    self._accept(trial)
                    return True
                if best is None or trial.disturbed < best[0]:
                    best = trial.disturbed, number, units, looks
            self.state.undo(mark)
        if best is None:
            return False
        self.looks = best[3]
        trial = self._try(want, self.state.space.nodes[best[1]], best[2])
        assert trial is not None
        self._accept(trial)
        return True

    def _accept(self, trial: Trial) -> None:
        self.placed += trial.placed
        self.taken += trial.taken
        for job, places in trial.moved.items():
            self.moved.setdefault(job, []).extend(places)

    def _choices(self, need: Need) -> Iterator[Choice]:
        """Nodes that could be cleared and of whom, the cheapest first; none is looked at that cannot be the next."""
        key, version = (need, self.mask), self.state.version
        seen: Seen = {}
        if not self.placed and not self.job.places and not self.victims:
            # Nothing has been changed yet: another search of this turn may have seen the same.
            if self.turn.choices.get(key, (-1, seen))[0] != version:
                self.turn.choices[key] = version, seen
            seen = self.turn.choices[key][1]
        return self._cleared(need, self._promising(need, self.mask, self.state.policy.search_width), (), seen)

    def _cleared(self, need: Need, nearest: Iterable[Batch], busy: Container[JobState], seen: Seen) -> Iterator[Choice]:
        choices: list[Choice] = []
        for nodes, bound in nearest:
            for node in nodes:
                if node not in seen:
                    seen[node] = clear(node, need, self._movable(node, busy), ANYBODY)
                found = seen[node]
                if found is not None:
                    choices.append((found[0], node.number, found[1]))
            choices.sort(key=lambda choice: choice[:2], reverse=True)
            while choices and (bound is None or choices[-1][0][:2] < bound):
                yield choices.pop()

    def _promising(self, need: Need, mask: int, left: int) -> Iterator[Batch]:
        """Nodes on which the least is missing, at most so many; and what no later one costs less than: at least one
        task, and all GPUs that are missing there."""
        space = self.state.space
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

    def _movable(self, node: NodeState, busy: Container[JobState]) -> list[Unit]:
        """Tasks on the node that may move, those first who might be stopped, then the newest; none twice."""
        units: list[Unit] = []
        name = node.spec.name
        jobs = [self.state.by_seq[seq] for seq in sorted(node.jobs, reverse=True)]
        if self.victims:
            jobs.sort(key=lambda job: self.victims.get(job, len(self.victims)))
        for job in jobs:
            if job is self.job or job in busy or not job.cls.preemptible or not evictable(self.turn, job):
                continue
            if len(job.places) == 1 and job not in self.moved:
                units.append(Unit(job, list(job.places.values()), name, len(units)))
                continue
            gone = {(place.group, place.task) for place in self.moved.get(job, ())}
            for place in job.ordered:
                if place.node == name and (place.group, place.task) not in gone:
                    units.append(Unit(job, [place], name, len(units)))
        return units

    def _try(self, want: Want, node: NodeState, units: list[Unit]) -> Trial | None:
        trial = Trial([], {}, [], set())
        lifted = self._lift_all(trial, units)
        gpus = fit_on(node, want.need)
        assert gpus is not None
        trial.placed.append(take(self.state, self.job, want, node, gpus))
        return trial if self._settle(trial, lifted, deeper=True) else None

    def _lift_all(self, trial: Trial, units: list[Unit]) -> dict[JobState, list[Place]]:
        """By job what was lifted of it, those first who can only move, then the largest."""
        lifted: dict[JobState, list[Place]] = {}
        hardest: dict[JobState, tuple[bool, int, int]] = {}
        for unit in units:
            key = unit.job in self.victims, -unit.charge, unit.rank
            hardest[unit.job] = min(key, hardest.get(unit.job, key))
            lifted.setdefault(unit.job, []).append(unit.places[0])
            self._lift(unit.job, unit.places[0])
        trial.busy.update(lifted)
        return {job: lifted[job] for job in sorted(lifted, key=hardest.__getitem__)}

    def _settle(self, trial: Trial, lifted: Mapping[JobState, list[Place]], *, deeper: bool) -> bool:
        """Who was lifted moves or is stopped."""
        for job, places in lifted.items():
            if elsewhere(self.turn, job, places):
                trial.moved[job] = places
            elif self._evict(trial, job, places):
                pass
            elif deeper and len(places) == 1 and self._make_place(trial, job, places[0]):
                trial.moved[job] = places
            else:
                return False
        return True

    def _lift(self, job: JobState, place: Place) -> None:
        if self.victims:
            for queue in job.queue.path:
                self.before.setdefault(queue, queue.allocated)
        self.turn.lift(job, place)

    def _evict(self, trial: Trial, job: JobState, places: list[Place]) -> bool:
        """Stop a victim of whom these tasks were lifted: these alone if its gang can do without, else all of it."""
        rank = self.victims.get(job)
        if rank is None or job in self.moved:
            return False
        if job.complete:
            units = [Unit(job, [place], place.node, rank) for place in places]
        else:
            units = [Unit(job, [*places, *job.ordered], places[0].node, rank)]
            if len(units[0].places) > job.cls.shape.tasks:
                units[0].last = job.cls.charge
        if not self.bounds.permit([*self.taken, *trial.taken, *units], self.before):
            return False
        if not job.complete:
            for place in job.ordered:
                self._lift(job, place)
        trial.taken.extend(units)
        return True

    def _make_place(self, trial: Trial, job: JobState, old: Place) -> bool:
        """Clear another node for a task that must leave its own."""
        if not self.looks:
            return False
        need = job.cls.shape.groups[old.group].needs[job.rung]
        nearest = list(self._promising(need, allowed_nodes(self.state, job), self.looks))
        self.looks -= sum(len(nodes) for nodes, _ in nearest)
        for _, number, units in self._cleared(need, nearest, trial.busy, {}):
            node, mark = self.state.space.nodes[number], self.state.mark()
            tried = Trial([], {}, [*trial.taken], set())
            lifted = self._lift_all(tried, units)
            gpus = fit_on(node, need)
            assert gpus is not None
            new = take(self.state, job, Want(old.group, old.task, need), node, gpus)
            self.state.pay(job, new.charge)
            if new.charge <= old.charge and self._settle(tried, lifted, deeper=False):
                trial.taken[:] = tried.taken
                trial.moved.update(tried.moved)
                trial.busy.update(tried.busy)
                return True
            self.state.undo(mark)
        return False
