"""Placements: tasks that an engine (a cluster's service, Slurm, Kubernetes) has placed on GPUs of this node.

A placement is a job that no wrapper holds: it begins and ends when the engine says so. Which programs belong to it is
decided by where they run, which no program can choose: its cgroup and those below it, or a session and all that
descends from it. What a program has in its environment does not count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpushare.errors import Refused
from gpushared.core import persistence
from gpushared.system.processes import parent_and_session, start_time

__all__ = ["PLACED_ONLY", "Placement", "Placements", "Session"]

Session = tuple[int, int]
"""The session's number, which is the pid of its first process, and when that one started."""
ANCESTORS = 64
"""Processes upwards among which a session is looked for."""
MOST_SESSIONS = 256
PLACED_ONLY = "on this node only jobs that an engine has placed may use GPUs"
KEPT = 10_000
"""How many placements that are over are remembered, each with its last attempt."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A task as its engine has placed it. Amounts and GPUs are its job's."""

    id: str
    """The engine's name for the task. A later attempt has the same."""
    attempt: int
    job: str
    """The id of its job in this daemon."""
    cgroups: tuple[str, ...] = ()
    """Their paths, as /proc/PID/cgroup shows them."""
    sessions: tuple[Session, ...] = ()
    leaving: bool = False
    """The engine has ended it, and processes of it are left."""

    def note(self) -> dict[str, Any]:
        """For state.json."""
        sessions = [list(one) for one in self.sessions]
        return {"id": self.id, "attempt": self.attempt, "cgroups": list(self.cgroups), "sessions": sessions}

    @classmethod
    def noted(cls, job: str, note: Mapping[str, Any]) -> Placement:
        """Raises persistence.OddNote."""
        id, attempt, sessions = (note.get(name) for name in ("id", "attempt", "sessions"))
        cgroups = note.get(
            "cgroups", [note.get("cgroup")] if note.get("cgroup") else []
        )  # `cgroup`: an earlier version
        pairs = [one for one in sessions if _is_session(one)] if isinstance(sessions, list) else None
        paths = isinstance(cgroups, list) and all(isinstance(one, str) for one in cgroups)
        if not isinstance(id, str) or type(attempt) is not int or not paths or pairs is None:
            raise persistence.OddNote("no placement")
        return cls(id, attempt, job, tuple(cgroups), tuple((pid, started) for pid, started in pairs))


def _is_session(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(one) is int for one in value)


class Placements:
    """The placements of this node, and the last attempt of each that is over."""

    def __init__(self) -> None:
        self._by_id: dict[str, Placement] = {}
        self._of_job: dict[str, str] = {}
        self.attempts: dict[str, int] = {}
        """Of each placement that is over, the last attempt. An older attempt is never accepted again."""

    def __iter__(self) -> Iterator[Placement]:
        return iter(list(self._by_id.values()))

    def get(self, id: str) -> Placement | None:
        return self._by_id.get(id)

    def of_job(self, job: str) -> Placement | None:
        id = self._of_job.get(job)
        return None if id is None else self._by_id[id]

    def check(self, id: str, attempt: int) -> Placement | None:
        """The placement as it is, if this is the same attempt; None: there is none. Refused: an older attempt than one
        that was known, or a newer one while the last still runs."""
        known = self._by_id.get(id)
        last = self.attempts.get(id, 0) if known is None else known.attempt
        if attempt < last or (known is None and attempt == last):
            raise Refused(f"attempt {attempt} of {id} is over, the last was {last}", code="stale_attempt")
        if known is not None and attempt > known.attempt:
            hint = "try again when its processes have ended" if known.leaving else "end it first"
            raise Refused(f"attempt {known.attempt} of {id} still runs", code="attempt_runs", hint=hint)
        if known is not None and known.leaving:
            raise Refused(f"attempt {attempt} of {id} has been ended", code="stale_attempt")
        return known

    def put(self, placement: Placement) -> None:
        self._by_id[placement.id] = placement
        self._of_job[placement.job] = placement.id

    def extend(self, known: Placement, cgroups: tuple[str, ...], sessions: Iterable[Session]) -> Placement:
        """Other cgroups in place of those that it has, and further sessions."""
        living = dict.fromkeys(one for one in known.sessions if start_time(one[0]) == one[1])
        together = (*living, *(one for one in sessions if one not in living))
        fresh = replace(known, cgroups=cgroups or known.cgroups, sessions=together[-MOST_SESSIONS:])
        self.put(fresh)
        return fresh

    def drop(self, id: str) -> None:
        """It was never taken: the core has refused its job."""
        self._of_job.pop(self._by_id.pop(id).job, None)

    def leave(self, known: Placement) -> None:
        """The engine has ended it."""
        self.put(replace(known, leaving=True))

    def closed(self, job: str) -> None:
        """Its job is over, and nothing of it is left."""
        id = self._of_job.pop(job, None)
        if id is None:
            return
        self.attempts.pop(id, None)
        self.attempts[id] = self._by_id.pop(id).attempt
        while len(self.attempts) > KEPT:
            del self.attempts[next(iter(self.attempts))]

    # ---- programs ------------------------------------------------------------------------------------

    def of_process(self, pid: int, says: str = "") -> Placement | None:
        """The placement that this process runs in, by its cgroup, else by its session or that of an ancestor. Of
        several with the same cgroup that of the job that it `says`."""
        if not self._by_id:
            return None
        return self._of_cgroup(pid, says) or self._of_session(pid)

    def _of_cgroup(self, pid: int, says: str) -> Placement | None:
        bound = [(top, one) for one in self._by_id.values() for top in one.cgroups]
        if not bound:
            return None
        paths = cgroups_of(pid)
        inside = [
            ((len(top), one.job == says), one) for top, one in bound if any(_is_below(path, top) for path in paths)
        ]
        return max(inside, key=lambda found: found[0], default=(None, None))[1]

    def _of_session(self, pid: int) -> Placement | None:
        known = {number: (started, one) for one in self._by_id.values() for number, started in one.sessions}
        if not known:
            return None
        for _ in range(ANCESTORS):
            found = parent_and_session(pid)
            if found is None:
                return None
            parent, session = found
            for number in (session, pid):
                started, one = known.get(number, (0, None))
                if one is not None and start_time(number) == started:
                    return one
            if parent <= 1:
                return None
            pid = parent
        return None


def cgroups_of(pid: int) -> list[str]:
    """Its paths: one with cgroup v2, one for each hierarchy with v1."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/cgroup").read_text(errors="replace").splitlines()
        return [line.split(":", 2)[2] for line in lines if line.count(":") >= 2]
    return []


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")
