"""The asks that the core has not answered yet, and their callers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gpushare.reasons import Code, Reason
from gpushared.core import instructions as do
from gpushared.core.events import AttachAsked, CreditAsked
from gpushared.system.logs import facts, log

MOST_FAILURES = 2
"""An ask that was open at so many failures of the core is refused: it may be their cause. Failures that were plainly
caused by another event do not count."""

INTERNAL = Reason(
    Code.NOT_FREE, "the daemon failed on this request", hint="this is a bug of gpushare; its log has the details"
)

Ask = AttachAsked | CreditAsked
Answer = Callable[[do.Attached | do.Granted | do.Denied, int | None], None]
"""Takes the core's answer to an ask and the number of the line in the page."""


@dataclass(slots=True)
class OpenAsk:
    """An ask without an answer."""

    event: Ask
    answer: Answer
    at: float
    failures: int = 0

    def refuse(self) -> None:
        """Answer that the daemon failed."""
        event = self.event
        try:
            self.answer(do.Denied(event.ask, event.process, event.gpu, INTERNAL), None)
        except Exception:
            log.exception("an ask could not be answered", extra=facts(event=repr(event)[:500]))


class Asks:
    """All open asks, by number."""

    def __init__(self) -> None:
        self.open: dict[int, OpenAsk] = {}
        self._last = 0

    def next_number(self) -> int:
        self._last += 1
        return self._last

    def add(self, event: Ask, answer: Answer) -> None:
        self.open[event.ask] = OpenAsk(event, answer, time.monotonic())

    def answer(self, done: do.Attached | do.Granted | do.Denied, line: int | None) -> None:
        """Hand the core's answer on, unless its caller has gone."""
        ask = self.open.get(done.ask)
        if ask is not None:
            ask.answer(done, line)
            self.open.pop(done.ask, None)

    def drop(self, number: int) -> None:
        """The caller has gone."""
        self.open.pop(number, None)

    def refuse(self, number: int) -> bool:
        """The core failed on this ask. Returns whether it was open."""
        ask = self.open.pop(number, None)
        if ask is not None:
            ask.refuse()
        return ask is not None

    def count_failure(self) -> None:
        """The core failed on something else while these were open."""
        for ask in self.open.values():
            ask.failures += 1

    def again(self) -> Iterator[Ask]:
        """The asks for a new core, with the time that they have waited. Refuses those that failed too often."""
        now = time.monotonic()
        for number, ask in list(self.open.items()):
            if ask.failures >= MOST_FAILURES:
                self.refuse(number)
            else:
                yield replace(ask.event, waited=ask.event.waited + now - ask.at)
