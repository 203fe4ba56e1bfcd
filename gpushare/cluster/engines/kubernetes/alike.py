"""Pods of a group are tasks of one job, so they are in one queue and ask for the same of as many GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpushare.cluster.engines.kubernetes.groups import Line
from gpushare.kubernetes.amounts import written

if TYPE_CHECKING:
    from gpushare.cluster.engines.kubernetes.board import Member

__all__ = ["compare"]


def compare(members: Iterable[Member]) -> None:
    """Say of each that has not started why it is no part of its group."""
    firsts: dict[Line, Member] = {}
    for one in sorted(members, key=lambda one: (not one.mark.node, one.created, one.title)):
        line = one.line
        if line is None or line[0] != "group" or one.troubled or one.leaves or one.over or one.asked is None:
            continue
        first = firsts.setdefault(line, one)
        if not one.mark.node and _asks(one) != _asks(first):
            one.taken = (
                f"it asks for {_asks(one)}, and pod {first.title} of its group for {_asks(first)} "
                "(give all pods of a group the same claims and the same queue)"
            )


def _asks(one: Member) -> str:
    assert one.asked is not None
    tasks, queue = one.asked.tasks, one.queue
    gpus = "1 GPU" if tasks.gpus == 1 else f"{tasks.gpus} GPUs"
    part = gpus if tasks.memory is None else f"{written(tasks.memory)} of {gpus}"
    return f"{part} in queue {queue}" if queue else part
