"""Random event sequences against the node core, every invariant checked after each event.

A few thousand events in the ordinary run; `make property EVENTS=200000 SEED=1` drives as many as one wants. The
run counts what it has seen and fails if it was shallow: claims, loans refused, victims asked, killed and relieved.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gpushare.job_spec import JobSpec
from gpushare.quantity import Kind, Quantity
from gpushare.reclaim_steps import ReclaimStep
from gpushared.core.events import (
    AskCancelled,
    BudgetChanged,
    Checkpointed,
    ReservationEnded,
    ResumeWanted,
    SuspendWanted,
)
from gpushared.core.policy import Policy
from property.driving import ROUND, drive
from property.world import World, mib

EVENTS = int(os.environ.get("GPUSHARE_TEST_EVENTS", "20000"))

GIB = 1024


def share(parts: int) -> Quantity:
    return Quantity(Kind.SHARE, parts * 10**7, f"{parts}%")


requests = st.one_of(
    st.sampled_from([0, 0, 5, 10, 25, 25, 40, 50, 60]).map(lambda parts: share(parts) if parts else NOTHING),
    st.integers(0, 16 * GIB).map(lambda amount: Quantity(Kind.BYTES, mib(amount), f"{amount}Mi")),
)
limits = st.one_of(
    st.sampled_from([50, 75, 90, 90]).map(share),
    st.just(Quantity(Kind.MAX, 0, "max")),
    st.just(Quantity(Kind.MAX, 0, "max")),
    st.just(None),
    st.integers(0, 16 * GIB).map(lambda amount: Quantity(Kind.BYTES, mib(amount), f"{amount}Mi")),
)
NOTHING = Quantity(Kind.NONE, 0, "none")
parts = st.one_of(st.floats(0.05, 0.7), st.floats(0.0, 0.05))
"""An allocation, as a part of the GPU."""
GPUS = ["GPU-0", "GPU-0", "GPU-0", "GPU-1"]
LADDER = ("trim", "term", "kill")
SOFTLY = ("trim", "suspend", "term", "kill")
HOOKED = ("trim", "hook", "term", "kill")
ALL = ("trim", "hook", "suspend", "term", "kill")
CALLS = st.lists(
    st.sampled_from(["ok", "ok", "ok", "part", "fails", "lies", "hangs", "silent", "gives and fails", "late"]),
    max_size=4,
)
"""How the calls of hooks go; all after these go well."""
WORK = st.lists(st.sampled_from(["ok", "ok", "ok", "refused", "failed", "silent"]), max_size=4)
"""How the pieces of work of a suspender go; all after these go well."""

seen: Counter[str] = Counter()


class Node(RuleBasedStateMachine):
    """Users, programs and an unkind environment."""

    @initialize(
        two=st.booleans(),
        total=st.sampled_from([2 * GIB, 16 * GIB, 24 * GIB]).map(mib),
        cost=st.integers(0, 64).map(mib) | st.integers(0, 512).map(mib) | st.just(900).map(mib),
        unkind=st.booleans(),
        jobs=st.lists(st.tuples(requests, limits, st.integers(-1, 2)), min_size=2, max_size=5),
        steps=st.sampled_from([LADDER, SOFTLY, HOOKED, ALL]),
        host=st.sampled_from([2**60, 2**60, mib(3 * GIB)]),
        takes=st.sampled_from([0.1, 0.1, 1.0]),
        idle=st.sampled_from([None, None, None, 3.0, 10.0]),
        work=WORK,
        calls=CALLS,
    )
    def start(self, two, total, cost, unkind, jobs, steps, host, takes, idle, work, calls) -> None:
        count = 2 if two else 1
        self.unkind = unkind
        self.world = World([total] * count, [cost] * count, Policy(suspend_memory=host))
        self.world.suspender_takes = self.world.hooks.takes = takes
        self.idle, self.world.shows_busy = idle, idle is not None
        for request, limit, priority in jobs:
            self.submit(request, limit, 1, priority, None, True, None, 0.0, steps, work, calls, True)
        for index, job in enumerate(sorted(self.world.node.jobs)):
            process = self.join(job)
            self.world.attach(process, sorted(self.world.total)[index % count])

    # ---- users -------------------------------------------------------------------------------------

    @rule(
        request=requests,
        limit=limits,
        gpus=st.sampled_from([0, 1, 1, 1, 2]),
        priority=st.integers(-1, 2),
        grace=st.sampled_from([None, 0.0, 1.0, 10.0]),
        lend=st.sampled_from([True, True, True, False]),
        wait=st.sampled_from([None, None, 5.0, 60.0]),
        protected=st.sampled_from([0.0, 0.0, 0.0, 20.0]),
        rungs=st.sampled_from(
            [LADDER, LADDER, LADDER, ("term", "kill"), ("trim", "kill"), ("kill",), SOFTLY, SOFTLY, HOOKED, HOOKED, ALL]
        ),
        work=WORK,
        calls=CALLS,
        wakes=st.sampled_from([True, True, False]),
    )
    def submit(self, request, limit, gpus, priority, grace, lend, wait, protected, rungs, work, calls, wakes) -> None:
        if limit is None:  # it chose to borrow nothing
            limit = request if request.resolve(mib(GIB)) else Quantity(Kind.MAX, 0, "max")
        if request.resolve(mib(GIB)) > limit.resolve(mib(GIB)):
            request, limit = limit, request
        spec = JobSpec(
            "job", 1000, "user", ("python",), request, limit, gpus, None, priority, grace, lend, protected, rungs
        )._replace(idle_release=self.idle)
        job = self.world.submit(spec, wait)
        if "suspend" in rungs and job in self.world.node.jobs:
            self.world.suspender_comes(job, *work, "ok")
        if "hook" in rungs and job in self.world.node.jobs:
            self.world.hooks.come(job, *calls, "ok", wakes=wakes)

    @rule(
        request=requests,
        gpus=st.sampled_from([1, 1, 2]),
        lasting=st.sampled_from([None, 2.0, 30.0]),
        use=st.sampled_from([None, NOTHING, share(10), share(25)]),
    )
    def reserve(self, request, gpus, lasting, use) -> None:
        """Keep memory; and perhaps start a job in it."""
        name = f"kept{len(self.world.reservations)}"
        spec = JobSpec(name, 1000, "user", (), request, Quantity(Kind.MAX, 0, "max"), gpus)
        made = self.world.reserve(spec, lasting)
        if made is not None and use is not None:
            inside = JobSpec("in", 1000, "user", ("x",), use, Quantity(Kind.MAX, 0, "max"), reservation=made)
            self.world.submit(inside)

    @precondition(lambda self: self.world.reservations)
    @rule(pick=st.integers(0, 99))
    def release(self, pick) -> None:
        self.world.send(ReservationEnded(self._pick(self.world.reservations, pick)))

    @precondition(lambda self: self.world.node.jobs)
    @rule(
        pick=st.integers(0, 99),
        request=st.none() | requests,
        limit=st.none() | limits,
        priority=st.none() | st.integers(-1, 2),
    )
    def change_budget(self, pick, request, limit, priority) -> None:
        if limit is not None:
            self.world.note_limit(limit)
        self.world.send(BudgetChanged(self._job(pick), request, limit, priority))

    @precondition(lambda self: self.world.node.jobs)
    @rule(pick=st.integers(0, 99))
    def checkpoint(self, pick) -> None:
        """Its work is saved: there is less to lose with it."""
        self.world.send(Checkpointed(self._job(pick)))

    @precondition(lambda self: self.world.node.jobs)
    @rule(pick=st.integers(0, 99))
    def end_job(self, pick) -> None:
        if pick % 3 == 0:
            self.world.end(self._job(pick))

    # ---- suspending --------------------------------------------------------------------------------

    @precondition(lambda self: self.world.suspenders)
    @rule(pick=st.integers(0, 99), work=WORK)
    def suspender_ends(self, pick, work) -> None:
        """And another comes: the wrapper starts it."""
        job = self._pick(sorted(self.world.suspenders), pick)
        if pick % 3 == 0:
            self.world.suspender_goes(job)
        if pick % 6 == 0 and job in self.world.node.jobs:
            self.world.suspender_comes(job, *work, "ok")

    @precondition(lambda self: self.world.hooks.modes)
    @rule(pick=st.integers(0, 99), calls=CALLS)
    def runner_of_hooks_ends(self, pick, calls) -> None:
        job = self._pick(sorted(self.world.hooks.modes), pick)
        if pick % 3 == 0:
            self.world.hooks.go(job)
        if pick % 6 == 0 and job in self.world.node.jobs:
            self.world.hooks.come(job, *calls, "ok")

    @precondition(lambda self: self.world.suspenders)
    @rule(pick=st.integers(0, 99), wanted=st.booleans())
    def somebody_wants_it(self, pick, wanted) -> None:
        job = self._pick(sorted(self.world.suspenders), pick)
        for gpu in self.world.total:
            self.world.send(self.world._used_seen(gpu))
        if job in self.world.node.jobs:
            self.world.send(SuspendWanted(job) if wanted else ResumeWanted(job))

    @precondition(lambda self: self._idle_programs())
    @rule(pick=st.integers(0, 99), what=st.sampled_from(["", "managed memory"]))
    def pin(self, pick, what) -> None:
        """It takes memory that cannot leave the GPU, or frees it."""
        self.world.programs[self._pick(self._idle_programs(), pick)].pinned = what if pick % 4 == 0 else ""

    # ---- programs ----------------------------------------------------------------------------------

    def join(self, job: str) -> int:
        """Three of four programs listen to being asked to trim; some are slow to act, or never do."""
        process = self.world.join(job)
        one = self.world.programs[process]
        one.slow = process % 3 == 0
        one.listens, one.dawdle = process % 4 != 0, [0.0, 0.01, 0.3, 1.5, 60.0][process % 5]
        return process

    @precondition(lambda self: self.world.node.jobs)
    @rule(pick=st.integers(0, 99), gpu=st.sampled_from(GPUS))
    def start_program(self, pick, gpu) -> None:
        process = self.join(self._job(pick))
        if gpu in self.world.total:
            self.world.attach(process, gpu)

    @precondition(lambda self: self._idle_programs())
    @rule(pick=st.integers(0, 99), gpu=st.sampled_from(GPUS))
    def open_context(self, pick, gpu) -> None:
        if gpu in self.world.total:
            self.world.attach(self._pick(self._idle_programs(), pick), gpu)

    @precondition(lambda self: self._attached())
    @rule(pick=st.integers(0, 99), part=parts)
    def allocate(self, pick, part) -> None:
        process, gpu = self._pick(self._attached(), pick)
        self.world.allocate(process, gpu, max(512, int(self.world.total[gpu] * part) // 512 * 512))

    @precondition(lambda self: self._attached())
    @rule(pick=st.integers(0, 99), part=st.floats(0.1, 1), kept=st.sampled_from([0.0, 0.0, 0.1, 0.5, 0.9, 1.0]))
    def borrow(self, pick, part, kept) -> None:
        """Grow into what is free; some of all that it uses its allocator only keeps for later."""
        if not self._attached():
            return
        process, gpu = self._pick(self._attached(), pick)
        published = self.world.node.published(gpu, [process])
        size = int(published[process].grantable * part) // 512 * 512 if process in published else 0
        if size:
            self.world.allocate(process, gpu, size)
        one = self.world.programs[process]
        one.caches[gpu] = int(one.words[gpu].used * kept) // 512 * 512

    @precondition(lambda self: self._attached())
    @rule(
        order=st.permutations(range(5)),
        rest=st.sampled_from([0.0, 0.0, 0.5]),
        kept=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
        pick=st.integers(0, 99),
        then=st.sampled_from([0.0, 0.0, 0.5, 3.0, 12.0]),
    )
    def squeeze(self, order, rest, kept, pick, then) -> None:
        """Everybody borrows what there is, then somebody claims, and has time to get it."""
        for index in order:
            self.borrow(index, 1 - rest, kept)
        self.claim(pick, 1.0)
        self.world.wait(then)

    @precondition(lambda self: self._attached())
    @rule(pick=st.integers(0, 99), part=st.floats(0.1, 1))
    def claim(self, pick, part) -> None:
        """Grow within the request."""
        owners = [(process, gpu) for process, gpu in self._attached() if self._headroom(process, gpu) > 512]
        if owners:
            process, gpu = self._pick(owners, pick)
            headroom = self._headroom(process, gpu)
            self.world.allocate(process, gpu, max(512, int(headroom * part) // 512 * 512))

    @precondition(lambda self: self._attached())
    @rule(order=st.permutations(range(5)), pick=st.integers(0, 99), stays=st.sampled_from([0.3, 1.5, 6.0]))
    def owner_comes_and_goes(self, order, pick, stays) -> None:
        """What others give back for a claim, by their hooks or suspended, they have again after it."""
        self.squeeze(order, 0.0, 0.0, pick, stays)
        for process, gpu in self._attached():
            if self._headroom(process, gpu) <= self.world.total[gpu] // 50:
                self.world.free(process, gpu, self.world.programs[process].words[gpu].used)
        self.world.wait(6.0)

    @precondition(lambda self: self._attached())
    @rule(pick=st.integers(0, 99), share=st.floats(0, 1))
    def free(self, pick, share) -> None:
        process, gpu = self._pick(self._attached(), pick)
        used = self.world.programs[process].words[gpu].used
        self.world.free(process, gpu, int(used * share) // 512 * 512)

    @precondition(lambda self: self._attached())
    @rule(pick=st.integers(0, 99))
    def close_context(self, pick) -> None:
        self.world.detach(*self._pick(self._attached(), pick))

    @precondition(lambda self: self._attached())
    @rule(pick=st.integers(0, 99))
    def open_another_context(self, pick) -> None:
        self.world.attach(*self._pick(self._attached(), pick), another=True)

    @precondition(lambda self: self._attached())
    @rule(pick=st.integers(0, 99))
    def close_one_context(self, pick) -> None:
        self.world.close_one(*self._pick(self._attached(), pick))

    @precondition(lambda self: self.world.programs and self.world.shows_busy)
    @rule(pick=st.integers(0, 99), computes=st.sampled_from([True, False, False]))
    def compute(self, pick, computes) -> None:
        """It launches kernels from now on, or is idle."""
        self.world.programs[self._pick(sorted(self.world.programs), pick)].computes = computes

    @precondition(lambda self: self.world.programs)
    @rule(pick=st.integers(0, 99), lag=st.sampled_from([0.0, 0.0, 0.3, 3.0]))
    def exit(self, pick, lag) -> None:
        if pick % 2 == 0:
            self.world.exit(self._pick(sorted(self.world.programs), pick), lag)

    @precondition(lambda self: self._idle_programs())
    @rule(pick=st.integers(0, 99), lasting=st.sampled_from([0.001, 0.3, 3.0]), size=parts)
    def die(self, pick, lasting, size) -> None:
        """One is killed; a sibling, or the next process of the job, asks before anybody is told."""
        if pick % 3:
            return
        process = self._pick(self._idle_programs(), pick)
        job = self.world.programs[process].job
        self.world.die(process, lasting)
        siblings = [(one, gpu) for one, gpu in self._attached() if self.world.programs[one].job == job]
        for one, gpu in siblings[:1]:
            self.world.allocate(one, gpu, max(512, int(self.world.total[gpu] * size) // 512 * 512))
        self.world.wait(0.001)

    @precondition(lambda self: self.world.terminated)
    @rule(share=st.floats(0.5, 1), pick=st.integers(0, 99))
    def give_back(self, share, pick) -> None:
        """A program that was sent SIGTERM frees memory."""
        job = self._pick(self.world.terminated, pick).job
        for process, gpu in self._attached():
            if self.world.programs[process].job == job:
                word = self.world.programs[process].words[gpu]
                self.world.free(process, gpu, int(word.used * share) // 512 * 512)

    @precondition(lambda self: self.world.waiting)
    @rule(pick=st.integers(0, 99))
    def give_up(self, pick) -> None:
        ask = self._pick(sorted(self.world.waiting), pick)
        del self.world.waiting[ask]
        self.world.send(AskCancelled(ask))

    # ---- the environment ---------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.001, 0.1, 1.0, 3.0, 6.0, 12.0, 40.0]))
    def time_passes(self, seconds) -> None:
        self.world.wait(seconds)

    @precondition(lambda self: self.world.programs)
    @rule(pick=st.integers(0, 99), stubborn=st.booleans())
    def hang(self, pick, stubborn) -> None:
        """A process that SIGKILL does not end while it is in the driver."""
        self.world.programs[self._pick(sorted(self.world.programs), pick)].stubborn = stubborn
        self.world.ever_stubborn = self.world.ever_stubborn or stubborn

    @precondition(lambda self: self.unkind)
    @rule(gpu=st.sampled_from(GPUS), amount=st.integers(0, 16 * GIB).map(mib))
    def outsider(self, gpu, amount) -> None:
        if gpu in self.world.total:
            self.world.occupy(gpu, amount)

    @precondition(lambda self: self.unkind and self.world.node.jobs)
    @rule(pick=st.integers(0, 99), gpu=st.sampled_from(GPUS), amount=st.integers(1, 4 * GIB).map(mib))
    def escape(self, pick, gpu, amount) -> None:
        """A static program of a job, which keeps to nothing; and now and then one of them ends."""
        if pick % 4 == 0 and self.world.unhooked:
            _, where, _ = self.world.unhooked.pop(self._pick(sorted(self.world.unhooked), pick))
            self.world.send(self.world._sample(where))
        elif gpu in self.world.total and len(self.world.unhooked) < 3:
            room = self.world.node.gpus[gpu].free
            self.world.escape(self._job(pick), gpu, min(amount, max(512, room)))

    @precondition(lambda self: self.world.programs)
    @rule(pick=st.integers(0, 99), stopped=st.sampled_from([True, False, False]))
    def stop_or_go_on(self, pick, stopped) -> None:
        """A program that is stopped (SIGSTOP) acts on no trim; the one that goes on does so late."""
        self.world.pause(self._pick(sorted(self.world.programs), pick), stopped)

    @precondition(lambda self: self.world.trims)
    @rule(really=st.integers(0, 4))
    def daemon_restarts_while_a_program_trims(self, really) -> None:
        if not really:
            self.world.restart()
            seen["restarts while trimming"] += 1

    @precondition(lambda self: self.world.programs)
    @rule(pick=st.integers(0, 99), lag=st.sampled_from([0.0, 0.3, 3.0]), gpu=st.sampled_from(GPUS))
    def exec(self, pick, lag, gpu) -> None:
        """The same process id, another program; the driver takes its time with what the first one had."""
        idle = self._idle_programs()
        if idle and pick % 2 == 0:
            fresh = self.world.exec(self._pick(idle, pick), lag)
            if gpu in self.world.total and fresh is not None:
                self.world.attach(fresh, gpu)

    @rule(really=st.integers(0, 4))
    def daemon_restarts(self, really) -> None:
        if not really:
            self.world.restart()

    # ---- picking -----------------------------------------------------------------------------------

    @staticmethod
    def _pick(choices, pick):
        return choices[pick % len(choices)]

    def _job(self, pick) -> str:
        return self._pick(sorted(self.world.node.jobs), pick)

    def _headroom(self, process, gpu) -> int:
        job = self.world.programs[process].job
        return self.world.node.jobs[job].bounds[gpu].request - self.world.usage(job, gpu)

    def _busy(self) -> set[int]:
        return {one.program for one in (*self.world.waiting.values(), *self.world.takes)}

    def _idle_programs(self) -> list[int]:
        alive = [process for process, one in sorted(self.world.programs.items()) if one.ends_at is None]
        return [process for process in alive if process not in self._busy() and not self.world.is_stopped(process)]

    def _attached(self) -> list[tuple[int, str]]:
        return [
            (process, gpu) for process in self._idle_programs() for gpu in sorted(self.world.programs[process].contexts)
        ]

    def teardown(self) -> None:
        world = getattr(self, "world", None)
        if world is None:
            return
        seen["events"] += world.events
        seen["plain grants"] += world.plain_grants
        seen["late takes"] += world.late_takes
        seen["repeated asks"] += world.repeated
        seen["trims"] += world.trim_count
        met = world.node.counters.claim_waits.get(ReclaimStep.TRIM)
        seen["trims met"] += met.count if met is not None else 0
        seen["trims of idle jobs"] += world.idle_trims
        seen["terms"] += len(world.terminated)
        seen["kills"] += len(world.killed)
        seen["suspends"] += world.suspends
        seen["resumes"] += world.resumes
        seen["hooks"] += world.hooks.reliefs
        seen["allocations in a resume hook"] += world.hooks.woken
        seen["jobs that a suspension ended"] += sum(one.reason.code == "suspend_stuck" for one in world.killed)
        seen["claims"] += world.claims + world.node.counters.claims
        seen["relieved"] += world.relieved + world.node.counters.relieved
        for refusal in world.refusals:
            seen[refusal.reason.code.value] += 1


@pytest.mark.timeout(600 + EVENTS // 50)  # until it has seen all that it is to see: 46 s alone, minutes beside others
def test_invariants_hold_after_each_of_many_random_events() -> None:
    wanted = (
        "plain grants",
        "claims",
        "trims",
        "trims met",
        "trims of idle jobs",
        "terms",
        "kills",
        "suspends",
        "resumes",
        "hooks",
        "allocations in a resume hook",
        "jobs that a suspension ended",
        "relieved",
        "not_free",
        "over_limit",
        "not_admitted",
        "late takes",
    )
    drive(Node, EVENTS, wanted, examples=ROUND // 4)  # more seeds: one may show little of what is wanted
