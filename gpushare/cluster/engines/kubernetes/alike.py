"""Pods of a group are tasks of one job, so they are in one queue, ask for the same of as many GPUs, and run on nodes
that suit each of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gpushare.cluster.engines.kubernetes.groups import Line
from gpushare.cluster.engines.kubernetes.member import Member
from gpushare.cluster.engines.kubernetes.names import Thing
from gpushare.cluster.model import Selector
from gpushare.kubernetes.amounts import written

__all__ = ["compare", "find_nodes", "selector"]

HINT = "give them the same node selector, affinity and tolerations, and volumes that one node can reach"


def compare(members: Iterable[Member]) -> None:
    """Say of each that has not started why it is no part of its group."""
    firsts: dict[Line, Member] = {}
    for one in sorted(members, key=lambda one: (not one.mark.node, one.created, one.title)):
        line = one.line
        if line is None or line[0] != "group" or not _is_read(one):
            continue
        first = firsts.setdefault(line, one)
        if not one.mark.node and _asks(one) != _asks(first):
            one.taken = (
                f"it asks for {_asks(one)}, and pod {first.title} of its group for {_asks(first)} "
                "(give all pods of a group the same claims and the same queue)"
            )


def selector(members: Collection[Member]) -> Selector:
    """Of nodes that suit all of these, as far as they are to run still."""
    if len(members) > 1:
        members = [one for one in members if not one.over and not one.leaves] or members
    found = {one.asked.selector for one in members if one.asked is not None}
    if len(found) == 1:
        return found.pop()
    return Selector(labels=tuple(sorted({label for one in found for label in one.labels})))


def find_nodes(members: Iterable[Member], nodes: Mapping[str, Thing]) -> None:
    """Say of groups that have not started that no node suits all of their pods. `nodes`: those with GPUs."""
    waiting: dict[Line, list[Member]] = {}
    for one in members:
        line = one.line
        if line is not None and line[0] == "group" and one.phase in (None, "failed") and _is_read(one):
            waiting.setdefault(line, []).append(one)
    for those in waiting.values():
        why = _no_node(sorted(those, key=lambda one: (one.created, one.title)), nodes)
        for one in those if why else ():
            one.taken = why


def _is_read(one: Member) -> bool:
    return not (one.troubled or one.leaves or one.over or one.asked is None)


def _no_node(group: Iterable[Member], nodes: Mapping[str, Thing]) -> str:
    """The pods of most groups say the same: then there is nothing to look for."""
    unlike: dict[tuple[tuple[str, str], ...], Member] = {}
    for one in group:
        assert one.asked is not None
        unlike.setdefault(one.asked.selector.labels, one)
    left = list(nodes.values()) if len(unlike) > 1 else []
    for number, one in enumerate(unlike.values()):
        those = [node for node in left if one.asked is not None and one.asked.suits(node)]
        if number and left and not those:
            suit = "1 node suits" if len(left) == 1 else f"{len(left)} nodes suit"
            others = f"{suit} the pods before {one.title}, which may run on none of these"
            return f"no node suits all pods of its group: {others} ({HINT})"
        left = those
    return ""


def _asks(one: Member) -> str:
    assert one.asked is not None
    tasks, queue = one.asked.tasks, one.queue
    gpus = "1 GPU" if tasks.gpus == 1 else f"{tasks.gpus} GPUs"
    part = gpus if tasks.memory is None else f"{written(tasks.memory)} of {gpus}"
    return f"{part} in queue {queue}" if queue else part
