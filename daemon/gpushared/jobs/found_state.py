"""Reads state.json, which an earlier daemon left."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

from gpushared.core import persistence
from gpushared.jobs.state_file import VERSION, boot
from gpushared.system.logs import facts, log


class FoundState:
    """The file as an earlier daemon, or a later one, left it.

    Entries that make no sense are left out and logged. The file is kept under another name then, because this daemon is
    about to write its own.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._aside = path.with_suffix(".bad")
        self._is_kept = False
        self.state = self._read()

    def _read(self) -> dict[str, Any]:
        try:
            state = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            self._keep()
            log.warning("the notes cannot be read", extra=self._facts(error=str(error)))
            return {}
        if not isinstance(state, dict) or not isinstance(state.get("core"), dict):
            self._keep()
            log.warning("the notes make no sense", extra=self._facts(error="they are no object with a core"))
            return {}
        if state.get("version") != VERSION:
            log.warning("the notes are of another version", extra=self._facts(version=str(state.get("version"))[:40]))
        return state

    def odd(self, what: str, why: persistence.OddNote) -> None:
        """Log an entry that is not used."""
        self._keep()
        log.warning("a part of the notes makes no sense", extra=self._facts(what=what, error=str(why)))

    def _facts(self, **more: object) -> dict[str, Any]:
        return facts(file=str(self._path), **({"kept_as": str(self._aside)} if self._is_kept else {}), **more)

    def _keep(self) -> None:
        if not self._is_kept:
            with contextlib.suppress(OSError):
                shutil.copyfile(self._path, self._aside)
                self._aside.chmod(0o600)
                self._is_kept = True

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """By id."""
        found = self.state.get("jobs")
        jobs = {}
        for id, one in found.items() if isinstance(found, dict) else ():
            try:
                jobs[persistence.job_id(id)] = persistence.mapping(one)
            except persistence.OddNote as why:
                self.odd(f"job {id[:40]}", why)
        if found is not None and not isinstance(found, dict):
            self.odd("jobs", persistence.OddNote("they are no object"))
        return jobs

    @property
    def attempts(self) -> dict[str, int]:
        """The last attempt of each placement that is over."""
        found = self.state.get("attempts")
        sound = isinstance(found, dict) and all(type(one) is int for one in found.values())
        if found is not None and not sound:
            self.odd("attempts", persistence.OddNote("they are no object of numbers"))
        return dict(found) if sound and found is not None else {}

    @property
    def _written(self) -> float:
        return persistence.now_of(self.state["core"])

    @property
    def same_clock(self) -> bool:
        """Whether the file's times are by the present clock of the core: there was no boot since."""
        written_in = self.state.get("boot")
        return written_in is not None and written_in == boot() and self._written <= time.monotonic()

    @property
    def since(self) -> float:
        """Seconds since it was written, by the core's clock, because the system's may have been set meanwhile. After a
        boot, or without a boot id in the file, by the system's."""
        if self.same_clock:
            return time.monotonic() - self._written
        try:
            return max(0.0, time.time() - persistence.number(self.state.get("time")))
        except persistence.OddNote as why:
            self.odd("time", why)
            return 0.0
