"""Kills a task from outside, when its keeper does not stop it in time.

The keeper belongs to the job's user. So it can hang, and the job's own program can stop it (SIGSTOP). Deadlines hold
all the same: the service looks at them too, a moment later than the keeper.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare.cluster.engines.local.keeper import Process, below, process, processes, send

__all__ = ["LATE", "kill", "noted"]

LATE = 10.0
"""Seconds after a deadline until the service acts itself."""
PASSES = 50
"""A program may start others while it is killed."""


def kill(keeper: Mapping[str, int], uid: int) -> bool:
    """SIGKILL to everything that this keeper has below it, then to the keeper. Its orphans are below it too, because it
    is their subreaper. Processes of other users than `uid` are left alone. False: the keeper is gone already."""
    one = process(int(keeper["pid"]))
    if one is None or one.start != keeper["start"]:
        return False
    for _ in range(PASSES):
        everything = processes()
        left = [everything[pid] for pid in below({one.pid}, everything) if _is_of(pid, uid)]
        if not left:
            break
        for each in left:
            send(each, signal.SIGKILL)
    send(one, signal.SIGKILL)
    return True


def noted(pid: int) -> dict[str, Any] | None:
    """What identifies a process until the machine starts again; None: there is no such process."""
    one: Process | None = process(pid)
    return None if one is None else {"pid": one.pid, "start": one.start}


def _is_of(pid: int, uid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == uid
    except OSError:
        return False
