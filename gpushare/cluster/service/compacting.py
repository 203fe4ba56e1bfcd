"""Keeps the log of the service's file short, in a process beside the service.

With 10,000 jobs it takes more than a second, and a submission would wait for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from gpushare.cluster.store import Store
from gpushare.paths import PACKAGE

__all__ = ["Compacting", "compact"]

BOOT = """import sys
root, path = sys.argv[1:3]
root in sys.path or sys.path.insert(0, root)
from gpushare.cluster.service.compacting import compact
compact(path)"""
"""For `python -I -c`."""
NICE = 19
"""What the service does comes first."""


class Compacting:
    """Compacts one store, which no longer compacts itself."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._process: subprocess.Popen[bytes] | None = None
        store.compacts = False

    def go_on(self) -> None:
        """Begin, if it is time. If no process can be started, it begins when the log is twice as long."""
        if self._process is not None and self._process.poll() is None:
            return
        if self._store.is_long():
            line = [sys.executable, "-I", "-c", BOOT, str(PACKAGE.parent), str(self._store.path)]
            nothing = subprocess.DEVNULL
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(line, stdin=nothing, stdout=nothing, stderr=nothing, cwd="/")

    def close(self) -> None:
        """Give up what has begun. Nothing is lost by that."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def compact(path: str) -> None:
    os.nice(NICE)
    with Store.open(Path(path)) as store:
        store.compact_behind()
