"""The loop around the core: feeds it one event at a time and carries out its instructions.

An instruction with an answer (LookUsed, Revoke) is carried out at once, and its answer is the next event. So the core
never sees the world move between its question and the answer. No effect waits for anything: a slow driver is asked on a
thread, and its answer is an event of its own.

A core that fails in the middle of an event may be half changed, and nothing may be lent on its sums. The loop discards
it and makes another from what stands outside it (rebuild.py), as a daemon that starts does. Every program stays
connected meanwhile. The caller whose event failed is told so. If the new core is wrong too, the daemon ends at once, as
if killed.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn, get_args

from gpushared.core import instructions as do
from gpushared.core.events import (
    AttachAsked,
    BudgetChanged,
    CreditAsked,
    Event,
    JobSubmitted,
    MemorySampled,
    ReservationAsked,
    ResumeWanted,
    Revoked,
    SuspendWanted,
    TimePassed,
    UsedSeen,
)
from gpushared.core.node import NodeState
from gpushared.runtime.asks import Answer, Asks
from gpushared.system.logs import facts, log

ONLY_TELL = (do.Log, do.Notify, do.JobQueued, do.Publish, do.Persist)
"""Instructions that change nothing the core counts on: if one fails, the core is as right as before."""

AnsweredAtOnce = BudgetChanged | ReservationAsked | SuspendWanted | ResumeWanted

WITH_CALLERS = (AttachAsked, CreditAsked, JobSubmitted, *get_args(AnsweredAtOnce))
"""Events with a caller that waits. A caller whose event makes the core fail is told so."""

NOT_REPEATED = (*WITH_CALLERS, UsedSeen, Revoked, MemorySampled, TimePassed)
"""A new core is not told of these: it looks for itself. It is told of every other event that failed."""

PAUSE_AFTER_FAILURE = 1.0
"""Seconds: a core that fails whenever time passes does not keep the daemon from serving."""
WAKE_MARGIN = 0.0005
"""Seconds: asyncio's clock may be early by its resolution."""

SOFTWARE_ERROR = os.EX_SOFTWARE

Effect = Callable[[Any], Event | None]
"""Carries one kind of instruction out. Returns the answer that the core waits for, if it waits for one."""


class CoreLoop:
    """The core, its queue of events, and the effects of its instructions."""

    def __init__(
        self,
        core: NodeState,
        rebuild: Callable[[NodeState], None],
        tell_caller: Callable[[Event | do.Instruction], None],
    ) -> None:
        """`rebuild` fills a fresh `core` from the world outside; it is given the core that failed. `tell_caller` tells
        the caller of an event that the core failed on it."""
        self.core = core
        self.asks = Asks()
        self.errors = 0
        """Events that the core could not handle, effects that failed, callbacks that raised: bugs."""
        self.effects: dict[type, Effect] = {
            do.WakeAt: self._wake_at,
            do.ReservationMade: self.note_answer,
            do.ReservationRefused: self.note_answer,
            do.BudgetRefused: self.note_answer,
            do.SuspendNoted: self.note_answer,
            do.SuspendRefused: self.note_answer,
        }
        """One for each kind of instruction."""
        self._rebuild = rebuild
        self._tell_caller = tell_caller
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._count_error)
        self._events: deque[Event] = deque()
        self._busy = False
        self._rebuilding = False
        self._repeated: Event | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._no_wake_before = 0.0
        self._answer: do.Instruction | None = None

    def feed(self, event: Event) -> None:
        """Hand an event to the core and carry out what it says, now or as soon as the present event is done."""
        self._events.append(event)
        if not self._busy:
            self._work()

    def restore(self, event: Event) -> None:
        """Hand over an event from which a new core is made: at once, before all others."""
        self._handle(event)

    def ask(self, event: AttachAsked | CreditAsked, answer: Answer) -> None:
        """Feed an ask. `answer` is called with the core's answer, now or later."""
        self.asks.add(event, answer)
        self.feed(event)

    def call(self, event: AnsweredAtOnce) -> do.Instruction | None:
        """Feed the event, and return the core's answer. None: the core failed on it."""
        self._answer = None
        self.feed(event)
        return self._answer

    def note_answer(self, done: do.Instruction) -> None:
        """The answer for call()."""
        self._answer = done

    def check(self) -> None:
        """Check the core's sums. They are always right, or there is a bug: better found than lent on."""
        if self._busy:
            return
        try:
            self.core.validate()
        except Exception:
            log.exception("the core contradicts itself")
            self._busy = True
            try:
                self._replace_core(None)
            finally:
                self._busy = False
            self._work()

    def close(self) -> None:
        if self._wake is not None:
            self._wake.cancel()

    # ---- events ------------------------------------------------------------------------------------

    def _work(self) -> None:
        self._busy = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._busy = False

    def _handle(self, event: Event) -> None:
        todo = [event]  # it grows: answers of effects are events
        for one in todo:
            try:
                instructions = self.core.handle(one, time.monotonic())
            except Exception:
                log.exception("the core failed on an event", extra=facts(event=repr(one)[:500]))
                self._replace_core(one)
                return
            failed: do.Instruction | None = None
            for instruction in instructions:
                try:
                    answer = self.effects[type(instruction)](instruction)
                except Exception:
                    log.exception("an instruction failed", extra=facts(instruction=repr(instruction)[:500]))
                    if isinstance(instruction, ONLY_TELL):
                        self.errors += 1
                    else:
                        failed = instruction  # the other instructions of this event are right by themselves
                    continue
                if answer is not None:
                    todo.append(answer)
            if failed is not None:
                self._replace_core(failed)
                return

    def _wake_at(self, wish: do.WakeAt) -> None:
        """Only the last wish counts. Once is enough, so a little too late is right and a little too early is not."""
        if self._wake is not None:
            self._wake.cancel()
        when = max(wish.time, self._no_wake_before) + WAKE_MARGIN
        self._wake = self._loop.call_at(when, self.feed, TimePassed())

    def _count_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised: asyncio logs it and goes on."""
        self.errors += "exception" in context
        loop.default_exception_handler(context)

    # ---- failures ----------------------------------------------------------------------------------

    def _replace_core(self, failed: Event | do.Instruction | None) -> None:
        """Make another core in the place of one that failed on this. None: a check found it wrong."""
        self.errors += 1
        if self._rebuilding:
            _end_daemon()
        self._rebuilding = True
        try:
            told = failed is not None and self._tell(failed)
            if not told:
                self.asks.count_failure()
            earlier, self.core = self.core, NodeState(self.core.policy)
            self._rebuild(earlier)
            self.core.validate()
        except Exception:
            log.exception("another core cannot be made")
            _end_daemon()
        self._rebuilding = False
        self._no_wake_before = time.monotonic() + PAUSE_AFTER_FAILURE
        self._queue_again(failed)
        log.warning("the state was rebuilt", extra=facts(jobs=len(self.core.jobs), processes=len(self.core.processes)))

    def _tell(self, failed: Event | do.Instruction) -> bool:
        """Tell the caller that waits for just this. Returns whether the failure has such a caller."""
        was_ask = self.asks.refuse(getattr(failed, "ask", 0))
        self._tell_caller(failed)
        return was_ask or isinstance(failed, WITH_CALLERS)

    def _queue_again(self, failed: Event | do.Instruction | None) -> None:
        """Queue for the new core the event that failed, unless the new core looks for itself, and the open asks."""
        queued = [event for event in self._events if not isinstance(event, AttachAsked | CreditAsked)]
        again: list[Event] = []
        if isinstance(failed, Event) and not isinstance(failed, NOT_REPEATED) and failed is not self._repeated:
            self._repeated = failed
            again.append(failed)
        again += self.asks.again()
        self._events = deque([*again, *queued])


def _end_daemon() -> NoReturn:
    """End at once, as if killed, so that nothing is lent on wrong sums. Programs keep what they have until the next
    daemon."""
    log.critical("the daemon ends: its state cannot be rebuilt")
    os._exit(SOFTWARE_ERROR)
