"""A GPU that runs one kernel after the other, and programs that launch on it, in steps of a millisecond: for tests of
turns. Nothing in here knows how turns are decided."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gpushared.core.turns import Orders, Seen, Terms, Turns

STEP = 0.001
LOOK_EVERY = 4
"""Steps."""


@dataclass
class Program:
    """Launches `queued` kernels of `kernel` steps, waits for the GPU, pauses for so many steps, and so on."""

    name: str
    weight: float = 0.5
    kernel: int = 5
    queued: int = 1
    pause: int = 0
    length: float = 0.1
    stopped: bool = False
    closed: bool = False
    launched: bool = False
    waits: bool = False
    asked: bool = False
    """Whether the GPU is done, and no answer yet."""
    left: int = 0
    """Kernels that it still has to launch before it waits."""
    resumes: int = 0
    """The step at which its pause is over."""
    outstanding: int = 0
    ran: int = 0
    """Steps for which the GPU has worked for it."""
    waited_since: int | None = None
    longest_wait: int = 0

    def step(self, now: int, gpu: deque[Program]) -> None:
        if self.stopped:
            return
        if self.asked and self.outstanding == 0:
            self.asked = False
        if self.left == 0 and self.outstanding == 0 and now >= self.resumes:
            self.left = self.queued
        if self.left == 0:
            return
        if self.closed:
            self.waits = True
            self.waited_since = now if self.waited_since is None else self.waited_since
            self.longest_wait = max(self.longest_wait, now - self.waited_since)
            return
        self.waited_since, self.launched = None, True
        while self.left:
            self.left -= 1
            self.outstanding += 1
            gpu.append(self)

    def kernel_ended(self, now: int) -> None:
        self.outstanding -= 1
        if self.outstanding == 0:
            self.resumes = now + self.pause


@dataclass
class TurnWorld:
    programs: list[Program]
    terms: Terms = field(default_factory=Terms)
    now: int = 0
    looks: list[Orders] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turns = Turns(self.terms)
        self.gpu: deque[Program] = deque()
        self._left = 0

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP)):
            self.step()

    def step(self) -> None:
        for one in self.programs:
            one.step(self.now, self.gpu)
        self._compute()
        if self.now % LOOK_EVERY == 0:
            self._look()
        self.now += 1

    def kill(self, program: Program) -> None:
        """What it has launched is done all the same, as the GPU's present work is."""
        self.programs.remove(program)

    def shares(self) -> dict[str, float]:
        """Of the time for which the GPU has worked."""
        total = sum(one.ran for one in self.programs)
        return {one.name: one.ran / total for one in self.programs}

    def forget(self) -> None:
        for one in self.programs:
            one.ran = one.longest_wait = 0

    def _compute(self) -> None:
        if not self.gpu:
            return
        running = self.gpu[0]
        self._left = self._left or running.kernel
        self._left -= 1
        running.ran += 1
        if self._left == 0:
            self.gpu.popleft()
            running.kernel_ended(self.now)

    def _look(self) -> None:
        seen = [
            Seen(one.name, one.weight, one.length, one.launched, one.waits, not one.asked or one.stopped)
            for one in self.programs
        ]
        orders = self.turns.look(self.now * STEP, seen)
        self.looks.append(orders)
        for one in self.programs:
            one.closed, one.launched = one.name in orders.closed, False
            if not one.closed:
                one.waits = False
            one.asked |= one.name in orders.ask
