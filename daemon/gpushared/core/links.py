"""The two processes beside a job that act for the daemon: its suspender, and the one that calls its hooks."""

from __future__ import annotations

from dataclasses import dataclass

MISSED_AGAIN = 60.0
"""Seconds until one that goes once more is waited for again: else a user could keep a loan by ending it again and
again."""


@dataclass(slots=True)
class Link:
    """What the core knows of such a process."""

    connected: bool = False
    missed_at: float = float("-inf")
    """When it went, and is waited for: `gpushare run` starts another."""
    failure: tuple[float, str] | None = None
    """When it failed for the last time, or a hook gave nothing, and why."""

    def goes(self, now: float) -> None:
        if self.connected and now - self.missed_at >= MISSED_AGAIN:
            self.missed_at = now
        self.connected = False

    def failed_within(self, seconds: float, now: float) -> bool:
        return self.failure is not None and now - self.failure[0] < seconds


@dataclass(slots=True)
class SuspenderLink(Link):
    """The process that asks the driver to suspend the job."""

    problem: str = ""
    """Why it says that it cannot suspend the job at all."""


@dataclass(slots=True)
class HookRunnerLink(Link):
    """The process that calls the job's hooks."""

    wakes: bool = False
    """The job has a resume hook."""
    called_at: float = float("-inf")
    """When the relief hook was last called."""
