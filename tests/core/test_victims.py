"""Whom a claim stops, from the events to the signals: the promise of --priority, judged by what an onlooker knows."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import pytest

from core.least_harm import Candidate, by_table, of_all_sets
from core.tale import start, used
from gpushare.quantity import Quantity
from gpushared.core.events import BudgetChanged, Checkpointed
from gpushared.core.instructions import Instruction, Kill, Terminate
from gpushared.core.policy import MIB, Policy
from property.world import World, mib

GIB = 1024 * MIB
CASES = max(50, int(os.environ.get("GPUSHARE_TEST_EVENTS", "20000")) // 400)
NO_TRIM = ("term", "kill")


class Onlooker:
    """Keeps what is known of the jobs on one GPU, and says at the first stop of a claim whom the order names."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.owner = start(world, "owner", "40Gi", "40Gi")
        self.since: dict[str, float] = {}
        self.active: dict[str, float] = {}
        self.busy: set[int] = set()
        self.told: set[str] = set()
        self.claimed = 0
        self.expected: set[str] | None = None
        sample, obey = world._sample, world._obey
        world._sample = lambda gpu: replace(sample(gpu), busy=frozenset(self.busy))
        world._obey = lambda one: (self._note(one), obey(one))[1]

    def borrower(self, size: int, **more: object) -> str:
        process = start(self.world, "some", "none", "max", **more)
        job = self.world.programs[process].job
        if self.world.programs[process].contexts:  # else nothing is free, not even for a context
            self.since[job] = self.active[job] = self.world.now
            self.world.allocate(process, "GPU-0", size // 512 * 512)
            self.world.send(self.world._sample("GPU-0"))
        return job

    def process(self, job: str) -> int:
        return next(one.id for one in self.world.programs.values() if one.job == job)

    def minutes_pass(self, count: int, busy: set[str]) -> None:
        """These compute all the time."""
        world = self.world
        self.busy = {one.pid for one in world.programs.values() if one.job in busy}
        world.send(world._sample("GPU-0"))
        world.now += 60.0 * count + 7.0
        world.send(world._sample("GPU-0"))
        self.active |= dict.fromkeys(busy, world.now)

    def claim(self, size: int) -> set[str]:
        """Who was asked to go for it."""
        self.claimed, self.expected = size, None
        before = len(self.world.terminated), len(self.world.killed)
        self.world.allocate(self.owner, "GPU-0", size)
        asked = {one.job for one in self.world.terminated[before[0] :]}
        return asked | {one.job for one in self.world.killed[before[1] :]}

    def shortfall(self) -> int:
        """The owner has taken what it had; the rest of the claim is what it waits for."""
        world = self.world
        (ask,) = [asked.size for asked in world.waiting.values()]
        held = sum(world.usage(job, "GPU-0") for job in world.node.jobs)
        return held + ask - world.node.gpus["GPU-0"].capacity

    def candidates(self, among: set[str] | None = None) -> list[Candidate]:
        world = self.world
        found = []
        for job, since in self.since.items():
            if job not in world.node.jobs or (among is not None and job not in among):
                continue
            known = world.node.jobs[job]
            if among is None and world.now - since < known.spec.min_run_time:
                continue
            usage = world.usage(job, "GPU-0")
            allocated = sum(one.words["GPU-0"].used for one in world.programs.values() if one.job == job)
            found.append(
                Candidate(
                    job,
                    world.loan(job, "GPU-0"),
                    known.spec.priority,
                    allocated > known.bounds["GPU-0"].limit,
                    int((world.now - self.active[job]) / 60),
                    usage * (world.now - max(since, known.saved_at)),
                )
            )
        return found

    def _note(self, one: Instruction) -> None:
        if isinstance(one, Terminate | Kill) and self.expected is None:
            among = self.told if isinstance(one, Kill) and one.job in self.told else None
            candidates = self.candidates(among)
            judge = of_all_sets if len(candidates) <= 10 else by_table
            self.expected = judge(self.shortfall(), candidates)


@pytest.fixture
def world() -> World:
    return large()


def large() -> World:
    """One GPU of 80 GiB; a context costs 300 MiB."""
    return World([80 * GIB], [mib(300)], Policy(overhead_guess=mib(300)))


# ---- the promise -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lows", [2, 15, 30])
def test_a_job_of_high_priority_is_left_alone_while_loans_of_lower_priority_cover_the_claim(
    world: World, lows: int
) -> None:
    onlooker = Onlooker(world)
    vip = onlooker.borrower(22 * GIB, priority=100)
    low = {onlooker.borrower(40 * GIB // lows) for _ in range(lows)}
    stopped = onlooker.claim(36 * GIB)
    assert vip not in stopped
    assert len(stopped) > 1
    assert stopped <= low
    world.wait(40.0)
    assert not world.waiting
    assert not any(world.node.counters.violations.values())
    assert vip in world.node.jobs


def test_it_is_stopped_where_they_do_not(world: World) -> None:
    onlooker = Onlooker(world)
    vip = onlooker.borrower(30 * GIB, priority=100)
    onlooker.borrower(3 * GIB)
    onlooker.borrower(14 * GIB, min_run_time=1000.0)
    assert onlooker.claim(38 * GIB) == {vip}


def test_a_changed_priority_counts_at_once(world: World) -> None:
    onlooker = Onlooker(world)
    first = onlooker.borrower(20 * GIB, priority=3)
    second = onlooker.borrower(20 * GIB, priority=2)
    world.send(BudgetChanged(first, priority=1))
    assert onlooker.claim(39 * GIB) == {first}
    assert second in world.node.jobs


def test_a_protected_job_is_no_victim_whatever_its_priority(world: World) -> None:
    onlooker = Onlooker(world)
    young = onlooker.borrower(20 * GIB, priority=-1, min_run_time=60.0)
    old = onlooker.borrower(20 * GIB, priority=1, min_run_time=59.0)
    world.now += 59.0
    assert onlooker.claim(39 * GIB) == {old}
    assert young in world.node.jobs


def test_caches_of_a_high_priority_come_back_before_anybody_of_a_low_one_is_stopped(world: World) -> None:
    """The rung comes first: giving a cache back harms nobody."""
    onlooker = Onlooker(world)
    vip = onlooker.borrower(20 * GIB, priority=100)
    low = onlooker.borrower(20 * GIB, on_reclaim=NO_TRIM)
    one = world.programs[onlooker.process(vip)]
    one.listens, one.caches["GPU-0"] = True, 15 * GIB
    assert onlooker.claim(39 * GIB) == set()
    world.wait(5.0)
    assert not world.terminated
    assert not world.waiting
    assert used(world, one.id) == 5 * GIB
    assert low in world.node.jobs


def test_of_the_caches_those_of_low_priority_are_asked_for_first(world: World) -> None:
    onlooker = Onlooker(world)
    caches = {}
    for priority in (5, 0, 0):
        job = onlooker.borrower(13 * GIB, priority=priority)
        one = world.programs[onlooker.process(job)]
        one.listens, one.caches["GPU-0"], one.dawdle = True, 13 * GIB, 0.01
        caches[job] = priority
    onlooker.claim(39 * GIB)
    world.wait(1.0)
    assert {caches[job] for job, _ in world.trimmed} == {0}
    assert not world.waiting


# ---- who has been told -----------------------------------------------------------------------------


def test_who_has_been_told_counts_before_others_of_lower_priority(world: World) -> None:
    """Two would be harmed: SIGTERM ends most programs at once."""
    onlooker = Onlooker(world)
    vip = onlooker.borrower(20 * GIB, priority=100, grace=5.0)
    low = onlooker.borrower(20 * GIB, min_run_time=2.0)
    assert onlooker.claim(39 * GIB) == {vip}
    world.wait(20.0)
    assert [one.job for one in world.killed] == [vip]
    assert low in world.node.jobs
    assert not world.waiting


def test_while_one_of_low_priority_is_in_its_grace_one_of_high_priority_is_not_killed(world: World) -> None:
    onlooker = Onlooker(world)
    vip = onlooker.borrower(22 * GIB, priority=100, grace=2.0)
    low = onlooker.borrower(22 * GIB, grace=8.0)
    young = onlooker.borrower(30 * GIB, min_run_time=1000.0)
    assert onlooker.claim(39 * GIB) == {vip, low}
    world.free(onlooker.process(young), "GPU-0", 15 * GIB)
    world.wait(6.0)
    assert not world.killed
    world.wait(6.0)
    assert [one.job for one in world.killed] == [low]
    assert vip in world.node.jobs


def test_one_of_low_priority_is_killed_although_one_of_high_priority_is_still_in_its_grace(world: World) -> None:
    onlooker = Onlooker(world)
    vip = onlooker.borrower(22 * GIB, priority=100, grace=8.0)
    low = onlooker.borrower(22 * GIB, grace=2.0)
    young = onlooker.borrower(30 * GIB, min_run_time=1000.0)
    assert onlooker.claim(39 * GIB) == {vip, low}
    world.free(onlooker.process(young), "GPU-0", 15 * GIB)
    world.wait(6.0)
    assert [one.job for one in world.killed] == [low]
    world.wait(6.0)
    assert vip in world.node.jobs
    assert len(world.killed) == 1
    assert [one.kind for one in world.told if one.job == vip] == ["relieved"]


# ---- random nodes ----------------------------------------------------------------------------------


def random_node(random: Random, count: int) -> Onlooker:
    """Borrowers of several classes that idle, save, are protected, are lowered; nothing is free at the end."""
    world = large()
    onlooker = Onlooker(world)
    classes = random.choice([[0], [0, 100], [-1, 0, 1], [0, 0, 0, 100]])
    for number in range(count):
        onlooker.borrower(
            random.randint(1, 2 * 78 * GIB // count),
            priority=random.choice(classes),
            min_run_time=random.choice([0.0, 0.0, 0.0, 90.0, 5000.0]),
            on_reclaim=random.choice([NO_TRIM, NO_TRIM, ("trim", "term", "kill"), ("kill",)]),
            grace=2.0,
        )
        if number % 4 == 0:
            world.now += random.choice([0.0, 1.0, 61.0])
            world.send(world._sample("GPU-0"))
    for job in random.sample(sorted(onlooker.since), count // 5):
        lowered = Quantity.parse(f"{random.randint(1, 4)}Gi")
        changes = [BudgetChanged(job, limit=lowered), BudgetChanged(job, priority=7), Checkpointed(job)]
        world.send(random.choice(changes))
    for _ in range(random.randint(0, 3)):
        onlooker.minutes_pass(random.randint(0, 3), {job for job in onlooker.since if random.random() < 0.6})
    return onlooker


def test_the_first_to_be_stopped_are_those_whom_the_order_names() -> None:
    random = Random(1)
    sizes = []
    for _ in range(CASES):
        onlooker = random_node(random, random.randint(1, 24))
        asked = onlooker.claim(random.randint(1, 40 * GIB - mib(300)) // 512 * 512)
        assert asked == (onlooker.expected or set())
        if not asked and onlooker.world.waiting:
            assert sum(one.loan for one in onlooker.candidates()) < onlooker.shortfall()
        sizes.append(len(asked))
    assert sum(size > 1 for size in sizes) > CASES / 4, "nearly all cases are trivial"


def test_of_those_who_were_told_those_are_killed_whom_the_order_names() -> None:
    """They and others give something back in their grace; then fewer are needed."""
    random = Random(2)
    sizes = []
    for _ in range(CASES):
        onlooker = random_node(random, random.randint(2, 20))
        world = onlooker.world
        asked = onlooker.claim(random.randint(20 * GIB, 40 * GIB - mib(300)) // 512 * 512)
        at_once = {one.job for one in world.killed}
        if not asked or at_once:
            continue
        onlooker.told, onlooker.expected = asked, None
        for job in sorted(onlooker.since):
            if random.random() < 0.3:
                given = int(used(world, onlooker.process(job)) * random.choice([0.1, 0.5, 0.9])) // 512 * 512
                world.free(onlooker.process(job), "GPU-0", given)
                onlooker.active[job] = world.now
        world.wait(0.0)
        world.wait(2.6)
        killed = {one.job for one in world.killed}
        assert killed == (onlooker.expected or set())
        assert not world.waiting or killed
        sizes.append(len(asked) - len(killed))
    assert sum(size > 0 for size in sizes) > 3, "all who were told were killed"


def test_who_has_given_back_is_told_so_while_others_still_owe() -> None:
    world = World([16 * GIB], [0], Policy(chunk=0, overhead_guess=0))
    borrowers = [start(world, name, "none", "8Gi", on_reclaim=NO_TRIM, grace=20.0) for name in ("one", "other")]
    for process in borrowers:
        world.programs[process].stubborn = True
        world.allocate(process, "GPU-0", 7 * GIB)
    owner = start(world, "owner", "14Gi", "14Gi")
    world.allocate(owner, "GPU-0", 14 * GIB)
    one, other = (world.node.jobs[world.programs[process].job] for process in borrowers)
    assert one.reclaims and other.reclaims
    world.free(borrowers[0], "GPU-0", 7 * GIB)
    world.wait(1.0)
    assert used(world, owner) < 14 * GIB and other.reclaims
    assert not one.reclaims, "it is no borrower any more"
