"""Answers of a daemon, for reports: two hours of a node with two GPUs, and what a client would be told of them."""

from __future__ import annotations

import time
from typing import Any

from gpushare import api
from gpushare.errors import NoSuchJob, NotPermitted
from gpushare.report import contents
from gpushare.report.contents import Report

GIB = 2**30
UNTIL = 1_790_000_040.0
"""A whole minute."""
SINCE = UNTIL - 7200
GPUS = ("GPU-a", "GPU-b")
HOSTILE = "</script><script>ran=1</script><img src=x onerror=ran=1>&\u2028"

Point = list[float]


def point(time: float, usage: float, request: float = 4, limit: float = 14, most: float | None = None) -> Point:
    """Amounts in GiB."""
    amounts = (usage, usage if most is None else most, request, limit, max(0.0, usage - request))
    return [time, *(round(amount * GIB) for amount in amounts)]


def job(id: str, name: str, gpu: int = 0, *, since: float = SINCE, ended: float | None = None) -> dict[str, Any]:
    outcome = {
        "exit_code": 0,
        "signal": None,
        "killed": None,
        "peak": {},
        "refusals": 0,
        "duration": (ended or since) - since,
        "ended": ended,
    }
    on = {
        "uuid": GPUS[gpu],
        "index": gpu,
        "name": "software GPU",
        "total": 16 * GIB,
        "request": 4 * GIB,
        "limit": 14 * GIB,
        "usage": 0 if ended else 3 * GIB,
        "accounted": 0,
        "overhead": 0,
        "loan": 0,
        "credit": 0,
        "peak": 12 * GIB,
        "grantable": 0,
        "health": "ok",
    }
    return {
        "id": id,
        "name": name,
        "user": "anna",
        "uid": 1000,
        "command": ["python", "train.py"],
        "state": "ended" if ended else "running",
        "since": since,
        "priority": 0,
        "lend": True,
        "grace": None,
        "on_reclaim": ["trim", "term", "kill"],
        "request_source": "--request",
        "limit_source": "--limit",
        "gpus": [on],
        "processes": [],
        "outcome": outcome if ended else None,
    }


def series(job: str, points: list[Point], name: str = "", gpu: int = 0, user: str = "anna") -> dict[str, Any]:
    return {"gpu": GPUS[gpu], "job": job, "name": name, "user": user if name else "", "points": points}


def record(time: float, event: str, job: str | None, text: str, gpu: str | None = GPUS[0]) -> dict[str, Any]:
    return {"time": time, "event": event, "gpu": gpu, "job": job, "name": "train", "text": text, "facts": {}}


TRAIN, SERVER, NAMED = "00000000000000a1", "00000000000000b2", "00000000000000c3"
JOBS = [
    job(TRAIN, "train", ended=UNTIL - 600, since=SINCE - 60),
    job(SERVER, "server", since=SINCE + 1800),
    job(NAMED, HOSTILE, gpu=1),
]
SERIES = [
    series("", [point(SINCE, 6, 8, 15.5), point(UNTIL - 600, 3, 4, 15.5)]),
    series("", [point(SINCE, 1, 4, 15.5)], gpu=1),
    series("outside", [point(SINCE, 0, 0, 0), point(SINCE + 600, 1, 0, 0), point(SINCE + 1200, 0, 0, 0)]),
    series("outside", [point(SINCE, 0, 0, 0)], gpu=1),
    series(
        TRAIN,
        [
            point(SINCE, 6, most=7),
            point(SINCE + 1800, 11, most=12),
            point(SINCE + 3600, 3),
            point(SINCE + 5400, 6, 4, 8),
            [UNTIL - 600],
        ],
        "train",
    ),
    series(SERVER, [point(SINCE + 1800, 1, 8, 8), point(SINCE + 3600, 7, 8, 8), point(UNTIL - 300, 3, 8, 8)], "server"),
    series(NAMED, [point(SINCE, 1)], HOSTILE, gpu=1),
]
RECORDS = [
    record(SINCE - 30, "admitted", TRAIN, "before the report"),
    record(SINCE + 3580, "claim_waits", SERVER, "waits for 5.0 GiB"),
    record(SINCE + 3590, "trim", TRAIN, "asked to trim its caches"),
    record(SINCE + 3600, "claim_met", SERVER, "claim of 5.0 GiB met"),
]


WAITING = [
    {"job": id, "message": f"{id} waits", "since": UNTIL - 9, "until": UNTIL + 9, "hint": None}
    for id in (SERVER, NAMED)
]
STALL = {"avg10": 0.1, "avg60": 0.2, "avg300": 0.3, "total": 4.0}
PRESSURE = [{"uuid": GPUS[0], "index": 0, "some": STALL, "full": STALL}]
RESERVED = [
    {
        "id": "00000000000000d4",
        "name": "evening",
        "user": "anna",
        "uid": 1000,
        "until": None,
        "gpus": [{"uuid": GPUS[1], "index": 1, "amount": GIB, "remainder": GIB}],
        "jobs": [],
    }
]


class Client:
    """Answers as gpushare.client.Client does, and remembers how it was asked for the history."""

    def __init__(self, **changed: Any) -> None:
        self.found = {"kept": True, "cut_below": 0, "series": SERIES, "jobs": JOBS, "records": RECORDS} | changed
        self.asked: list[tuple[float, float, float, str | None]] = []
        self.looked_up: list[str] = []

    def status(self) -> Any:
        gpus = [
            {
                "uuid": uuid,
                "index": index,
                "name": "software GPU",
                "total": 16 * GIB,
                "reserve": GIB // 2,
                "capacity": 15 * GIB + GIB // 2,
                "requested": 4 * GIB,
                "usage": 3 * GIB,
                "lent": 0,
                "free": 12 * GIB,
                "unmanaged": 0,
                "unmanaged_processes": [{"pid": 1, "bytes": 1, "command": "x", "user": "-", "reason": "unknown"}],
                "returning": GIB // 2,
                "health": {"state": "sick", "shortfall": 0, "ailments": []},
            }
            for index, uuid in enumerate(GPUS)
        ]
        living = [one for one in self.found["jobs"] if one["outcome"] is None]
        return {"daemon": {"version": "0.1.0", "uptime": 9.0, "jobs": len(living)}, "gpus": gpus, "jobs": living}

    def jobs(self, *, ended: bool = False) -> Any:
        return [one for one in self.found["jobs"] if ended or one["outcome"] is None]

    def job(self, name: str) -> Any:
        self.looked_up.append(name)
        for one in self.found.get("earlier", ()):
            if one["id"] == name:
                return one
        raise NoSuchJob(f"no job {name}")

    def find_job(self, name: str) -> Any:
        return next(one for one in self.found["jobs"] if name in (one["name"], one["id"]))

    def history(self, since: float, until: float, step: float, job: str | None = None) -> Any:
        """As `cut_below` says, steps that are too short for all of the range leave out some."""
        self.asked.append((since, until, step, job))
        kept = max(one for one in (1, 10, 60, 3600) if one <= max(1, step))
        found = [one for one in self.found["series"] if job in (None, one["job"])]
        return {
            "kept": self.found["kept"],
            "step": kept,
            "cut": kept < self.found["cut_below"],
            "series": found if self.found["kept"] else [],
        }

    def explain(self) -> Any:
        return {"gpus": [], "waiting": WAITING, "pressure": PRESSURE, "records": []}

    def reservations(self) -> Any:
        return RESERVED

    def records(self, since: float | None = None) -> Any:
        return [one for one in self.found["records"] if since is None or one["time"] >= since]

    def story(self, job: str) -> Any:
        if self.found.get("closed"):
            raise NotPermitted("another's")
        return {"story": self.found["records"]}


def wait_for_history(client: Any, job: str) -> None:
    """Until a real daemon has kept a whole second of this series."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        now = time.time()
        found = client.history(now - 60, now, 1)["series"]
        if any(one["job"] == job and one["points"][0][0] < now - 2 for one in found):
            return
        time.sleep(0.1)
    raise AssertionError(f"the history has nothing of {job!r}")


def node_report(client: Any = None, until: float = UNTIL, now: float = UNTIL) -> Report:
    return contents.of_node(client or Client(), contents.Asked(SINCE, until, None, now))


def job_report(id: str, client: Any = None, until: float = UNTIL, now: float = UNTIL) -> Report:
    client = client or Client()
    found: api.Job = client.find_job(id)
    return contents.of_job(client, found, contents.Asked(SINCE, until, None, now))
