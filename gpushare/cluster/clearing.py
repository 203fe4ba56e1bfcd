"""Making room for one task on one node: the cheapest set of units to take away. Nothing is changed here.

The fewest tasks, then the least that is freed beyond the need, then the best victims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from gpushare.cluster.candidates import Bounds, Unit
from gpushare.cluster.model import Place
from gpushare.cluster.space import BROKEN, Need, NodeState

EXHAUSTIVE = 10
"""Up to so many victims on a node all sets of them are compared."""

_by_rank = attrgetter("rank")
_by_cost = itemgetter(0)


def _by_charge_and_rank(unit: Unit) -> tuple[int, Any]:
    return unit.charge, unit.rank


def _most_held(entry: tuple[Unit, int]) -> tuple[int, Any]:
    return -entry[1], entry[0].rank


class Cost(NamedTuple):
    """What making room on a node would cost, in the order in which it counts."""

    tasks: int
    excess: int
    ranks: tuple[Any, ...]
    """Of the victims, the best to keep first."""


def clear(node: NodeState, need: Need, units: list[Unit], bounds: Bounds) -> tuple[Cost, list[Unit]] | None:
    """The fewest of these units, then the least excess, then the best victims, without which the task fits."""
    if not units:
        return None
    units = sorted(units, key=_by_rank)
    if need.whole and not node.foreign and all(place.amount == node.memory for unit in units for place in unit.here):
        sizes = tuple([(unit.freed, len(unit.places), unit.charge) for unit in units])
        found = fewest(sizes, need.gpus - node.whole)
        if found is None:
            return None
        chosen = [unit for index, unit in enumerate(units) if found[2] >> index & 1]
        if bounds.permit(chosen):
            return cost(chosen, need, node), chosen
    if need.gpus != 1:
        return _cheapest(node, need, units, bounds)
    # Only who holds something of the one GPU that it gets has to go.
    each = [_cheapest(node, need, sorted(held, key=_by_rank), bounds) for held in _held(node, units) if held]
    return min((found for found in each if found is not None), key=_by_cost, default=None)


def _cheapest(node: NodeState, need: Need, units: Sequence[Unit], bounds: Bounds) -> tuple[Cost, list[Unit]] | None:
    if not fits_without(node, need, (place for unit in units for place in unit.here)):
        return None
    return (_best_set if len(units) <= EXHAUSTIVE else _greedy_set)(node, need, units, bounds)


def cost(chosen: Sequence[Unit], need: Need, node: NodeState) -> Cost:
    excess = sum(unit.charge for unit in chosen) - need.charge(node.memory)
    return Cost(
        sum(len(unit.places) for unit in chosen), excess, tuple(sorted((unit.rank for unit in chosen), reverse=True))
    )


@lru_cache(maxsize=4096)
def fewest(sizes: tuple[tuple[int, int, int], ...], missing: int) -> tuple[int, int, int] | None:
    """Of units with so many GPUs on the node, tasks, and costs: the fewest tasks that hold what is missing, then the
    least excess, then the best victims. How many tasks, what they cost, and which units, as bits.

    By dynamic programming over the number of GPUs freed: what is counted is additive, and sets compare as numbers whose
    high bits are the units to keep. Nodes with the same sizes are asked about by the thousand.
    """
    best: dict[int, tuple[int, int, int]] = {0: (0, 0, 0)}
    for index, (gpus, count, paid) in enumerate(sizes):
        for freed, (tasks, charge, bits) in list(best.items()):
            if freed < missing:
                new = (tasks + count, charge + paid, bits | 1 << index)
                best[freed + gpus] = min(new, best.get(freed + gpus, new))
    return min((entry for freed, entry in best.items() if freed >= missing), default=None)


def _held(node: NodeState, units: Sequence[Unit]) -> list[dict[Unit, int]]:
    """What each unit holds of each GPU."""
    held: list[dict[Unit, int]] = [{} for _ in node.free]
    for unit in units:
        for place in unit.here:
            for gpu in place.gpus:
                held[gpu][unit] = held[gpu].get(unit, 0) + place.amount
    return held


def _best_set(node: NodeState, need: Need, units: Sequence[Unit], bounds: Bounds) -> tuple[Cost, list[Unit]] | None:
    best: tuple[Cost, list[Unit]] | None = None
    for count in range(1, len(units) + 1):
        if best is not None and best[0].tasks < count:
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
    on_gpu = _held(node, units)
    by_gpu: list[tuple[int, int, list[Unit]]] = []
    for gpu, left in enumerate(node.free):
        if left == BROKEN or left + sum(on_gpu[gpu].values()) < amount:
            continue
        mine: list[Unit] = []
        room = left
        for unit, held in sorted(on_gpu[gpu].items(), key=_most_held):
            if room >= amount:
                break
            mine.append(unit)
            room += held
        by_gpu.append((len(mine), gpu, mine))
    by_gpu.sort(key=lambda entry: entry[:2])
    for _, _, mine in by_gpu[: need.gpus]:
        chosen += [unit for unit in mine if unit not in chosen]
    for unit in sorted(chosen, key=_by_charge_and_rank, reverse=True):
        rest = [one for one in chosen if one is not unit]
        if fits_without(node, need, (place for one in rest for place in one.here)):
            chosen = rest
    if not fits_without(node, need, (place for one in chosen for place in one.here)) or not bounds.permit(chosen):
        return None
    return cost(chosen, need, node), chosen


def frees_enough(node: NodeState, need: Need, place: Place) -> bool:
    """Would one such task fit on the node if this place were free?"""
    if need.whole and not node.foreign and place.amount == node.memory:
        return node.whole + len(place.gpus) >= need.gpus
    return fits_without(node, need, (place,))


def fits_without(node: NodeState, need: Need, places: Iterable[Place]) -> bool:
    free = list(node.free)
    for place in places:
        for gpu in place.gpus:
            free[gpu] += place.amount
    amount = need.on(node.memory)
    return amount <= node.memory and sum(left >= amount and left != BROKEN for left in free) >= need.gpus
