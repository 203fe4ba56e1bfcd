"""Taking from others: reclaim across queues, preemption inside one. The search for the fewest victims.

Who may be taken from
    Reclaim: the job keeps its queue, and every ancestor a up to below the common one, within quota (then from those
    above their quota) or within share (then from those above share and quota). The rule holds for each queue on the
    victim's path and before each single victim, so what is in quota is never taken.
    Preempt: jobs of the same queue with strictly lower priority.
    In both: preemptible, past its minimum run time, and not started in this turn or about to start.

Why it ends (no ping-pong)
    Shares depend on demand, quotas and nodes, not on what runs (shares.py). Let, over the queues of one level,
    PhiD = sum of min(allocated, quota) and PhiS = sum of min(allocated, share). A reclaim is done only if (PhiD, PhiS)
    of every level at which it moves something from one queue to another rises in lexicographic order, on the final
    set of victims. Starting a job where there is room lowers neither. Both are bounded integers, so with demands
    unchanged reclaims come to an end, and v, evicted for j, cannot evict j in return: that would lower what has risen.
    One exception, for quotas: PhiD may stay as it is when a queue that gets its quota displaces a job so large that
    its own queue cannot have it back within quota: that job cannot evict in return either.
    Preemption raises the priorities of what a queue runs, in lexicographic order, and needs no share at all.

Which victims
    In stages: lower priority classes of queues first, then lower job priorities; a stage is only left when it does
    not suffice. Within it, for each task of the job, the node with the fewest victims, then the least freed beyond
    the need, then queues most over their share, then the newest jobs. Afterwards everything that turns out not to be
    needed is put back (or moved elsewhere, if it has found room), and every inequality is checked again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace, merge
from itertools import combinations
from operator import attrgetter
from typing import NamedTuple

from gpushare.cluster.model import Code, Place, Reason
from gpushare.cluster.order import ratio
from gpushare.cluster.placement import Want, allowed_nodes, forbidden, largest_first, place_task, take
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.space import BROKEN, Need, NodeState, fit_on
from gpushare.cluster.state import JobClass, JobState, QueueState, State
from gpushare.cluster.turn import Turn, spread

ENDLESS = 10**18

_by_rank = attrgetter("rank")

EXHAUSTIVE = 10
"""Up to so many victims on a node all sets of them are compared."""


def wants_of(job: JobState, rung: int, more: bool) -> list[Want]:
    """The whole gang, or the next task of an elastic job that runs."""
    shape = job.cls.shape
    if more:
        for index, group in enumerate(shape.groups):
            taken = {task for one, task in job.places if one == index}
            if len(taken) < group.top:
                task = next(task for task in range(group.top) if task not in taken)
                return [Want(index, task, group.needs[rung])]
        return []
    return [
        Want(index, task, shape.groups[index].needs[rung])
        for index in largest_first(shape, rung)
        for task in range(shape.groups[index].least)
    ]


class Unit:
    """What is taken as one: a task above an elastic job's least, or a whole job."""

    __slots__ = ("charge", "freed", "here", "job", "last", "places", "rank")

    def __init__(self, job: JobState, places: Sequence[Place], node: str, rank: int) -> None:
        self.job = job
        self.places = places
        if len(places) == 1:
            self.here = places if places[0].node == node else []
            self.charge = self.last = places[0].charge
            self.rank = rank
            self.freed = len(places[0].gpus) if self.here else 0
            return
        self.here = [place for place in places if place.node == node]
        self.charge = sum(place.charge for place in places)
        self.last = self.charge
        """Of it, what goes last: all, or of an elastic job its gang after the further tasks."""
        if len(places) > 1 and job.extra() > 0:
            self.last = job.cls.charge
        self.rank = rank
        """The smaller, the better a victim."""
        self.freed = sum(len(place.gpus) for place in self.here)


class Cost(NamedTuple):
    """What making room on a node would cost, in the order in which it counts."""

    tasks: int
    excess: int
    ranks: tuple[int, ...]
    """Of the victims, the best to keep first."""


class Bounds:
    """How far each queue may be taken from: until it is no longer above its bound."""

    def __init__(self) -> None:
        self.of: dict[QueueState, tuple[tuple[QueueState, int], ...]] = {}
        """By leaf: the queues of its path that must stay above a bound before each victim."""
        self.leaves: list[tuple[tuple[int, ...], QueueState]] = []
        """Leaves that may be taken from, each with its place in the order."""
        self.ceilings: list[tuple[QueueState, int, bool]] = []
        """The job's queue and its ancestors: with the job, each may hold so much if victims are taken outside of it;
        whether that is its quota."""

    def room(self, leaf: QueueState) -> int:
        """How far it is above its bounds; the last victim may take more."""
        room = ENDLESS
        for queue, bound in self.of.get(leaf, ()):
            room = min(room, queue.allocated - bound)
        return room

    def could_free(self, units: Iterable[Unit]) -> int:
        """No more than so much (micro) can be had from these."""
        sums: dict[QueueState, tuple[int, int]] = {}
        for unit in units:
            total, most = sums.get(unit.job.queue, (0, 0))
            sums[unit.job.queue] = total + unit.charge, max(most, unit.charge)
        free = 0
        for leaf, (total, most) in sums.items():
            room = self.room(leaf)
            if room > 0:
                free += min(total, room + most - 1)
        return free

    def permit(self, units: Iterable[Unit]) -> bool:
        """Can these be taken one after the other, the largest last?"""
        if not self.of:
            return True
        sums: dict[QueueState, tuple[int, int]] = {}
        for unit in units:
            for queue, _ in self.of.get(unit.job.queue, ()):
                total, most = sums.get(queue, (0, 0))
                sums[queue] = total + unit.charge, max(most, unit.last)
        for unit in units:
            for queue, bound in self.of.get(unit.job.queue, ()):
                total, most = sums[queue]
                if queue.allocated - (total - most) <= bound:
                    return False
        return True


# ---- who may be taken from -----------------------------------------------------------------------------


def reclaimable(leaf: QueueState, charge: int) -> Bounds:
    """Leaves that must give to this one, and how far."""
    bounds = Bounds()
    in_quota = in_share = True
    inside = 0
    """What could at most be taken below the queue looked at: that makes room in it for the job."""
    for mine in leaf.path:
        after = mine.allocated + charge - inside
        in_quota = in_quota and (mine.quota is None or after <= mine.quota)
        in_share = in_share and after <= mine.share
        if not in_quota and not in_share:
            break
        ceiling = mine.share if not in_quota else ENDLESS if mine.quota is None else mine.quota
        bounds.ceilings.append((mine, ceiling, in_quota))
        parent = mine.parent
        assert parent is not None
        for other in parent.children.values():
            if other is not mine and other.quota is not None and other.allocated > other.quota:
                inside += _over(other, in_quota, (), (), bounds)
    bounds.leaves.sort(key=lambda entry: entry[0])
    return bounds


def _over(
    queue: QueueState,
    quota_alone: bool,
    key: tuple[int, ...],
    chain: tuple[tuple[QueueState, int], ...],
    bounds: Bounds,
) -> int:
    """Find the leaves below a queue, as far as all on the way are above their bound; what they hold at most to take."""
    if queue.quota is None:
        return 0
    bound = queue.quota if quota_alone else max(queue.quota, queue.share)
    if queue.allocated <= bound:
        return 0
    key = (*key, queue.spec.priority, -ratio(queue.allocated, queue.share), queue.order)
    chain = (*chain, (queue, bound))
    if queue.children:
        return sum(_over(child, quota_alone, key, chain, bounds) for child in queue.children.values())
    bounds.of[queue] = chain
    bounds.leaves.append((key, queue))
    return queue.allocated


def within(queue: QueueState, top: QueueState) -> bool:
    return top in queue.path


class Candidate(NamedTuple):
    """A class of jobs that may be victims."""

    stage: tuple[int, int]
    """Priority class of its queue, priority of the jobs: stages are tried in this order."""
    standing: int
    """Its queue's place among those that may be taken from."""
    cls: JobClass


def candidates_for_reclaim(cls: JobClass, charge: int) -> tuple[list[Candidate], Bounds]:
    bounds = reclaimable(cls.queue, charge)
    top = _full_ancestor(cls, charge)
    found = []
    for standing, (key, leaf) in enumerate(bounds.leaves):
        if top is not None and not within(leaf, top):
            continue
        for victim in leaf.classes.values():
            if victim.preemptible and len(victim.running):
                found.append(Candidate((key[0], victim.priority), standing, victim))
    found.sort(key=_candidate_order)
    return found, bounds


def candidates_for_preempt(cls: JobClass) -> tuple[list[Candidate], Bounds]:
    found = [
        Candidate((0, victim.priority), 0, victim)
        for victim in cls.queue.classes.values()
        if victim.preemptible and victim.priority < cls.priority and len(victim.running)
    ]
    found.sort(key=_candidate_order)
    return found, Bounds()


def _candidate_order(one: Candidate) -> tuple[object, ...]:
    return one.stage, one.standing, one.cls.number


def _full_ancestor(cls: JobClass, charge: int) -> QueueState | None:
    """The lowest queue whose limit would be broken: only what is below it helps."""
    for queue in cls.queue.path:
        if queue.cap is not None and queue.allocated + charge > queue.cap:
            return queue
    return None


def evictable(turn: Turn, job: JobState) -> bool:
    if job.unstarted:
        return False
    if job.started_in == turn.number:
        turn.again = True
        return False
    granted = job.queue.granted
    end = job.since + (granted if granted > job.job.min_runtime else job.job.min_runtime)
    if end > turn.now:
        turn.state.protected_until = min(turn.state.protected_until, end)
        return False
    return True


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
        self.before: dict[QueueState, int] = {}
        """What queues on the paths of the job and of victims held."""
        self.holders: dict[NodeState, list[Unit]] = {}
        """By node, who could go as a whole; of elastic jobs what goes is worked out when it is needed."""
        self.gathered: dict[tuple[int, int], dict[NodeState, list[Unit]]] = {}
        """The same by stage: each begins from the same state."""
        self.only: Mapping[int, None] | None = None
        """If said, none but these may be victims, whatever their minimum run time."""

    def _evictable(self, job: JobState) -> bool:
        if self.only is not None:
            return job.seq in self.only and not job.unstarted
        return evictable(self.turn, job)

    def run(self) -> bool:
        """Find victims, stage by stage."""
        for queue in self.job.queue.path:
            self.before[queue] = queue.allocated
        stages = sorted({one.stage for one in self.candidates})
        for index, stage in enumerate(stages):
            if index == 1:
                self._gather(stages[-1])
                if not self._could_suffice():
                    return False
            if not self._surely() and self._too_little(stage):
                continue
            mark = self.state.mark()
            # Who goes alone makes room that nobody else could have made, so there is nothing to put back.
            if self._single(stage):
                if self._holds():
                    return True
            elif self._many(stage):
                self._fill_back()
                if self._holds():
                    return True
            self.state.undo(mark)
            self.placed, self.taken = [], []
        return False

    def _surely(self) -> bool:
        """One task, and all who could go are alike and large enough: nearly always the first of them will do."""
        if len(self.wants) > 1 or len(self.candidates) > 1:
            return False
        return self.state.by_seq[self.candidates[0].cls.running.first].charge >= self._charge()

    def _too_little(self, stage: tuple[int, int]) -> bool:
        """By sums alone: all that could be taken up to a stage is not enough for the job, its limits or its node."""
        state, charge = self.state, self._charge()
        needed = charge - (state.space.capacity - state.root.allocated)
        for queue, cap in self.caps:
            needed = max(needed, queue.allocated + charge - cap)
        need = self.wants[0].need
        if len(self.wants) == 1 and need.whole:
            needed = max(needed, (need.gpus - state.space.largest(self.mask)) * MICRO)
        held: dict[QueueState, tuple[int, int, int]] = {}
        """By leaf: what its classes hold, the most that one job of them does, and what can be had of it."""
        got = 0
        for one in self.candidates:
            if got >= needed:
                return False
            if one.stage <= stage:
                cls = one.cls
                charged = max(cls.demand, cls.charge, state.by_seq[cls.running.first].charge)
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

    def _least_of(
        self, stage: tuple[int, int], least: int, leaves: Container[QueueState] | None
    ) -> tuple[int, JobState] | None:
        want = self.wants[0]
        charge, deficit = self._charge(), self._deficit()
        best: tuple[int, JobState] | None = None
        for job in self._in_order(stage, leaves):
            if len(job.places) != 1 or job.charge < deficit or job.cls.priority != stage[1]:
                continue
            excess = job.charge - charge if job.charge > charge else 0
            if best is not None and excess >= best[0]:
                continue
            (place,) = job.places.values()
            node = self.state.space.by_name[place.node]
            if self.mask >> node.number & 1 and frees_enough(node, want.need, place) and self._evictable(job):
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
                sample = self.state.by_seq[one.cls.running.first].charge
                excess = sample - charge if sample > charge else 0
                if excess < least:
                    least, alike = excess, set()
                if excess == least:
                    alike.add(queue)
                if shape.by_bytes or shape.elastic or shape.rungs > 1:
                    unlike.add(queue)
        return least, alike | unlike

    def _in_order(self, stage: tuple[int, int], among: Container[QueueState] | None = None) -> Iterator[JobState]:
        """Victims up to a stage, best first: the newest of the queue that is most over, taken one after the other."""
        by_seq = self.state.by_seq
        leaves: dict[QueueState, list[Candidate]] = {}
        for one in self.candidates:
            if one.stage <= stage and (among is None or one.cls.queue in among):
                leaves.setdefault(one.cls.queue, []).append(one)
        if len(leaves) == 1:
            for found in leaves.values():
                yield from _newest(found, by_seq)
            return
        heap = [
            (found[0].stage[0], -ratio(leaf.allocated, leaf.share), -leaf.order, leaf.allocated, leaf)
            for leaf, found in leaves.items()
        ]
        heapify(heap)
        begun: dict[QueueState, Iterator[JobState]] = {}
        while heap:
            group, _, order, left, leaf = heap[0]
            jobs = begun.get(leaf)
            if jobs is None:
                jobs = begun[leaf] = _newest(leaves[leaf], by_seq)
            job = next(jobs, None)
            if job is None:
                heappop(heap)
                continue
            left -= job.charge
            yield job
            heapreplace(heap, (group, -ratio(left, leaf.share), order, left, leaf))

    # ---- several ---------------------------------------------------------------------------------

    def _many(self, stage: tuple[int, int]) -> bool:
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

    def _gather(self, stage: tuple[int, int]) -> None:
        """Who could go, by node, the best victims first."""
        kept = self.gathered.get(stage)
        if kept is not None:
            self.holders = kept
            return
        self.holders = self.gathered[stage] = {}
        by_name = self.state.space.by_name
        for rank, job in enumerate(self._in_order(stage)):
            if not self._evictable(job):
                continue
            if len(job.places) == 1:
                places = tuple(job.places.values())
                name = places[0].node
                self.holders.setdefault(by_name[name], []).append(Unit(job, places, name, rank))
                continue
            places = tuple(job.ordered)
            for name in sorted({place.node for place in places}):
                self.holders.setdefault(by_name[name], []).append(Unit(job, places, name, rank))

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
            return self.placed[0].charge if self.placed else need.charge(self.state.space.nodes[0].memory)
        if self.placed:
            return sum(place.charge for place in self.placed)
        return sum(want.need.charge(self.state.space.nodes[0].memory) for want in self.wants)

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
        """Whoever need not go stays: the worst victims first are put back where they were, if that is still free."""
        charge = self._charge()
        kept: list[Unit] = []
        for unit in sorted(self.taken, key=lambda unit: (-unit.charge, -unit.rank)):
            if self._breaks_limit(unit, charge) or not self._free_again(unit):
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
        if not self.taken or forbidden(self.job.cls, charge) is not None:
            return False
        if not self.bounds.ceilings:
            return True  # preemption
        if any(queue.allocated + charge > ceiling for queue, ceiling in self._ceilings()):
            return False
        coming = dict.fromkeys(self.job.queue.path, charge)
        for queue, _, in_quota in self.bounds.ceilings:
            victims = [unit for unit in self.taken if queue.parent in (*unit.job.queue.path, self.state.root)]
            others = {one for unit in victims for one in unit.job.queue.path if one.parent is queue.parent} - {queue}
            if others:
                rise = gain(self.before, [queue, *others], coming)
                if rise <= (0, 0) and not (in_quota and rise[0] == 0 and not any(map(_can_return, victims))):
                    return False
        return True


def _can_return(unit: Unit) -> bool:
    """Could its queue take back by right of quota what it loses?"""
    return all(queue.quota is None or queue.allocated + unit.last <= queue.quota for queue in unit.job.queue.path)


def gain(before: dict[QueueState, int], queues: Iterable[QueueState], coming: dict[QueueState, int]) -> tuple[int, int]:
    """By how much (PhiD, PhiS) of these siblings rises, with what is still to come counted."""
    quota = share = 0
    for queue in queues:
        old, new = before[queue], queue.allocated + coming.get(queue, 0)
        share += min(new, queue.share) - min(old, queue.share)
        if queue.quota is None:
            quota += new - old
        else:
            quota += min(new, queue.quota) - min(old, queue.quota)
    return quota, share


def _newest(candidates: Sequence[Candidate], by_seq: Mapping[int, JobState]) -> Iterator[JobState]:
    """The jobs of one queue's classes, which come in order: lowest priority first, then newest first."""
    begin = 0
    while begin < len(candidates):
        stage, end = candidates[begin].stage, begin + 1
        while end < len(candidates) and candidates[end].stage == stage:
            end += 1
        lists = [one.cls.running.newest_first() for one in candidates[begin:end]]
        for seq in merge(*lists, reverse=True) if len(lists) > 1 else lists[0]:
            yield by_seq[seq]
        begin = end


def units_on(job: JobState, node: NodeState, rank: int, *, extras_first: bool) -> list[Unit]:
    """What of the job could be taken to make room on the node."""
    if not job.places:
        return []
    name = node.spec.name
    if extras_first and job.cls.shape.elastic:
        found = []
        for index, group in enumerate(job.cls.shape.groups):
            extra = job.count(index) - group.least
            if extra > 0:
                here = [place for place in job.ordered if place.group == index and place.node == name]
                found += [Unit(job, [place], name, rank) for place in here[::-1][:extra]]
        if found or job.extra() > 0:
            return found
    places = job.ordered if len(job.places) > 1 else list(job.places.values())
    unit = Unit(job, places, name, rank)
    return [unit] if unit.here else []


def frees_enough(node: NodeState, need: Need, place: Place) -> bool:
    """Would one such task fit on the node if this place were free?"""
    if need.whole and place.amount == node.memory:
        return node.whole + len(place.gpus) >= need.gpus
    return fits_without(node, need, (place,))


def fits_without(node: NodeState, need: Need, places: Iterable[Place]) -> bool:
    free = list(node.free)
    for place in places:
        for gpu in place.gpus:
            free[gpu] += place.amount
    amount = need.on(node.memory)
    return amount <= node.memory and sum(left >= amount and left != BROKEN for left in free) >= need.gpus


def clear(node: NodeState, need: Need, units: list[Unit], bounds: Bounds) -> tuple[Cost, list[Unit]] | None:
    """The fewest of these units, then the least excess, then the best victims, without which the task fits."""
    if not units:
        return None
    units = sorted(units, key=_by_rank)
    if need.whole and all(place.amount == node.memory for unit in units for place in unit.here):
        chosen = fewest(units, need.gpus - node.whole)
        if chosen is None:
            return None
        if bounds.permit(chosen):
            return cost(chosen, need, node), chosen
        if bounds.could_free(units) < (need.gpus - node.whole) * MICRO:
            return None
    if not fits_without(node, need, (place for unit in units for place in unit.here)):
        return None
    return _best_set(node, need, units, bounds) if len(units) <= EXHAUSTIVE else _greedy_set(node, need, units, bounds)


def cost(chosen: Sequence[Unit], need: Need, node: NodeState) -> Cost:
    excess = sum(unit.charge for unit in chosen) - need.charge(node.memory)
    return Cost(
        sum(len(unit.places) for unit in chosen), excess, tuple(sorted((unit.rank for unit in chosen), reverse=True))
    )


def fewest(units: Sequence[Unit], missing: int) -> list[Unit] | None:
    """Fewest tasks whose GPUs on the node add up to what is missing, then least excess, then the best victims.

    By dynamic programming over the number of GPUs freed: (tasks, GPUs beyond the node's, set of units as bits) is
    additive, and sets compare as numbers whose high bits are the units to keep.
    """
    if missing <= 0:
        return []
    sizes = {(unit.freed, len(unit.places)) for unit in units}
    if len(sizes) == 1:
        count = -(-missing // units[0].freed) if units[0].freed else len(units) + 1
        return list(units[:count]) if count <= len(units) else None
    best: dict[int, tuple[int, int, int]] = {0: (0, 0, 0)}
    for index, unit in enumerate(units):
        for freed, (tasks, charge, bits) in list(best.items()):
            if freed >= missing:
                continue
            new = (tasks + len(unit.places), charge + unit.charge, bits | 1 << index)
            old = best.get(freed + unit.freed)
            if old is None or new < old:
                best[freed + unit.freed] = new
    enough = [entry for freed, entry in best.items() if freed >= missing]
    if not enough:
        return None
    bits = min(enough)[2]
    return [unit for index, unit in enumerate(units) if bits >> index & 1]


def _best_set(node: NodeState, need: Need, units: Sequence[Unit], bounds: Bounds) -> tuple[Cost, list[Unit]] | None:
    best: tuple[Cost, list[Unit]] | None = None
    for count in range(1, len(units) + 1):
        if best is not None and best[0].tasks <= count:
            break
        for group in combinations(units, count):
            if fits_without(node, need, (place for unit in group for place in unit.here)) and bounds.permit(group):
                found = cost(group, need, node)
                if best is None or found < best[0]:
                    best = found, list(group)
    return best


def _greedy_set(node: NodeState, need: Need, units: Sequence[Unit], bounds: Bounds) -> tuple[Cost, list[Unit]] | None:
    """Too many to compare: on the GPUs that are cheapest to clear, the best victims; then what is not needed stays."""
    chosen: list[Unit] = []
    amount = need.on(node.memory)
    by_gpu: list[tuple[int, int, list[Unit]]] = []
    for gpu, left in enumerate(node.free):
        if left == BROKEN:
            continue
        mine: list[Unit] = []
        on_gpu = sorted(
            ((unit, sum(place.amount for place in unit.here if gpu in place.gpus)) for unit in units),
            key=lambda entry: (-entry[1], entry[0].rank),
        )
        room = left
        for unit, held in on_gpu:
            if room >= amount or not held:
                break
            mine.append(unit)
            room += held
        if room >= amount:
            by_gpu.append((len(mine), gpu, mine))
    by_gpu.sort(key=lambda entry: entry[:2])
    for _, _, mine in by_gpu[: need.gpus]:
        chosen += [unit for unit in mine if unit not in chosen]
    for unit in sorted(chosen, key=lambda unit: (-unit.charge, -unit.rank)):
        rest = [one for one in chosen if one is not unit]
        if fits_without(node, need, (place for one in rest for place in one.here)):
            chosen = rest
    if not fits_without(node, need, (place for one in chosen for place in one.here)) or not bounds.permit(chosen):
        return None
    return cost(chosen, need, node), chosen


# ---- the two ways ------------------------------------------------------------------------------------


def reclaim(turn: Turn, cls: JobClass, job: JobState, more: bool) -> bool:
    """Make room for a job whose queue is below its share by taking from queues above theirs; start it."""
    shape = cls.shape
    rung = job.rung if more else shape.rungs - 1
    wants = wants_of(job, rung, more)
    charge = more_charge(turn.state, cls, wants) if more else cls.charge
    candidates, bounds = candidates_for_reclaim(cls, charge)
    return _take_from(turn, job, wants, candidates, bounds, rung=rung, more=more)


def preempt(turn: Turn, cls: JobClass, job: JobState, more: bool) -> bool:
    """Make room by stopping jobs of lower priority in the same queue; start it."""
    candidates, bounds = candidates_for_preempt(cls)
    rung = job.rung if more else cls.shape.rungs - 1
    return _take_from(turn, job, wants_of(job, rung, more), candidates, bounds, rung=rung, more=more)


def more_charge(state: State, cls: JobClass, wants: Sequence[Want]) -> int:
    memories = state.memories(cls.shape)
    return sum(want.need.charge(memories[-1] if memories else 80 * 2**30) for want in wants)


def _take_from(
    turn: Turn,
    job: JobState,
    wants: list[Want],
    candidates: list[Candidate],
    bounds: Bounds,
    *,
    rung: int,
    more: bool,
) -> bool:
    if not candidates or not wants:
        return False
    state = turn.state
    mark = state.mark()
    search = Search(turn, job, wants, candidates, bounds)
    if not search.run():
        state.undo(mark)
        return False
    commit(turn, job, search.placed, rung, search.taken, reclaimed=bool(bounds.ceilings), more=more)
    return True


def commit(
    turn: Turn,
    job: JobState,
    placed: list[Place],
    rung: int,
    taken: Sequence[Unit],
    *,
    reclaimed: bool,
    more: bool,
    reason: Code = Code.PREEMPT,
) -> None:
    """The victims go, the job gets its places."""
    by_job: dict[JobState, list[Place]] = {}
    for unit in taken:
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
    why = Reason(Code.TAKEN, {"victims": tuple(one.job.id for one in by_job)})
    placed.sort()
    if more:
        turn.extend(job, placed, why)
    else:
        turn.begin(job, placed, rung, why)
