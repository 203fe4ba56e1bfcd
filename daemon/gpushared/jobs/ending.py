"""How a job ends: what it was told, and what became of it."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Ending:
    """Filled in step by step: by reclaims, by `gpushare stop`, by the wrapper, and when the job has ended."""

    reclaim: dict[str, Any] | None = None
    """The Terminate or Kill that the job is under, unless it has been relieved; the owner's names are mentions."""
    relieved: dict[str, Any] | None = None
    """The one that the job was last relieved of."""
    stopping: signal.Signals | None = None
    """The last signal of `gpushare stop`. A program that starts just then gets it, too."""
    exit_code: int | None = None
    exit_signal: int | None = None
    at: float | None = None
    """The system's time of the end. None: the job has not ended."""
    duration: float | None = None
    """Seconds from the job's beginning to its end. None: the job has not ended."""
    seen: bool = True
    """Whether a daemon saw the end."""
    last_seen: dict[str, Any] | None = None
    """How the API showed the job last. The core forgets a job that has ended."""

    def relieve(self) -> bool:
        """It need not end any more. Returns whether it had been told to."""
        told = self.reclaim is not None
        if told:
            self.relieved, self.reclaim = self.reclaim, None
        return told

    def note_exit(self, code: int | None, number: int | None) -> None:
        """A program that dies of SIGTERM within its grace dies of the reclaim, even if its memory came back a moment
        before it died."""
        self.exit_code, self.exit_signal = code, number
        last = self.relieved
        if number == signal.SIGTERM and self.reclaim is None and last and time.time() <= last["time"] + last["grace"]:
            self.reclaim = last
