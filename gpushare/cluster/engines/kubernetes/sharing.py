"""Pods that name one claim together. Pure.

A claim is one budget on one node, so its pods are one task of the allocator. The first of them brings the claim to a
node, as any pod does. The others join it there when it has its GPUs: they get the same mark, and are evicted together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from gpushare.cluster.engines.kubernetes.member import Member
from gpushare.cluster.engines.kubernetes.names import GROUP, QUEUE, Key
from gpushare.cluster.engines.kubernetes.seen import Kept

__all__ = ["tie"]

ACTIVE = ("starting", "running", "stopping")


def tie(members: Iterable[Member], nodes: Mapping[str, Kept]) -> None:
    """Say of each member whom it follows, and why it does not start yet."""
    having: dict[Key, list[Member]] = {}
    for one in members:
        one.follows, one.waits, one.joins = None, "", False
        for key in one.keys:
            having.setdefault(key, []).append(one)
    shared = {one.uid: one for those in having.values() if len(those) > 1 for one in those}
    active = {uid for uid, one in shared.items() if one.phase in ACTIVE}
    waiting = [one for one in shared.values() if one.uid not in active and _waits(one)]
    for one in sorted(waiting, key=lambda one: (one.created, one.title)):
        _follow(one, [*_others(one, having)], active, nodes)
    for uid in active:
        one = shared[uid]
        one.joins = not one.bound and any(
            other.holds and other.uid in active and _same_start(one, other) for other in _others(one, having)
        )


def _waits(one: Member) -> bool:
    return not (one.wrong or one.leaves or one.over or one.bound or one.asked is None)


def _others(one: Member, having: Mapping[Key, list[Member]]) -> Iterator[Member]:
    found = {other.uid: other for key in one.keys for other in having[key] if other is not one}
    yield from sorted(found.values(), key=lambda other: (other.created, other.title))


def _same_start(one: Member, other: Member) -> bool:
    return (one.mark.job, one.mark.task, one.mark.attempt) == (other.mark.job, other.mark.task, other.mark.attempt)


def _follow(one: Member, others: Iterable[Member], active: Collection[str], nodes: Mapping[str, Kept]) -> None:
    """The first that has the claim, else the first that waits for it."""
    there = [other for other in others if other.uid in active]
    before = [other for other in others if _waits(other) and not other.follows and not other.held]
    leader = next(iter((*there, *(other for other in before if _order(other) < _order(one)))), None)
    if leader is None:
        return
    one.follows = leader
    title = "/".join(next(key for key in one.keys if key in leader.keys))
    one.waits = _unlike(one, leader, title) or _not_yet(one, there, leader, title, nodes)


def _order(one: Member) -> tuple[float, str]:
    return one.created, one.title


def _unlike(one: Member, leader: Member, title: str) -> str:
    """What makes it impossible that they are one task."""
    shares = f"it shares claim {title} with pod {leader.title}, "
    if set(one.keys) != set(leader.keys):
        return f"{shares}but not all of its claims (give both the same claims)"
    if any(member.line is not None and member.line[0] == "group" for member in (one, leader)):
        return f"{shares}and a pod group has a claim for each pod (leave out the group, {GROUP}, or the sharing)"
    if one.queue != leader.queue:
        return f"{shares}which is in another queue (give both the same label {QUEUE})"
    return ""


def _not_yet(one: Member, there: Collection[Member], leader: Member, title: str, nodes: Mapping[str, Kept]) -> str:
    if not there:
        return f"it shares claim {title} with pod {leader.title}, which starts first"
    if any(other.phase == "stopping" or other.leaves for other in there):
        return f"claim {title} is given back by pod {leader.title}"
    if not leader.holds or leader.mark.node not in nodes:
        return f"claim {title} is on its way to {leader.mark.node}, for pod {leader.title}"
    assert one.asked is not None
    if not set(one.asked.selector.labels) <= set(nodes[leader.mark.node].node.labels):
        return f"claim {title} is on {leader.mark.node}, for pod {leader.title}, and this pod does not fit that node"
    return ""
