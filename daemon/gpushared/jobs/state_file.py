"""state.json: what a daemon leaves for the next one; recovery.py reads it.

    version, time   of the file; the time on the wall's clock
    core            persistence.py, of the node
    jobs            by id: the wrapper and its program, whose ends are the end of the job; under "note" the core's
                    part of the job (persistence.py), or under "queued" its submission and the end of its wait;
                    under "placement" whose task it is (placements.py)
    attempts        the last one of each placement that is over

The file is whole at every moment, and written again at each change. The text of a job is made once and kept, so that a
change with a thousand jobs costs only to join texts.

A write ends with fsync before the rename: some file systems report only then that they are full. On tmpfs, the usual
place of the file, that costs nothing.
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
from gpushared.jobs.placements import Placement, Placements
from gpushared.jobs.registry import JobRecord, JobState
from gpushared.system.processes import Process

VERSION = 2


@dataclass(frozen=True, slots=True)
class Planned:
    """A change that is written down before it is made."""

    job: str = ""
    spec: JobSpec | None = None
    """The job's new specification."""
    released: str = ""
    """A reservation that ends."""


NOTHING_PLANNED = Planned()


class StateFile:
    """The file, and the texts that it was last made of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fresh = path.with_name(f".{path.name}.new")  # always this name: a killed daemon leaves at most one
        self._texts: dict[str, tuple[object, str]] = {}

    def write(
        self,
        core: NodeState,
        now: float,
        records: Iterable[JobRecord],
        planned: Planned = NOTHING_PLANNED,
        placements: Placements | None = None,
    ) -> None:
        """Whole or not at all: OSError leaves the file as it was. `now` is the core's."""
        jobs = {record.id: (record, core.jobs.get(record.id)) for record in records}
        if planned.spec is not None:
            record, job = jobs[planned.job]
            jobs[planned.job] = record, None if job is None else replace(job, spec=planned.spec)
        placed = placements or Placements()
        self._texts = {id: self._text_of(record, job, placed.of_job(id)) for id, (record, job) in jobs.items()}
        node = core.node_note(now, without=planned.released)
        head = json.dumps(
            {"version": VERSION, "time": time.time(), "boot": boot(), "core": node, "attempts": placed.attempts}
        )
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
                self._fresh.unlink()  # a full disk should not hold half a file as well
            raise

    def _text_of(self, record: JobRecord, job: Job | None, placement: Placement | None) -> tuple[object, str]:
        """The job's text, and the key that it was made for: the same key means the same text."""
        made_of = (
            *(record.wrapper, record.main, record.state, record.patience, placement),
            job and persistence.key_of(job),
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
            "placement": placement.note() if placement is not None else None,
        }
        return made_of, f"{json.dumps(record.id)}:{json.dumps(part)}"


def _queued(record: JobRecord) -> dict[str, Any]:
    """`until` is by the core's clock; `patience`, by time.time(), is for use after a boot and for older daemons."""
    until = record.patience
    patience = None if until is None else time.time() + until - time.monotonic()
    return {"spec": persistence.spec_to_note(record.spec), "until": until, "patience": patience}


def boot() -> str | None:
    """The id of this boot. The core's clock continues from one daemon to the next within one boot."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None


def _identity(process: Process | None) -> list[int] | None:
    return None if process is None else [process.pid, process.start_time]
