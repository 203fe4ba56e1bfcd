"""The notices of the service on disk, so that the next service has them: JSON lines in two files of a bounded size.

A full disk stops the file and nothing else; the log says so once, and each later notice is tried again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from gpushare.cluster.service.notices import KEPT, Notice
from gpushare.paths import make_private
from gpushared.system.logs import facts, log

__all__ = ["NoticeFile"]

NAME, OLD = "notices", "notices.old"
MOST_BYTES = 2 * 2**20
"""Of each of the two."""
FIELDS = {"seq": int, "time": int | float, "job": str | None, "event": str, "text": str, "facts": dict}


class NoticeFile:
    """For one thread at a time: Notices calls put() one by one."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._failing = False

    def read(self) -> list[Notice]:
        """The latest that an earlier service has written. A line that is torn or not ours is left out."""
        found: list[Notice] = []
        for name in (OLD, NAME):
            try:
                lines = self._path.with_name(name).read_bytes().split(b"\n")
            except OSError:
                continue
            found += [notice for notice in map(_parsed, lines) if notice is not None]
        found.sort(key=lambda one: int(one["seq"]))
        return found[-KEPT:]

    def put(self, notice: Notice) -> None:
        # A line that was torn by a crash ends where the next one begins.
        line = b"\n" + json.dumps(notice, default=str).encode()
        try:
            make_private(self._path.parent)
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                full = os.fstat(fd).st_size + len(line) > MOST_BYTES
                os.write(fd, line)
            finally:
                os.close(fd)
            if full:
                self._path.replace(self._path.with_name(OLD))
        except OSError as error:
            if not self._failing:
                log.warning("notices cannot be written", extra=facts(file=str(self._path), error=str(error)))
            self._failing = True
        else:
            self._failing = False


def _parsed(line: bytes) -> Notice | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    right = isinstance(found, dict) and found.keys() == FIELDS.keys()
    return found if right and all(isinstance(found[name], kind) for name, kind in FIELDS.items()) else None
