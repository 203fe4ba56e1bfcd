"""Owners come and go on a GPU, and borrowers want more than there is: some may be suspended, others only stopped.

Nobody is odd here: programs take what they want and work until they are done, and a job that was stopped is started
again. What is counted is by which reclaim step claims were met.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from core.tale import spec
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core.events import Event
from gpushared.core.instructions import Instruction
from gpushared.core.policy import GIB, MIB, Policy
from property.world import Program, World

GPU = "GPU-0"
SUSPENDABLE = ("trim", "suspend", "term", "kill")
OTHERS = ("trim", "term", "kill")
PIECE = 256 * MIB
TRIES_AGAIN = 3.0
"""Seconds after which a borrower that was refused a loan asks again."""


class QuickWorld(World):
    """Each grant is made once: other tests compare the two ways of it."""

    def _handle(self, event: Event) -> list[Instruction]:
        return self.node.handle(event, self.now)


@dataclass
class Part:
    """What one user plays: jobs, one after the other."""

    on_reclaim: tuple[str, ...]
    owns: bool
    next_at: float
    """When the next job starts."""
    job: str = ""
    process: int = 0
    wants: int = 0
    works_until: float = 0.0
    """What it waits is added."""
    asks_again: float = 0.0


class Mixture:
    """One GPU of 16 GiB and its users, by dice."""

    def __init__(self, seed: int, *, suspendable: int, others: int, owners: int, claims: tuple[float, float]) -> None:
        """So many jobs of each kind at a time. `claims`: the least and the most that an owner wants, in GiB."""
        self.dice = random.Random(seed)
        self.world = QuickWorld([16 * GIB], [300 * MIB], Policy(overhead_guess=300 * MIB))
        self.claims = claims
        kinds = [SUSPENDABLE] * suspendable + [OTHERS] * others
        self.parts = [Part(kind, owns=False, next_at=self._soon(10)) for kind in kinds]
        self.parts += [Part(OTHERS, owns=True, next_at=30 + self._soon(20)) for _ in range(owners)]
        self.usage: list[int] = []
        """Once a second, after the first minute."""

    def _soon(self, most: float) -> float:
        return self.world.now + self.dice.uniform(0, most)

    def play(self, seconds: float) -> None:
        begun = self.world.now
        while self.world.now < begun + seconds:
            for part in self.parts:
                self._act(part)
            self.world.wait(1.0)
            if self.world.now > begun + 60:
                self.usage.append(self.world.node.gpus[GPU].usage)

    def met(self) -> Counter[ReclaimStep]:
        """Claims that needed others' loans, by the highest step that was taken for them."""
        waits = self.world.node.counters.claim_waits
        return Counter({step: waits[step].count for step in waits if step > ReclaimStep.REVOKE})

    # ---- one user ------------------------------------------------------------------------------------

    def _act(self, part: Part) -> None:
        world, one = self.world, self.world.programs.get(part.process)
        if one is None:
            if part.job in world.node.jobs:
                world.end(part.job)  # it was stopped
            if part.job:
                part.job, part.next_at = "", self._soon(5)
            elif world.now >= part.next_at:
                self._start(part)
        elif world.is_stopped(one.id) or any(asked.program == one.id for asked in world.waiting.values()):
            part.works_until += 1.0
        elif GPU not in one.contexts:
            world.attach(one.id, GPU)  # it was refused a moment ago
        elif world.now >= part.works_until:
            self._end(part, one)
        else:
            self._work(part, one)

    def _start(self, part: Part) -> None:
        world = self.world
        if part.owns:
            part.wants = int(self.dice.uniform(*self.claims) * GIB)
            amounts = (f"{part.wants // MIB + 400}Mi",) * 2
        else:
            part.wants, amounts = int(self.dice.uniform(1, 4) * GIB), ("none", "15Gi")
        job = world.submit(spec("job", *amounts, on_reclaim=part.on_reclaim))
        if job not in world.node.jobs:
            return  # no room for its request: later
        part.job, part.process = job, world.join(job)
        part.works_until = world.now + 5 + self.dice.expovariate(1 / (20 if part.owns else 300))
        if "suspend" in part.on_reclaim:
            world.suspender_comes(job, "ok")
        world.attach(part.process, GPU)

    def _end(self, part: Part, one: Program) -> None:
        self.world.exit(one.id, lag=0.1)
        self.world.end(part.job)
        self.world.suspenders.pop(part.job, None)
        part.job, part.process, part.next_at = "", 0, self._soon(40 if part.owns else 5)

    def _work(self, part: Part, one: Program) -> None:
        """It takes what it lacks, in pieces, as far as it gets it; now and then a borrower frees something."""
        world, used = self.world, one.words[GPU].used
        lacks = (part.wants - used) // 512 * 512
        if lacks <= 0:
            if not part.owns and self.dice.random() < 0.02:
                world.free(one.id, GPU, used // 3 // 512 * 512)
        elif part.owns:
            world.allocate(one.id, GPU, lacks if self.dice.random() < 0.5 else max(512, lacks // 1024 * 512))
        elif world.now >= part.asks_again:
            world.allocate(one.id, GPU, min(lacks, PIECE))
            if one.words[GPU].used == used:  # it was refused
                part.asks_again = world.now + TRIES_AGAIN
