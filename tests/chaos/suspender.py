"""A suspender that says what it does to the driver, and that fails now and then: `suspender.py JOB SOCKET SEED FAULTS`.

It is the real one over the software driver. Each step is a line on its standard output, so that the harness knows
without the daemon where the memory is: STEP begin|end|failed PID MONOTONIC-TIME. FAULTS is the share of steps that are
refused, and of those after which it is killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpushare.checkpoint import DriverCheckpoints, DriverError
from gpushare.client import Client
from gpushare.suspender import Suspender


class SaidCheckpoints(DriverCheckpoints):
    """The driver, with each step said."""

    def __init__(self, dice: random.Random, faults: float) -> None:
        super().__init__()
        self.dice = dice
        self.faults = faults

    def lock(self, pid: int, milliseconds: int) -> None:
        self._say("lock", pid, lambda: super(SaidCheckpoints, self).lock(pid, milliseconds))

    def checkpoint(self, pid: int) -> None:
        self._say("checkpoint", pid, lambda: super(SaidCheckpoints, self).checkpoint(pid))

    def restore(self, pid: int) -> None:
        self._say("restore", pid, lambda: super(SaidCheckpoints, self).restore(pid))

    def unlock(self, pid: int) -> None:
        self._say("unlock", pid, lambda: super(SaidCheckpoints, self).unlock(pid))

    def state(self, pid: int) -> str:
        found = super().state(pid)
        print(found, "is", pid, time.monotonic(), flush=True)
        return found

    def _say(self, step: str, pid: int, do: Callable[[], None]) -> None:
        print(step, "begin", pid, time.monotonic(), flush=True)
        if step in ("lock", "checkpoint") and self.dice.random() < self.faults:
            print(step, "failed", pid, time.monotonic(), flush=True)
            raise DriverError("it is asked to fail")
        try:
            do()
        except DriverError:
            print(step, "failed", pid, time.monotonic(), flush=True)
            raise
        print(step, "end", pid, time.monotonic(), flush=True)
        if self.dice.random() < self.faults:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    driver = SaidCheckpoints(random.Random(sys.argv[3]), float(sys.argv[4]))
    Suspender(Client(Path(sys.argv[2])), sys.argv[1], driver).run()
