"""What the wider search is made of, beside the plainest way to compute the same."""

from __future__ import annotations

from itertools import combinations
from random import Random
from types import SimpleNamespace

import pytest
from crowded_space import any_need, crowded
from test_oracle_reclaim import KINDS, case, played

from gpushare.cluster.holes import Holes, holes
from gpushare.cluster.plan import NOWHERE
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.space import fit_on
from gpushare.cluster.widening import Widening, choices, each_gpu, fit, in_line, nodes_for


@pytest.mark.parametrize("sizes", [(), (3,), (1, 1, 1), (2, 3), (4, 1, 2), (0, 2)])
def test_choices_are_all_ways_to_take_the_first_of_each_group(sizes) -> None:
    groups = [[f"{number}.{index}" for index in range(size)] for number, size in enumerate(sizes)]
    every = [one for group in groups for one in group]
    for count in range(sum(sizes) + 2):
        wanted = set()
        for some in combinations(every, count):
            if all(
                group[: sum(one in group for one in some)] == [one for one in some if one in group] for group in groups
            ):
                wanted.add(some)
        found = list(choices(groups, count))
        assert set(found) == wanted and len(found) == len(wanted)


def test_who_needs_a_place_stands_in_line() -> None:
    """The gang first, then those that can only move, then the largest."""
    line = [
        SimpleNamespace(old=old, stoppable=stoppable, charge=charge)
        for old, stoppable, charge in (
            (NOWHERE, False, 1),
            (None, False, 5),
            (None, False, 2),
            (None, True, 9),
            (None, True, 3),
        )
    ]
    for seed in range(20):
        mixed = line[:]
        Random(seed).shuffle(mixed)
        assert list(in_line(tuple(mixed[:2]), mixed[2:])) == line


def on_ledger(state) -> object:
    nodes = [(node.free[:], node.whole, dict(node.jobs)) for node in state.space.nodes]
    queues = {name: queue.allocated for name, queue in state.queues.items()}
    jobs = {name: (dict(job.places), job.charge) for name, job in state.jobs.items()}
    return nodes, queues, jobs, state.version, state.space.whole[:], len(state.journal.entries), len(state.watch.freed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wider_search_leaves_the_ledger_as_it_was(kind, monkeypatch) -> None:
    find, answers = Widening.find, []

    def checked(search, limit):
        before = on_ledger(search.state)
        answers.append(find(search, limit))
        assert on_ledger(search.state) == before
        return answers[-1]

    monkeypatch.setattr(Widening, "find", checked)
    for seed in range(30):
        played(case(kind, seed))
    assert None in answers and any(answers)


@pytest.mark.parametrize("seed", range(12))
def test_nodes_to_look_at_are_all_that_may_do(seed) -> None:
    rng, space = Random(seed), crowded(seed)
    for _ in range(30):
        need, mask = any_need(rng), rng.getrandbits(30)
        able = {node.number for node in space.nodes if mask >> node.number & 1 and fit_on(node, need)}
        open_ = {node.number for node in nodes_for(space, need, mask, 100, open_=True, each=100)}
        assert open_ >= able and bool(open_) == bool(able) and all(mask >> one & 1 for one in open_)
        made = {node.number for node in nodes_for(space, need, mask, 100, open_=False, each=100)}
        assert all(mask >> one & 1 for one in made)
        assert made >= {number for number in range(30) if mask >> number & 1} - able


@pytest.mark.parametrize("seed", range(6))
def test_of_nodes_that_are_alike_so_many_are_looked_at(seed) -> None:
    rng, space = Random(seed), crowded(seed)
    for _ in range(30):
        need, mask = any_need(rng), rng.getrandbits(30)
        if need.whole:
            for open_ in (True, False):
                found = list(nodes_for(space, need, mask, 100, open_=open_, each=1))
                counts = [node.whole for node in found]
                assert len(set(counts)) == len(counts)
                assert counts == sorted(counts, reverse=not open_)
                assert all((node.whole >= need.gpus) == open_ for node in found)


@pytest.mark.parametrize("seed", range(6))
def test_a_task_fits_on_a_gpu_or_on_the_best_of_a_node(seed) -> None:
    rng, space = Random(seed), crowded(seed)
    for _ in range(60):
        need, node = any_need(rng), rng.choice(space.nodes)
        assert fit(node, node.free, need, None) == (fit_on(node, need) or ())
        amount = need.on(node.memory)
        for gpu in each_gpu(need, node.free):
            if gpu is None:
                assert need.whole or need.gpus > 1
            else:
                able = amount <= min(node.memory, node.free[gpu])
                assert fit(node, node.free, need, gpu) == ((gpu,) if able else ())
        if need.gpus == 1 and not need.whole:
            assert list(each_gpu(need, node.free)) == list(range(len(node.free)))


@pytest.mark.parametrize("seed", range(12))
def test_holes_are_what_a_look_at_every_gpu_finds(seed) -> None:
    rng, space = Random(seed), crowded(seed)
    needs = [any_need(rng) for _ in range(rng.choice((1, 2, 3)))]
    shape = SimpleNamespace(movable=True, groups=[SimpleNamespace(needs=needs)])
    still = SimpleNamespace(movable=False, groups=[SimpleNamespace(needs=[needs[0]._replace(amount=1, in_bytes=True)])])
    state = SimpleNamespace(space=space, version=seed, holes=None, shapes={1: shape, 2: still})
    found = holes(state)
    assert holes(state) is found, "kept while nothing changes"
    least = {memory: min(need.on(memory) for need in needs) for memory in space.models}
    each = [(node.memory, left) for node in space.nodes for left in node.free]
    free = {
        memory: sum(left for size, left in each if size == memory and left >= least[memory]) for memory in space.models
    }
    in_bytes = any(need.in_bytes for need in needs)
    for memory in space.models:
        costs = {other: min(memory, other) if in_bytes else other for other in free}
        assert found.room[memory] == sum(left * MICRO // costs[other] for other, left in free.items())
    dust = max([left * MICRO // size for size, left in each if left < least[size] and left < size], default=0)
    assert found.dust == dust * max(len(node.free) for node in space.nodes)
    state.version += 1
    assert holes(state) is not found


def test_moves_make_room_for_what_is_free_and_the_dust_of_each_node() -> None:
    some = Holes(0, {40: 100, 80: 60}, 5)
    assert some.allow([40, 80], 110, 2)
    assert not some.allow([40, 80], 111, 2)
    assert some.allow([80], 70, 2)
    assert not some.allow([80], 71, 2)
    assert not some.allow([20], 0, 1), "nobody could go there"
    assert not some.allow([], 0, 1)
