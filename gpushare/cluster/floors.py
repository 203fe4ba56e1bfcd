"""Floors: lower bounds of how many tasks must be disturbed to make room. An answer equal to its floor is optimal.

They look at numbers of jobs and GPUs, not at rules, so the truth may be more and never less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

from gpushare.cluster.candidates import allows
from gpushare.cluster.jobs import JobClass
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.rules import How
from gpushare.cluster.space import Need, Space
from gpushare.cluster.turn import Turn


def tasks(classes: Sequence[JobClass], missing: int) -> int:
    """So many tasks of these classes have what is missing (micro), if the dearest go."""
    count = 0
    sizes: list[tuple[int, int]] = []
    for cls in classes:
        each = max(1, cls.shape.tasks)
        sizes.append((-(-max(cls.demand, cls.charge) // each), len(cls.running) * each))
    for size, number in sorted(sizes, reverse=True):
        if missing <= 0 or not size:
            break
        some = min(number, -(-missing // size))
        count += some
        missing -= some * size
    return max(1, count)


def by_size(space: Space, classes: Sequence[JobClass], need: Need, mask: int) -> tuple[int, int]:
    """(tasks, excess) of clearing a node for one task of whole GPUs, where nobody alone suffices: by sizes alone."""
    shapes = dict.fromkeys(cls.shape for cls in classes)
    most = max([1, *(group.needs[0].gpus for shape in shapes for group in shape.groups)])
    least = 1 if any(shape.elastic for shape in shapes) else 2
    free = range(min(need.gpus, len(space.whole)))
    costs = [(-(-(need.gpus - n) // most), -n * MICRO) for n in free if space.whole[n] & mask]
    return min(((max(least, count), excess) for count, excess in costs), default=(0, 0))


def by_place(turn: Turn, classes: Sequence[JobClass], need: Need, mask: int) -> tuple[int, int]:
    """The same by who runs where, if they could be stopped in any order. It looks at all of them."""
    by_name, by_seq = turn.state.space.by_name, turn.state.by_seq
    sizes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for cls in classes:
        simple = cls.shape.simple
        alike = (simple.gpus, simple.charge(0)) if simple is not None and not simple.in_bytes else None
        for _, _, seq in cls.running:
            job = by_seq[seq]
            if allows(turn, job, How.STOP):
                for place in job.places.values():
                    sizes[place.node].append(alike or (len(place.gpus), place.charge))
    costs = []
    for name, found in sizes.items():
        node = by_name[name]
        if mask >> node.number & 1:
            found.sort()
            cost = least_of(tuple(found), need.gpus - node.whole)
            if cost is not None:
                costs.append((cost[0], cost[1] - need.charge(node.memory)))
    return min(costs, default=(0, 0))


@lru_cache(maxsize=4096)
def least_of(sizes: tuple[tuple[int, int], ...], missing: int) -> tuple[int, int] | None:
    """Of tasks that hold so many GPUs and cost so much: how few have all that is missing, and the least these cost.

    Nodes with the same sizes are asked about by the thousand.
    """
    best: dict[int, tuple[int, int]] = {0: (0, 0)}
    for gpus, charge in sizes:
        for freed, (tasks, paid) in list(best.items()):
            if freed < missing:
                new = (tasks + 1, paid + charge)
                best[freed + gpus] = min(new, best.get(freed + gpus, new))
    return min((cost for freed, cost in best.items() if freed >= missing), default=None)
