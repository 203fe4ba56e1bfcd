"""What a report of a cluster's queues says: GPUs of each queue over time, shares, what waits and why, and what was
decided. All of it comes from the cluster's service with the rights of the user who asks. Amounts are micro-GPUs, times
seconds since 1970.
"""

from __future__ import annotations

from typing import Any, TypedDict

from gpushare.cluster.client import ClusterClient
from gpushare.cluster.quantity import format_gpus
from gpushare.dashboard.about import About, about
from gpushare.errors import GpushareError, UsageError
from gpushare.nearest import what_there_is
from gpushare.report.contents import COARSER, COLUMNS, MOST_HAPPENINGS, Asked

__all__ = ["ALL", "QueueReport", "of_queues", "series_of"]

ALL = ""
"""The series of all queues together."""


class QueueReport(TypedDict):
    about: About
    since: float
    until: float
    queue: str | None  # the only queue that it is about
    cluster: dict[str, Any]  # as service/overview.py says; without nodes and jobs where the report ended earlier
    history: dict[str, Any]
    notices: list[dict[str, Any]]


def of_queues(client: ClusterClient, queue: str | None, asked: Asked) -> QueueReport:
    """The report of one queue, or of all. UsageError if there is no such queue."""
    overview = client.overview()
    names = [one["name"] for one in overview["queues"]]
    if queue is not None and queue not in names:
        raise UsageError(f"no queue {queue[:60]!r}", hint=what_there_is(queue, names))
    jobs = set() if queue is None else {job["id"] for job in client.jobs(ended=True, queue=queue)}
    history = _history(client, asked)
    if not asked.ends_now:
        overview = _then(overview, history)
    notices = [
        one
        for one in client.events(begin=asked.since)
        if one["time"] <= asked.until and (queue is None or one["job"] in jobs or _names(one, queue))
    ]
    return {
        "about": about("", read_only=True),
        "since": asked.since,
        "until": asked.until,
        "queue": queue,
        "cluster": overview,
        "history": history,
        "notices": notices[-MOST_HAPPENINGS:],
    }


def series_of(report: QueueReport) -> dict[str, list[list[float]]]:
    """The points of the leaf queues, in their order, or of the one queue that the report is about."""
    above = {one["parent"] for one in report["cluster"]["queues"]}
    found = {one["queue"]: one["points"] for one in report["history"]["series"]}
    names = [one["name"] for one in report["cluster"]["queues"] if one["name"] not in above]
    return {name: found[name] for name in names if name in found and report["queue"] in (None, name)}


def _history(client: ClusterClient, asked: Asked) -> dict[str, Any]:
    """The service limits its answers: if the beginning is left out, ask again with a coarser step."""
    since, until, step, _ = asked
    found = client.history(since, until, step or max(1.0, round((until - since) / COLUMNS)))
    for coarser in COARSER:
        if found["cut"] and coarser > found["step"]:
            found = client.history(since, until, coarser)
    if not found["kept"]:
        raise GpushareError(
            "the service has no history of its queues",
            hint="it could not write it, or not read it in time; its log says why",
        )
    return found


def _names(notice: dict[str, Any], queue: str) -> bool:
    return queue in str(notice["text"]).split()


def _then(overview: dict[str, Any], history: dict[str, Any]) -> dict[str, Any]:
    """The cluster as it was then, as far as the history knows. It does not know jobs and nodes."""
    last = {one["queue"]: one["points"][-1] for one in history["series"] if len(one["points"][-1]) > 1}
    queues = []
    for one in overview["queues"]:
        _, held, _, share, quota, demand = (int(value) for value in last.get(one["name"], [0] * 6))
        now = {"held": held, "share": share, "quota": quota, "demand": demand, "running": 0, "waiting": 0}
        queues.append({**one, **now, "sum": format_gpus(share)})
    return {**overview, "queues": queues, "loans": [], "nodes": [], "jobs": []}
