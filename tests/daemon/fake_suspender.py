"""A suspender over a driver that only keeps states: `python fake_suspender.py JOB SOCKET`."""

from __future__ import annotations

import sys
from pathlib import Path

from gpushare.checkpoint import DriverError
from gpushare.client import Client
from gpushare.suspender import Suspender


class States:
    """A driver without memory."""

    def __init__(self) -> None:
        self.states: dict[int, str] = {}

    def state(self, pid: int) -> str:
        return self.states.get(pid, "running")

    def _step(self, pid: int, before: str, after: str) -> None:
        if self.state(pid) != before:
            raise DriverError(f"it is {self.state(pid)}")
        self.states[pid] = after

    def lock(self, pid: int, _milliseconds: int) -> None:
        self._step(pid, "running", "locked")

    def checkpoint(self, pid: int) -> None:
        self._step(pid, "locked", "suspended")

    def restore(self, pid: int) -> None:
        self._step(pid, "suspended", "locked")

    def unlock(self, pid: int) -> None:
        self._step(pid, "locked", "running")


if __name__ == "__main__":
    Suspender(Client(Path(sys.argv[2])), sys.argv[1], States()).run()
