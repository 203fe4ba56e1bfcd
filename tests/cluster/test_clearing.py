"""The cheapest way to make room on one node, beside a look at every set of victims."""

from __future__ import annotations

from itertools import combinations
from random import Random
from types import SimpleNamespace

import pytest
from allocator_stage import GIB, Stage

from gpushare.cluster import clearing
from gpushare.cluster.candidates import Bounds
from gpushare.cluster.clearing import clear, cost, fewest
from gpushare.cluster.model import Node, Place
from gpushare.cluster.space import BROKEN, Need, NodeState

MEMORY = 80 * GIB
CASES = 150


def unit(places: list[Place], rank: int, elsewhere: int = 0):
    """A victim with these places on the node and so many tasks elsewhere."""
    charge = sum(place.charge for place in places) + elsewhere * 500_000
    freed = sum(len(place.gpus) for place in places)
    return SimpleNamespace(places=places + [None] * elsewhere, here=places, rank=rank, charge=charge, freed=freed)


class Hashed(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def scene(seed: int, *, several: bool) -> tuple[NodeState, Need, list]:
    random = Random(seed)
    gpus = random.choice([2, 4]) if several else random.choice([1, 2, 4])
    node = NodeState(0, Node("n", gpus, MEMORY, broken=frozenset({0}) if gpus == 4 and seed % 7 == 0 else frozenset()))
    units = []
    for rank in range(random.randint(1, 7)):
        width, tenths = random.choice([1, 1, 1, 2]), random.choice([1, 2, 3, 5, 8])
        amount = tenths * MEMORY // 10
        able = [gpu for gpu in range(gpus) if node.free[gpu] >= amount]
        if len(able) < width:
            continue
        chosen = tuple(sorted(random.sample(able, width)))
        for gpu in chosen:
            node.free[gpu] -= amount
        if random.random() < 0.8:  # else it may not be stopped
            place = Place(0, 0, "n", chosen, amount, width * tenths * 100_000)
            units.append(Hashed(**vars(unit([place], rank, 0 if several else random.choice([0, 0, 1])))))
    node.whole = node.free.count(MEMORY)
    count = random.randint(2, gpus) if several else 1
    return node, Need(count, random.choice([300_000, 500_000, 900_000, 1_000_000]), False), units


def fits(node: NodeState, need: Need, chosen) -> bool:
    free = list(node.free)
    for one in chosen:
        for place in one.here:
            for gpu in place.gpus:
                free[gpu] += place.amount
    return sum(left >= need.on(MEMORY) and left != BROKEN for left in free) >= need.gpus


@pytest.mark.parametrize("several", [False, True])
def test_no_other_set_is_cheaper(several) -> None:
    compared = 0
    for seed in range(CASES):
        node, need, units = scene(seed, several=several)
        if fits(node, need, ()):
            continue
        sets = [one for n in range(1, len(units) + 1) for one in combinations(units, n) if fits(node, need, one)]
        best = min((cost(one, need, node) for one in sets), default=None)
        found = clear(node, need, list(units), Bounds())
        assert (found[0] if found else None) == best, seed
        if found:
            assert cost(found[1], need, node) == best
            compared += 1
    assert compared > CASES // 5


def test_of_many_on_one_gpu_the_largest_go_first(monkeypatch) -> None:
    monkeypatch.setattr(clearing, "EXHAUSTIVE", 2)
    node = NodeState(0, Node("n", 1, MEMORY))
    units = []
    for rank, tenths in enumerate((1, 4, 3, 2)):
        amount = tenths * MEMORY // 10
        node.free[0] -= amount
        units.append(Hashed(**vars(unit([Place(0, 0, "n", (0,), amount, tenths * 100_000)], rank))))
    node.whole = 0
    found = clear(node, Need(1, 600_000, False), units, Bounds())
    assert found is not None
    assert [one.rank for one in found[1]] == [1, 2]


def test_bytes_that_are_too_dear_on_small_gpus_are_taken_on_a_large_one() -> None:
    stage = Stage([Node("small-1", 1, 40 * GIB), Node("small-2", 1, 40 * GIB), Node("large", 1, 80 * GIB)])
    stage.queue("q", 1.5, limit=1.5)
    stage.job("q", memory=60 * GIB, name="low", priority=10)
    assert stage.place("low").node == "large"
    stage.job("q", memory=40 * GIB, count=2, name="high")
    assert stage.evicted == ["low"]
    assert {place.node for place in stage.allocator.jobs["high"].places} == {"large"}


@pytest.mark.parametrize("several", [False, True])
def test_where_there_are_too_many_sets_to_compare_it_takes_enough_and_no_more(several, monkeypatch) -> None:
    monkeypatch.setattr(clearing, "EXHAUSTIVE", 0)
    compared = 0
    for seed in range(CASES):
        node, need, units = scene(seed, several=several)
        if fits(node, need, ()):
            continue
        found = clear(node, need, list(units), Bounds())
        assert (found is None) == (not fits(node, need, units)), seed
        if found is None:
            continue
        compared += 1
        chosen = found[1]
        assert found[0] == cost(chosen, need, node)
        assert fits(node, need, chosen) and len(chosen) == len({id(one) for one in chosen})
        assert not any(fits(node, need, [one for one in chosen if one is not left]) for left in chosen), seed
    assert compared > CASES // 5


def test_a_set_that_is_not_permitted_is_not_chosen(monkeypatch) -> None:
    """Whatever way is taken: of equal tasks, of one GPU, of several, and of too many to compare."""
    for exhaustive in (10, 0):
        monkeypatch.setattr(clearing, "EXHAUSTIVE", exhaustive)
        for seed in range(60):
            for several in (False, True):
                node, need, units = scene(seed, several=several)
                if units and not fits(node, need, ()):
                    none = SimpleNamespace(permit=lambda chosen: False)
                    assert clear(node, need, list(units), none) is None
                    first = SimpleNamespace(permit=lambda chosen: all(one.rank for one in chosen))
                    found = clear(node, need, list(units), first)
                    sets = [one for n in range(1, len(units) + 1) for one in combinations(units, n)]
                    best = min(
                        (cost(one, need, node) for one in sets if first.permit(one) and fits(node, need, one)),
                        default=None,
                    )
                    if exhaustive:
                        assert (found[0] if found else None) == best, (seed, several)
                    elif found:
                        assert first.permit(found[1]) and fits(node, need, found[1])


@pytest.mark.parametrize("seed", range(20))
def test_the_least_that_a_node_costs_is_that_of_the_best_of_all_sets(seed) -> None:
    random = Random(seed)
    for _ in range(50):
        sizes = tuple(sorted((random.randint(1, 4), random.randint(1, 9)) for _ in range(random.randint(0, 6))))
        missing = random.randint(1, 9)
        sets = [one for n in range(len(sizes) + 1) for one in combinations(sizes, n)]
        enough = [(len(one), sum(paid for _, paid in one)) for one in sets if sum(gpus for gpus, _ in one) >= missing]
        chosen = fewest(tuple((gpus, 1, paid) for gpus, paid in sizes), missing)
        assert (chosen and chosen[:2]) == min(enough, default=None)
        if chosen is not None:
            taken = [one for index, one in enumerate(sizes) if chosen[2] >> index & 1]
            assert (len(taken), sum(paid for _, paid in taken)) == chosen[:2]
            assert sum(gpus for gpus, _ in taken) >= missing
        alike = fewest(((2, 1, 5),) * len(sizes), missing)
        if alike is not None:
            assert alike[2] == (1 << alike[0]) - 1, "of equal ones the best victims"
    assert fewest((), 0) == (0, 0, 0)
