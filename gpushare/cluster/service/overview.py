"""The cluster at a glance: queues with the sums that their shares come from, loans, nodes GPU by GPU, and jobs.

It is what a page shows, made in one call. It has only the first jobs, so that it is made quickly; each queue says how
many there are. Amounts are micro-GPUs and bytes, times seconds since 1970.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from gpushare.cluster.allocator import Allocator
from gpushare.cluster.amounts import capacity
from gpushare.cluster.codec import plain
from gpushare.cluster.model import Job, JobView, NodeView
from gpushare.cluster.quantity import MICRO
from gpushare.cluster.service.book import Entry

__all__ = ["overview", "state_of"]

MOST_HOLDING = 1000
MOST_WAITING = 1000
"""So many are looked at, those that came first."""
MOST_OF_A_QUEUE = 100
"""Of those that wait."""


def overview(allocator: Allocator, entries: Mapping[str, Entry], now: float) -> dict[str, Any]:
    """`entries` are the service's records of jobs that are not over; `now` is the time of its clock."""
    return {
        "time": now,
        "capacity": capacity(allocator),
        "queues": list(_queues(allocator)),
        "loans": [plain(loan) for loan in allocator.loans()],
        "nodes": [_node(name, view) for name, view in allocator.nodes.items()],
        "jobs": list(_jobs(allocator, entries, now)),
    }


def _queues(allocator: Allocator) -> Iterator[dict[str, Any]]:
    shares = allocator.shares()
    for name, view in allocator.queues.items():
        share = shares[name]
        yield {
            **plain(view.queue),
            "held": view.allocated,
            "share": share.share,
            "sum": share.words,
            "demand": view.demand,
            "waiting": view.pending,
            "running": view.running,
        }


def _node(name: str, view: NodeView) -> dict[str, Any]:
    foreign = dict(view.foreign)
    return {
        "name": name,
        "type": view.node.type,
        "memory": view.node.memory,
        "state": state_of(view),
        "gpus": [
            {
                "broken": index in view.node.broken,
                "held": 0 if index in view.node.broken else max(0, view.node.memory - free - foreign.get(index, 0)),
                "foreign": foreign.get(index, 0),
            }
            for index, free in enumerate(view.free)
        ],
    }


def state_of(view: NodeView) -> str:
    """In one word."""
    if not view.alive:
        return "lost"
    return "unknown" if view.unknown else "cordoned" if view.cordoned else "ready"


def _jobs(allocator: Allocator, entries: Mapping[str, Entry], now: float) -> Iterator[dict[str, Any]]:
    """The first of those that hold GPUs, and the first of those that wait, few of each queue."""
    ago = now - allocator.now
    holding = allocator.holding
    for id in holding[:MOST_HOLDING]:
        view = allocator.jobs[id]
        yield _job(id, view, entries.get(id), view.since + ago)
    held, shown = set(holding), Counter[str]()
    for id in islice((id for id in allocator.jobs if id not in held), MOST_WAITING):
        view = allocator.jobs[id]
        shown[view.job.queue] += 1
        if shown[view.job.queue] <= MOST_OF_A_QUEUE:
            yield _job(id, view, entries.get(id), view.since + ago)


def _job(id: str, view: JobView, entry: Entry | None, since: float) -> dict[str, Any]:
    """`since`: submitted or started, where the service does not know it."""
    started = entry.started if entry is not None and view.places else None
    submitted = entry.submitted if entry is not None else None
    return {
        "id": id,
        "name": view.job.name,
        "queue": view.job.queue,
        "user": entry.user if entry is not None else "",
        "uid": entry.uid if entry is not None else -1,
        "state": "held" if view.held else view.state,
        "priority": view.job.priority,
        "preemptible": view.job.preemptible,
        "gpus": view.charge or _asked(view.job),
        "since": started or submitted or since,
        "evictions": view.evictions,
        "reason": view.reason.message,
        "places": [[place.node, list(place.gpus)] for place in view.places],
    }


def _asked(job: Job) -> int:
    """Micro-GPUs at most; of memory it depends on the GPU, and counts as nothing here."""
    return sum(
        group.top * group.gpus * (MICRO if group.share is None else group.share)
        for group in job.tasks
        if group.memory is None
    )
