"""What the node counts, against what the world around it has seen happen: the figures of `/metrics`."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from core.tale import start
from gpushared.core.instructions import Attached, Denied, Granted, Instruction, Kill, Log, Notify, Terminate, Trim
from gpushared.core.policy import MIB, Policy
from property.world import World, mib

GIB = 1024 * MIB
GPU = "GPU-0"


class Counting(World):
    """Counts what it is told, and what comes of it."""

    def __init__(self, policy: Policy) -> None:
        self.seen: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self.waited = self.since = 0.0
        super().__init__([16 * GIB], [mib(300)], policy)

    def _obey(self, instruction: Instruction):
        match instruction:
            case Attached() | Granted():
                self.seen["grants"] += 1
                self.since = self.waiting[instruction.ask].since
            case Log(record=record) if record.event == "claim_met":  # told right behind the answer
                self.waited += self.now - self.since
                self.met[str(record.facts["rung"])] += 1
            case Denied(reason=reason):
                self.denied[reason.code.value] += 1
            case Trim():
                self.seen["trims"] += 1
            case Terminate():
                self.seen["terms"] += 1
            case Kill():
                self.seen["kills"] += 1
            case Notify(kind="relieved"):
                self.seen["relieved"] += 1
        return super()._obey(instruction)

    def _revoke(self, process: int, gpu: str, size: int):
        answer = super()._revoke(process, gpu, size)
        self.seen["revoked_bytes"] += answer.taken
        return answer

    def _act_on_trims(self) -> None:
        before = {one.id: one.words[GPU].used for one in self.programs.values() if GPU in one.words}
        due = [process for when, process, _ in self.trims if when <= self.now]
        given = {id: min(self.programs[id].caches.get(GPU, 0), before[id]) for id in due if id in before}
        super()._act_on_trims()
        self.seen["trimmed_bytes"] += sum(given.values())


def test_all_that_happens_is_counted_once() -> None:
    random = Random(3)
    world = Counting(Policy(overhead_guess=mib(300), claim_timeout=8.0, grace=2.0))
    for number in range(24):
        borrower = start(world, f"borrower-{number}", "none", "12Gi", on_reclaim=("trim", "term", "kill"))
        owner = start(world, f"owner-{number}", "8Gi", "8Gi")
        one = world.programs[borrower]
        one.listens, one.dawdle = random.random() < 0.7, 0.01
        for _ in range(5):
            world.allocate(borrower, GPU, random.randint(1, 4 * GIB) // 512 * 512)
        held = one.words[GPU].used
        one.caches[GPU] = random.choice([0, held // 4, held]) // 512 * 512
        heeds = random.random() < 0.5
        for _ in range(3):
            world.allocate(owner, GPU, random.randint(1, 4 * GIB) // 512 * 512)
            world.wait(random.choice([0.0, 0.05, 1.0]))
            if heeds and world.programs[borrower].job in {stopped.job for stopped in world.terminated}:
                world.free(borrower, GPU, held)
        world.wait(4.0)
        for process in (borrower, owner):
            if process in world.programs:
                job = world.programs[process].job
                world.exit(process)
                world.end(job)
        world.wait(1.0)
    counters = world.node.counters
    assert {name: getattr(counters, name) for name in world.seen} == dict(world.seen)
    assert counters.denials == world.denied
    assert {str(step): waits.count for step, waits in counters.claim_waits.items()} == world.met
    assert counters.claims == sum(world.met.values()), "none had to be refused"
    assert sum(waits.seconds for waits in counters.claim_waits.values()) == pytest.approx(world.waited)
    assert len(world.seen) == 7, "each of them happens"
    assert len(world.denied) > 0 and len(world.met) > 2


@pytest.mark.parametrize(("on_breach", "counted"), [("warn", (0, 0)), ("deny", (1, 0)), ("kill", (1, 1))])
def test_a_job_above_its_limit_is_counted_once_and_so_is_its_end(on_breach: str, counted: tuple[int, int]) -> None:
    world = World([16 * GIB], [mib(300)], Policy(overhead_guess=mib(300), on_breach=on_breach))
    one = start(world, "one", "4Gi", "8Gi")
    world.escape(world.programs[one].job, GPU, 9 * GIB)
    world.wait(5.0)
    counters = world.node.counters
    assert (counters.breaches, counters.kills_for_breach) == counted
    assert counters.kills == 0, "that is for what is asked back"
