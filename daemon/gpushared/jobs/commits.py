"""When state.json is written: before an answer that promises something; soon after any other change.

Many answers may wait for one write. The next write begins at the earliest after a pause as long as the last one took,
so that writing takes at most half of the daemon's time, and a burst of submissions shares a few writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpushare.errors import NotNoted
from gpushared.jobs.state_file import NOTHING_PLANNED, Planned
from gpushared.system.logs import facts, log

SOON = 0.01
"""Seconds by which the file may be late for changes that were not promised."""
AGAIN = 1.0
"""Seconds from a failed write to the next one, unless one is needed earlier."""

UNCHANGED = "nothing was changed"
KEPT = "it is done, but the next daemon will not know of it"
"""What an answer says of the change that could not be written."""


class Commits:
    """Writes the file, and wakes those who wait for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Callable[[Planned], None], file: str) -> None:
        """`write` raises OSError; `file` is for messages."""
        self._loop = loop
        self._write = write
        self._file = file
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Future[NotNoted | None] | None = None
        self._not_before = 0.0
        self._failing = False

    @property
    def pending(self) -> bool:
        """Something has changed that is not written yet."""
        return self._timer is not None

    def soon(self) -> None:
        """Write within SOON: for changes that were not promised."""
        self._at(max(self._not_before, self._loop.time() + SOON))

    async def done(self, *, kept: bool = False) -> None:
        """Return when all changes up to now are written; others may wait for the same write. Raises NotNoted. `kept`:
        what was asked for is done all the same, and the error says so; else the caller takes it back."""
        if self._waiting is None:
            self._waiting = self._loop.create_future()
            self._at(self._not_before)
        error = await asyncio.shield(self._waiting)
        if error is not None:
            raise NotNoted(error.message, hint=self._hint(KEPT if kept else UNCHANGED))

    def now(self, planned: Planned = NOTHING_PLANNED) -> None:
        """Write at once, with this change as if it were made. Raises NotNoted, and tries again by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, None
        began, error = self._loop.time(), None
        try:
            self._write(planned)
        except OSError as reason:
            error = self._failed(reason)
        else:
            self._succeeded()
        ended = self._loop.time()
        self._not_before = ended + (ended - began)
        if waiting is not None:
            waiting.set_result(error)
        if error is not None:
            self._at(ended + AGAIN)
            raise error

    def quietly(self) -> None:
        """Write at once. A failure is logged and tried again."""
        try:
            self.now()
        except NotNoted:
            return

    def close(self) -> None:
        """Write the last changes. Nothing is written after that."""
        if self.pending:
            self.quietly()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _at(self, when: float) -> None:
        """Write at that time, or earlier if that was planned."""
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self.quietly)

    def _failed(self, reason: OSError) -> NotNoted:
        why = reason.strerror or str(reason)
        if not self._failing:
            self._failing = True
            log.error("cannot write the notes: nothing new is promised", extra=facts(file=self._file, error=why))
        return NotNoted(
            f"the daemon cannot write its notes: {why}",
            hint=self._hint(UNCHANGED),
        )

    def _hint(self, what: str) -> str:
        return f"{what}; make room for {self._file}, or make it writable"

    def _succeeded(self) -> None:
        if self._failing:
            self._failing = False
            log.warning("the notes are written again", extra=facts(file=self._file))
