"""What the runner knows of a task on this machine, and how it shows it to the service."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpushare.cluster.engines.local.spool import Folder, Key
from gpushare.cluster.engines.seam import SeenTask
from gpushare.killed import cause
from gpushare.quantity import format_duration

__all__ = ["Task", "began", "may_start_again", "seen", "without_env"]

LATEST = 2.0**40
"""Seconds since 1970."""


@dataclass(slots=True)
class Task:
    folder: Folder
    start: Mapping[str, Any]
    """start.json without the environment, which may be large."""
    keeper: subprocess.Popen[bytes] | None = None
    """If this service has started it."""
    pidfd: int | None = None
    kept_since: float = 0.0
    """When this service has started the latest."""
    tries: int = 0
    trouble: str = ""
    """Why the latest keeper may start nothing."""
    next_try: float = 0.0
    end: Mapping[str, Any] | None = None
    stop: float | None = None
    """When it is killed at the latest, if it was told to stop."""
    begun: float | None = None
    """When its program was first seen to run."""
    began: float | None = None
    """When it began, in seconds since 1970."""

    @property
    def amount(self) -> int:
        return int(self.start["amount"])

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def seen(key: Key, task: Task) -> SeenTask:
    start, end = task.start, task.end
    shown = SeenTask(
        attempt=key.attempt,
        group=key.group,
        task=key.task,
        node=start["node"],
        gpus=tuple(start["gpus"]),
        amount=task.amount,
        began=task.began,
        phase="stopping" if task.stop is not None else "starting" if task.begun is None else "running",
    )
    if end is None:
        return shown
    ended, ran = _seconds(end.get("time")), _seconds(end.get("ran"))
    if ended is not None and ran is not None:
        shown = replace(shown, began=ended - ran, ended=ended)
    why = str(end.get("why") or "")
    if end["kind"] == "failed":
        return replace(shown, phase="failed", why=why, node_to_blame=bool(end.get("node")))
    if end["kind"] == "killed":
        why = f"stopped{cause(why).said}"
    if why == "time":
        why = f"stopped after its time limit of {format_duration(start['time'])}"
    code = end.get("exit")
    return replace(shown, phase="done", why=why, exit=code if isinstance(code, int) else -int(signal.SIGKILL))


def may_start_again(task: Task, end: Mapping[str, Any]) -> bool:
    """Whether its job is placed once more after this end."""
    wanted = bool(task.start["requeue"]) or task.stop is not None
    killed_for_others = end["kind"] == "killed" and cause(end.get("why")).again
    return end["kind"] == "stopped" or (wanted and (end["kind"] == "lost" or killed_for_others))


def began(since: object, now: float) -> float | None:
    """`since` by time.monotonic(), as a keeper has noted it, in seconds since 1970; `now` is."""
    at = _seconds(since)
    return None if at is None else now - max(0.0, time.monotonic() - at)


def _seconds(value: object) -> float | None:
    """A time that a user may have written. None: it is none."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value < LATEST
    return float(value) if sound else None  # type: ignore[arg-type]


def without_env(start: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in start.items() if name not in ("env", "argv")}
