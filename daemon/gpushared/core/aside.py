"""A job that is idle for longer than the policy lets it, as data: what it was asked for, and when. No decisions."""

from __future__ import annotations

from dataclasses import dataclass

from gpushare.reclaim_steps import ReclaimStep


@dataclass(slots=True)
class Aside:
    """A job's, from the moment it was found idle for so long until it computes, allocates or frees again."""

    since: float
    """When it was found idle."""
    had: int
    """Bytes that it used on all GPUs before the step under way, or before the next one."""
    quiet_after: float
    """What is seen of it up to then was the work of a step."""
    step: ReclaimStep = ReclaimStep.REVOKE
    """The last that was taken. Unused credit need not be asked for: others have it when they want it."""
    asked: bool = False
    """Since then it has asked for memory, which no step does."""
    deadline: float | None = None
    """Of a trim under way."""
    under_way: bool = False
    """The step has not come to its end."""
