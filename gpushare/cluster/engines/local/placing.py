"""Tells the node daemon of each task: its user, its GPUs, its amounts, and where it runs.

In a system-wide service each task runs in a cgroup of its own, if there is cgroup v2; else in its keeper's session. The
daemon of another user takes no placements from this one: then the task's wrapper registers it, as `gpushare run` does.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from gpushare.api import Placement
from gpushare.client import MAY_PASS
from gpushare.cluster.engines.local.gpus import Daemon
from gpushare.cluster.engines.local.spool import Folder
from gpushare.cluster.engines.seam import Busy, Refused, Token, Unanswered
from gpushare.errors import DaemonUnreachable, GpushareError, NoSuchJob, NotPermitted, UsageError

__all__ = ["Placing", "placing"]

WAIT_FOR_ROOM = 30.0
"""Seconds in which memory that another task is just giving back may come free."""
OF_THE_TASK = ("stale_attempt", "attempt_runs", "placed", "bad_request")
"""Refusals that say nothing of the node: other tasks may start there."""
TERMS_APART = 2**32
"""More than the commands of one term."""


class Placing:
    """The placements of one service, in its directory."""

    def __init__(self, daemon: Daemon, directory: Path, *, system: bool) -> None:
        self._daemon = daemon
        self._name = _name_of(directory)
        self._cgroups = _own_cgroup() if system else None
        self._first: dict[tuple[str, int], float] = {}
        """When it was asked first for room that was not there."""
        self.able = True
        """The daemon takes placements from this service."""

    def name(self, job: str, group: int, task: int) -> str:
        """The name of a task's placement, the same at each start."""
        return f"{self._name}/{job}.{group}.{task}"

    def cgroup(self, mark: str) -> str:
        """The path of a task's cgroup, as /proc/PID/cgroup has it; "": it has none."""
        return "" if self._cgroups is None else f"{self._cgroups[1]}/{mark}"

    def place(self, start: Mapping[str, Any]) -> Busy | Refused | None:
        """Place a task. None: it may start. Raises Unanswered."""
        if not self.able:
            return None
        which = str(start["placement"]), int(start["attempt"])
        try:
            self.put(start)
        except NotPermitted as error:
            if error.code != "no_engine":
                return Refused(error.message, str(start["node"]))
            self.able = False
        except DaemonUnreachable as error:
            raise Unanswered(error.message) from None
        except GpushareError as error:
            if error.code in MAY_PASS:
                now = time.monotonic()
                if now < self._first.setdefault(which, now) + WAIT_FOR_ROOM:
                    return Busy()
            self._first.pop(which, None)
            return Refused(error.message, None if error.code in OF_THE_TASK else str(start["node"]))
        self._first.pop(which, None)
        return None

    def put(self, start: Mapping[str, Any], process: int | None = None) -> None:
        """Place it, or say it again: nothing changes then but amounts that are others. `process`: its keeper or its
        program. That one holds the placement, and its session is inside. Raises GpushareError."""
        body = {
            "attempt": _placing_of(start),
            "uid": start["uid"],
            "gpus": start["devices"],
            "request": str(start["amount"]),
            "limit": str(start["limit"]),
            "priority": start["priority"],
            "grace": start["node_grace"],
            "name": start["name"],
            "job": start["job"],
            "cgroup": start["cgroup"] or None,
            "session": None if start["cgroup"] else process,
            "holder": process,
        }
        self._daemon.client().place(str(start["placement"]), body)

    def enter(self, start: Mapping[str, Any], keeper: int, program: Mapping[str, int] | None) -> None:
        """Its keeper runs as this process and has started nothing yet, or a keeper before it has started `program`.
        Raises GpushareError or OSError."""
        if start.get("placement") is None or not self.able:
            return
        if start["cgroup"] and self._cgroups is not None:
            folder = self._cgroups[0] / str(start["mark"])
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.procs").write_text(str(keeper))
        self.put(start, keeper)
        if program is not None:
            with contextlib.suppress(UsageError):  # it has just ended
                self.put(start, program["pid"])

    def over(self, start: Mapping[str, Any]) -> None:
        """End a placement. If the daemon cannot be told, tidy() does it later."""
        if start.get("placement") is None:
            return
        with contextlib.suppress(GpushareError):
            self._displace(str(start["placement"]), _placing_of(start))
        self._leave(str(start["mark"]))

    def tidy(self, living: Collection[tuple[Mapping[str, Any], Folder]]) -> None:
        """After a crash of any part: what lives is placed and held, and nothing else of this service. Raises
        GpushareError."""
        if not self.able:
            return
        placed = [(start, folder) for start, folder in living if start.get("placement") is not None]
        wanted = {(start["placement"], _placing_of(start)) for start, _ in placed}
        found = {(one["id"], one["attempt"]): one for one in self._daemon.client().placements()}
        for (id, attempt), one in found.items():
            if id.startswith(f"{self._name}/") and (id, attempt) not in wanted and one["state"] == "placed":
                self._displace(id, attempt)
        for start, folder in placed:
            with contextlib.suppress(GpushareError):  # of this one: the next round tries again
                self._keep(start, folder, found.get((start["placement"], _placing_of(start))))
        if self._cgroups is not None:
            marks = {start["mark"] for start, _ in placed}
            for cgroup in self._cgroups[0].iterdir():
                if cgroup.is_dir() and cgroup.name not in marks:
                    self._leave(cgroup.name)

    def _keep(self, start: Mapping[str, Any], folder: Folder, known: Placement | None) -> None:
        """Place it if the daemon does not know it, and name the living processes that the daemon does not know."""
        if known is None:
            self.put(start)
        elif known["state"] != "placed":
            return
        for one in (folder.living_keeper(), folder.living_program()):
            if one is not None and (known is None or one["pid"] not in known["holders"]):
                self.put(start, one["pid"])

    def _displace(self, id: str, attempt: int) -> None:
        with contextlib.suppress(NoSuchJob):
            self._daemon.client().displace(id, attempt)

    def _leave(self, mark: str) -> None:
        if self._cgroups is not None:
            folder = self._cgroups[0] / mark
            with contextlib.suppress(OSError):
                folder.rmdir()


def placing(token: Token) -> int:
    """The attempt of a placement, by the command that starts the task. It grows with each start: a task that was
    stopped may start again in the same attempt of its job, and the daemon takes no attempt again that is over."""
    return token[0] * TERMS_APART + token[1]


def _placing_of(start: Mapping[str, Any]) -> int:
    return int(start.get("placing", start["attempt"]))  # an earlier version has started it as an attempt of its job


def _name_of(directory: Path) -> str:
    """The name of this service: no other has it, and it stays."""
    path = directory / "name"
    with contextlib.suppress(OSError):
        if name := path.read_text().strip():
            return name
    name = f"local-{secrets.token_hex(4)}"
    path.write_text(f"{name}\n")
    return name


def _own_cgroup() -> tuple[Path, str] | None:
    """A folder below this process's own cgroup in which others can be made, and its path; None: there is none."""
    with contextlib.suppress(OSError):
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        top = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = next((line[3:] for line in lines if line.startswith("0::")), None)
        if top is not None and own is not None:
            path = f"{own.rstrip('/')}/gpushare-tasks"
            folder = top / path.lstrip("/")
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.procs").read_text()
            return folder, path
    return None
