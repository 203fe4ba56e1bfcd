"""Room by stopping others: reclaim across queues, preemption inside one. The search for the fewest victims.

    candidates.py   who may be taken from, and how far
    lines.py        in which order
    holders.py      which nodes could be cleared, the cheapest first
    clearing.py     the cheapest way to make room for one task on one node
    singles.py      one victim that is enough
    search.py       nodes for all tasks of the gang; what is not needed is put back; fewer, if the search is widened
    proof.py        the final set once more; why it ends

What is tried, each for all stages before the next:

    1. Stop jobs above the quota: the queue stays at its bound or above, or loses only the jobs that come first in the
       order of victims while it is above its bound.
    2. Stop such jobs and move other jobs, when together that makes the room.
    3. Stop any jobs of a queue above its bound. An older job may leave the queue below its bound; it goes where the
       jobs before it in the order do not help.
    4. Stop any such jobs and move other jobs.

Within a stage jobs that cost little to stop are tried first, without dearer ones (BANDS in rules.py). Of those that
may go each task of the job gets the node with the fewest victims, then the least freed beyond the need, then queues
most over their share, then the jobs that cost the least. 2 and 4 are answers of the widened search alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate, islice
from typing import NamedTuple

from gpushare.cluster.candidates import (
    Bounds,
    Candidate,
    Unit,
    candidates_for_preempt,
    candidates_for_reclaim,
    units_of,
    within,
)
from gpushare.cluster.holders import Holders
from gpushare.cluster.jobs import JobClass, JobState
from gpushare.cluster.lines import Latecomers, Order, Price, heads_of
from gpushare.cluster.model import Code, Reason
from gpushare.cluster.order import ENDLESS
from gpushare.cluster.placement import Gang, Want, allowed_nodes, by_price
from gpushare.cluster.proof import harmless, holds
from gpushare.cluster.queues import QueueState
from gpushare.cluster.rules import BANDS, LITTLE, claims_share_from
from gpushare.cluster.search import Search, Way
from gpushare.cluster.singles import singles
from gpushare.cluster.turn import Turn
from gpushare.cluster.widening import MOST, small_enough

FEW = 4096
"""Of so many victims it is asked first whether there would be room without all of them. Of more, the first are."""

REFUSED = 8
"""After so many victims that alone would be enough and that the rules do not allow, several are looked for."""

Stage = tuple[int, int]


class Reach(NamedTuple):
    """Who may go: victims up to a stage and a price."""

    stage: Stage
    most: float


class Stopping(Search):
    """Those who must leave are stopped."""

    def __init__(
        self,
        turn: Turn,
        gang: Gang,
        mask: int,
        candidates: list[Candidate],
        bounds: Bounds,
        *,
        only: Mapping[int, None] | None = None,
        gently: bool = False,
    ) -> None:
        super().__init__(turn, gang, mask, bounds)
        self.wants = gang.wants
        self.candidates = candidates
        self.by_leaf = {one.queue: one for one in candidates}
        self.heads = heads_of(candidates)
        self.only = only
        """If said, none but these may be victims: backfilling jobs, which give way."""
        self.gently = gently
        """Only jobs that lose little may be victims."""
        self.reach = Reach((0, 0), ENDLESS)
        """Who may go for now."""
        self.orders: dict[Reach, Order] = {}
        """As each begins from the same state: those who may go."""
        self.gathered: dict[Reach, Holders] = {}
        """The same by node."""
        self.missing = gang.charge - (self.state.space.capacity - self.state.root.allocated)
        """What the job needs beyond all that is free, wherever."""

    @property
    def may_move(self) -> bool:
        return bool(self.bounds.of) and super().may_move

    # ---- who may go ----------------------------------------------------------------------------------

    @property
    def order(self) -> Order:
        """Jobs that may be stopped, in order. Each is looked at once, however often they are gone through."""
        found = self.orders.get(self.reach)
        if found is None:
            stage, most = self.reach
            price = partial(Price, self.turn, most, self.gang.charge, gently=self.gently, only=self.only)
            found = self.orders[self.reach] = Order(self.turn, stage, self.heads, price)
        return found

    def victims(self) -> Iterator[JobState]:
        return self.order.jobs()

    def why_stopped(self, victim: JobState) -> Reason:
        mine, name = self.job.queue, self.job.job.id
        if self.bounds.ceilings:
            data = {
                "queue": victim.queue.name,
                "for_job": name,
                "for_queue": mine.name,
                "allocated": mine.allocated,
                "share": mine.share,
                "victim_share": victim.queue.share,
            }
            return Reason(Code.RECLAIM, data)
        priorities = {"priority": victim.cls.priority, "for_priority": self.job.cls.priority}
        code = Code.PREEMPT if self.only is None else Code.BACKFILL_OVER
        return Reason(code, {"queue": mine.name, "for_job": name, **priorities})

    # ---- stage by stage ------------------------------------------------------------------------------

    def run(self) -> bool:
        """Find victims: by the ways above, each stage by stage."""
        self.bounds.begin()
        stages = [(0, ENDLESS)] if self.only is not None else sorted({stage for stage, _ in self.classes()})
        while not (found := self._evicting(stages) or self._moving(stages)) and self.bounds.spared:
            self.bounds.strict = self.bounds.spared = False
        self._forget()
        return found

    def _allow(self, stage: Stage, most: float) -> None:
        """Who may go from now on."""
        self.reach = Reach(stage, most)
        self.bounds.late = Latecomers(self.bounds, self.order)

    def _forget(self) -> None:
        """Who could go is not known any more."""
        for holders in self.gathered.values():
            holders.end()
        self.gathered.clear()
        self.orders.clear()

    def _evicting(self, stages: list[Stage]) -> bool:
        """Stops alone make the room."""
        self._allow(stages[-1], ENDLESS)
        few = all(count <= FEW for count in accumulate(len(cls.running) for _, cls in self.classes()))
        if few and not self.bounds.of and not self.holders.could_suffice(self.wants):
            return False
        for index, stage in enumerate(stages):
            if index == 1:
                self._allow(stages[-1], ENDLESS)
                if not self.holders.could_suffice(self.wants):
                    return False
            self._allow(stage, ENDLESS)
            if self._evicting_cheaply(stage):
                return True
        return False

    def _evicting_cheaply(self, stage: Stage) -> bool:
        """Stop jobs of the lowest band that is enough. Most searches that fail do so in the first; whether there is an
        answer at all is asked before the bands between are."""
        mark, asked, most = self.state.mark(), False, BANDS[0]
        while True:
            self._allow(stage, most)
            if next(self.victims(), None) is None:
                self.order.end()  # it may be that they can go in the next turn
            elif self._answered(mark):
                return True
            elif not asked and self.order.dearer is not None:
                self._allow(stage, ENDLESS)
                asked = self._answered(mark)
                if not asked:
                    return False
                self.give_up(mark)
                self._allow(stage, most)
            dearer = self.order.dearer
            if dearer is None:
                return False
            most = next((band for band in BANDS if dearer <= band), ENDLESS)

    def _answered(self, mark: tuple[int, int, int, int]) -> bool:
        for alone in self._answers():
            if self.holds():
                return alone or self._improved(mark)
            self.give_up(mark)
        self.give_up(mark)
        return False

    def _answers(self) -> Iterator[bool]:
        """One answer after another, on the ledger; and whether it is one job with one task: nothing can be less."""
        for job in islice(singles(self), REFUSED + 1):
            (place,) = job.places.values()
            unit = Unit(job, [place], place.node, 0)
            self.clear(self.wants[0], Way(self.state.space.by_name[place.node], [unit]))
            yield True
        if self._many():
            self.fill_back(moving=self.only is None and self.state.policy.consolidate)
            yield self.only is not None or (not self.moved and len(self.taken) == 1 and len(self.taken[0].places) == 1)

    def _improved(self, mark: tuple[int, int, int, int]) -> bool:
        found = self.plan()
        largest = max(-(-max(cls.demand, cls.charge) // max(1, cls.shape.tasks)) for cls in self._classes())
        floor = max(1, -(-self.missing // max(1, largest)))  # nobody can do with fewer tasks
        return self.widen(mark, found) if found.size[0] > floor and self._has_steps() else True

    def _moving(self, stages: list[Stage]) -> bool:
        """Stops and moves make the room together."""
        if not self.may_move or not small_enough(self.state):
            return False
        mark = self.state.mark()
        for stage in stages:
            for most in (BANDS[0], ENDLESS):
                self._allow(stage, most)
                if self._has_steps() and self.widen(mark, None, MOST + 1):
                    return True
        return False

    def _has_steps(self) -> bool:
        """Are there steps left for a wider search? If not, the next turn may find what this one does not."""
        if self.turn.steps <= 0:
            self.turn.spent = True
        return self.turn.steps > 0

    def classes(self) -> Iterator[tuple[Stage, JobClass]]:
        """Classes of victims, each with its stage."""
        return (((one.group, cls.priority), cls) for one in self.candidates for cls in one.classes)

    def _classes(self) -> list[JobClass]:
        return [cls for stage, cls in self.classes() if stage <= self.reach.stage]

    def may_take(self, cls: JobClass) -> bool:
        """Do jobs of the class go at this very stage?"""
        one = self.by_leaf.get(cls.queue)
        return one is not None and (one.group, cls.priority) == self.reach.stage and cls in one.classes

    def holds(self) -> bool:
        if not self.taken and not self.moved:
            return False
        charge = self.charge
        if any(queue.allocated + charge > ceiling for queue, ceiling in self.ceilings()):
            return False
        if len(self.taken) > 1 and self.bounds.strict and not self.bounds.permit(self.taken, self.before):
            return False  # each was permitted when it was taken; not all of them together
        return holds(self.job, charge, self.taken, self.before, self.bounds)

    @property
    def holders(self) -> Holders:
        """Who could go at this stage, by node."""
        found = self.gathered.get(self.reach)
        if found is None:
            found = self.gathered[self.reach] = Holders(self.state, self.order, self.mask, self.bounds)
        return found

    # ---- several -------------------------------------------------------------------------------------

    def _many(self) -> bool:
        return self.place_all() and self._cover_deficit()

    def ways(self, want: Want) -> Iterator[Way]:
        if not self.taken:
            self.holders.end()  # what went before is undone
        return self.holders.ways(want.need)

    def clear(self, want: Want, way: Way) -> bool:
        self.stop(way.units)
        self.land(want, way.node)
        return True

    def _cover_deficit(self) -> bool:
        """Room there is; take more until no queue holds too much: the smallest that is enough, else the largest."""
        while True:
            charge = self.charge
            over = [(queue.allocated + charge - ceiling, queue) for queue, ceiling in self.ceilings()]
            short = [(deficit, queue) for deficit, queue in over if deficit > 0]
            if not short:
                return True
            deficit, full = short[0]
            able = [unit for unit in self._below(full) if self.bounds.permit([unit])]
            if not able:
                return False
            enough = [unit for unit in able if unit.charge >= deficit]
            self.stop([min(enough or able, key=lambda unit: (unit.charge if enough else -unit.charge, unit.rank))])

    def _below(self, queue: QueueState) -> Iterator[Unit]:
        """What could be taken of the jobs below a queue, the best victims first."""
        for job in self.order.jobs({one.queue for one in self.candidates if within(one.queue, queue)}):
            yield from units_of(job, self.state.space, self.order.rank(job))


def reclaim(turn: Turn, gang: Gang, *, reserved: bool) -> Search | None:
    """Room for a job whose queue is within its quota or share, taken from queues above theirs. `reserved`: a claim
    within quota may take it on nodes that are reserved for another job: who backfills there has just begun."""
    state, job = turn.state, gang.job
    patient = turn.now < claims_share_from(job, state.policy)
    for shares in (False, True) if patient else (True,):
        candidates, bounds = candidates_for_reclaim(job.cls, gang.charge, shares=shares)
        in_quota = all(in_quota for _, _, in_quota in bounds.ceilings)
        if patient and shares and in_quota:
            break  # that was tried
        everywhere = reserved and in_quota
        nodes = state.space.mask(job.cls.shape.selector) if everywhere else allowed_nodes(state, job)
        if gently := patient and shares:
            old = turn.now - LITTLE
            candidates = [x for x in candidates if any(c.uneven or c.running.items[-1][0] >= old for c in x.classes)]
        candidates = harmless(job.cls, gang.charge, candidates, bounds)
        found = _stop(turn, gang, nodes, candidates, bounds, gently=gently)
        if found is not None:
            return found
    return None


def preempt(turn: Turn, gang: Gang) -> Search | None:
    """Room made by stopping jobs of lower priority in the same queue."""
    return _stop(turn, gang, allowed_nodes(turn.state, gang.job), *candidates_for_preempt(gang.job.cls))


def _stop(
    turn: Turn, gang: Gang, nodes: int, candidates: list[Candidate], bounds: Bounds, *, gently: bool = False
) -> Search | None:
    if not candidates or not gang.wants:
        return None
    state = turn.state
    for mask in by_price(state, gang.job.cls.shape, nodes):
        search = Stopping(turn, gang, mask, candidates, bounds, gently=gently)
        if search.run():
            return search
        state.undo(search.mark)
    return None
