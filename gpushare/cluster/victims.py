"""Taking from others: reclaim across queues, preemption inside one. The search for the fewest victims.

    candidates.py   who may be taken from, how far, in which order
    clearing.py     the cheapest way to make room for one task on one node
    victims.py      nodes for all tasks of the job, stage by stage; what is not needed is put back
    floors.py       what nobody can do with less than
    exact.py        fewer, where that may be; and moving some beside
    proof.py        the final set once more; why it ends

What is tried, each for all stages before the next:

    1. stop jobs that are not in quota: a queue keeps its bound, or the jobs whose turn comes while it is above it go
    2. stop such jobs and move others, in quota or not, when together that makes the room
    3. stop others too, and 4. others too and move: an older job of a queue above its bound goes where its newest do
       not help, and leaves it below

Within a stage each task of the job gets the node with the fewest victims, then the least freed beyond the need, then
queues most over their share, then the newest jobs. Afterwards everything that turns out not to be needed is put back,
or moved if there is room elsewhere, and every inequality is checked again. If more are disturbed then than a bound says
are needed at least, the exact search looks for less; 2 and 4 are its answers alone.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import NamedTuple

from gpushare.cluster import exact, floors, moves
from gpushare.cluster.candidates import (
    Bounds,
    Candidate,
    Unit,
    allows,
    candidates_for_preempt,
    candidates_for_reclaim,
    in_order,
    units_on,
    within,
)
from gpushare.cluster.clearing import Cost, clear, frees_enough
from gpushare.cluster.exact import MOST, Answer, answer_of
from gpushare.cluster.model import USUAL_MEMORY, Code, Place, Reason
from gpushare.cluster.order import ENDLESS
from gpushare.cluster.placement import Want, allowed_nodes, by_price, more_charge, place_task, take, wants_of
from gpushare.cluster.proof import holds
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.rules import How, protected
from gpushare.cluster.space import Need, NodeState, fit_on
from gpushare.cluster.state import JobClass, JobState, QueueState
from gpushare.cluster.turn import Turn, spread

FIRST = (64, 256, 1024, 4096, 16384)
"""So many victims are looked at first: then it is seen whether those after them matter."""

REFUSED = 8
"""After so many victims that alone would be enough and that the rules do not allow, several are looked for."""

DEARER = 3
"""After so many looks at some of them, one at all victims that does not ask for their order."""

# ---- the search --------------------------------------------------------------------------------------


class Search:
    """One attempt to make room for one job by taking from candidates. Changes the ledger; the caller undoes it."""

    def __init__(
        self, turn: Turn, job: JobState, wants: list[Want], candidates: list[Candidate], bounds: Bounds
    ) -> None:
        self.turn = turn
        self.state = turn.state
        self.job = job
        self.wants = wants
        self.candidates = candidates
        self.bounds = bounds
        self.mask = allowed_nodes(self.state, job)
        self.spread = spread(job.queue)
        self.caps = [(queue, queue.cap) for queue in job.queue.path if queue.cap is not None]
        self.placed: list[Place] = []
        self.taken: list[Unit] = []
        self.moved: dict[JobState, list[Place]] = {}
        """Old places of what was moved."""
        self.before: dict[QueueState, int] = {}
        """What queues on the paths of the job and of victims held."""
        self.holders: dict[NodeState, list[Unit]] = {}
        """By node, who could go as a whole; of elastic jobs what goes is worked out when it is needed."""
        self.gathered: dict[tuple[int, int], tuple[dict[NodeState, list[Unit]], Iterator[None]]] = {}
        """The same by stage, as each begins from the same state; and what still looks for more."""
        self.only: Mapping[int, None] | None = None
        """If said, none but these may be victims: backfilling jobs, which give way."""
        self.firm = False
        """Also those may go that are protected after an eviction, as the others were not enough."""
        self.passed_over = False
        """One of those was."""
        self.refused: set[JobState] = set()
        """Whom the final check does not let go alone."""
        by_bytes = job.cls.shape.by_bytes
        self.memory = max(self.state.memories(job.cls.shape), default=USUAL_MEMORY) if by_bytes else USUAL_MEMORY
        """Of the GPUs on which bytes cost least."""
        self.missing = 0
        """What the job needs beyond all that is free, wherever."""

    def _victims(self, stage: tuple[int, int], among: Container[QueueState] | None = None) -> Iterator[JobState]:
        """Who may go, the best victims first; notes whose turn comes when his queues are at their bounds already."""
        of, late, turn = self.bounds.of, self.bounds.late, self.turn
        gone: dict[QueueState, int] = {}
        how = How.STOP if self.only is None else How.GIVE_WAY
        for job in in_order(self.candidates, stage, turn, among):
            if job.evictions and not self.firm and self.only is None and protected(job, self.state.policy, turn.now):
                self.passed_over = True
            elif (self.only is None or job.seq in self.only) and allows(turn, job, how):
                chain = of.get(job.queue, ())
                for queue, bound in chain:
                    if queue.allocated - gone.get(queue, 0) <= bound:
                        late.add(job)
                        break
                else:
                    for queue, _ in chain:
                        gone[queue] = gone.get(queue, 0) + job.charge
                yield job

    def run(self) -> bool:
        """Find victims: by the ways above, each stage by stage."""
        self.bounds.begin()
        for queue in self.job.queue.path:
            self.before[queue] = queue.allocated
        self.missing = self._charge() - (self.state.space.capacity - self.state.root.allocated)
        stages = sorted({one.stage for one in self.candidates})
        moving = bool(self.bounds.of) and self.state.policy.consolidate and exact.small_enough(self.state)
        while not (found := self._evicting(stages) or (moving and self._moving(stages))):
            if self.bounds.spared:
                self.bounds.strict = self.bounds.spared = False
            elif self.passed_over and not self.firm:
                self.firm = True
                self.gathered.clear()
            else:
                break
        self.gathered.clear()  # the generators in there hold this search
        return found

    def _evicting(self, stages: list[tuple[int, int]]) -> bool:
        """Those who are stopped make the room."""
        if len(stages) > 1 and self._too_little(stages[-1]):
            return False
        for index, stage in enumerate(stages):
            if index == 1:
                self._gather(stages[-1])
                if not self._could_suffice():
                    return False
            if not self._surely() and self._too_little(stage):
                continue
            mark = self.state.mark()
            # Who goes alone makes room that nobody else could have made, so there is nothing to put back.
            self.refused.clear()
            while self._single(stage):
                if self._holds():
                    self._improve(stage, mark)
                    return True
                self.refused.add(self.taken[0].job)
                self._give_up(mark)
                if len(self.refused) > REFUSED:
                    break
            if self._many(stage):
                self._fill_back()
                if self._holds():
                    self._improve(stage, mark)
                    return True
            self._give_up(mark)
        return False

    def _moving(self, stages: list[tuple[int, int]]) -> bool:
        """Those who are stopped and those who are moved make it together."""
        for stage in stages:
            found = None if self._too_little(stage, moving=True) else self._exact(stage, (MOST + 1, MOST + 1))
            if found is not None:
                self._adopt(found)
                return True
        return False

    def _improve(self, stage: tuple[int, int], mark: tuple[int, int, int, int]) -> None:
        """What was found stands, unless the exact search finds less."""
        alone = not self.moved and len(self.taken) == 1 and len(self.taken[0].places) == 1
        if alone or self.only is not None:
            return
        found = answer_of(self.placed, self.taken, self.moved)
        if found.size[0] > floors.tasks(self._upto(stage), self.missing):
            self._give_up(mark)
            self._adopt(self._exact(stage, found.size) or found)

    def _exact(self, stage: tuple[int, int], limit: tuple[int, int]) -> Answer | None:
        """The best answer smaller than the limit; the ledger is as before the search for it."""
        if self.turn.steps <= 0:
            return None
        search = exact.Search(
            self.turn,
            self.job,
            self.wants,
            self._allows,
            victims={job: rank for rank, job in enumerate(islice(self._victims(stage), exact.VICTIMS))},
            bounds=self.bounds,
            moving=bool(self.bounds.of) and self.state.policy.consolidate,
        )
        return search.find(limit)

    def _allows(self, answer: Answer) -> bool:
        mark = self.state.mark()
        self._adopt(answer)
        allowed = self._holds()
        self._give_up(mark)
        return allowed

    def _adopt(self, answer: Answer) -> None:
        answer.carry_out(self.turn, self.job, self.before)
        self.placed, self.taken = answer.placed, answer.stopped
        self.moved = {one: old for one, old, _ in answer.moved}

    def _give_up(self, mark: tuple[int, int, int, int]) -> None:
        self.state.undo(mark)
        self.placed, self.taken, self.moved = [], [], {}

    def _upto(self, stage: tuple[int, int]) -> list[JobClass]:
        return [one.cls for one in self.candidates if one.stage <= stage]

    def _surely(self) -> bool:
        """One task, and all who could go are alike and large enough: nearly always the first of them will do."""
        if len(self.wants) > 1 or len(self.candidates) > 1:
            return False
        return self.state.by_seq[self.candidates[0].cls.running.first[2]].charge >= self._charge()

    def _too_little(self, stage: tuple[int, int], *, moving: bool = False) -> bool:
        """By sums alone: all that could be taken up to a stage is not enough for the job, its limits or its node."""
        state, charge = self.state, self._charge()
        needed = charge - (state.space.capacity - state.root.allocated)
        for queue, cap in self.caps:
            needed = max(needed, queue.allocated + charge - cap)
        need = self.wants[0].need
        if len(self.wants) == 1 and need.whole and not moving:
            needed = max(needed, (need.gpus - state.space.largest(self.mask)) * MICRO)
        held: dict[QueueState, tuple[int, int, int]] = {}
        """By leaf: what its classes hold, the most that one job of them does, and what can be had of it."""
        got = 0
        for one in self.candidates:
            if got >= needed:
                return False
            if one.stage <= stage:
                cls = one.cls
                charged = max(cls.demand, cls.charge, state.by_seq[cls.running.first[2]].charge)
                total, most, had = held.get(cls.queue, (0, 0, 0))
                total, most = total + len(cls.running) * charged, max(most, charged)
                room = self.bounds.room(cls.queue)
                have = min(total, room + most - 1) if room > 0 else 0
                held[cls.queue] = total, most, have
                got += have - had
        return got < needed

    # ---- one victim is enough ----------------------------------------------------------------------

    def _single(self, stage: tuple[int, int]) -> bool:
        """Of the jobs that free enough alone, the one with the least excess, then the first in the order of victims."""
        if len(self.wants) > 1 or self.state.space.find(self.wants[0].need, self.mask) is not None:
            return False  # or there is room: then it is a limit that is in the way
        if self.wants[0].need.gpus > 1 and not any(
            one.stage == stage and self._could_do_alone(one.cls) for one in self.candidates
        ):
            return False
        least, cheap = self._least_excess(stage, self._charge())
        # With many queues most hold nothing of the right size, and would be gone through before the one that does.
        best = self._least_of(stage, least, cheap)
        if best is None or best[0] > least:
            best = self._least_of(stage, least, None)
        if best is None:
            return False
        job = best[1]
        (place,) = job.places.values()
        node = self.state.space.by_name[place.node]
        self._take([Unit(job, [place], place.node, 0)])
        gpus = fit_on(node, self.wants[0].need)
        assert gpus is not None
        self.placed.append(take(self.state, self.job, self.wants[0], node, gpus))
        return True

    def _could_do_alone(self, cls: JobClass) -> bool:
        """Could one job of the class free enough? By the numbers of its tasks and GPUs alone."""
        need, shape = self.wants[0].need, cls.shape
        if shape.tasks > 1:
            return False
        if not need.whole:
            return True
        gpus = max(group.needs[0].gpus for group in shape.groups)
        return gpus + self.state.space.largest(self.mask) >= need.gpus

    def _least_of(
        self, stage: tuple[int, int], least: int, leaves: Container[QueueState] | None
    ) -> tuple[int, JobState] | None:
        want = self.wants[0]
        charge, deficit = self._charge(), self._deficit()
        best: tuple[int, JobState] | None = None
        for job in self._victims(stage, leaves):
            if job in self.refused or len(job.places) != 1 or job.charge < deficit or job.cls.priority != stage[1]:
                continue
            excess = job.charge - charge if job.charge > charge else 0
            if best is not None and excess >= best[0]:
                continue
            (place,) = job.places.values()
            node = self.state.space.by_name[place.node]
            if self.mask >> node.number & 1 and frees_enough(node, want.need, place):
                if not self.bounds.permit([Unit(job, [place], place.node, 0)]):
                    continue
                best = excess, job
                if excess <= least:
                    break
        return best

    def _least_excess(self, stage: tuple[int, int], charge: int) -> tuple[int, Container[QueueState]]:
        """No victim of the stage can do better than this; and the leaves where one may."""
        least = ENDLESS
        alike: set[QueueState] = set()
        """Where the jobs of a class cost the same, and so little."""
        unlike: set[QueueState] = set()
        for one in self.candidates:
            if one.stage == stage:
                shape, queue = one.cls.shape, one.cls.queue
                sample = self.state.by_seq[one.cls.running.first[2]].charge
                excess = sample - charge if sample > charge else 0
                if excess < least:
                    least, alike = excess, set()
                if excess == least:
                    alike.add(queue)
                if shape.by_bytes or shape.elastic or shape.rungs > 1:
                    unlike.add(queue)
        return least, alike | unlike

    # ---- several ---------------------------------------------------------------------------------

    def _many(self, stage: tuple[int, int]) -> bool:
        if self._soon(stage):
            return True
        self._gather(stage)
        if not self._could_suffice():
            return False
        heap: list[tuple[Cost, int, int]] = []
        heap_need: Need | None = None
        for want in self.wants:
            if self._place_free(want):
                continue
            if want.need != heap_need:
                heap, heap_need = self._costs(want.need), want.need
            if not self._place_cheapest(want, heap):
                return False
        return self._cover_deficit()

    def _soon(self, stage: tuple[int, int]) -> bool:
        """One task of whole GPUs: look at the first so many victims only, if nobody after them could do better.

        Which victims are the best decides last. So if among the first there is a set of the fewest tasks that any node
        needs, and of these the least excess, it is the answer, and thousands need not be looked at.
        """
        want = self.wants[0]
        if len(self.wants) > 1 or not want.need.whole or self.state.space.find(want.need, self.mask) is not None:
            return False
        mark = self.state.mark()
        classes = self._upto(stage)
        floor = floors.by_size(self.state.space, classes, want.need, self.mask)
        for looked, _ in enumerate(self._gathering(stage)):
            if looked == DEARER:
                floor = floors.by_place(self.turn, classes, want.need, self.mask)
            heap = self._costs(want.need)
            if heap and heap[0][0][:2] <= floor:
                if self._place_cheapest(want, heap) and self._deficit() <= 0:
                    return True
                self._give_up(mark)
                break
        return False

    def _gather(self, stage: tuple[int, int]) -> None:
        """Who could go, by node, the best victims first."""
        for _ in self._gathering(stage):
            pass

    def _gathering(self, stage: tuple[int, int]) -> Iterator[None]:
        """The same, with a pause after the first few, and again after ever more of them."""
        if stage not in self.gathered:
            holders: dict[NodeState, list[Unit]] = {}
            self.gathered[stage] = holders, self._gather_into(holders, stage)
        self.holders, rest = self.gathered[stage]
        return rest

    def _gather_into(self, holders: dict[NodeState, list[Unit]], stage: tuple[int, int]) -> Iterator[None]:
        by_name = self.state.space.by_name
        for rank, job in enumerate(self._victims(stage)):
            if rank in FIRST:
                yield
            places = tuple(job.ordered) if len(job.places) > 1 else tuple(job.places.values())
            for name in sorted({place.node for place in places}) if len(places) > 1 else (places[0].node,):
                holders.setdefault(by_name[name], []).append(Unit(job, places, name, rank))

    def _could_suffice(self) -> bool:
        """With all of them gone, would there be room? For whole GPUs only; else yes."""
        needs = {want.need for want in self.wants}
        if not all(need.whole for need in needs):
            return True
        need = min(needs, key=lambda need: need.gpus)
        if not need.gpus:
            return True
        room = 0
        for count, nodes in enumerate(self.state.space.whole):
            room += (nodes & self.mask).bit_count() * (count // need.gpus)
        for node, jobs in self.holders.items():
            if not self.mask >> node.number & 1:
                continue
            # At most: a GPU that two of them share is counted twice.
            whole = min(len(node.free), node.whole + sum(unit.freed for unit in jobs))
            room += whole // need.gpus - node.whole // need.gpus
        return room >= len(self.wants)

    def _place_free(self, want: Want) -> bool:
        place = place_task(self.state, self.job, want, self.mask, self.spread)
        if place is None:
            return False
        self.placed.append(place)
        return True

    def _costs(self, need: Need) -> list[tuple[Cost, int, int]]:
        heap = []
        for node in self.holders:
            found = self._clear(node, need) if self.mask >> node.number & 1 else None
            if found is not None:
                heap.append((found[0], node.number, self.state.version))
        heapify(heap)
        return heap

    def _place_cheapest(self, want: Want, heap: list[tuple[Cost, int, int]]) -> bool:
        """The cheapest node; costs may have risen since they were worked out, so the first is looked at again."""
        while heap:
            cost, number, version = heap[0]
            node = self.state.space.nodes[number]
            found = self._clear(node, want.need)
            if found is None:
                heappop(heap)
                continue
            if version != self.state.version and found[0] > cost and len(heap) > 1:
                heapreplace(heap, (found[0], number, self.state.version))
                if heap[0][1] != number:
                    continue
            heappop(heap)
            self._take(found[1])
            gpus = fit_on(node, want.need)
            assert gpus is not None
            self.placed.append(take(self.state, self.job, want, node, gpus))
            heappush(heap, (found[0], number, -1))
            return True
        return False

    def _clear(self, node: NodeState, need: Need) -> tuple[Cost, list[Unit]] | None:
        """The best set of victims that makes room for one such task on the node."""
        spare = list(self._units(node, extras_first=True))
        found = clear(node, need, spare, self.bounds)
        if any(unit.job.extra() for unit in self.holders[node]):
            core = list(self._units(node, extras_first=False))
            other = clear(node, need, core, self.bounds)
            if other is not None and (found is None or other[0][:2] < found[0][:2]):
                found = other
        return found

    def _units(self, node: NodeState, *, extras_first: bool) -> Iterator[Unit]:
        """What is still there of those who could go."""
        for unit in self.holders[node]:
            if unit.job.cls.shape.elastic:
                yield from units_on(unit.job, node, unit.rank, extras_first=extras_first)
            elif unit.job.places:
                yield unit

    # ---- limits ----------------------------------------------------------------------------------

    def _charge(self) -> int:
        """What the job will pay, as far as it is known."""
        if len(self.wants) == 1:
            need = self.wants[0].need
            return self.placed[0].charge if self.placed else need.charge(self.memory)
        if self.placed:
            return sum(place.charge for place in self.placed)
        return sum(want.need.charge(self.memory) for want in self.wants)

    def _ceilings(self) -> Iterator[tuple[QueueState, int]]:
        """What queues may hold at most with the job: by their limits, and by the rules of reclaim."""
        yield from self.caps
        for queue, ceiling, _ in self.bounds.ceilings:
            if any(not within(unit.job.queue, queue) for unit in self.taken):
                yield queue, ceiling

    def _deficit(self) -> int:
        """What must still be taken below the queues that would else hold too much."""
        charge = self._charge()
        return max((queue.allocated + charge - ceiling for queue, ceiling in self._ceilings()), default=0)

    def _cover_deficit(self) -> bool:
        """Room there is; take more until no queue holds too much: the smallest that is enough, else the largest."""
        while True:
            charge = self._charge()
            over = [(queue.allocated + charge - ceiling, queue) for queue, ceiling in self._ceilings()]
            short = [(deficit, queue) for deficit, queue in over if deficit > 0]
            if not short:
                return True
            deficit, full = short[0]
            units: dict[tuple[int, int, int], Unit] = {}
            for node in self.holders:
                for unit in self._units(node, extras_first=True):
                    if within(unit.job.queue, full):
                        first = unit.places[0]
                        units[unit.rank, first.group, first.task] = unit
            able = [unit for _, unit in sorted(units.items()) if self.bounds.permit([unit])]
            if not able:
                return False
            enough = [unit for unit in able if unit.charge >= deficit]
            self._take([min(enough or able, key=lambda unit: (unit.charge if enough else -unit.charge, unit.rank))])

    # ---- taking and putting back -------------------------------------------------------------------

    def _take(self, units: Sequence[Unit]) -> None:
        for unit in units:
            for queue in unit.job.queue.path:
                self.before.setdefault(queue, queue.allocated)
            for place in unit.places:
                self.turn.lift(unit.job, place)
            self.taken.append(unit)

    def _fill_back(self) -> None:
        """Whoever need not go stays: the worst victims first are put back where they were, if that is still free; then
        others elsewhere."""
        charge, space = self._charge(), self.state.space
        ways = [self._free_again]
        if self.only is None and self.state.policy.consolidate:
            ways.append(self._free_elsewhere)
        for again in ways:
            kept: list[Unit] = []
            for unit in sorted(self.taken, key=lambda unit: (-unit.charge, -unit.rank)):
                free = space.capacity - self.state.root.allocated - charge
                if unit.charge > free or self._breaks_limit(unit, charge) or not again(unit):
                    kept.append(unit)
            self.taken = sorted(kept, key=lambda unit: unit.rank)

    def _free_again(self, unit: Unit) -> bool:
        """Put all of it back where it was, or nothing."""
        mark = self.state.mark()
        for place in unit.places:
            free = self.state.space.by_name[place.node].free
            if any(free[gpu] < place.amount for gpu in place.gpus):
                self.state.undo(mark)
                return False
            self.turn.put_back(unit.job, place)
        if unit.job.cls.shape.elastic and not unit.job.complete:
            self.state.undo(mark)  # a further task of a gang that goes
            return False
        return True

    def _free_elsewhere(self, unit: Unit) -> bool:
        """What of it cannot be where it was is moved: all of it finds a place, or nothing is changed."""
        job, mark = unit.job, self.state.mark()
        if job in self.moved or not allows(self.turn, job, How.MOVE):
            return False
        away = []
        for place in unit.places:
            free = self.state.space.by_name[place.node].free
            if any(free[gpu] < place.amount for gpu in place.gpus):
                away.append(place)
            else:
                self.turn.put_back(job, place)
        if not moves.elsewhere(self.turn, job, away) or not job.complete:
            self.state.undo(mark)
            return False
        if away:
            self.moved[job] = away
        return True

    def _breaks_limit(self, unit: Unit, charge: int) -> bool:
        """Would some queue hold too much if the unit stayed?"""
        mine = self.job.queue.path
        for queue in unit.job.queue.path:
            if queue.cap is not None and queue.allocated + unit.charge + charge * (queue in mine) > queue.cap:
                return True
        return any(
            queue.allocated + unit.charge + charge > ceiling
            for queue, ceiling in self._ceilings()
            if within(unit.job.queue, queue)
        )

    # ---- the check of the final set ----------------------------------------------------------------

    def _holds(self) -> bool:
        charge = self._charge()
        if not self.taken and not self.moved:
            return False
        if any(queue.allocated + charge > ceiling for queue, ceiling in self._ceilings()):
            return False
        if len(self.taken) > 1 and self.bounds.strict and not self.bounds.permit(self.taken, self.before):
            return False  # each was permitted when it was taken; not all of them together
        return holds(self.job, charge, self.taken, self.before, self.bounds)


# ---- the two ways ------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """What a search has found; the ledger is as it would be."""

    search: Search
    rung: int
    more: bool
    mark: tuple[int, int, int, int]
    """Before the search."""


def reclaim(turn: Turn, cls: JobClass, job: JobState, more: bool) -> Plan | None:
    """Room for a job whose queue is within its quota or share, taken from queues above theirs."""
    shape = cls.shape
    rung = job.rung if more else shape.rungs - 1
    wants = wants_of(job, rung, more)
    charge = more_charge(turn.state, cls, wants) if more else cls.charge
    candidates, bounds = candidates_for_reclaim(cls, charge)
    return _plan(turn, job, wants, candidates, bounds, rung=rung, more=more)


def preempt(turn: Turn, cls: JobClass, job: JobState, more: bool) -> Plan | None:
    """Room made by stopping jobs of lower priority in the same queue."""
    candidates, bounds = candidates_for_preempt(cls)
    rung = job.rung if more else cls.shape.rungs - 1
    return _plan(turn, job, wants_of(job, rung, more), candidates, bounds, rung=rung, more=more)


def _plan(
    turn: Turn,
    job: JobState,
    wants: list[Want],
    candidates: list[Candidate],
    bounds: Bounds,
    *,
    rung: int,
    more: bool,
) -> Plan | None:
    if not candidates or not wants:
        return None
    state = turn.state
    mark = state.mark()
    for mask in by_price(state, job.cls.shape, allowed_nodes(state, job)):
        search = Search(turn, job, wants, candidates, bounds)
        search.mask = mask
        if search.run():
            return Plan(search, rung, more, mark)
        state.undo(mark)
    return None


def commit(turn: Turn, plan: Plan, reason: Code = Code.PREEMPT) -> None:
    """The victims go, the others move, the job gets its places."""
    search, reclaimed = plan.search, bool(plan.search.bounds.ceilings)
    job = search.job
    by_job: dict[JobState, list[Place]] = {}
    for unit in search.taken:
        by_job.setdefault(unit.job, []).extend(unit.places)
    name, mine = job.job.id, job.queue
    for victim, places in by_job.items():
        if reclaimed:
            data = {
                "queue": victim.queue.name,
                "for_job": name,
                "for_queue": mine.name,
                "allocated": mine.allocated,
                "share": mine.share,
                "victim_share": victim.queue.share,
            }
            turn.evicted(victim, places, name, Reason(Code.RECLAIM, data))
        else:
            priorities = {"priority": victim.cls.priority, "for_priority": job.cls.priority}
            turn.evicted(victim, places, name, Reason(reason, {"queue": mine.name, "for_job": name, **priorities}))
    why = Reason(Code.TAKEN, {"victims": tuple([one.job.id for one in by_job])})
    if search.moved:
        moves.tell_moved(turn, job, search.moved)
        how = moves.how_moved(search.moved)
        why = Reason(Code.TAKEN_AND_MOVED, {**why.data, **how}) if by_job else Reason(Code.MOVED, how)
    search.placed.sort()
    if plan.more:
        turn.extend(job, search.placed, why)
    else:
        turn.begin(job, search.placed, plan.rung, why)
