"""What keeps nodes from a job that waits, beside the jobs of queues: closed nodes, and programs of others.

Each as a line for people, and as changes that take it away: explain.py tries out whether they start the job.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpushare.cluster.jobs import JobState
from gpushare.cluster.model import Event, ForeignUse, NodeUncordoned
from gpushare.cluster.reasons import show
from gpushare.cluster.space import FOREVER, NodeState
from gpushare.cluster.state import State
from gpushare.quantity import format_bytes, format_duration

__all__ = ["open_a_node", "said", "without_others"]

MOST_LINES = 4
"""Of nodes with programs of others; the rest is not named."""

Steps = list[tuple[str, Event]]


def said(state: State, job: JobState, now: float) -> Iterator[str]:
    """What stands in the way of a job on the nodes that it may use, one line each."""
    nodes = list(_usable(state, job))
    for names, words in (
        ([node.spec.name for node in nodes if node.cordoned], "cordoned: nothing starts there"),
        ([node.spec.name for node in nodes if node.unknown], "silent: nothing starts there before it answers"),
    ):
        if names:
            yield f"{show('nodes', names)} {'is' if len(names) == 1 else 'are'} {words}"
    for node in nodes:
        if node.until > -FOREVER:
            rest = format_duration(max(0.0, node.until - now))
            last = f", last {node.trouble}" if node.trouble else ""  # an earlier version kept none
            yield f"{node.spec.name} rests for {rest} more: jobs did not start there{last}"
    taken = [node for node in nodes if node.foreign]
    for node in taken[:MOST_LINES]:
        parts = [f"{format_bytes(used)} of GPU {gpu}" for gpu, used in sorted(node.foreign.items())]
        name = node.spec.name
        yield f"programs beside the queues use {', '.join(parts)} of {name}: `gpushare ps` there lists them"


def open_a_node(state: State, job: JobState) -> Steps:
    """The next node that is cordoned; the next call goes one further."""
    for node in _usable(state, job):
        if node.cordoned:
            return [(f"uncordon {node.spec.name}", NodeUncordoned(node.spec.name))]
    return []


def without_others(state: State, job: JobState) -> Steps:
    """The GPU of which others use least; the next call goes one further."""
    taken = [
        (used, node.number, gpu, node.spec.name)
        for node in _usable(state, job)
        if not node.closed
        for gpu, used in node.foreign.items()
    ]
    if not taken:
        return []
    _, _, gpu, name = min(taken)
    return [(f"end the programs beside the queues on GPU {gpu} of {name}", ForeignUse(name, gpu, 0))]


def _usable(state: State, job: JobState) -> Iterator[NodeState]:
    return state.space.among(state.space.reach(job.job.selector))
