"""Making room for a gang: one search, by whatever means.

    Each task of the gang goes where there is room. Where there is none, a node is cleared for it: the one where that
    costs least. What is done to the tasks that must leave is the means:

        moves.py     they move      elastic.py   they shrink where they are      victims.py   they are stopped

    That is the first answer. Often a floor tells that nothing less would do. Where it does not, and on small clusters
    where there is no answer, the same search is widened (widening.py): it combines stops and moves, and proves what is
    the least as far as its steps go.

A search works on the ledger. Its answer is there when it ends. The caller commits it, or undoes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from gpushare.cluster.candidates import Bounds, Unit, within
from gpushare.cluster.jobs import JobState
from gpushare.cluster.model import Place
from gpushare.cluster.placement import Gang, Want, allowed_nodes, forbidden, place_task, take
from gpushare.cluster.plan import Plan
from gpushare.cluster.queues import QueueState
from gpushare.cluster.reasons import Code, Reason
from gpushare.cluster.rules import How
from gpushare.cluster.space import NodeState, fit_on
from gpushare.cluster.turn import Turn, allows, spread
from gpushare.cluster.widening import MOST, VICTIMS, Widening, small_enough


class Way(NamedTuple):
    """How there is room for a task."""

    node: NodeState
    units: Sequence[Unit]
    """Who has to leave it."""


class Search:
    """One attempt to make room for one gang by one means. Each means says which tasks leave, and where they go then."""

    def __init__(self, turn: Turn, gang: Gang, mask: int, bounds: Bounds | None = None) -> None:
        self.turn = turn
        self.state = turn.state
        self.gang = gang
        self.job = gang.job
        self.mask = mask
        """Nodes that may be used."""
        self.bounds = bounds or Bounds()
        self.mark = turn.state.mark()
        """Before the search."""
        self.placed: list[Place] = []
        self.taken: list[Unit] = []
        """Who is stopped."""
        self.moved: dict[JobState, list[Place]] = {}
        """Old places of what was moved."""
        self.shrunk: dict[JobState, None] = {}
        self.before: dict[QueueState, int] = {queue: queue.allocated for queue in gang.job.queue.path}
        """What queues on the paths of the job and of victims held."""

    # ---- what a means says ---------------------------------------------------------------------------

    def ways(self, want: Want) -> Iterator[Way]:
        """Nodes that could be cleared for this task, the cheapest first."""
        raise NotImplementedError

    def clear(self, want: Want, way: Way) -> bool:
        """Give the task its place there, if those who must leave it can."""
        raise NotImplementedError

    def holds(self) -> bool:
        """Do all rules allow what is on the ledger?"""
        return forbidden(self.job.cls, self.charge) is None

    def victims(self) -> Iterator[JobState]:
        """Who may be stopped when the search is widened, the best victims first."""
        return iter(())

    def why_stopped(self, victim: JobState) -> Reason:
        """What a victim is told."""
        raise NotImplementedError

    # ---- the search ----------------------------------------------------------------------------------

    def place_all(self) -> bool:
        """Each task where there is room, or where room is made at the least cost."""
        for want in self.gang.wants:
            place = place_task(self.state, self.job, want, self.mask, spread(self.job.queue))
            if place is not None:
                self.placed.append(place)
            elif not any(self.clear(want, way) for way in self.ways(want)):
                return False
        return True

    def land(self, want: Want, node: NodeState) -> None:
        """The task gets its place on the node, on which there is room now."""
        gpus = fit_on(node, want.need)
        assert gpus is not None
        self.placed.append(take(self.state, self.job, want, node, gpus))

    def stop(self, units: Sequence[Unit]) -> None:
        """They are stopped."""
        for unit in units:
            for queue in unit.job.queue.path:
                self.before.setdefault(queue, queue.allocated)
            for place in unit.places:
                self.turn.lift(unit.job, place)
            self.taken.append(unit)

    def give_up(self, mark: tuple[int, int, int, int]) -> None:
        self.state.undo(mark)
        self.placed, self.taken, self.moved, self.shrunk = [], [], {}, {}

    # ---- widening ------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """What is on the ledger."""
        moved = []
        for one, old in self.moved.items():
            moved.append((one, old, [one.places[place.group, place.task] for place in old]))
        return Plan(self.placed, self.taken, moved)

    def widen(self, mark: tuple[int, int, int, int], found: Plan | None, most_stops: int = 0) -> bool:
        """Look for less than what was found, or for anything if that is nothing; whether there is an answer now."""
        self.give_up(mark)
        if found is None and not small_enough(self.state):
            return False
        victims = {job: rank for rank, job in enumerate(islice(self.victims(), VICTIMS))}
        limit = (MOST + 1, most_stops) if found is None else found.size
        found = Widening(self, victims).find(limit) or found
        if found is None:
            self.give_up(mark)
            return False
        found.carry_out(self.turn, self.job, self.before)
        self._note(found)
        return True

    @property
    def may_move(self) -> bool:
        """May others be moved beside what this means does?"""
        return self.state.policy.consolidate

    def accepts(self, plan: Plan) -> bool:
        """Do all rules allow what is on the ledger?"""
        self._note(plan)
        return self.holds()

    def _note(self, plan: Plan) -> None:
        """It is on the ledger."""
        self.placed, self.taken = plan.placed, plan.stopped
        self.moved = {one: old for one, old, _ in plan.moved}

    # ---- limits --------------------------------------------------------------------------------------

    @property
    def charge(self) -> int:
        """What the job will pay, as far as it is known."""
        return sum([place.charge for place in self.placed]) if self.placed else self.gang.charge

    def ceilings(self) -> Iterator[tuple[QueueState, int]]:
        """What queues may hold at most with the job: by their limits, and by the rules of reclaim."""
        for queue in self.job.queue.path:
            if queue.cap is not None:
                yield queue, queue.cap
        for queue, ceiling, _ in self.bounds.ceilings:
            if any(not within(unit.job.queue, queue) for unit in self.taken):
                yield queue, ceiling

    def deficit(self) -> int:
        """What must still be taken below the queues that would else hold too much."""
        charge = self.charge
        return max((queue.allocated + charge - ceiling for queue, ceiling in self.ceilings()), default=0)

    def _breaks_limit(self, unit: Unit, charge: int) -> bool:
        """Would some queue hold too much if the unit stayed?"""
        mine = self.job.queue.path
        for queue in unit.job.queue.path:
            if queue.cap is not None and queue.allocated + unit.charge + charge * (queue in mine) > queue.cap:
                return True
        return any(
            queue.allocated + unit.charge + charge > ceiling
            for queue, ceiling in self.ceilings()
            if within(unit.job.queue, queue)
        )

    # ---- what is not needed --------------------------------------------------------------------------

    def fill_back(self, *, moving: bool) -> None:
        """Who need not go stays: the worst victims first are put back where they were, if that is still free; then
        others elsewhere."""
        charge, space = self.charge, self.state.space
        for elsewhere_too in (False, True) if moving else (False,):
            kept: list[Unit] = []
            for unit in sorted(self.taken, key=lambda unit: (unit.charge, unit.rank), reverse=True):
                free = space.capacity - self.state.root.allocated - charge
                if unit.charge > free or self._breaks_limit(unit, charge) or not self._stays(unit, elsewhere_too):
                    kept.append(unit)
            self.taken = sorted(kept, key=lambda unit: unit.rank)

    def _stays(self, unit: Unit, elsewhere_too: bool) -> bool:
        """Put all of it back where it was, or what cannot be there elsewhere; or nothing."""
        job, mark = unit.job, self.state.mark()
        away = self._put_back(unit)
        moves = bool(away) and elsewhere_too and job not in self.moved and allows(self.turn, job, How.MOVE)
        if (away and not (moves and elsewhere(self.turn, job, away))) or not job.complete:
            self.state.undo(mark)  # what is in the way, or a further task of a gang that goes
            return False
        if away:
            self.moved[job] = away
        return True

    def _put_back(self, unit: Unit) -> list[Place]:
        """Its tasks go where they were, but for those whose GPUs are taken."""
        away = []
        for place in unit.places:
            free = self.state.space.by_name[place.node].free
            if any(free[gpu] < place.amount for gpu in place.gpus):
                away.append(place)
            else:
                self.turn.put_back(unit.job, place)
        return away


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


def commit(turn: Turn, search: Search) -> None:
    """What the search has found is done: those who leave are told, and the job gets its places."""
    gang, name = search.gang, search.job.job.id
    data: dict[str, object] = {}
    stopped: dict[JobState, list[Place]] = {}
    for unit in search.taken:
        stopped.setdefault(unit.job, []).extend(unit.places)
    for victim, places in stopped.items():
        turn.evicted(victim, places, name, search.why_stopped(victim))
    if stopped:
        data["victims"] = _names(stopped)
    moves = sum(map(len, search.moved.values()))
    for mover, places in search.moved.items():
        turn.moved(mover, places, name, Reason(Code.MOVED, {"for_job": name, "moves": moves}))
    if moves:
        data |= {"moves": moves, "moved": _names(search.moved)}
    for giver in search.shrunk:
        turn.shrunk(giver, name, Reason(Code.SHRUNK, {"for_job": name, "shrunk": giver.job.id}))
    if search.shrunk:
        data["shrunk"] = _names(search.shrunk)
    both = Code.TAKEN_AND_MOVED if moves else Code.TAKEN
    why = Reason(both if stopped else Code.MOVED if moves else Code.SHRUNK, data)
    give(turn, gang, sorted(search.placed), why)


def _names(jobs: Mapping[JobState, object]) -> tuple[str, ...]:
    return tuple([one.job.id for one in jobs])


def give(turn: Turn, gang: Gang, places: Sequence[Place], why: Reason) -> None:
    """The gang gets these places, which are on the ledger: its job starts, or has more tasks."""
    if gang.more:
        turn.extend(gang.job, places, why)
    else:
        turn.begin(gang.job, places, gang.rung, why)
