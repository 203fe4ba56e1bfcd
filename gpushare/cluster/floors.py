"""Floors: lower bounds of how many tasks must be disturbed to make room. An answer equal to its floor is optimal.

They look at numbers of jobs and GPUs, not at rules, so the truth may be more and never less.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpushare.cluster.jobs import JobClass


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
