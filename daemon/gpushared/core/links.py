"""The two processes beside a job that act for the daemon: its suspender, and the one that calls its hooks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Link:
    """What the core knows of such a process."""

    connected: bool = False
    failure: tuple[float, str] | None = None
    """When it failed for the last time, or a hook gave nothing, and why."""

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
