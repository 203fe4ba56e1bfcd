"""What has happened, for people and programs that follow it: the latest notices, numbered."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["Notice", "Notices"]

KEPT = 10_000

Notice = Mapping[str, Any]
"""{"seq", "time", "job", "event", "text", "facts"}"""


class Notices:
    """Numbers grow, also over a restart: they begin at the milliseconds since 1970. For several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: deque[Notice] = deque(maxlen=KEPT)
        self._followers: list[Callable[[Notice], None]] = []
        self.seq = int(clock() * 1000)
        """Of the last one."""

    def recall(self, earlier: Iterable[Notice]) -> None:
        """Take over the notices of an earlier service, oldest first, before the first add()."""
        with self._lock:
            self._kept.extend(earlier)
            if self._kept:
                self.seq = max(self.seq, self._kept[-1]["seq"])

    def add(self, event: str, job: str | None, text: str, **facts: object) -> None:
        with self._lock:
            self.seq += 1
            notice = {"seq": self.seq, "time": self._clock(), "job": job, "event": event, "text": text, "facts": facts}
            self._kept.append(notice)
            for put in self._followers:
                put(notice)

    def since(self, seq: int, wanted: Callable[[Notice], bool] = lambda _: True) -> list[Notice]:
        """Notices after this number that are still kept."""
        with self._lock:
            return [one for one in self._kept if one["seq"] > seq and wanted(one)]

    def follow(self, seq: int, put: Callable[[Notice], None]) -> list[Notice]:
        """The same as since(), and `put` is called with each later notice."""
        with self._lock:
            self._followers.append(put)
            return [one for one in self._kept if one["seq"] > seq]

    def unfollow(self, put: Callable[[Notice], None]) -> None:
        with self._lock:
            self._followers.remove(put)
