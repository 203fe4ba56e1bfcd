"""Fair shares: exact weighted max-min in integers, one level of the queue tree at a time.

What a level has to divide is its parent's share (at the top: all GPUs that work). In this order:

1. Quotas. Each queue gets min(quota, cap), where cap = min(limit, demand). If these add up to more than there is,
   the level of the water is raised on the quotas themselves: nobody is promised what does not exist.
2. Surplus, priority class by class from high to low. A class shares what is left by weight until each of its queues
   has its cap; only then does the next class see any of it.

Water filling: queues that want least per weight are satisfied first. With `left` to give and `weights` the sum over
those not yet satisfied, queue i is satisfied if want_i / weight_i <= left / weights; the comparison is done by
cross-multiplication, so it is exact. The rest share `left` in proportion, rounded down to micro-GPUs; the few that
rounding leaves over go to the largest remainders, then to the queues that came first.

A share never exceeds cap, the shares of a level never add up to more than there is, and a lower class gets nothing
of the surplus while a higher one wants more. Demand counts what runs and what waits alike, so starting or stopping a
job does not change any share: only arrivals, departures, new numbers and nodes do. That is what makes the potential
argument of proof.py work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Claim(NamedTuple):
    """What one queue brings to its level, in micro-GPUs."""

    quota: int | None
    cap: int
    weight: int
    priority: int


class Part(NamedTuple):
    """What it gets, and from what."""

    guaranteed: int
    surplus: int
    left: int
    """What its class had left for those not satisfied ..."""
    weights: int
    """... and their weights together."""
    capped: bool

    @property
    def share(self) -> int:
        return self.guaranteed + self.surplus


def divide(total: int, claims: Sequence[Claim]) -> list[Part]:
    """The parts of the claims, in their order, with what they come from."""
    shares, guaranteed, levels = share_out(
        total,
        [claim.quota for claim in claims],
        [claim.cap for claim in claims],
        [claim.weight for claim in claims],
        [claim.priority for claim in claims],
    )
    parts = []
    for share, base, claim in zip(shares, guaranteed, claims, strict=True):
        left, weights = levels.get(claim.priority, (0, 0))
        parts.append(Part(base, share - base, left, weights, share >= claim.cap))
    return parts


def share_out(
    total: int,
    quotas: Sequence[int | None],
    caps: Sequence[int],
    weights: Sequence[int],
    priorities: Sequence[int],
) -> tuple[list[int], list[int], dict[int, tuple[int, int]]]:
    """Shares; what of them is guaranteed; and by class what was left for the unsatisfied, with their weights."""
    base = [cap if quota is None or quota > cap else quota for quota, cap in zip(quotas, caps, strict=True)]
    promised = sum(base)
    if promised > total:
        gives, left, sum_of_weights = raise_level(total, base, [total if quota is None else quota for quota in quotas])
        return gives, gives, dict.fromkeys(priorities, (left, sum_of_weights))
    shares = list(base)
    levels: dict[int, tuple[int, int]] = {}
    surplus = total - promised
    for priority in sorted(set(priorities), reverse=True):
        if surplus <= 0:
            break
        members = [i for i, one in enumerate(priorities) if one == priority and caps[i] > base[i]]
        if members:
            wants = [caps[i] - base[i] for i in members]
            gives, *level = raise_level(surplus, wants, [weights[i] for i in members])
            levels[priority] = (level[0], level[1])
            for i, give in zip(members, gives, strict=True):
                shares[i] += give
            surplus -= sum(gives)
    return shares, base, levels


def raise_level(amount: int, wants: Sequence[int], weights: Sequence[int]) -> tuple[list[int], int, int]:
    """Weighted max-min of an amount; also what was left for the unsatisfied, and the sum of their weights."""
    gives = [0] * len(wants)
    order = [i for i, weight in enumerate(weights) if weight > 0]
    ratios: Sequence[int] = wants
    if len(set(weights)) > 1:
        # Shifted so far that quotients of any two different fractions of such numbers differ.
        ratios = [(want << 96) // weight if weight > 0 else 0 for want, weight in zip(wants, weights, strict=True)]
    order.sort(key=ratios.__getitem__)
    left, total = amount, sum(weights)
    satisfied = 0
    for i in order:
        if wants[i] * total > left * weights[i]:
            break
        gives[i] = wants[i]
        left -= wants[i]
        total -= weights[i]
        satisfied += 1
    rest = sorted(order[satisfied:])
    # Most queues of a level have one of a few weights.
    parts = {weight: divmod(left * weight, total) for weight in {weights[i] for i in rest}}
    over = left
    for i in rest:
        give = gives[i] = parts[weights[i]][0]
        over -= give
    if over and rest:
        if len(parts) > 1:
            rest.sort(key=lambda i: -parts[weights[i]][1])
        for i in rest[:over]:
            gives[i] += 1
    return gives, left, total
