"""The bound that spares searches for moves is never wrong: where it says no, the search finds nothing.

Crowded clusters of two sizes of GPUs, larger than those on which searches are widened. After each event every waiting
shape is judged by the bound and, whatever that says, searched for.
"""

from __future__ import annotations

import random

import pytest

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.holes import holes
from gpushare.cluster.model import (
    Job,
    JobEnded,
    JobSubmitted,
    Node,
    NodeAdded,
    Policy,
    Queue,
    QueueAdded,
    Selector,
    Tasks,
)
from gpushare.cluster.moves import Moving, could_move
from gpushare.cluster.placement import gang_of
from gpushare.cluster.quantity import gpus
from gpushare.cluster.space import Need, NodeState
from gpushare.cluster.turn import Turn
from gpushare.cluster.widening import FEW_NODES

GIB = 2**30
NODES = FEW_NODES + 8


class Whole(Moving):
    """The search without the bound: no node is passed over."""

    def _could_clear(self, node: NodeState, need: Need) -> bool:
        return True


def some_job(rng: random.Random, number: int) -> Job:
    kind = rng.random()
    if kind < 0.4:
        tasks = Tasks(rng.choice((1, 1, 1, 2, 3)), gpus=rng.choice((1, 1, 2, 4)))
    elif kind < 0.75:
        share = gpus(rng.choice((0.1, 0.25, 0.3, 0.5, 0.7)))
        tasks = Tasks(rng.choice((1, 1, 2)), gpus=rng.choice((1, 1, 2)), share=share)
    else:
        tasks = Tasks(1, gpus=rng.choice((1, 2)), memory=rng.choice((5, 10, 18, 24, 30)) * GIB)
    selector = Selector(types=(rng.choice(("small", "large")),)) if rng.random() < 0.2 else Selector()
    return Job(f"j{number}", "q", (tasks,), selector=selector, movable=rng.random() < 0.8)


def judged(allocator: Allocator) -> list[tuple[bool, bool]]:
    """For each waiting shape: does the bound allow moves, and does the search find some?"""
    state, found = allocator._state, []
    for shape in state.watch.crowded:
        waiting = [cls for cls in shape.classes if cls.pending]
        if not waiting:
            continue
        turn, mark = Turn(state, allocator.now), state.mark()
        job = state.by_seq[waiting[0].pending.first]
        gang = gang_of(state, job, more=False)
        spared, whole = Moving(turn, gang), Whole(turn, gang)
        allowed = could_move(state, shape) and whole.could_suffice()
        answers = []
        for search in (spared, whole):
            answers.append((search.place_all() and bool(search.moved), sorted(search.placed)))
            state.undo(mark)
        if answers[1][0]:
            assert answers[0] == answers[1], "a node was passed over"
        found.append((allowed, answers[1][0]))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_where_the_bound_says_no_the_search_finds_nothing(seed: int) -> None:
    rng = random.Random(seed)
    allocator = Allocator(Policy(consolidate=False))  # so that what could be moved is still there to be found
    sizes = (("small", 40), ("large", 80))
    kinds = [sizes[number % 2] for number in range(NODES)]
    allocator.handle([NodeAdded(Node(f"n{n}", 4, size * GIB, type=kind)) for n, (kind, size) in enumerate(kinds)], 0.0)
    allocator.handle(QueueAdded(Queue("q", quota=None)), 0.0)
    seen: list[tuple[bool, bool]] = []
    for number in range(500):
        allocator.handle(JobSubmitted(some_job(rng, number)), float(number))
        running = allocator.holding
        if number > 200 and rng.random() < 0.3:
            allocator.handle(JobEnded(rng.choice(running)), float(number))
        seen += judged(allocator)
    assert (False, True) not in seen
    assert seen.count((False, False)) > len(seen) / 10, "it spares nothing"
    assert seen.count((True, True)), "nothing was ever to be found"


@pytest.mark.parametrize("memory", [40, 80])
def test_what_is_smaller_than_all_that_could_move_is_no_room(memory: int) -> None:
    """Each GPU has a tenth left, and all that runs is larger."""
    allocator = Allocator(Policy())
    allocator.handle([NodeAdded(Node(f"n{number}", 4, memory * GIB)) for number in range(NODES)], 0.0)
    allocator.handle(QueueAdded(Queue("q", quota=None)), 0.0)
    part = (Tasks(1, share=gpus(0.45)),)
    allocator.handle([JobSubmitted(Job(f"j{n}", "q", part, movable=True)) for n in range(8 * NODES)], 0.0)
    measured = holes(allocator._state)
    assert set(measured.room.values()) == {0}
    assert measured.dust >= 4 * gpus(0.1) - 4, "what is left of one node"
    assert not measured.allow([memory * GIB], gpus(0.2), 1)
    allocator.handle(JobEnded("j3"), 1.0)
    assert holes(allocator._state).room == {memory * GIB: gpus(0.55)}


def test_what_was_measured_in_a_question_is_forgotten_with_it() -> None:
    """Else it would be believed when the state itself has had so many changes."""
    allocator = Allocator(Policy(consolidate=False))
    allocator.handle([NodeAdded(Node(f"n{number}", 4)) for number in range(NODES)], 0.0)
    allocator.handle(QueueAdded(Queue("q", quota=None)), 0.0)
    allocator.handle([JobSubmitted(Job(f"j{n}", "q", (Tasks(gpus=1 + n % 3),), movable=True)) for n in range(40)], 0.0)
    state = allocator._state
    with allocator._turns.tried([JobEnded("j2"), JobEnded("j5"), JobEnded("j8")]):
        asked = holes(state)
    while state.version < asked.version:
        job = next(iter(allocator.jobs))
        allocator.handle(JobEnded(job), 1.0)
    state.return_to(asked.version)
    free = sum(left for node in state.space.nodes for left in node.free) // Node("", 1).memory
    assert list(holes(state).room.values()) == [gpus(free)] != list(asked.room.values())
