"""state.json: what a daemon leaves for its successor; recovery.py reads it.

    version, time   of the file; the time on the wall's clock
    core            persistence.py, of the node
    jobs            by id: who has submitted it and what that has started, whose ends are the end of the job;
                    under "note" what persistence.py writes of the job, or under "queued" what it asks for and
                    until when it waits

The file is whole at every moment, and made anew at each change. A job's part of it is made once and kept, so that what
a change costs with a thousand jobs is to put texts together.

A write ends with fsync before the rename: some file systems say only then that they are full. On tmpfs, where the file
lies unless somebody has chosen otherwise, that costs nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpushare.job_spec import JobSpec
from gpushared.core import persistence
from gpushared.core.model import Job
from gpushared.core.node import NodeState
from gpushared.jobs.registry import JobRecord, JobState
from gpushared.system.processes import Process

VERSION = 2


@dataclass(frozen=True, slots=True)
class Planned:
    """A change that is written down before it is made."""

    job: str = ""
    spec: JobSpec | None = None
    """What the job's becomes."""
    released: str = ""
    """A reservation that ends."""


NOTHING_PLANNED = Planned()


class StateFile:
    """The file, and the texts that it was last made of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fresh = path.with_name(f".{path.name}.new")  # the only one: a daemon that dies here leaves no litter
        self._texts: dict[str, tuple[object, str]] = {}

    def write(
        self, core: NodeState, now: float, records: Iterable[JobRecord], planned: Planned = NOTHING_PLANNED
    ) -> None:
        """Whole or not at all: OSError leaves the file as it was. `now` is the core's."""
        jobs = {record.id: (record, core.jobs.get(record.id)) for record in records}
        if planned.spec is not None:
            record, job = jobs[planned.job]
            jobs[planned.job] = record, None if job is None else replace(job, spec=planned.spec)
        self._texts = {id: self._text_of(record, job) for id, (record, job) in jobs.items()}
        node = core.node_note(now, without=planned.released)
        head = json.dumps({"version": VERSION, "time": time.time(), "boot": boot(), "core": node})
        texts = ",".join(text for _, text in self._texts.values())
        try:
            fd = os.open(self._fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(f'{head[:-1]},"jobs":{{{texts}}}}}')
                file.flush()
                os.fsync(fd)
            self._fresh.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                self._fresh.unlink()  # what is full should not hold half a file of ours as well
            raise

    def _text_of(self, record: JobRecord, job: Job | None) -> tuple[object, str]:
        """The text, and what it was made of: as long as that is the same, so is the text."""
        made_of = (
            *(record.wrapper, record.main, record.state, record.patience),
            job and (job.spec, job.open, job.saved_at, tuple(job.bounds)),
        )
        earlier = self._texts.get(record.id)
        if earlier is not None and earlier[0] == made_of:
            return earlier
        part: dict[str, Any] = {
            "wrapper": _identity(record.wrapper),
            "main": _identity(record.main),
            "started": record.started,
            "began": record.began,
            "note": persistence.take_job(job) if job is not None else None,
            "queued": _queued(record) if record.state is JobState.QUEUED else None,
        }
        return made_of, f"{json.dumps(record.id)}:{json.dumps(part)}"


def _queued(record: JobRecord) -> dict[str, Any]:
    """`until` is on the core's clock; `patience`, of time.time(), is for after a boot and for earlier versions."""
    until = record.patience
    patience = None if until is None else time.time() + until - time.monotonic()
    return {"spec": persistence.spec_to_note(record.spec), "until": until, "patience": patience}


def boot() -> str | None:
    """This boot's name. The core's clock runs on from one daemon to the next as long as it is the same."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None


def _identity(process: Process | None) -> list[int] | None:
    return None if process is None else [process.pid, process.start_time]
