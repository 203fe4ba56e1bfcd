"""What a report says: usage over time, the jobs, and what happened.

All of it comes from the daemon's API with the rights of the user who asks, so the setting `reveal` decides what a
report says of other users' jobs. Times are seconds since 1970, amounts are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypedDict, cast

from gpushare import api
from gpushare.api import OUTSIDE, TOTAL
from gpushare.client import Client
from gpushare.dashboard.about import About, about
from gpushare.errors import GpushareError, NoSuchJob, NotPermitted

__all__ = ["OUTSIDE", "TOTAL", "Asked", "Report", "end_of", "of_job", "of_node"]

COLUMNS = 600
"""Values that a chart of the page can show beside each other."""
COARSER = (10, 60, 3600)
"""Seconds: the steps of the daemon's history after the finest one."""
MOST_HAPPENINGS = 10_000
"""The latest are kept."""
MOST_LOOKED_UP = 100
"""Jobs that ended long ago; the daemon looks each of them up in its files."""
COMPUTING = 6
"""The place in a point of the part of the time in which the job had the GPU compute."""
ENDS_NOW = 2.0
"""Seconds. A report that ends so shortly before it is made shows the node as it is."""


class Asked(NamedTuple):
    """The time that a report is about."""

    since: float
    until: float
    step: float | None
    """Seconds between two values; None: as many values as a chart of the page can show."""
    now: float

    @property
    def ends_now(self) -> bool:
        return self.until >= self.now - ENDS_NOW


class State(TypedDict):
    """The node at the end of the report."""

    time: float
    daemon: api.Daemon
    gpus: list[api.Gpu]
    jobs: list[api.Job]
    pressure: list[api.GpuPressure]
    reservations: list[api.Reservation]


class Report(TypedDict):
    about: About
    since: float
    until: float
    job: str | None  # the id of the only job that it is about
    state: State
    waiting: list[api.Waiting]
    history: api.History
    happenings: list[api.Record]


def of_node(client: Client, asked: Asked) -> Report:
    """All that this user may see of the node."""
    history = _history(client, asked, None)
    found = [one for one in client.jobs(ended=True) if one["since"] < asked.until and end_of(one) > asked.since]
    return _report(client, asked, None, history, [*found, *_of_long_ago(client, history, found)])


def of_job(client: Client, job: api.Job, asked: Asked) -> Report:
    """One job, and nothing of others."""
    return _report(client, asked, job, _history(client, asked, job["id"]), [job])


def end_of(job: api.Job) -> float:
    """When the job ended; infinity if it lives, or if nobody saw its end."""
    outcome = job["outcome"]
    if outcome is None:
        return math.inf
    return outcome.get("ended") or math.inf


def _history(client: Client, asked: Asked, job: str | None) -> api.History:
    """The daemon limits its answers: if the beginning is left out, ask again with a coarser step."""
    since, until, step, _ = asked
    found = client.history(since, until, step or max(1.0, round((until - since) / COLUMNS)), job)
    for coarser in COARSER:
        if found["cut"] and coarser > found["step"]:
            found = client.history(since, until, coarser, job)
    if not found["kept"]:
        raise GpushareError(
            "the daemon has no history of the usage",
            hint="it could not write it, or not read it in time; its log says why",
        )
    return found


def _of_long_ago(client: Client, history: api.History, known: Iterable[api.Job]) -> list[api.Job]:
    """Jobs of the history that are no longer in the daemon's list."""
    missing = {one["job"] for one in history["series"]} - {TOTAL, OUTSIDE} - {job["id"] for job in known}
    found = []
    for id in sorted(missing)[:MOST_LOOKED_UP]:
        try:
            found.append(client.job(id))
        except NoSuchJob:
            continue  # its files are gone; its series still has its name
    return found


def _report(client: Client, asked: Asked, job: api.Job | None, history: api.History, jobs: list[api.Job]) -> Report:
    history = _until_ends(history, {job["id"]: end_of(job) for job in jobs if end_of(job) < asked.until})
    status = client.status()
    uuids = {one["gpu"] for one in history["series"]}
    gpus = [one for one in status["gpus"] if job is None or one["uuid"] in uuids]
    state: State = {
        "time": asked.until,
        "daemon": status["daemon"],
        "gpus": gpus,
        "jobs": jobs,
        "pressure": [],
        "reservations": [],
    }
    waiting: list[api.Waiting] = []
    if asked.ends_now:
        explanation = client.explain()
        waiting = [one for one in explanation["waiting"] if job is None or one["job"] == job["id"]]
        if job is None:
            state["pressure"] = explanation["pressure"]
            state["reservations"] = client.reservations()
    else:
        last = {(one["gpu"], one["job"]): one["points"][-1] for one in history["series"]}
        state["gpus"] = [_gpu_then(one, last) for one in gpus]
        state["jobs"] = [_job_then(one, asked.until, last) for one in jobs]
    state["jobs"] = [_of_this_time(one, asked, history) for one in state["jobs"]]
    return {
        "about": about("", read_only=True),
        "since": asked.since,
        "until": asked.until,
        "job": None if job is None else job["id"],
        "state": state,
        "waiting": waiting,
        "history": history,
        "happenings": _happenings(client, asked, job),
    }


def _until_ends(history: api.History, ends: Mapping[str, float]) -> api.History:
    """With the series of each job up to its end. The daemon sees only at its next sample that a series has ended."""
    series = [_until_end(one, ends[one["job"]]) if one["job"] in ends else one for one in history["series"]]
    return {**history, "series": [one for one in series if one["points"]]}


def _until_end(series: api.HistorySeries, end: float) -> api.HistorySeries:
    points = [point for point in series["points"] if point[0] < end]
    return {**series, "points": [*points, [end]] if points and len(points[-1]) > 1 else points}


def _happenings(client: Client, asked: Asked, job: api.Job | None) -> list[api.Record]:
    if job is None:
        found = client.records(asked.since)
    else:
        try:
            found = client.story(job["id"])["story"]
        except NotPermitted:
            found = []
    return [one for one in found if asked.since <= one["time"] <= asked.until][-MOST_HAPPENINGS:]


Last = dict[tuple[str, str], list[float]]
"""By GPU and job, the last point before the end."""


def _amounts(last: Last, gpu: str, job: str) -> tuple[int, int, int, int]:
    """Usage, request, limit and loan; zeros where nothing is known."""
    point = last.get((gpu, job), [])
    if len(point) < 6:
        return 0, 0, 0, 0
    _, usage, _, request, limit, loan = (int(one) for one in point[:6])
    return usage, request, limit, loan


def _gpu_then(gpu: api.Gpu, last: Last) -> api.Gpu:
    """The GPU as it was, as far as the history knows."""
    usage, requested, capacity, lent = _amounts(last, gpu["uuid"], TOTAL)
    outside = _amounts(last, gpu["uuid"], OUTSIDE)[0]
    then: dict[str, Any] = {
        **gpu,
        "usage": usage,
        "requested": requested,
        "lent": lent,
        "unmanaged": outside,
        "unmanaged_processes": [],
        "returning": 0,
        "free": max(0, capacity - usage - outside),
        "health": {"state": "ok", "shortfall": 0, "ailments": []},
    }
    return cast(api.Gpu, then)


def _job_then(job: api.Job, until: float, last: Last) -> api.Job:
    """The job as it was, as far as the history knows."""
    if end_of(job) <= until:
        return job
    gpus = []
    for gpu in job["gpus"]:
        usage, request, limit, loan = _amounts(last, gpu["uuid"], job["id"])
        gpus.append({**gpu, "usage": usage, "request": request, "limit": limit, "loan": loan})
    borrows = any(gpu["loan"] for gpu in gpus)
    then = {**job, "gpus": gpus, "processes": [], "outcome": None, "state": "borrowing" if borrows else "running"}
    return cast(api.Job, then)


def _of_this_time(job: api.Job, asked: Asked, history: api.History) -> api.Job:
    """Its peak and its GPU time on each GPU are those of the report's time. A job that was too short for the history
    keeps its own peak, and one that ran in this time alone its own GPU time."""
    whole = job["since"] >= asked.since and end_of(job) <= asked.until
    gpus = {gpu["uuid"]: gpu.copy() for gpu in job["gpus"]}
    for one in history["series"]:
        gpu = gpus.get(one["gpu"]) if one["job"] == job["id"] else None
        if gpu is None:
            continue
        gpu["peak"] = max((int(point[2]) for point in one["points"] if len(point) > 2), default=0)
        if not whole and any(len(point) > COMPUTING for point in one["points"]):
            gpu["gpu_time"] = gpu_time(one, asked.until)
    return cast(api.Job, {**job, "gpus": list(gpus.values())})


def gpu_time(series: api.HistorySeries, until: float) -> float:
    """Seconds in which the job had the GPU compute."""
    ends = [*(point[0] for point in series["points"][1:]), until]
    known = [(point, end) for point, end in zip(series["points"], ends, strict=True) if len(point) > COMPUTING]
    return sum(point[COMPUTING] * max(0.0, end - point[0]) for point, end in known)
