"""The history of earlier daemons, for the API: ended jobs, records, stories.

A daemon that starts loads as many ended jobs and records as it keeps in memory. The rest stays in the files
(gpushare/history.py) and is read on request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpushare import api, job_spec
from gpushare.history import History, Stop
from gpushare.quantity import MAX, NOTHING
from gpushared.core.instructions import Record
from gpushared.core.transaction import STORY_LINES
from gpushared.core.visibility import Viewer
from gpushared.jobs.ending import Ending
from gpushared.jobs.historian import Historian
from gpushared.jobs.registry import ENDED_KEPT, JobRecord, JobRegistry, JobState
from gpushared.jobs.totals import Totals
from gpushared.system.logs import facts, log

START_WITHIN = 1.0
"""Seconds that a starting daemon waits for the history, which may lie on a file server."""


class Before(NamedTuple):
    """As History has them."""

    jobs: list[dict[str, Any]]
    records: list[dict[str, Any]]
    stops: Mapping[str, Stop] = {}


async def read(historian: Historian) -> Before:
    """Read the history before this daemon writes any. Empty if that takes too long."""

    def look(history: History) -> Before:
        last = history.last_lines()
        stops = {one.job["id"]: one.stop for one in last if one.stop is not None}
        records = history.records(most=STORY_LINES).records
        return Before([one.ended() for one in last[-ENDED_KEPT:]], records, stops)

    return await historian.ask(0, look, START_WITHIN) or Before([], [])


def take_up(registry: JobRegistry, before: Before) -> list[Record]:
    """Add the ended jobs to the registry, which has those that live already. Returns the earlier records."""
    jobs, records, stops = before
    taken = [_record_of(job) for job in jobs if registry.get(job["id"]) is None]
    for record in taken:
        registry.take_up(record)
    for living in registry.live():
        living.of_earlier_daemon = True
        stop = stops.get(living.id)
        if stop is not None and stop.last:
            living.ending.reclaim = stop.killed
        elif stop is not None:
            living.ending.relieved = stop.killed  # the claim begins again; the job may be about to end all the same
    offset = time.monotonic() - time.time()
    if taken:
        log.info("the history was read", extra=facts(ended_jobs=len(taken)))
    return [_record(one, offset) for one in records]


def users_for(viewer: Viewer) -> frozenset[int] | None:
    """The users whose records this viewer may read; None: all."""
    return None if viewer.reveal == "name" or viewer.may_see_all else frozenset((viewer.uid,))


def shown(record: Mapping[str, Any], viewer: Viewer) -> api.Record:
    """A record of the history as this viewer may read it."""
    return {
        "time": record["time"],
        "name": record["name"],
        "event": record["event"],
        "gpu": record["gpu"],
        "job": record["job"],
        "text": str(viewer.data(record["text"])),
        "facts": viewer.facts(record["facts"]),
    }


def note_of_cut(records: Sequence[api.Record]) -> list[api.Record]:
    """The line that stands for earlier ones that are not in the answer."""
    when = records[0]["time"] if records else time.time()
    text = "earlier events are left out here: there are too many"
    return [{"time": when, "name": None, "event": "lost", "gpu": None, "job": None, "text": text, "facts": {}}]


def _record_of(job: dict[str, Any]) -> JobRecord:
    outcome = job["outcome"]
    spec = job_spec.from_view(job, request=NOTHING, limit=MAX)
    record = JobRecord(job["id"], spec, started=job["since"], state=JobState.ENDED, of_earlier_daemon=True)
    record.ending = Ending(
        reclaim=outcome["killed"],
        exit_code=outcome["exit_code"],
        exit_signal=outcome["signal"],
        at=outcome.get("ended"),
        duration=outcome["duration"],
        seen=outcome.get("seen", True),
        last_seen={"gpus": job["gpus"]},
    )
    record.totals = Totals(
        peak=dict(outcome["peak"]), gpu_time=dict(outcome.get("gpu_time", {})), refusals=outcome["refusals"]
    )
    return record


def _record(one: dict[str, Any], offset: float) -> Record:
    """`offset`: from the wall's clock to the core's."""
    return Record(
        one["time"] + offset, one["event"], one["gpu"], one["text"], one["facts"], one["job"], one["name"], one["uid"]
    )
