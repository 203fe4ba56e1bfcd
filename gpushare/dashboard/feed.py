"""The state that a page of the dashboard shows: which streams and calls it comes from, and what has changed in it. The
daemon has the state of the node, the service behind `gpushare cluster serve` that of the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.api import OUTSIDE, TOTAL
from gpushare.dashboard.daemon import Daemon

__all__ = ["CLUSTER", "NODE", "Feed", "State", "difference", "jobs_of", "joined", "lost"]

State = dict[str, Any]
NOTHING_EARLIER = 2**62
"""A number that no notice of the cluster's service reaches."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Where the state of the node, or of the cluster, comes from."""

    records: str
    """The stream of what happens."""
    changes: str
    """The stream of changed amounts. It tells which jobs to read again; the amounts come from the state."""
    read: Callable[[Daemon], Awaitable[State]]
    """The whole state."""
    read_jobs: Callable[[Daemon, Iterable[str]], Awaitable[State]] | None
    """The state with only these jobs in its list. None: that would cost as much as the whole state."""
    lists: Mapping[str, str]
    """Lists of which a page is told only the changed items, with the field that identifies an item."""
    whole: tuple[str, ...]
    """Fields that are told whole."""
    pause: float
    """The least seconds between two readings of the state while lines come."""


async def _node(daemon: Daemon) -> State:
    status = await daemon.get("/v1/status")
    pressure = await daemon.get("/v1/pressure")
    reservations = await daemon.get("/v1/reservations")
    return {"time": time.time(), **status, "pressure": pressure["gpus"], **reservations}


async def _jobs_of_node(daemon: Daemon, jobs: Iterable[str]) -> State:
    status = await daemon.get(f"/v1/status?jobs={','.join(jobs)}")
    pressure = await daemon.get("/v1/pressure")
    return {"time": time.time(), **status, "pressure": pressure["gpus"]}


async def _cluster(service: Daemon) -> State:
    overview: State = await service.get("/v1/overview")
    return overview


NODE = Feed(
    records="/v1/events?follow=1&last=0",
    changes="/v1/history?follow=1",
    read=_node,
    read_jobs=_jobs_of_node,
    lists={"gpus": "uuid", "jobs": "id", "pressure": "uuid"},
    whole=("reservations",),
    pause=0.1,
)
CLUSTER = Feed(
    records=f"/v1/events?follow=1&since={NOTHING_EARLIER}",
    changes="/v1/history?follow=1",
    read=_cluster,
    read_jobs=None,
    lists={"queues": "name", "nodes": "name", "jobs": "id"},
    whole=("loans", "capacity", "engine", "you"),
    pause=0.8,
)


def jobs_of(line: State) -> set[str] | None:
    """The jobs that a line of one of the node's streams is about. None: it is about something else, too."""
    if "series" in line:
        return {one["job"] for one in line["series"]} - {TOTAL, OUTSIDE}
    job = line.get("job")
    return {job} if job else None


def joined(before: State, found: State, asked: Iterable[str]) -> State:
    """The state before, updated with what was `found` when only the `asked` jobs were read."""
    fresh = {one["id"]: one for one in found["jobs"]}
    gone = {id for id in asked if id not in fresh}
    jobs = [fresh.pop(one["id"], one) for one in before["jobs"] if one["id"] not in gone]
    return {**before, **found, "jobs": [*jobs, *fresh.values()]}


def difference(before: State, after: State, feed: Feed = NODE) -> State | None:
    """What a page that has `before` must be told to have `after`; None: nothing. Up-time and clock do not count.

    `gone` has the ids of jobs that are over."""
    changed: State = {}
    for name, key in feed.lists.items():
        known = {one[key]: one for one in before[name]}
        found = [one for one in after[name] if known.get(one[key]) != one]
        if found:
            changed[name] = found
    gone = _missing(before["jobs"], after["jobs"], "id")
    if gone:
        changed["gone"] = gone
    changed |= {name: after[name] for name in feed.whole if before[name] != after[name]}
    return {"time": after["time"], **changed} if changed else None


def lost(before: State, after: State, feed: Feed) -> bool:
    """Whether something other than a job is gone: then the page is told the whole state."""
    return any(_missing(before[name], after[name], key) for name, key in feed.lists.items() if name != "jobs")


def _missing(before: list[State], after: list[State], key: str) -> list[Any]:
    living = {one[key] for one in after}
    return [one[key] for one in before if one[key] not in living]
