"""Placements: tasks that an engine (a cluster's service, Slurm, Kubernetes) has placed on GPUs of this node.

A placement is a job that no wrapper holds: it begins and ends when the engine says so. Which programs belong to it is
decided by where they run, which no program can choose: its cgroup and those below it, or a session and all that
descends from it. What a program has in its environment does not count.

An engine may name processes that hold a placement. When none of them lives any more, nor a program of it, it ends by
itself: so a task that ended while its engine was away gives its request back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpushare.errors import Refused
from gpushared.core import persistence
from gpushared.system.processes import Process, parent_and_session, start_time

__all__ = ["PLACED_ONLY", "Placement", "Placements", "Session"]

Session = tuple[int, int]
"""The session's number, which is the pid of its first process, and when that one started."""
ANCESTORS = 64
"""Processes upwards among which a session is looked for."""
MOST_SESSIONS = 256
"""Likewise holders."""
DESERTED = 15.0
"""Seconds without a holder after which a placement ends. Its engine may name another one meanwhile."""
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
    holders: tuple[Session, ...] = ()
    """Processes, likewise. None: only the engine ends it."""
    leaving: bool = False
    """The engine has ended it, and processes of it are left."""

    def note(self) -> dict[str, Any]:
        """For state.json."""
        sessions, holders = ([list(one) for one in some] for some in (self.sessions, self.holders))
        where = {"cgroups": list(self.cgroups), "sessions": sessions, "holders": holders}
        return {"id": self.id, "attempt": self.attempt, **where}

    @classmethod
    def noted(cls, job: str, note: Mapping[str, Any]) -> Placement:
        """Raises persistence.OddNote."""
        id, attempt, sessions = (note.get(name) for name in ("id", "attempt", "sessions"))
        cgroups = note.get(
            "cgroups", [note.get("cgroup")] if note.get("cgroup") else []
        )  # `cgroup`: an earlier version
        inside, holders = _pairs(sessions), _pairs(note.get("holders", []))
        paths = isinstance(cgroups, list) and all(isinstance(one, str) for one in cgroups)
        if not isinstance(id, str) or type(attempt) is not int or not paths or inside is None or holders is None:
            raise persistence.OddNote("no placement")
        return cls(id, attempt, job, tuple(cgroups), inside, holders)


def _pairs(value: object) -> tuple[Session, ...] | None:
    """Without those that are none. None: it is no list."""
    if not isinstance(value, list):
        return None
    return tuple((one[0], one[1]) for one in value if _is_session(one))


def _is_session(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(one) is int for one in value)


class Placements:
    """The placements of this node, and the last attempt of each that is over."""

    def __init__(self) -> None:
        self._by_id: dict[str, Placement] = {}
        self._of_job: dict[str, str] = {}
        self.attempts: dict[str, int] = {}
        """Of each placement that is over, the last attempt. An older attempt is never accepted again."""
        self._deserted: dict[str, float] = {}
        """Placements whose holders have ended, and when that was seen first."""

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

    def extend(
        self,
        known: Placement,
        cgroups: tuple[str, ...],
        sessions: Iterable[Session],
        holders: Iterable[Session] = (),
    ) -> Placement:
        """Other cgroups in place of those that it has, and further sessions and holders."""
        inside, held = _further(known.sessions, sessions), _further(known.holders, holders)
        fresh = replace(known, cgroups=cgroups or known.cgroups, sessions=inside, holders=held or known.holders)
        if fresh.holders != known.holders:
            self._deserted.pop(known.id, None)
        self.put(fresh)
        return fresh

    def drop(self, id: str) -> None:
        """The same attempt may be placed again: the core has refused its job, or it is deserted."""
        self._of_job.pop(self._by_id.pop(id).job, None)
        self._deserted.pop(id, None)

    def take_wrapper(self, known: Placement, pid: int) -> None:
        """A wrapper that runs in it, as was checked, holds it and its program, whatever becomes of those before it."""
        started = start_time(pid)
        if known.holders and started is not None:
            self.extend(known, (), [(pid, started)] if known.sessions else [], [(pid, started)])

    def deserted(self, now: float) -> list[Placement]:
        """Those that no holder has held for DESERTED seconds, at `now` of a clock that is never set."""
        alone = [one for one in self if one.holders and not one.leaving and not _lives(one.holders)]
        self._deserted = {one.id: self._deserted.get(one.id, now) for one in alone}
        return [one for one in alone if now >= self._deserted[one.id] + DESERTED]

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


def _further(known: Iterable[Session], more: Iterable[Session]) -> tuple[Session, ...]:
    """The living ones of those that are known, and these."""
    living = dict.fromkeys(one for one in known if start_time(one[0]) == one[1])
    return (*living, *(one for one in more if one not in living))[-MOST_SESSIONS:]


def _lives(processes: Iterable[Session]) -> bool:
    for pid, started in processes:
        found = Process.open(pid, started)
        if found is not None:
            found.close()
            return True
    return False


def cgroups_of(pid: int) -> list[str]:
    """Its paths: one with cgroup v2, one for each hierarchy with v1."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/cgroup").read_text(errors="replace").splitlines()
        return [line.split(":", 2)[2] for line in lines if line.count(":") >= 2]
    return []


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")
