"""What the service shows of jobs: the JSON of its API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.cluster.codec import plain
from gpushare.cluster.engines.runner import Result
from gpushare.cluster.engines.seam import SeenTask
from gpushare.cluster.model import Job, JobView
from gpushare.cluster.service.book import Ended, Entry

__all__ = ["ended_job", "live_job"]

Shown = dict[str, Any]


def live_job(entry: Entry, job: Job, view: JobView | None, tasks: Sequence[SeenTask]) -> Shown:
    """A job that is not over. `view`: as the allocator has it; `tasks`: as the engine has shown them."""
    shown = _base(entry, job)
    shown |= {
        "state": _state(entry, view, tasks),
        "reason": plain(view.reason) if view is not None and entry.result is None else None,
        "started": entry.started,
        "ended": None,
        "attempt": view.attempt if view is not None else entry.attempt,
        "evictions": view.evictions if view is not None else entry.evictions,
        "after": list(entry.after),
        "places": [plain(place) for place in view.places] if view is not None else [],
        "tasks": [_task(task) for task in tasks],
        "result": _result(entry.result),
    }
    return shown


def ended_job(one: Ended) -> Shown:
    shown = _base(one, one.job)
    shown |= {
        "state": "ended",
        "reason": None,
        "started": one.started,
        "ended": one.ended,
        "attempt": one.attempt,
        "evictions": one.evictions,
        "after": [],
        "places": [],
        "tasks": [],
        "result": _result(one.result),
    }
    return shown


def _base(one: Entry | Ended, job: Job) -> Shown:
    return {
        "id": one.id,
        "name": job.name,
        "user": one.user,
        "uid": one.uid,
        "queue": job.queue,
        "priority": job.priority,
        "preemptible": job.preemptible,
        "asks": [plain(tasks) for tasks in job.tasks],
        "submitted": one.submitted,
        "array": None if one.index is None else str(one.number),
        "index": one.index,
        "requeue": one.requeue,
    }


def _state(entry: Entry, view: JobView | None, tasks: Sequence[SeenTask]) -> str:
    holding = [task for task in tasks if task.holds]
    if entry.result is not None:
        return "stopping" if holding else "ended"
    if view is None or not view.places:
        if holding:
            return "stopping"
        return "held" if view is not None and view.held else "pending"
    return "running" if any(task.phase == "running" for task in holding) else "starting"


def _task(task: SeenTask) -> Mapping[str, Any]:
    return {
        "attempt": task.attempt,
        "group": task.group,
        "task": task.task,
        "node": task.node,
        "gpus": list(task.gpus),
        "phase": task.phase,
        "exit": task.exit,
        "why": task.why,
    }


def _result(result: Result | None) -> Mapping[str, Any] | None:
    return None if result is None else {"how": result.how, "exit": result.exit, "text": result.text}
