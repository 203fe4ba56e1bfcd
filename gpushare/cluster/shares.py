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
argument of reclaim.py work.
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


NOTHING = Part(0, 0, 0, 0, False)


def divide(total: int, claims: Sequence[Claim]) -> list[Part]:
    """The parts of the claims, in their order."""
    base = [claim.cap if claim.quota is None or claim.quota > claim.cap else claim.quota for claim in claims]
    promised = sum(base)
    if promised > total:
        quotas = [total if claim.quota is None else claim.quota for claim in claims]
        gives, left, weights = raise_level(total, base, quotas)
        return [Part(give, 0, left, weights, give >= want) for give, want in zip(gives, base, strict=True)]
    parts = [Part(give, 0, 0, 0, give >= claim.cap) for give, claim in zip(base, claims, strict=True)]
    surplus = total - promised
    for priority in sorted({claim.priority for claim in claims}, reverse=True):
        if surplus <= 0:
            break
        members = [i for i, claim in enumerate(claims) if claim.priority == priority and claim.cap > base[i]]
        if not members:
            continue
        wants = [claims[i].cap - base[i] for i in members]
        gives, left, weights = raise_level(surplus, wants, [claims[i].weight for i in members])
        for i, give, want in zip(members, gives, wants, strict=True):
            parts[i] = Part(base[i], give, left, weights, give >= want)
        surplus -= sum(gives)
    return parts


def raise_level(amount: int, wants: Sequence[int], weights: Sequence[int]) -> tuple[list[int], int, int]:
    """Weighted max-min of an amount; also what was left for the unsatisfied, and the sum of their weights."""
    gives = [0] * len(wants)
    # Shifted so far that quotients of any two different fractions of such numbers differ.
    order = sorted((i for i, weight in enumerate(weights) if weight > 0), key=lambda i: (wants[i] << 96) // weights[i])
    left, total = amount, sum(weights[i] for i in order)
    satisfied = 0
    for i in order:
        if wants[i] * total > left * weights[i]:
            break
        gives[i] = wants[i]
        left -= wants[i]
        total -= weights[i]
        satisfied += 1
    rest = order[satisfied:]
    over = left
    for i in rest:
        gives[i] = left * weights[i] // total
        over -= gives[i]
    if over and rest:
        for i in sorted(rest, key=lambda i: (-(left * weights[i] % total), i))[:over]:
            gives[i] += 1
    return gives, left, total
