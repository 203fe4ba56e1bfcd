"""The history files that a daemon writes, and how to read them without a daemon.

Each user has files of its own, of a bounded size, so that one user's history cannot push out another's:

    UID.jobs     a line when a job begins, when it is told to end, and when it has ended, as the API shows the job
    UID.events   the records of the user's jobs and reservations, as in `gpushare events`
    node.events  records that concern no user

A full file is renamed to NAME.old, which it replaces. A line is a JSON object that begins with its time. Later versions
only add fields. Readers skip other lines (torn by a crash, or garbage).

A text or a value may name another user's job. It is kept as a Mention, so that the daemon can show each reader what
that reader may see. Only the files' owner and root can open the files; they read everything.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from gpushare import api
from gpushare.reasons import Mention, Text

__all__ = [
    "EVENTS",
    "JOBS",
    "NODE",
    "OLD",
    "Found",
    "History",
    "JobLine",
    "Stop",
    "file_name",
    "told",
    "whose",
    "written",
]

JOBS, EVENTS, OLD, NODE = "jobs", "events", ".old", "node"
NAMES = re.compile(rf"(\d+|{NODE})\.({JOBS}|{EVENTS})({re.escape(OLD)})?")

READ_AT_MOST = 8 * 2**20
"""Most bytes that one question reads from all files together: the end of each file, in equal parts."""
RECORDS_AT_MOST = 2000
"""Most records in one answer: the latest."""


def file_name(uid: int | None, kind: str) -> str:
    return f"{NODE if uid is None else uid}.{kind}"


def whose(name: str) -> int | None:
    """The user that a file's name gives; None: no user. Raises ValueError for another file."""
    match = NAMES.fullmatch(name)
    if match is None:
        raise ValueError(name)
    return None if match[1] == NODE else int(match[1])


# ---- mentions ---------------------------------------------------------------------------------------


def written(value: object) -> object:
    """A value that JSON can hold, with mentions kept apart from plain text."""
    if isinstance(value, Mention):
        return {"mention": [value.uid, value.own, value.by_name, value.by_user, value.by_none]}
    if isinstance(value, Text):
        return {"words": [written(part) for part in value.parts]}
    if isinstance(value, Mapping):
        return {str(key): written(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [written(one) for one in value]
    return value


def _read(value: object) -> object:
    """The reverse of written(). Raises ValueError, KeyError or TypeError for other data."""
    if isinstance(value, list):
        return [_read(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"mention"}:
        uid, *forms = value["mention"]
        return Mention(int(uid), str(forms[0]), *map(_maybe_text, forms[1:]))
    if value.keys() == {"words"}:
        parts = [_read(part) for part in value["words"]]
        return Text(tuple(part if isinstance(part, Mention) else str(part) for part in parts))
    return {key: _read(one) for key, one in value.items()}


def _maybe_text(value: object) -> str | None:
    return None if value is None else str(value)


def told(value: object) -> object:
    """The value with its mentions in full, for readers who may see everything."""
    if isinstance(value, Mention):
        return value.own
    if isinstance(value, Text):
        return "".join(part if isinstance(part, str) else part.own for part in value.parts)
    if isinstance(value, dict):
        return {key: told(one) for key, one in value.items()}
    if isinstance(value, list):
        return [told(one) for one in value]
    return value


# ---- reading ----------------------------------------------------------------------------------------


class Found(NamedTuple):
    """Records in the order of time, each an api.Record with its user's "uid" and with mentions."""

    records: list[dict[str, Any]]
    cut: bool
    """Whether earlier records were left out."""


class Stop(NamedTuple):
    """What a living job has been told to end for."""

    killed: dict[str, Any]
    """As api.Killed, with mentions."""
    last: bool
    """By SIGKILL: it cannot live on. Else by SIGTERM, before its grace."""


class JobLine(NamedTuple):
    """A line about a job."""

    time: float
    job: dict[str, Any]
    """As api.Job, with mentions."""
    stop: Stop | None

    def ended(self) -> dict[str, Any]:
        """The job, if it lives no more."""
        if self.job["outcome"] is not None:
            return self.job
        killed = None if self.stop is None else self.stop.killed
        peak = {gpu["uuid"]: gpu["peak"] for gpu in self.job["gpus"]}
        return {**self.job, **UNSEEN, "outcome": {**UNSEEN["outcome"], "killed": killed, "peak": peak}}


class History:
    """A directory of such files. Skips what cannot be opened or understood."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def records(
        self,
        since: float = 0.0,
        job: str | None = None,
        users: Collection[int] | None = None,
        *,
        most: int = RECORDS_AT_MOST,
    ) -> Found:
        """The latest records since then; only of this job (its id) or of these users and of no user, if given."""
        wanted = None if job is None else job.encode()
        lines: list[tuple[float, bytes, int | None]] = []
        files, cut = self._files(EVENTS, users), False
        for uid, path in files:
            text, part = _tail(path, READ_AT_MOST // len(files))
            cut = cut or (part and _time(next(iter(text), b"")) > since)
            for line in text:
                if wanted is None or wanted in line:
                    when = _time(line)
                    if when >= since:
                        lines.append((when, line, uid))
        lines.sort(key=lambda one: one[0])
        records = []
        for _, line, uid in lines[-most:]:
            record = _parse(line)
            if record is not None and _is_record(record) and job in (None, record["job"]):
                records.append({**record, "uid": uid})
        return Found(records, cut or len(lines) > most)

    def jobs(self, users: Collection[int] | None = None) -> list[dict[str, Any]]:
        """Jobs as api.Job with mentions, in the order of their last record.

        A job whose end is not in the files has state "ended", too; its outcome says that its end was not seen, and for
        whom it had been told to end.
        """
        return [last.ended() for last in self.last_lines(users)]

    def last_lines(self, users: Collection[int] | None = None) -> list[JobLine]:
        """The last line of each job, in the order of time."""
        latest = {}
        files = self._files(JOBS, users)
        for _, path in files:
            for line in _tail(path, READ_AT_MOST // len(files))[0]:
                found = _parse(line)
                job = found.get("job") if found is not None else None
                if found is not None and isinstance(job, dict) and api.fits(told(job), api.Job):
                    latest[job["id"]] = JobLine(_time(line), job, _stop(found.get("stop")))
        return sorted(latest.values(), key=lambda one: one.time)

    def _files(self, kind: str, users: Collection[int] | None) -> list[tuple[int | None, Path]]:
        """The lines of a user's two files, the older file first."""
        try:
            names = sorted((path.name for path in self.directory.iterdir()), key=_age)
        except OSError:
            return []
        found = []
        for name in names:
            match = NAMES.fullmatch(name)
            if match is not None and match[2] == kind:
                uid = whose(name)
                if users is None or uid is None or uid in users:
                    found.append((uid, self.directory / name))
        return found


YEAR_10000 = 253_402_300_800
"""Its first second. Python's calendar has none from then on."""


def _is_record(one: Mapping[str, Any]) -> bool:
    """An api.Record with mentions. Does not use api.fits, which would take most of an answer's time."""
    names = (one.get(key, 0) for key in ("gpu", "job", "name"))
    time = one.get("time")
    return (
        isinstance(time, float | int)
        and 0 <= time < YEAR_10000
        and isinstance(one.get("event"), str)
        and all(name is None or isinstance(name, str) for name in names)
        and isinstance(one.get("text"), str | Text)
        and isinstance(one.get("facts"), dict)
    )


def _age(name: str) -> tuple[bool, str]:
    return not name.endswith(OLD), name


UNSEEN: dict[str, Any] = {
    "state": "ended",
    "processes": [],
    "outcome": {
        "exit_code": None,
        "signal": None,
        "killed": None,
        "peak": {},
        "refusals": 0,
        "duration": 0.0,
        "ended": None,
        "seen": False,
    },
}
"""The outcome of a job whose end was not seen."""


def _stop(note: object) -> Stop | None:
    if not isinstance(note, dict) or not api.fits(told(note.get("killed")), api.Killed):
        return None
    return Stop(note["killed"], note.get("last") is True)


def _tail(path: Path, most: int) -> tuple[list[bytes], bool]:
    """The complete lines among the last bytes, and whether there are earlier ones. Empty if it is no regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return [], False
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return [], False
        start = max(0, status.st_size - most)
        lines = os.pread(fd, most, start).split(b"\n")
    except OSError:
        return [], False
    finally:
        os.close(fd)
    return lines[1 if start else 0 : -1], start > 0  # the first and the last part may be incomplete


TIME = re.compile(rb'\{"time": ([0-9.]+)')


def _time(line: bytes) -> float:
    """The time of a line, without parsing the rest. Negative: not a line of ours."""
    match = TIME.match(line)
    try:
        return float(match[1]) if match else -1.0
    except ValueError:
        return -1.0


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        found = _read(json.loads(line))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None
