"""The notices of a job: what its user should read, kept for readers that come late, and sent to those that listen."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from gpushared.limits.backlog import Backlog
from gpushared.limits.byte_budget import ByteBudget

KEPT = 64
AROUND_A_NOTICE = 1024
"""Bytes that a notice costs beside its text."""

Notice = dict[str, Any]


class Notices:
    """The last notices, and their listeners."""

    def __init__(self) -> None:
        self.listeners: set[Backlog[Notice]] = set()
        self._kept: deque[Notice] = deque(maxlen=KEPT)

    def __iter__(self) -> Iterator[Notice]:
        """The kept ones, oldest first."""
        return iter(self._kept)

    def put(self, kind: str, text: str, facts: Mapping[str, object]) -> None:
        notice: Notice = {"time": time.time(), "kind": kind, "text": text, "facts": dict(facts)}
        self._kept.append(notice)
        for listener in self.listeners:
            listener.put(notice)

    def backlog(self, held: ByteBudget, uid: int) -> Backlog[Notice]:
        """For a new listener: all kept notices. Notices that it has not read count as bytes of this user."""

        def count(notice: Notice, sign: int) -> bool:
            held.change(uid, sign * (AROUND_A_NOTICE + len(notice["text"])))
            return held.has_room(uid)

        return Backlog(self, count=count)

    def end(self) -> None:
        """No notice follows."""
        for listener in self.listeners:
            listener.end()
